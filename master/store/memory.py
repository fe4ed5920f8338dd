"""Keeps nothing beyond the process."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from master.queue.numbers import NumberBlock
from master.queue.rows import Changes, TicketRow
from master.store.state import SavedOrder, SavedQueue, State

_ORDER: Final = attrgetter("order")


class MemoryStore:
    def __init__(self) -> None:
        self._state = State()
        self._next: dict[str, int] = {}
        self._secrets: dict[str, bytes] = {}
        self._rows: dict[int, TicketRow] = {}
        self._unused: tuple[NumberBlock, ...] = ()
        self._orders: tuple[SavedOrder, ...] = ()

    def load(self) -> State:
        return self._state

    def save(self, state: State) -> None:
        self._state = state

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        first = max(self._next.get(name, 0), least)
        self._next[name] = first + size
        return first

    def secret(self, name: str, fresh: bytes) -> bytes:
        return self._secrets.setdefault(name, fresh)

    def load_queue(self, epoch_s: float) -> SavedQueue:
        rows = [row.moved(-epoch_s) for row in self._rows.values()]
        return SavedQueue(sorted(rows, key=_ORDER), self._unused)

    def write_queue(self, parts: Sequence[Changes], epoch_s: float) -> None:
        for part in parts:
            if part.anew:
                self._rows.clear()
            self._rows.update((row.number, row.moved(epoch_s)) for row in part.rows)
            for number in part.gone:
                self._rows.pop(number, None)
            if part.unused is not None:
                self._unused = part.unused

    def reserve_tickets(self, size: int, least: int = 0) -> int:
        first = self.take_block("ticket", size, least)
        self._unused = (*self._unused, NumberBlock(first, first + size))
        return first

    def load_orders(self) -> tuple[SavedOrder, ...]:
        return self._orders

    def save_orders(self, orders: Sequence[SavedOrder]) -> None:
        self._orders = tuple(orders)
