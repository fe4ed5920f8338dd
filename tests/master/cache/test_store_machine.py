"""The store against a model of plain dicts: whatever is put, read, leased, evicted and lost, in any order.

The model looks at all there is, each time; it has no heap, no index, no count and no journal, but a copy of what was
alive at the last commit.
"""

from __future__ import annotations

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from master.cache.bounds import Refused, StorePolicy, Why
from master.cache.leases import Held, Lease
from master.cache.rows import Key, Row, Table, cost_of
from master.cache.store import CacheStore
from tests.master.cache.making import device, entry, session, warm

Place = tuple[Table, Key]

NAMES = st.sampled_from("abc")
TTLS = st.sampled_from([1.0, 4.0, 9.0, 30.0])
FENCES = st.sampled_from([0, 0, 1])
VALUES = st.sampled_from([b"", b"x" * 10, b"y" * 1500, b"z" * 4001])
ROWS = st.one_of(
    st.builds(session, NAMES, NAMES, VALUES, TTLS),
    st.builds(entry, NAMES, NAMES, VALUES, TTLS, client=NAMES),
    st.builds(
        warm, NAMES, st.integers(1, 2), VALUES, TTLS, version=st.integers(1, 2), fence=st.sampled_from([0, 0, 1])
    ),
    st.builds(device, NAMES, NAMES, TTLS),
)
PLACES = ROWS.map(lambda row: (row.table, row.key))
POLICY = StorePolicy(max_bytes=9_000, max_value_bytes=4_000, max_entries=2, max_leases=3, sessions_per_client=2)


class Machine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.now = 100.0
        self.store = CacheStore(POLICY)
        self.rows: dict[Place, Row] = {}
        self.came: list[Place] = []
        """In the order in which they came."""
        self.leases: dict[str, Lease] = {}
        self.given: list[Lease] = []
        self.file: dict[Place, Row] = {}
        self.file_fence = 0
        self.kept: dict[Place, Row] = {}

    def living(self) -> dict[Place, Row]:
        """Forget the dead, and what belonged to dead sessions; return the rest."""
        self.rows = {place: row for place, row in self.rows.items() if row.until > self.now}
        self.rows = {
            place: row
            for place, row in self.rows.items()
            if row.table is not Table.CACHE or (Table.SESSION, (row.session,)) in self.rows
        }
        self.came = [place for place in self.came if place in self.rows]
        self.leases = {name: lease for name, lease in self.leases.items() if lease.until > self.now}
        return self.rows

    def expected_refusal(self, row: Row) -> Why | None:
        rows, place = self.living(), (row.table, row.key)
        if len(row.value) > POLICY.max_value_bytes:
            return Why.TOO_BIG
        if place in rows and rows[place].fence > row.fence:
            return Why.OUTDATED
        if row.table is Table.CACHE:
            if (Table.SESSION, (row.session,)) not in rows:
                return Why.NO_SESSION
            entries = [other for other in rows.values() if other.table is Table.CACHE and other.session == row.session]
            if place not in rows and len(entries) >= POLICY.max_entries:
                return Why.FULL
        worth_more = [
            other
            for other in rows.values()
            if (other.table > row.table or other.table is Table.SESSION) and (other.table, other.key) != place
        ]
        if sum(map(cost_of, worth_more)) + cost_of(row) > POLICY.max_bytes:
            return Why.FULL
        return None

    def take_in(self, row: Row) -> None:
        place = (row.table, row.key)
        while sum(cost_of(other) for at, other in self.rows.items() if at != place) + cost_of(row) > POLICY.max_bytes:
            worst = min(
                (other for other in self.rows.values() if other.table is not Table.SESSION),
                key=lambda other: (other.table, other.until, other.key),
            )
            del self.rows[worst.table, worst.key]
        old = self.rows.get(place)
        if old is not None and old.client != row.client:
            del self.rows[place]
            if row.table is Table.SESSION:
                self.end_entries(row.session)
        if place not in self.rows or row.table is Table.DEVICE:
            self.came = [*(other for other in self.came if other != place), place]
        self.rows[place] = row._replace(updated_at=self.now)
        those = [self.rows[at] for at in self.came if at[0] is Table.SESSION and self.rows[at].client == row.client]
        if row.table is Table.SESSION and len(those) > POLICY.sessions_per_client:
            oldest = min(those, key=lambda other: other.updated_at)
            del self.rows[Table.SESSION, oldest.key]
            self.end_entries(oldest.session)

    def end_entries(self, name: str) -> None:
        self.rows = {
            place: row for place, row in self.rows.items() if row.table is not Table.CACHE or row.session != name
        }

    # What is done to rows.

    @rule(row=ROWS)
    def put(self, row: Row) -> None:
        why = self.expected_refusal(row)
        assert self.store.put(self.now, row) == (None if why is None else Refused(why))
        if why is None:
            self.take_in(row)

    @rule(place=PLACES)
    def get(self, place: Place) -> None:
        assert self.store.get(self.now, *place) == self.living().get(place)

    @rule(place=PLACES.filter(lambda place: place[0] is not Table.WARM), ttl_s=st.none() | TTLS)
    def touch(self, place: Place, ttl_s: float | None) -> None:
        row = self.living().get(place)
        if row is not None:
            row = self.rows[place] = row._replace(updated_at=self.now, ttl_s=ttl_s or row.ttl_s)
        assert self.store.touch(self.now, *place, ttl_s) == row

    @rule(place=PLACES)
    def delete(self, place: Place) -> None:
        assert self.store.delete(self.now, *place) == (self.living().pop(place, None) is not None)
        if place[0] is Table.SESSION:
            self.end_entries(str(place[1][0]))

    @rule(name=NAMES, table=st.sampled_from(Table), most=st.integers(1, 4))
    def list_those_of(self, name: str, table: Table, most: int) -> None:
        rows = self.living()
        latest = [rows[place] for place in reversed(self.came)]
        those = [row for row in latest if row.table is table and row.client == name]
        assert self.store.by_client(self.now, table, name, most) == those[:most]
        of_device = [row.client for row in latest if row.table is Table.DEVICE and row.key[0] == name]
        assert self.store.clients_of(self.now, name, most) == of_device[:most]

    # Leases.

    @rule(name=st.sampled_from("klmn"), owner=NAMES, for_s=TTLS)
    def lease(self, name: str, owner: str, for_s: float) -> None:
        self.living()
        answer = self.store.lease(self.now, name, owner, for_s)
        if name in self.leases:
            assert answer == Held(self.leases[name].until)
        elif len(self.leases) == POLICY.max_leases:
            assert isinstance(answer, Held)
            assert answer.until > self.now
        else:
            assert isinstance(answer, Lease)
            assert (answer.name, answer.owner, answer.until) == (name, owner, self.now + for_s)
            assert all(answer.fence > other.fence for other in self.given)
            self.given.append(answer)
            self.leases[name] = answer

    def holds(self, lease: Lease) -> bool:
        self.living()
        held = self.leases.get(str(lease.name))
        return held is not None and held.fence == lease.fence

    @rule(data=st.data(), for_s=TTLS)
    def extend(self, data: st.DataObject, for_s: float) -> None:
        if self.given:
            lease = data.draw(st.sampled_from(self.given))
            longer = attrs.evolve(lease, until=self.now + for_s) if self.holds(lease) else None
            assert self.store.extend(self.now, lease, for_s) == longer
            if longer is not None:
                self.leases[str(lease.name)] = longer

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.given:
            lease = data.draw(st.sampled_from(self.given))
            holds = self.holds(lease)
            assert self.store.release(self.now, lease) == holds
            if holds:
                del self.leases[str(lease.name)]

    @rule(data=st.data(), row=ROWS.filter(lambda row: row.table is Table.WARM))
    def publish(self, data: st.DataObject, row: Row) -> None:
        if self.given:
            lease = data.draw(st.sampled_from(self.given))
            row = row._replace(fence=lease.fence)
            taken = self.holds(lease) and self.expected_refusal(row) is None
            assert self.store.publish(self.now, lease, row) == taken
            if taken:
                self.take_in(row)

    # Time, and what outlives the process.

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(most=st.integers(1, 50))
    def sweep(self, most: int) -> None:
        before = len(self.store)
        self.store.sweep(self.now, most)
        assert len(self.store) >= before - most - POLICY.max_entries
        if most == 50:
            assert len(self.store) == len(self.living())
            assert self.store.leases == len(self.leases)

    @rule(most=st.integers(1, 5), fails=st.booleans())
    def commit(self, most: int, fails: bool) -> None:
        parts = [self.store.take_changes(most)]
        while not parts[-1].last:
            parts.append(self.store.take_changes(most))
        assert self.store.unwritten == 0
        if fails:
            for part in parts:
                self.store.give_back(part)
            return
        for part in parts:
            assert len(part.rows) + len(part.gone) <= most
            if part.anew:
                self.file.clear()
            self.file.update({(row.table, row.key): row for row in part.rows})
            for place in part.gone:
                self.file.pop(place, None)
        self.file_fence = parts[-1].fence
        self.kept = dict(self.living())

    @rule(slices=st.integers(1, 5), known=st.sampled_from([True, True, False]))
    def is_killed_and_comes_back(self, slices: int, known: bool) -> None:
        """`known`: the file can be read."""
        self.store, self.rows, self.leases = CacheStore(POLICY), {}, {}
        self.store.raise_fence(max([self.file_fence, *(lease.fence for lease in self.given)]))
        if known:
            saved = sorted(self.file.values(), key=lambda row: -row.table)
            for first in range(0, len(saved) + 1, slices):
                self.store.restore(self.now, saved[first : first + slices])
            self.rows = self.kept
        self.came = [(row.table, row.key) for row in sorted(self.file.values(), key=lambda row: -row.table)]
        self.kept = dict(self.living())
        self.all_is_there()

    @rule()
    def all_is_there(self) -> None:
        for place, row in self.living().items():
            assert self.store.get(self.now, *place) == row

    @invariant()
    def it_keeps_its_bounds(self) -> None:
        assert self.store.bytes <= POLICY.max_bytes
        assert self.store.bytes == sum(self.store.counts(table).bytes for table in Table)
        assert len(self.store) >= len(self.living())
        assert self.store.leases <= POLICY.max_leases


TestStoreMachine = Machine.TestCase
TestStoreMachine.settings = settings(max_examples=80, stateful_step_count=50)
