"""One table of the cache: its rows, by key, by client, by what their keys begin with, and by when they end.

The heap has one entry that counts for each row. A row that is touched or written again keeps its entry, which is put
back when it comes to the top; a time that has come nearer gets an entry at once, and the older one no longer counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from master.cache.rows import Key, Row, Table

_SPARE: Final = 1024
_LOOKS: Final = 32
"""So many that were touched since are put back in search of the one to evict: a bound on the time that it takes."""


class Slot:
    """The place of a row. `cost`: the bytes it is counted with. `watched_at`: the time of its entry that counts."""

    __slots__ = ("cost", "row", "until", "watched_at")

    def __init__(self, row: Row, cost: int) -> None:
        self.row = row
        self.cost = cost
        self.until = self.watched_at = row.updated_at + row.ttl_s


class Index:
    """Keys by a text that many of them have in common; one key alone takes no set of its own, which most are."""

    def __init__(self) -> None:
        self._keys: dict[str, Key | dict[Key, None]] = {}

    def add(self, text: str, key: Key) -> None:
        there = self._keys.get(text)
        if there is None:
            self._keys[text] = key
        elif isinstance(there, dict):
            there[key] = None
        else:
            self._keys[text] = {there: None, key: None}

    def come_again(self, text: str, key: Key) -> None:
        """Have a key that is there be the one that was added last."""
        there = self._keys[text]
        if isinstance(there, dict):
            del there[key]
            there[key] = None

    def discard(self, text: str, key: Key) -> None:
        there = self._keys.get(text)
        if isinstance(there, dict):
            there.pop(key, None)
            if not there:
                del self._keys[text]
        elif there == key:
            del self._keys[text]

    def count(self, text: str) -> int:
        there = self._keys.get(text)
        return len(there) if isinstance(there, dict) else int(there is not None)

    def latest(self, text: str) -> Iterator[Key]:
        """Return those keys, the one that was added last first. Nothing is to be added or discarded meanwhile."""
        there = self._keys.get(text)
        if there is None:
            return iter(())
        return reversed(there) if isinstance(there, dict) else iter((there,))


class Shelf:
    """The rows of one table, dead ones included until somebody takes them off."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.bytes = 0
        self.slots: dict[Key, Slot] = {}
        self.by_client = Index()
        self.by_first = Index()
        """By the first part of the key, where that is not the client or the whole of it."""
        self._has_first = table in (Table.CACHE, Table.DEVICE)
        self._ends: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def watched(self) -> int:
        return len(self._ends)

    def put(self, row: Row, cost: int) -> None:
        """Put a row in, in place of the one with its key, which is of the same client."""
        slot = self.slots.get(row.key)
        if slot is not None:
            self.bytes += cost - slot.cost
            slot.cost = cost
            self.renew(slot, row)
            if self.table is Table.DEVICE:  # bound at each login: who has just used it counts first
                self.by_client.come_again(row.client, row.key)
                self.by_first.come_again(str(row.key[0]), row.key)
            return
        self.slots[row.key] = slot = Slot(row, cost)
        self.bytes += cost
        self.by_client.add(row.client, row.key)
        if self._has_first:
            self.by_first.add(str(row.key[0]), row.key)
        self._watch(slot.until, row.key)

    def renew(self, slot: Slot, row: Row) -> None:
        """Have this row in the place of one with the same key and client, and as many bytes or `cost` set before."""
        slot.row = row
        slot.until = until = row.updated_at + row.ttl_s
        if until < slot.watched_at:
            slot.watched_at = until
            self._watch(until, row.key)

    def take_off(self, key: Key) -> Row:
        slot = self.slots.pop(key)
        self.bytes -= slot.cost
        self.by_client.discard(slot.row.client, key)
        if self._has_first:
            self.by_first.discard(str(key[0]), key)
        return slot.row

    def next_to_end(self) -> Row | None:
        """Return the row that ends first, as far as some looks tell; None when there is none."""
        ends, slots = self._ends, self.slots
        looks = _LOOKS
        while ends:
            at, key = ends[0]
            slot = slots.get(key)
            if slot is None or slot.watched_at != at:
                heapq.heappop(ends)
            elif slot.until > at and looks:
                looks -= 1
                slot.watched_at = slot.until
                heapq.heapreplace(ends, (slot.until, key))
            else:
                return slot.row
        return None

    def due(self, now: float, most: int) -> Iterator[Row | None]:
        """Yield rows whose time is over, each of them to be taken off, and None for another entry: `most` in all."""
        ends, slots = self._ends, self.slots
        for _ in range(most):
            if not ends or ends[0][0] > now:
                return
            at, key = heapq.heappop(ends)
            slot = slots.get(key)
            if slot is None or slot.watched_at != at:
                yield None
            elif slot.until > now:
                slot.watched_at = slot.until
                heapq.heappush(ends, (slot.until, key))
                yield None
            else:
                yield slot.row

    def _watch(self, until: float, key: Key) -> None:
        heapq.heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self.slots) + _SPARE:
            self._ends[:] = [(slot.watched_at, key) for key, slot in self.slots.items()]
            heapq.heapify(self._ends)
