"""One lane: tickets by their order, and how many stand before one, whoever has left.

Blocks of at most 1,024 tickets, sorted, and a Fenwick tree (Fenwick, 1994) over their sizes. Nearly all arrive at the
end, where blocks are filled by half, so that one who comes back to the middle seldom splits one. With n tickets each
call takes O(log n) steps of Python and one move of at most 8 KB. Blocks that have become thin are made anew when they
are four times as many as are needed, which is paid by those who have left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from master.queue.ticket import Ticket

_FILLED: Final = 512
_MOST: Final = 1024
_SPARE_BLOCKS: Final = 16
_ORDER: Final = attrgetter("order")


class Ranks:
    def __init__(self) -> None:
        self._blocks: list[list[Ticket]] = []
        self._starts: list[int] = []
        """Nobody in a block has a lower order than its start."""
        self._tree: list[int] = [0]
        self._head = 0
        """No block before it has anybody."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Ticket]:
        for block in self._blocks:
            yield from block

    @property
    def first(self) -> Ticket | None:
        """Whoever stands before all others, None when there is nobody."""
        if not self._size:
            return None
        while not self._blocks[self._head]:
            self._head += 1
        return self._blocks[self._head][0]

    def add(self, ticket: Ticket) -> None:
        """Put one in by its order. Where two masters have given the same one, it comes after the other."""
        while self._has(ticket.order):
            ticket.order += 1
        self._size += 1
        order = ticket.order
        if not self._blocks or (order > self._starts[-1] and len(self._blocks[-1]) >= _FILLED and self._is_last(order)):
            self._append([ticket], order)
            return
        at = max(bisect_right(self._starts, order) - 1, 0)
        block = self._blocks[at]
        self._starts[at] = min(self._starts[at], order)
        block.insert(bisect_left(block, order, key=_ORDER), ticket)
        self._head = min(self._head, at)
        self._count(at, 1)
        if len(block) > _MOST:
            self._split(at)

    def remove(self, ticket: Ticket) -> None:
        """Take out one that is here."""
        at = bisect_right(self._starts, ticket.order) - 1
        block = self._blocks[at]
        del block[bisect_left(block, ticket.order, key=_ORDER)]
        self._size -= 1
        self._count(at, -1)
        if len(self._blocks) > 4 * (self._size // _FILLED) + _SPARE_BLOCKS:
            left = list(self)
            self._make_anew([left[at : at + _FILLED] for at in range(0, len(left), _FILLED)])

    def before(self, ticket: Ticket) -> int:
        """Return how many stand before one that is here."""
        at = bisect_right(self._starts, ticket.order) - 1
        rank = bisect_left(self._blocks[at], ticket.order, key=_ORDER)
        tree = self._tree
        while at:
            rank += tree[at]
            at &= at - 1
        return rank

    def _has(self, order: int) -> bool:
        at = bisect_right(self._starts, order) - 1
        if at < 0:
            return False
        block = self._blocks[at]
        rank = bisect_left(block, order, key=_ORDER)
        return rank < len(block) and block[rank].order == order

    def _is_last(self, order: int) -> bool:
        return order > self._blocks[-1][-1].order

    def _count(self, at: int, change: int) -> None:
        tree, at = self._tree, at + 1
        while at < len(tree):
            tree[at] += change
            at += at & -at

    def _append(self, block: list[Ticket], start: int) -> None:
        self._blocks.append(block)
        self._starts.append(start)
        at = len(self._blocks)
        count, child, end = len(block), at - 1, at - (at & -at)
        while child > end:
            count += self._tree[child]
            child &= child - 1
        self._tree.append(count)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        halves = [block[:_FILLED], block[_FILLED:]]
        self._make_anew(self._blocks[:at] + halves + self._blocks[at + 1 :])

    def _make_anew(self, blocks: list[list[Ticket]]) -> None:
        self._blocks, self._starts, self._tree, self._head = [], [], [0], 0
        for block in filter(None, blocks):
            self._append(block, block[0].order)
