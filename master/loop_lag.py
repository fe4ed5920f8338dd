"""How late the loop is: a timer that ought to ring on time, and by how much it did not."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import trio

_EVERY_S: Final = 0.1
_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class LoopLag:
    """Counts how late a timer rang. While something holds the loop, nothing else is answered either."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum = 0.0

    def note(self, late_s: float) -> None:
        self._counts[bisect_left(_BOUNDS_S, late_s)] += 1
        self._sum += late_s

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return how many were at most so late, by the bound in seconds, and the sum of all."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum

    async def measure(self) -> None:
        """Note it ten times a second."""
        while True:
            due = trio.current_time() + _EVERY_S
            await trio.sleep_until(due)
            self.note(trio.current_time() - due)
