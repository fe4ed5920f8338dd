"""Numbers of which none is ever given twice: taken from blocks that were reserved durably before. Pure.

A store reserves a block (`BlockStore.take_block`) in a worker thread, and numbers are given out of those that are here.
A process that is killed loses the rest of its blocks, and no more.

Two things stand against a number that comes twice. The store counts, in one atomic operation, for all who share it. And
`first_number` has each process begin above all that was given before it by the clock, also where the file of the store
was lost or an old copy was put back, or nothing is kept at all; a clock that is wrong is then no matter where the store
has counted. So a `MemoryStore` serves, too, in place of a disk that cannot be written.

    numbers = TurnNumbers()
    least = first_number(time.time(), random.SystemRandom())
    while numbers.wanted:                                        # at the start, and then whenever it is not 0
        numbers.add(await trio.to_thread.run_sync(store.take_block, "turn", numbers.wanted, least), numbers.wanted)
    numbers.take()
"""

from __future__ import annotations

import random
from typing import Final

import attrs
from attrs.validators import ge

from master.queue.numbers import NumberBlock, Numbers

BLOCK: Final = 16384
"""So many are reserved at a time: one operation of the store in 16 seconds, at a thousand turns a second."""
LOW: Final = 8192
"""With fewer than so many left the next block is asked for: time for a slow disk."""
_NUMBERS_PER_S: Final = 2**20
"""No process gives out more in the long run, by far. 2**53 is reached in the year 2242."""


def first_number(now_unix: float, rng: random.Random) -> int:
    """Return where a process begins: above all numbers of those that began two seconds ago or before, below 2**53.

    Those that begin within two seconds are told apart by chance; only a common store keeps them apart for sure.
    """
    return int(now_unix) * _NUMBERS_PER_S + rng.randrange(_NUMBERS_PER_S)


@attrs.define(eq=False)
class TurnNumbers:
    """The numbers that a process may give out. `size`: how many a block has; `low`: when the next one is asked for."""

    size: int = attrs.field(default=BLOCK, validator=ge(1))
    low: int = attrs.field(default=LOW, validator=ge(1))
    _numbers: Numbers = attrs.field(factory=Numbers, init=False)

    @property
    def left(self) -> int:
        """Return how many can be given out before another block has come."""
        return len(self._numbers)

    @property
    def wanted(self) -> int:
        """Return how many numbers are to be reserved now; 0: there are enough."""
        return self.size if self.left < self.low else 0

    def add(self, first: int, size: int) -> None:
        """Take in `size` numbers from `first` on, which were reserved for this process."""
        self._numbers.add(NumberBlock(first, first + size))

    def take(self) -> int | None:
        """Return a number that was never given before; None when there is none left."""
        return self._numbers.take()
