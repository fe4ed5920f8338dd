"""What is seen in a run of `sessions`: how even it is, how much each backend is given, and what a crash does."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from master.simulation.masters import Setting

_SETTLE_S: Final = 60.0
"""After the start: for so long the masters know no rate of asks to speak of, and all backends start slowly."""
_EVEN_AGAIN_S: Final = 600.0
"""After a crash: for so long evenness is not measured."""
_SHARE: Final = 0.95


@attrs.frozen
class Crash:
    """Which backend crashes, and when; until when its users ask again, and when it is back. Times in seconds."""

    number: int
    at: float
    asked_until: float
    back_at: float


@attrs.define(eq=False)
class Watch:
    """Times in seconds. A share is by weight. Peaks are assignments of one backend in a sliding second."""

    weights: Sequence[float]
    setting: Setting
    crash: Crash
    peak: int = 0
    """The highest, outside the time in which the users of the crashed one ask again."""
    peak_after_return: int = 0
    back_to_share_at: float | None = None
    most_over_share: float = 0.0
    """By how much the returned one was over its share at most, as a part of it."""
    refused: int = 0
    even_s: float | None = None
    """Seconds from the return until nobody was over its share by more than a twentieth."""
    _broken: set[tuple[int, int]] = attrs.field(factory=set, init=False)
    _uneven: list[float] = attrs.field(factory=list, init=False)
    _all: deque[float] = attrs.field(factory=deque, init=False)
    _each: list[deque[float]] = attrs.field(init=False)
    _rates: deque[float] = attrs.field(factory=lambda: deque([0.0], 2), init=False)

    def __attrs_post_init__(self) -> None:
        self._each = [deque() for _ in self.weights]

    @property
    def max_over_mean(self) -> float:
        """The most users for its weight over the mean, averaged over the seconds outside the crash."""
        return sum(self._uneven) / len(self._uneven) if self._uneven else math.nan

    @property
    def broken(self) -> int:
        """Seconds of a backend in which it was given more than it may: see `_check`."""
        return len(self._broken)

    @property
    def seconds_to_share(self) -> float | None:
        """From the return until the returned one has its share but for a twentieth."""
        return None if self.back_to_share_at is None else self.back_to_share_at - self.crash.back_at

    def asked(self, now: float, number: int | None, ask_rate: Callable[[], float]) -> None:
        """Hear of an ask and who was named."""
        self._all.append(now)
        _forget(self._all, now)
        if number is None:
            self.refused += 1
            return
        given = self._each[number]
        given.append(now)
        _forget(given, now)
        if not self.crash.at <= now <= self.crash.asked_until + 1:
            self.peak = max(self.peak, len(given))
            if now > self.crash.back_at:
                self.peak_after_return = max(self.peak_after_return, len(given))
        if len(given) > 2:
            self._check(now, number, ask_rate())

    def _check(self, now: float, number: int, rate: float) -> None:
        """The bound: of any second, a share of three times R and of the asks in it, and 2.

        R as it was at its highest in that second, to which the last whole second before belongs.
        """
        away = self.weights[self.crash.number] if self.crash.at <= now < self.crash.back_at else 0.0
        share = self.weights[number] / (sum(self.weights) - away)
        bound = share * (3 * max(rate, *self._rates) + len(self._all)) + 2 * self.setting.masters
        if len(self._each[number]) > bound:
            self._broken.add((number, int(now)))

    def sample(self, now: float, users: Sequence[int], rate: float) -> None:
        """Look at the users, once a second."""
        self._rates.append(rate)
        total, weights = sum(users), sum(self.weights)
        over = [count * weights / (weight * total) for count, weight in zip(users, self.weights, strict=True) if weight]
        if _SETTLE_S < now < self.crash.at or now > self.crash.back_at + _EVEN_AGAIN_S:
            self._uneven.append(max(over))
        if now > self.crash.back_at:
            self._see_return(now, over[self.crash.number], max(over))

    def _see_return(self, now: float, returned: float, most: float) -> None:
        if self.back_to_share_at is None and returned >= _SHARE:
            self.back_to_share_at = now
        if self.even_s is None and most <= 2 - _SHARE and returned >= _SHARE:
            self.even_s = now - self.crash.back_at
        self.most_over_share = max(self.most_over_share, returned - 1)


def _forget(times: deque[float], now: float) -> None:
    while times[0] <= now - 1:
        times.popleft()
