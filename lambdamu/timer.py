"""Timer: ticks at absolute times. Slow work between two ticks never stretches the period."""

from __future__ import annotations

import math
import random

import trio


class Timer:
    """Ticks at `first + k * period_s`, each moved by up to `jitter` periods to either side.

    The jitter keeps many timers of one period from falling into step; it does not add up from tick to tick. A tick
    that has passed while its user was busy is skipped, not made up for.
    """

    def __init__(self, period_s: float, *, rng: random.Random, first_s: float = 0.0, jitter: float = 0.05) -> None:
        """`first_s`: seconds from now to the first tick."""
        self.period_s = period_s
        self._rng = rng
        self._jitter = jitter
        self._first = trio.current_time() + first_s
        self._ticks = 0
        self._next = self._first

    @property
    def next_tick(self) -> float:
        """When the tick that `wait` waits for is due, in seconds of `trio.current_time()`."""
        return self._next

    async def wait(self) -> float:
        """Wait for the next tick and return its time; return at once, skipping what was missed, when it is due."""
        await trio.sleep_until(self._next)
        tick, now = self._next, trio.current_time()
        self._ticks = max(self._ticks, math.floor((now - self._first) / self.period_s))
        self._advance()
        if self._next <= now:
            # After a late tick the jitter may carry the next one before now: it was missed too.
            self._advance()
        return tick

    def _advance(self) -> None:
        self._ticks += 1
        offset = self._rng.uniform(-self._jitter, self._jitter) * self.period_s
        self._next = self._first + self._ticks * self.period_s + offset
