"""Numbers of tickets, from blocks that were reserved before: none is ever given twice, also not by another process.

A number that was reserved and of which the store has heard nothing is either not given or was given in the last moment
before a crash. Whoever then shows a signed ticket with such a number gets its place back, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import attrs

_MOST_LOST: Final = 4096
_FIRST: Final = attrgetter("first")


@attrs.frozen
class NumberBlock:
    """The numbers from `first` up to, and without, `end`."""

    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.end


class Numbers:
    """`lost`: what earlier processes had left when the store heard of them last; it is never given."""

    def __init__(self, blocks: Iterable[NumberBlock] = (), lost: Iterable[NumberBlock] = ()) -> None:
        self._blocks = deque(block for block in blocks if len(block))
        self._next = self._end = 0
        """Of the block that is being used."""
        self._lost: list[NumberBlock] = []
        self.lose(lost)

    def __len__(self) -> int:
        """How many can be given before another block is needed."""
        return self._end - self._next + sum(map(len, self._blocks))

    def add(self, block: NumberBlock) -> None:
        """Take on one more, which the store already has as reserved."""
        if len(block):
            self._blocks.append(block)

    def lose(self, blocks: Iterable[NumberBlock]) -> None:
        """Hear of what is lost. Of very many pieces those with the highest numbers are kept."""
        self._lost = sorted([*self._lost, *filter(len, blocks)], key=_FIRST)[-_MOST_LOST:]

    @property
    def unused(self) -> tuple[NumberBlock, ...]:
        """What is left, and what earlier processes had left: after a crash these are the lost ones."""
        used = NumberBlock(self._next, self._end)
        return (*((used,) if len(used) else ()), *self._blocks, *self._lost)

    def take(self) -> int | None:
        """Return the next, None when all are used."""
        if self._next >= self._end:
            if not self._blocks:
                return None
            block = self._blocks.popleft()
            self._next, self._end = block.first, block.end
        number = self._next
        self._next += 1
        return number

    def find(self, number: int) -> bool:
        """Return whether a number was lost; it is found now, for good."""
        at = bisect_right(self._lost, number, key=_FIRST) - 1
        if at < 0 or number not in self._lost[at]:
            return False
        block = self._lost[at]
        pieces = NumberBlock(block.first, number), NumberBlock(number + 1, block.end)
        self._lost[at : at + 1] = filter(len, pieces)
        return True
