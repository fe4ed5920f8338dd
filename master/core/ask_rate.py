"""How many clients ask, and how many asks were to be expected since the start."""

from __future__ import annotations

import math
from typing import Final

import attrs

_STEP_S: Final = 0.1
"""The averages are brought up to date so often: not at each ask, which would be the dearest part of it."""
_SHORT_S: Final = 10.0
_LONG_S: Final = 300.0


@attrs.define(eq=False)
class _Average:
    """Events a second, older ones fading over `memory_s`; corrected for the time before the first.

    The correction is that of Adam (Kingma and Ba, 2015) for an average that began with 0.
    """

    memory_s: float
    _sum: float = attrs.field(default=0.0, init=False)
    _weight: float = attrs.field(default=0.0, init=False)

    def take(self, count: int, seconds: float) -> float:
        """Take in `count` events in `seconds`, which is over 0; return the average."""
        faded = math.exp(-seconds / self.memory_s)
        self._sum = self._sum * faded + count * (1 - faded) / seconds
        self._weight = self._weight * faded + 1 - faded
        return self._sum / self._weight


@attrs.define(eq=False)
class AskRate:
    """R, the asks to be expected in a second, and V, its integral: a clock that counts expected asks.

    R is the lesser of the averages over 10 s and over 300 s: a storm of reconnecting clients raises the one at once,
    and with one average alone it would raise what every backend may be given.
    """

    count: int = attrs.field(default=0, init=False)
    """Asks since `at`. Who asks adds one."""
    total: int = attrs.field(default=0, init=False)
    """Asks up to `at`."""
    per_s: float = attrs.field(default=0.0, init=False)
    """R."""
    at: float = attrs.field(default=math.inf, init=False)
    expected: float = attrs.field(default=0.0, init=False)
    """V at the time `at`; later it is more by `per_s` for each second."""
    due: float = attrs.field(default=-math.inf, init=False)
    """From this time on `bring_up` has something to do."""
    _short: _Average = attrs.field(factory=lambda: _Average(_SHORT_S), init=False)
    _long: _Average = attrs.field(factory=lambda: _Average(_LONG_S), init=False)

    def expect(self, now: float) -> float:
        """Return V, for a time that is not before `at`."""
        return self.expected + self.per_s * (now - self.at) if now > self.at else self.expected

    def bring_up(self, now: float) -> None:
        """Bring the averages up to `now`, which is not before `due`."""
        if self.due == -math.inf:
            self.at, self.due = now, now + _STEP_S
            return
        seconds = now - self.at
        self.expected += self.per_s * seconds
        self.per_s = min(self._short.take(self.count, seconds), self._long.take(self.count, seconds))
        self.total += self.count
        self.count, self.at, self.due = 0, now, now + _STEP_S
