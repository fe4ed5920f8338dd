"""What a client has seen: how many asks, how long each took, which were wrong, and the processor time of its own."""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Sequence


class Tally:
    """Counts from `begin` on, which it is made with."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._took_s = array("d")
        self._asks = self._wrong = 0
        self._began, self._cpu_s = time.perf_counter(), cpu_s()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def add(self, took_s: float, wrong: int = 0, asks: int = 1) -> None:
        """Count asks that were answered together."""
        self._took_s.append(took_s)
        self._asks += asks
        self._wrong += wrong

    def figures(self, seconds: float, unanswered: int = 0) -> dict[str, float]:
        """Return the figures of asks that were made within so many seconds."""
        return {
            "asks": self._asks,
            "seconds": seconds,
            "errors": self._wrong + unanswered,
            "p50_us": 1e6 * point(self._took_s, 0.5),
            "p99_us": 1e6 * point(self._took_s, 0.99),
            "max_us": 1e6 * max(self._took_s, default=0.0),
            "load_cpu_s": cpu_s() - self._cpu_s,
        }


def point(values: Sequence[float], part: float) -> float:
    """Return the value below which lies that part of all; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
