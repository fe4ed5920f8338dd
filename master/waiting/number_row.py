"""A row of numbers of which none is taken twice, counted by a store, and without it where it cannot. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from master.queue.numbers import NumberBlock


@attrs.define(eq=False)
class NumberRow:
    """`next`: above all that were taken. `counted`: up to there the store has counted."""

    next: int
    counted: int = 0

    @property
    def is_counted(self) -> bool:
        """Return whether the store will give none of those that were taken here."""
        return self.counted >= self.next

    def pass_over(self, ends: Iterable[int]) -> None:
        """Begin above these."""
        self.next = max((self.next, *ends))

    def take(self, first: int, size: int) -> NumberBlock | None:
        """Take a block that the store has reserved; None: some of it was taken without the store meanwhile."""
        block = NumberBlock(first, first + size)
        self.counted = block.end
        if first < self.next:
            return None
        self.next = block.end
        return block

    def take_uncounted(self, size: int) -> NumberBlock:
        """Take a block without the store."""
        block = NumberBlock(self.next, self.next + size)
        self.next = block.end
        return block
