"""How long the last good probes of each backend took. Pure.

A histogram for each of ten thousand backends would be most of what a master holds and shows. The last times themselves
take 256 bytes a backend, and are put in order only when somebody looks.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Final

KEPT: Final = 64
_DIGITS: Final = 6
"""A time is kept in four bytes, which is exact to a microsecond for times of seconds."""


class ProbeTimes:
    """The last KEPT times of each backend, in seconds; nothing is held of a backend before its first one."""

    def __init__(self) -> None:
        self._times: dict[str, array[float]] = {}
        self._oldest: dict[str, int] = {}
        """Which of them is replaced next, where there are KEPT."""

    def add(self, name: str, took_s: float) -> None:
        """Keep one more time of a backend, and forget its oldest where there are too many."""
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = array("f")
        if len(times) < KEPT:
            times.append(took_s)
        else:
            at = self._oldest.get(name, 0)
            times[at] = took_s
            self._oldest[name] = (at + 1) % KEPT

    def keep(self, names: Iterable[str]) -> None:
        """Forget all backends but these."""
        kept = frozenset(names)
        for known in (self._times, self._oldest):
            for name in known.keys() - kept:
                del known[name]

    def quantile(self, name: str, share: float) -> float | None:
        """Return the time that `share` of them do not exceed (the nearest rank); None before the first.

        Of so few the 99th percentile is the longest.
        """
        times = self._times.get(name)
        if times is None:
            return None
        return round(sorted(times)[math.ceil(share * len(times)) - 1], _DIGITS)
