"""The store of the cache: sessions, what belongs to them, devices and warm data, in bounded memory. Pure.

It is longer than others because every call that has to be atomic stands here.

Each call is atomic: nothing is awaited within, and nothing is shared with a thread. Time is the store's alone: `now`,
in seconds of one monotonic clock, also where a writer says otherwise. What is expired is gone at the moment of use;
`sweep` gives its memory back. What belongs to a session ends with it.

When the memory is full, the dead make room; then warm data, cache entries, and devices, in this order, and of a table
the row that would end first; but a row makes no room at the cost of those that are worth more. Sessions are evicted for
nobody else: a put is refused instead. A client has so many at most; one more ends that of his which was used last the
longest ago.

    store = CacheStore(StorePolicy())
    store.put(now, Row(Table.SESSION, ("id",), b"data", "client", "id", 1, 0, now, ttl_s=1800.0))
    store.touch(now, Table.SESSION, ("id",))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from master.cache.bounds import REFUSED, Refused, StorePolicy, TableCounts, Why
from master.cache.journal import Journal, Place
from master.cache.leases import Held, Lease, LeaseName, Leases
from master.cache.rows import Changes, Key, Row, Table, cost_of
from master.cache.tables import Shelf, Slot

__all__ = ["CacheStore", "Held", "Lease", "Refused", "StorePolicy", "TableCounts", "Why"]


_TAKEN_OFF: Final = 1000
"""So many dead rows are taken off at most where those of a client or device are read: the sweep finds the rest."""


class CacheStore:
    def __init__(self, policy: StorePolicy) -> None:
        self.policy = policy
        self.refused: dict[tuple[Table, Why], int] = dict.fromkeys(product(Table, Why), 0)
        """How often, since the start; of late publishers, too."""
        self._shelves = {table: Shelf(table) for table in Table}
        self._sessions = self._shelves[Table.SESSION]
        self._entries = self._shelves[Table.CACHE]
        self._devices = self._shelves[Table.DEVICE]
        self._leases = Leases(policy.max_leases)
        self._journal = Journal(self.__len__)
        self._evicted = dict.fromkeys(Table, 0)
        self._expired = dict.fromkeys(Table, 0)

    # Rows.

    def put(self, now: float, row: Row) -> Refused | None:
        """Keep a row from now on for its `ttl_s`, in place of the one with its key. Raise ValueError: our bug.

        A session that another client takes over loses its cache entries.
        """
        refused = self._admit(now, Row(*row[:7], now, *row[8:]))
        if refused is None:
            self._journal.note(row.table, row.key)
        return refused

    def get(self, now: float, table: Table, key: Key) -> Row | None:
        """Return the row if it is alive. It lives no longer for having been read."""
        slot = self._find(now, self._shelves[table], key)
        return slot.row if slot is not None else None

    def touch(self, now: float, table: Table, key: Key, ttl_s: float | None = None) -> Row | None:
        """Let a row that is alive live from now on for its ttl, or for another one; return it, None if it is gone.

        Warm data are as old as they are, however often they are read: ValueError.
        """
        shelf = self._shelves[table]
        if table is Table.WARM or not (ttl_s is None or 0 < ttl_s < math.inf):
            raise ValueError(f"no row of {table.name} is touched for {ttl_s} s")
        slot = self._find(now, shelf, key)
        if slot is None:
            return None
        old = slot.row
        row = Row(*old[:7], now, old.ttl_s if ttl_s is None else ttl_s, old.fence)
        shelf.renew(slot, row)
        self._journal.note(table, key)
        return row

    def delete(self, now: float, table: Table, key: Key) -> bool:
        """Return whether it was there, alive."""
        shelf = self._shelves[table]
        if self._find(now, shelf, key) is None:
            return False
        self._remove(shelf, key)
        return True

    def drop_session(self, now: float, session: str) -> bool:
        """End a session and all that belongs to it; return whether it was alive."""
        return self.delete(now, Table.SESSION, (session,))

    def by_client(self, now: float, table: Table, client: str, most: int) -> list[Row]:
        """Return the rows of a client, the one that came last first."""
        shelf = self._shelves[table]
        return self._living(now, shelf, shelf.by_client.latest(client), most)

    def entries_of(self, now: float, session: str, most: int) -> list[Row]:
        """Return the cache entries of a session, the one that came last first. The session lives no longer for it."""
        return self._living(now, self._entries, self._entries.by_first.latest(session), most)

    def clients_of(self, now: float, device: str, most: int) -> list[str]:
        """Return who has used a device, the one that came last first."""
        return [row.client for row in self._living(now, self._devices, self._devices.by_first.latest(device), most)]

    # Leases.

    def lease(self, now: float, name: LeaseName, owner: str, for_s: float) -> Lease | Held:
        """Give the lease of that name to `owner`, if nobody has it, not even `owner` itself."""
        taken = self._leases.take(now, name, owner, for_s)
        if isinstance(taken, Lease):
            self._journal.note_fence()
        return taken

    def extend(self, now: float, lease: Lease, for_s: float) -> Lease | None:
        """Return it with an end that is `for_s` from now; None when it does not hold any more."""
        return self._leases.extend(now, lease, for_s)

    def release(self, now: float, lease: Lease) -> bool:
        """Give it back; return whether it did hold. Nobody else's lease ends by it."""
        return self._leases.release(now, lease)

    def publish(self, now: float, lease: Lease, row: Row) -> bool:
        """Put a row with the fence of the lease; return whether it was taken: the lease holds, and there is room."""
        if not self._leases.holds(now, lease):
            self._refuse(row.table, Why.OUTDATED)
            return False
        return self.put(now, row._replace(fence=lease.fence)) is None

    # What time and the journal want.

    def sweep(self, now: float, most: int) -> int:
        """Take off what is dead, in about `most` steps; return how many were made: fewer when all is done."""
        steps = self._leases.sweep(now, most)
        for shelf in self._shelves.values():
            for row in shelf.due(now, most - steps):
                steps += 1 if row is None else self._expire(shelf, row.key)
                if steps >= most:
                    return steps
        return steps

    @property
    def unwritten(self) -> int:
        """Return how many changes the file has not been told of."""
        return self._journal.unwritten

    def take_changes(self, most: int) -> Changes:
        """Return what has changed since the last time, the oldest `most` of it."""
        places = ((shelf.table, key) for shelf in self._shelves.values() for key in shelf.slots)
        return self._journal.take(most, self._leases.fence, self._row_at, places)

    def give_back(self, changes: Changes) -> None:
        """Hear that these could not be written: they are among the next."""
        self._journal.give_back(changes)

    def write_anew(self) -> None:
        """Hear that the file has not what it was told of, as at the start: all is to be written."""
        self._journal.write_anew()

    def raise_fence(self, fence: int) -> None:
        """Have all fences that are given from now on be higher."""
        if fence > self._leases.fence:
            self._leases.fence = fence
            self._journal.note_fence()

    def restore(self, now: float, rows: Iterable[Row]) -> int:
        """Put back what the file has, sessions first; return how many of the rows live on.

        Times are by the store's clock; none is later than now. What does not live on is among the next changes.
        """
        self._journal.go_on()
        before = len(self)
        for row in rows:
            self.raise_fence(row.fence)
            if self._row_at((row.table, row.key)) is not None:
                continue
            row = row if row.updated_at <= now else row._replace(updated_at=now)  # noqa: PLW2901 - the same one, mended
            if row.until <= now or self._admit(now, row) is not None:
                self._journal.note(row.table, row.key)
        return len(self) - before

    # Counts.

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    @property
    def bytes(self) -> int:
        """Return what all rows are counted with."""
        return sum([shelf.bytes for shelf in self._shelves.values()])

    @property
    def leases(self) -> int:
        return len(self._leases)

    def counts(self, table: Table) -> TableCounts:
        shelf = self._shelves[table]
        refused = sum(self.refused[table, why] for why in Why)
        return TableCounts(len(shelf), shelf.bytes, self._evicted[table], self._expired[table], refused)

    # Within.

    def _find(self, now: float, shelf: Shelf, key: Key) -> Slot | None:
        """Return the place of a row that is alive; a dead one is taken off."""
        slot = shelf.slots.get(key)
        if slot is None:
            return None
        if slot.until <= now:
            self._expire(shelf, key)
            return None
        if shelf is self._entries and self._find(now, self._sessions, key[:1]) is None:
            return None  # and the entry went with its session
        return slot

    def _living(self, now: float, shelf: Shelf, keys: Iterator[Key], most: int) -> list[Row]:
        found: list[Row] = []
        dead: list[Key] = []
        for key in keys:
            if len(found) >= most:
                break
            slot = shelf.slots[key]
            if slot.until <= now:
                dead.append(key)
            elif shelf is not self._entries or self._sessions.slots[key[:1]].until > now:
                found.append(slot.row)
        for key in dead[:_TAKEN_OFF]:
            self._expire(shelf, key)
        return found

    def _admit(self, now: float, row: Row) -> Refused | None:
        """Put a row in as it is, if it may come in."""
        table, key = row.table, row.key
        cost = cost_of(row)
        shelf = self._shelves[table]
        if len(row.value) > self.policy.max_value_bytes or cost > self.policy.max_bytes:
            return self._refuse(table, Why.TOO_BIG)
        old = self._find(now, shelf, key)
        if old is not None and row.fence < old.row.fence:
            return self._refuse(table, Why.OUTDATED)
        if shelf is self._entries:
            if self._find(now, self._sessions, key[:1]) is None:
                return self._refuse(table, Why.NO_SESSION)
            if old is None and self._has_all_entries(now, row.session):
                return self._refuse(table, Why.FULL)
        if not self._make_room(now, shelf, key, cost):
            return self._refuse(table, Why.FULL)
        if old is not None and old.row.client != row.client and key in shelf.slots:
            self._remove(shelf, key)
        shelf.put(row, cost)
        if shelf is self._sessions:
            self._bound_sessions(now, row.client)
        return None

    def _bound_sessions(self, now: float, client: str) -> None:
        """End the sessions that a client has too many of. There is about one, so few are looked at."""
        most, sessions = self.policy.sessions_per_client, self._sessions
        if not most or sessions.by_client.count(client) <= most:
            return
        living = self._living(now, sessions, sessions.by_client.latest(client), most + 1)
        if len(living) > most:
            oldest = min(reversed(living), key=lambda row: row.updated_at)
            self._evict(sessions, oldest.key)

    def _has_all_entries(self, now: float, session: str) -> bool:
        most, entries = self.policy.max_entries, self._entries.by_first
        if entries.count(session) < most:
            return False
        return len(self._living(now, self._entries, entries.latest(session), most)) >= most

    def _refuse(self, table: Table, why: Why) -> Refused:
        self.refused[table, why] += 1
        return REFUSED[why]

    def _make_room(self, now: float, shelf: Shelf, key: Key, cost: int) -> bool:
        """Return whether there is room for a row of `cost` bytes, once the dead and those worth no more have gone."""
        if self._lacks(shelf, key, cost) <= 0:
            return True
        for each in self._shelves.values():
            for row in each.due(now, len(each.slots) + each.watched):
                if row is not None:
                    self._expire(each, row.key)
                if self._lacks(shelf, key, cost) <= 0:
                    return True
        less = [each for each in self._shelves.values() if each.table <= shelf.table and each is not self._sessions]
        free = sum(each.bytes for each in less)
        if shelf in less and key in shelf.slots:
            free -= shelf.slots[key].cost  # which is not counted among what is in the way
        if self._lacks(shelf, key, cost) > free:
            return False
        for each in less:
            while self._lacks(shelf, key, cost) > 0 and (row := each.next_to_end()) is not None:
                self._evict(each, row.key)
        return True

    def _lacks(self, shelf: Shelf, key: Key, cost: int) -> int:
        """Return how many bytes there are too few for a row of `cost` bytes in the place of `key`."""
        slot = shelf.slots.get(key)
        return self.bytes + cost - (slot.cost if slot is not None else 0) - self.policy.max_bytes

    def _expire(self, shelf: Shelf, key: Key) -> int:
        """Take off a row whose time is over; return how many went."""
        return self._remove_counted(shelf, key, self._expired)

    def _evict(self, shelf: Shelf, key: Key) -> None:
        """Take off a row for the sake of another one."""
        self._remove_counted(shelf, key, self._evicted)

    def _remove_counted(self, shelf: Shelf, key: Key, counts: dict[Table, int]) -> int:
        went = self._remove(shelf, key)
        counts[shelf.table] += 1
        counts[Table.CACHE] += went - 1  # what belonged to a session
        return went

    def _remove(self, shelf: Shelf, key: Key) -> int:
        """Take off a row, and what belongs to a session with it; return how many went."""
        shelf.take_off(key)
        self._journal.note(shelf.table, key)
        if shelf is not self._sessions:
            return 1
        entries = list(self._entries.by_first.latest(str(key[0])))
        for entry in entries:
            self._remove(self._entries, entry)
        return 1 + len(entries)

    def _row_at(self, place: Place) -> Row | None:
        slot = self._shelves[place[0]].slots.get(place[1])
        return slot.row if slot is not None else None
