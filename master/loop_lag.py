"""How late the loop is: a timer that ought to ring on time, and by how much it did not."""

from __future__ import annotations

from typing import Final

import trio

from master.histogram import Histogram

_EVERY_S: Final = 0.1
_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class LoopLag(Histogram):
    """Counts how late a timer rang. While something holds the loop, nothing else is answered either."""

    def __init__(self) -> None:
        super().__init__(_BOUNDS_S)

    async def measure(self) -> None:
        """Note it ten times a second."""
        while True:
            due = trio.current_time() + _EVERY_S
            await trio.sleep_until(due)
            self.note(trio.current_time() - due)
