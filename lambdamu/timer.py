"""Timer: ticks at absolute times. Slow work between two ticks never stretches the period."""

from __future__ import annotations

import math
import random

import trio


class Ticks:
    """Ticks at `first + k * period_s`, each moved by up to `jitter` periods to either side. Pure: `now` is an argument.

    The jitter keeps many timers of one period from falling into step; it does not add up from tick to tick. A tick
    that has passed while its user was busy is skipped, not made up for. With a `grid_s`, each comes at a whole
    multiple of it, never later, and less than a grid sooner: from one to the next it is less than
    `period_s * (1 + 2 * jitter) + grid_s`.
    """

    def __init__(
        self, first: float, period_s: float, *, rng: random.Random, jitter: float = 0.05, grid_s: float = 0.0
    ) -> None:
        self.period_s = period_s
        self._rng = rng
        self._jitter = jitter
        self._grid_s = grid_s
        self._first = first
        self._ticks = 0
        self.next = self._on_grid(first)
        """When the next tick is due."""

    def take(self, now: float) -> None:
        """Go on to the tick after this one, or after those that were missed; `now` is not before `next`."""
        self._ticks = max(self._ticks, math.floor((now - self._first) / self.period_s))
        self._advance()
        if self.next <= now:
            # After a late tick the jitter may carry the next one before now: it was missed too.
            self._advance()

    def _advance(self) -> None:
        self._ticks += 1
        offset = self._rng.uniform(-self._jitter, self._jitter) * self.period_s
        self.next = self._on_grid(self._first + self._ticks * self.period_s + offset)

    def _on_grid(self, tick: float) -> float:
        return math.floor(tick / self._grid_s) * self._grid_s if self._grid_s else tick


class Timer:
    """Waits for the ticks of `Ticks`, the first of them `first_s` seconds from now."""

    def __init__(self, period_s: float, *, rng: random.Random, first_s: float = 0.0, jitter: float = 0.05) -> None:
        self._ticks = Ticks(trio.current_time() + first_s, period_s, rng=rng, jitter=jitter)

    @property
    def period_s(self) -> float:
        return self._ticks.period_s

    @property
    def next_tick(self) -> float:
        """When the tick that `wait` waits for is due, in seconds of `trio.current_time()`."""
        return self._ticks.next

    async def wait(self) -> float:
        """Wait for the next tick and return its time; return at once, skipping what was missed, when it is due."""
        tick = self._ticks.next
        await trio.sleep_until(tick)
        self._ticks.take(trio.current_time())
        return tick
