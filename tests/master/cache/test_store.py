"""The store of the cache: what lives and for how long, who holds a lease, and what goes when there is no room.

The file is long because each rule of the store has its test here.
"""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from master.cache.bounds import Refused, StorePolicy, Why
from master.cache.leases import Held, Lease
from master.cache.rows import ROW_OVERHEAD_BYTES, Row, Table, cost_of
from master.cache.store import CacheStore
from tests.master.cache.making import device, entry, session, warm

KINDS: list[Callable[..., Row]] = [session, entry, warm, device]


def store_of(*rows: Row, **policy: Any) -> CacheStore:
    store = CacheStore(StorePolicy(**policy))
    for row in rows:
        assert store.put(0.0, row) is None
    return store


def held(answer: object) -> Lease:
    assert isinstance(answer, Lease)
    return answer


def has(store: CacheStore, now: float, *rows: Row) -> list[bool]:
    return [store.get(now, row.table, row.key) is not None for row in rows]


@pytest.mark.parametrize("make", KINDS)
def test_a_row_is_there_for_its_ttl_and_not_a_moment_longer(make: Callable[..., Row]) -> None:
    store = store_of(session(ttl_s=100.0))
    row = make(ttl_s=30.0, value=b"\0\xff")
    assert store.put(5.0, row) is None
    assert store.get(34.999, row.table, row.key) == row._replace(updated_at=5.0)
    assert store.get(35.0, row.table, row.key) is None
    assert store.counts(row.table).expired == 1


@pytest.mark.parametrize("skew_s", [-1e9, 1e9])
def test_only_the_clock_of_the_store_counts(skew_s: float) -> None:
    store = store_of()
    store.put(1000.0, session(updated_at=1000.0 + skew_s))
    assert store.get(1029.0, Table.SESSION, ("s",)) == session(updated_at=1000.0)
    touched = store.touch(1029.0, Table.SESSION, ("s",))
    assert touched is not None
    assert touched.updated_at == 1029.0


@pytest.mark.parametrize("make", KINDS)
def test_reading_renews_nothing(make: Callable[..., Row]) -> None:
    row = make(ttl_s=30.0)
    store = store_of(session(ttl_s=1000.0), row)
    seen = [store.get(float(now), row.table, row.key) is not None for now in range(120)]
    assert seen == [True] * 30 + [False] * 90


def test_the_entries_of_a_session_are_listed_without_a_touch() -> None:
    store = store_of(session(ttl_s=30.0), session("other"), entry("a"), entry("b", ttl_s=10.0), entry("x", "other"))
    assert [row.key for row in store.entries_of(5.0, "s", 9)] == [("s", "b"), ("s", "a")]
    assert [row.key for row in store.entries_of(5.0, "s", 1)] == [("s", "b")]
    assert [row.key for row in store.entries_of(15.0, "s", 9)] == [("s", "a")]
    assert store.entries_of(30.0, "s", 9) == store.entries_of(5.0, "nobody", 9) == []


def test_warm_data_are_as_old_as_they_are() -> None:
    store = store_of(warm())
    with pytest.raises(ValueError, match="WARM"):
        store.touch(1.0, Table.WARM, ("ann", 1, 1))


def test_a_touch_lets_a_session_live_on_from_then() -> None:
    store = store_of(session(ttl_s=30.0))
    for now in (29.0, 58.0, 87.0):
        assert store.touch(now, Table.SESSION, ("s",)) is not None
    assert store.touch(90.0, Table.SESSION, ("s",), ttl_s=5.0) == session(updated_at=90.0, ttl_s=5.0)
    assert store.get(94.9, Table.SESSION, ("s",)) is not None
    assert store.get(95.0, Table.SESSION, ("s",)) is None


@pytest.mark.parametrize(
    ("end", "now"),
    [
        pytest.param(lambda store: store.drop_session(1.0, "s"), 1.0, id="logged out"),
        pytest.param(lambda store: store.delete(1.0, Table.SESSION, ("s",)), 1.0, id="deleted"),
        pytest.param(lambda store: True, 30.0, id="expired"),
    ],
)
def test_no_touch_revives_what_is_gone(end: Callable[[CacheStore], bool], now: float) -> None:
    store = store_of(session(ttl_s=30.0))
    read = store.get(0.5, Table.SESSION, ("s",))
    assert read is not None
    assert end(store)
    assert store.touch(now, Table.SESSION, read.key) is None
    assert store.touch(now, Table.SESSION, read.key, ttl_s=1000.0) is None
    assert store.get(now, Table.SESSION, read.key) is None
    assert not store.drop_session(now, "s")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda store: store.drop_session(1.0, "s"), id="logged out"),
        pytest.param(lambda store: store.put(30.0, session(client="bob")) is None, id="expired and made anew"),
        pytest.param(lambda store: store.put(1.0, session(client="bob")) is None, id="another client's now"),
        pytest.param(lambda store: store.sweep(30.0, 100), id="swept"),
    ],
)
def test_what_belongs_to_a_session_ends_with_it(end: Callable[[CacheStore], object]) -> None:
    other = session("t", ttl_s=90.0), entry("k", "t", ttl_s=90.0)
    store = store_of(session(ttl_s=30.0), entry("a", ttl_s=90.0), entry("b", ttl_s=90.0), *other)
    assert end(store)
    assert has(store, 31.0, entry("a"), entry("b"), *other) == [False, False, True, True]
    assert store.counts(Table.CACHE).rows == 1


def test_an_entry_is_not_read_in_a_session_that_is_over() -> None:
    store = store_of(session(ttl_s=30.0), entry(ttl_s=90.0))
    assert store.by_client(30.0, Table.CACHE, "ann", 9) == []
    assert store.get(30.0, Table.CACHE, ("s", "k")) is None
    assert store.put(30.0, entry()) == Refused(Why.NO_SESSION)


def test_versions_of_front_servers_stand_side_by_side() -> None:
    store = store_of(warm(version=1, value=b"old"), warm(version=2, value=b"new"))
    rows = [store.get(1.0, Table.WARM, ("ann", 1, version)) for version in (1, 2)]
    assert [row and row.value for row in rows] == [b"old", b"new"]


def test_many_who_are_dead_at_once_are_not_taken_off_all_in_one_call() -> None:
    store = store_of(*(device("phone", f"client {number}", ttl_s=5.0) for number in range(2500)))
    for expired in (1000, 2000, 2500, 2500):
        assert store.clients_of(5.0, "phone", 9) == []
        assert store.counts(Table.DEVICE).expired == expired


def devices_of(store: CacheStore, client: str) -> list[object]:
    return [row.key[0] for row in store.by_client(5.0, Table.DEVICE, client, 9)]


def test_devices_and_clients_are_many_to_many() -> None:
    pairs = [("phone", "ann"), ("pad", "ann"), ("phone", "bob"), ("tv", "cy")]
    store = store_of(*(device(*pair) for pair in pairs), device("phone", "dee", ttl_s=5.0))
    assert store.clients_of(5.0, "phone", 9) == ["bob", "ann"], "who came last is first, the dead are not there"
    assert devices_of(store, "ann") == ["pad", "phone"]
    assert store.clients_of(5.0, "phone", 1) == ["bob"]
    assert store.clients_of(5.0, "car", 9) == devices_of(store, "eve") == []
    assert store.delete(5.0, Table.DEVICE, ("phone", "ann"))
    assert store.clients_of(5.0, "phone", 9) == ["bob"]
    assert devices_of(store, "ann") == ["pad"]


def test_the_sessions_of_a_client_are_listed() -> None:
    store = store_of(session("a"), session("b"), session("c", ttl_s=5.0), session("d", client="bob"), entry(name="a"))
    assert [row.key for row in store.by_client(6.0, Table.SESSION, "ann", 9)] == [("b",), ("a",)]
    assert [row.key for row in store.by_client(6.0, Table.SESSION, "ann", 1)] == [("b",)]
    assert [row.key for row in store.by_client(6.0, Table.CACHE, "ann", 9)] == [("a", "k")]


def test_one_session_too_many_of_a_client_ends_that_of_his_which_was_used_last_the_longest_ago() -> None:
    store = store_of(session("a"), session("b"), session("c", ttl_s=5.0), entry(name="b"), sessions_per_client=3)
    store.put(1.0, session("bob's", client="bob"))
    store.touch(2.0, Table.SESSION, ("a",))
    store.put(6.0, session("d"))
    assert has(store, 6.0, session("a"), session("b"), session("d")) == [True] * 3, "the dead do not count"
    store.put(7.0, session("a"))
    assert has(store, 7.0, session("b")) == [True], "it was there"
    store.put(8.0, session("e"))
    names = [row.session for row in store.by_client(8.0, Table.SESSION, "ann", 9)]
    assert names == ["e", "d", "a"]
    assert (store.counts(Table.SESSION).evicted, store.counts(Table.CACHE).evicted, len(store)) == (1, 1, 4)


def test_who_logs_in_again_and_again_fills_no_memory_and_takes_no_time() -> None:
    store = store_of(sessions_per_client=20, max_bytes=2**20)
    for number in range(2_000):
        assert store.put(number / 1e3, session(f"s{number}")) is None
        assert len(store) <= 20
    assert store.counts(Table.SESSION) == attrs.evolve(store.counts(Table.SESSION), rows=20, evicted=1980, refused=0)


def test_of_what_is_put_back_a_client_has_no_more_sessions_than_now_allowed() -> None:
    store = CacheStore(StorePolicy(sessions_per_client=2))
    rows = [session(name, updated_at=at) for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 0.0))]
    assert store.restore(5.0, rows) == 2
    assert has(store, 5.0, *rows) == [True, False, True, False]
    assert store.take_changes(9).gone == [(Table.SESSION, ("b",)), (Table.SESSION, ("d",))]


# Leases.


def test_a_lease_has_one_holder_until_its_time_is_over() -> None:
    store = store_of()
    first = held(store.lease(0.0, ("ann", 1, 1), "a", 10.0))
    assert (first.owner, first.until) == ("a", 10.0)
    assert store.lease(9.0, ("ann", 1, 1), "b", 10.0) == Held(10.0)
    assert store.lease(9.0, ("ann", 1, 1), "a", 10.0) == Held(10.0), "another task of the same owner"
    second = held(store.lease(10.0, ("ann", 1, 1), "b", 10.0))
    assert second.fence > first.fence


def test_a_lease_is_released_by_nobody_but_its_holder() -> None:
    store = store_of()
    stalled = held(store.lease(0.0, "name", "a", 1.0))
    holder = held(store.lease(2.0, "name", "b", 10.0))
    assert not store.release(2.0, stalled)
    assert store.extend(2.0, stalled, 10.0) is None
    assert not store.release(2.0, Lease("name", "a", holder.fence, holder.until))
    assert store.lease(2.0, "name", "c", 1.0) == Held(12.0)
    assert store.release(2.0, holder)
    assert not store.release(2.0, holder)
    assert isinstance(store.lease(2.0, "name", "c", 1.0), Lease)


def test_the_same_owner_does_not_release_its_own_later_lease_by_an_earlier_one() -> None:
    store = store_of()
    early = held(store.lease(0.0, "name", "a", 1.0))
    late = held(store.lease(2.0, "name", "a", 1.0))
    assert not store.release(2.0, early)
    assert store.release(2.0, late)


def test_a_lease_is_extended_while_it_holds() -> None:
    store = store_of()
    lease = held(store.lease(0.0, "name", "a", 10.0))
    longer = store.extend(9.0, lease, 10.0)
    assert longer is not None
    assert (longer.fence, longer.until) == (lease.fence, 19.0)
    assert store.lease(18.0, "name", "b", 1.0) == Held(19.0)
    assert store.extend(19.0, longer, 10.0) is None


def test_a_late_result_is_refused_and_never_replaces_a_later_one() -> None:
    store = store_of()
    slow = held(store.lease(0.0, "name", "a", 1.0))
    fast = held(store.lease(2.0, "name", "b", 10.0))
    assert store.publish(3.0, fast, warm(value=b"new"))
    assert not store.publish(3.5, slow, warm(value=b"old"))
    assert store.put(3.5, warm(value=b"old", fence=slow.fence)) == Refused(Why.OUTDATED)
    row = store.get(4.0, Table.WARM, ("ann", 1, 1))
    assert row == warm(value=b"new", updated_at=3.0, fence=fast.fence)
    assert store.publish(4.0, fast, warm(value=b"newer")), "as often as it likes, while it holds"
    assert not store.publish(12.0, fast, warm(value=b"late"))
    assert store.refused[Table.WARM, Why.OUTDATED] == 3


def test_what_has_no_room_is_not_published() -> None:
    store = store_of(max_value_bytes=10)
    lease = held(store.lease(0.0, "name", "a", 10.0))
    assert not store.publish(1.0, lease, warm(value=bytes(11)))
    assert store.counts(Table.WARM).refused == 1


def test_leases_are_bounded_and_the_ended_ones_make_room() -> None:
    store = store_of(max_leases=2)
    first = held(store.lease(0.0, "a", "x", 10.0))
    store.lease(0.0, "b", "x", 5.0)
    assert store.lease(1.0, "c", "x", 5.0) == Held(5.0)
    assert store.release(1.0, first)
    assert isinstance(store.lease(1.0, "c", "x", 50.0), Lease)
    assert isinstance(store.lease(6.0, "d", "x", 50.0), Lease)
    assert store.leases == 2


# Bounds.


def room_for(rows: int) -> int:
    return rows * cost_of(session("s0", value=bytes(100))) + 100


def test_warm_data_go_first_then_entries_then_devices_and_no_session() -> None:
    others = [warm(value=bytes(100)), entry(name="s0", value=bytes(100)), device(value=bytes(100))]
    store = store_of(session("s0", value=bytes(100)), *others, max_bytes=room_for(4))
    left = []
    for number in range(1, 4):
        assert store.put(1.0, session(f"s{number}", value=bytes(100))) is None
        left.append([row.table for row, there in zip(others, has(store, 1.0, *others), strict=True) if there])
    assert left == [[Table.CACHE, Table.DEVICE], [Table.DEVICE], []]
    assert store.put(1.0, session("s9", value=bytes(100))) == Refused(Why.FULL)
    assert has(store, 1.0, *(session(f"s{number}") for number in range(4))) == [True] * 4
    assert [store.counts(table).evicted for table in Table] == [1, 1, 1, 0]
    assert store.refused[Table.SESSION, Why.FULL] == store.counts(Table.SESSION).refused == 1


@pytest.mark.parametrize("make", [entry, warm, device])
def test_nothing_makes_room_at_the_cost_of_what_is_worth_more(make: Callable[..., Row]) -> None:
    store = store_of(*(session(f"s{n}", value=bytes(100)) for n in range(4)), max_bytes=room_for(4))
    row = make(name="s0") if make is entry else make()
    assert store.put(1.0, row) == Refused(Why.FULL)
    assert len(store) == 4


def test_of_a_table_the_row_that_would_end_first_goes() -> None:
    rows = [warm(name, ttl_s=ttl_s) for name, ttl_s in (("a", 50.0), ("b", 10.0), ("c", 30.0))]
    store = store_of(*rows, max_bytes=3 * cost_of(rows[0]))
    store.put(1.0, warm("d"))
    assert has(store, 1.0, *rows) == [True, False, True]
    store.put(1.0, warm("c", ttl_s=90.0))
    store.put(1.0, warm("e", ttl_s=5.0))
    assert has(store, 1.0, *rows) == [True, False, True], "d would have ended before c, which is new"


def test_the_dead_make_room_before_the_living() -> None:
    store = store_of(session("s0", ttl_s=5.0), warm(), session("s1"), max_bytes=room_for(3))
    assert store.put(5.0, session("s2", value=bytes(300))) is None
    assert has(store, 5.0, warm(), session("s1"), session("s2")) == [True, True, True]


def test_a_refused_row_changes_nothing() -> None:
    store = store_of(session("s0", value=b"old"), warm(), max_bytes=room_for(2), max_value_bytes=10_000)
    before = store.bytes
    assert store.put(1.0, session("s0", value=bytes(5_000))) == Refused(Why.TOO_BIG), "not even alone"
    assert store.put(1.0, session("s0", value=bytes(10_001))) == Refused(Why.TOO_BIG)
    assert store.put(1.0, session("s1", value=bytes(1_000))) == Refused(Why.FULL)
    assert store.get(1.0, Table.SESSION, ("s0",)) == session("s0", value=b"old")
    assert has(store, 1.0, warm()) == [True]
    assert store.bytes == before


def test_entries_of_a_session_are_bounded_the_dead_not_counted() -> None:
    store = store_of(session(), entry("a", ttl_s=5.0), entry("b"), max_entries=2)
    assert store.put(1.0, entry("c")) == Refused(Why.FULL)
    assert store.put(1.0, entry("b", value=b"other")) is None
    assert store.put(5.0, entry("c")) is None


def test_a_sweep_goes_in_slices_and_gives_all_back() -> None:
    store = store_of(*(warm(f"c{n}", ttl_s=5.0) for n in range(100)), session(ttl_s=5.0), entry(), session("t"))
    store.lease(0.0, "name", "a", 5.0)
    assert store.sweep(4.0, 10) == 0
    steps = []
    while not steps or steps[-1] == 10:
        steps.append(store.sweep(5.0, 10))
    assert sum(steps) == 103
    assert len(store) == 1
    assert store.leases == 0
    assert store.bytes == cost_of(session("t"))
    assert (store.counts(Table.WARM).expired, store.counts(Table.CACHE).expired) == (100, 1)


def test_touches_do_not_make_the_heap_grow() -> None:
    store = store_of(session(ttl_s=30.0))
    for step in range(20_000):
        store.touch(step / 1000, Table.SESSION, ("s",), ttl_s=30.0 - (step % 2) * step / 1000)
    assert store._shelves[Table.SESSION].watched < 2_000


@pytest.mark.parametrize("make", KINDS)
def test_what_a_row_is_counted_with_is_what_it_takes(make: Callable[..., Row]) -> None:
    count = 2_000
    names = [f"{n:032x}" for n in range(count)]
    extra = {entry: {"client": "ann"}}.get(make, {})
    store = store_of(session("s", ttl_s=1e6), max_entries=10**6, max_bytes=2**30)
    store.restore(0.0, [])  # so that what is to be written is counted, too
    gc.collect()
    tracemalloc.start()
    try:
        for name in names:
            text = "".join([name, "x"])
            row = make(text, value=bytes(bytearray(100)), ttl_s=float(len(text)) + 1e-9, **extra)
            store.put(0.1, row)
        gc.collect()
        took = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    counted = store.counts(make().table).bytes / store.counts(make().table).rows
    assert 0.55 * counted < took <= counted


@pytest.mark.parametrize(
    "row",
    [
        session(ttl_s=0.0),
        session(ttl_s=-1.0),
        session(ttl_s=math.inf),
        session(ttl_s=math.nan),
        session()._replace(key=("s", "t")),
        session()._replace(key=(1,)),
        session()._replace(session="t"),
        warm()._replace(client="bob"),
        warm()._replace(key=("ann", True, 1)),
        warm(version=2**63),
        device()._replace(client="bob"),
        entry("\ud800"),
        session(type=2**63),
    ],
)
def test_what_could_not_be_kept_is_our_bug_and_changes_nothing(row: Row) -> None:
    store = store_of(session())
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own text
        store.put(1.0, row)
    assert len(store) == 1


def test_the_overhead_is_counted() -> None:
    assert store_of(session("s", "ann", b"12345")).bytes == ROW_OVERHEAD_BYTES + 5 + 3 + 1 + 1


# What is to be written.


def test_only_what_has_changed_is_to_be_written_each_once() -> None:
    store = store_of(session("s"), warm())
    assert store.unwritten == 2, "nobody has said that the file has any of it"
    changes = store.take_changes(10)
    assert (changes.anew, changes.last, len(changes.rows)) == (True, True, 2)
    assert store.unwritten == 0
    for now in range(5):
        store.touch(float(now), Table.SESSION, ("s",))
    store.delete(5.0, Table.WARM, ("ann", 1, 1))
    changes = store.take_changes(10)
    assert (changes.rows, changes.gone) == ([session(updated_at=4.0)], [(Table.WARM, ("ann", 1, 1))])
    assert (changes.anew, changes.last) == (False, True)
    store.put(6.0, warm("bob"))
    store.give_back(changes)
    assert {row.key for row in store.take_changes(10).rows} == {("s",), ("bob", 1, 1)}


def test_changes_come_in_parts_of_which_the_last_says_so() -> None:
    store = store_of(*(session(f"s{n}") for n in range(25)))
    parts = [store.take_changes(10) for _ in range(3)]
    assert [(len(part.rows), part.anew, part.last) for part in parts] == [
        (10, True, False),
        (10, False, False),
        (5, False, True),
    ]


def test_changes_that_nobody_takes_are_bounded_and_all_is_written_anew() -> None:
    store = store_of()
    store.restore(0.0, [])
    for number in range(40_000):
        store.put(0.0, session(f"s{number}"))
        store.drop_session(0.0, f"s{number}")
    store.put(0.0, session("last"))
    assert store.unwritten == 1
    changes = store.take_changes(10)
    assert (changes.anew, [row.key for row in changes.rows], changes.gone) == (True, [("last",)], [])


def test_a_lease_is_a_change_as_its_number_must_not_come_again() -> None:
    store = store_of()
    store.restore(0.0, [])
    lease = held(store.lease(0.0, "name", "a", 1.0))
    assert store.unwritten == 1
    assert store.take_changes(10).fence == lease.fence
    later = store_of()
    later.raise_fence(lease.fence)
    assert held(later.lease(0.0, "name", "a", 1.0)).fence > lease.fence


def test_what_is_put_back_is_no_older_and_lives_no_longer_than_it_may() -> None:
    store = store_of()
    rows = [
        session("a", updated_at=80.0),
        session("b", updated_at=200.0),
        session("c", updated_at=70.0),
        entry("k", "c"),
    ]
    assert store.restore(100.0, rows) == 2
    assert [store.get(100.0, Table.SESSION, (name,)) for name in "ab"] == [rows[0], rows[1]._replace(updated_at=100.0)]
    changes = store.take_changes(10)
    assert (changes.rows, set(changes.gone)) == ([], {(Table.SESSION, ("c",)), (Table.CACHE, ("c", "k"))})


def test_what_is_put_back_replaces_nothing_and_its_fences_count() -> None:
    store = store_of(session("a", value=b"new"))
    assert store.restore(1.0, [session("a", value=b"old"), warm(fence=7)]) == 1
    row = store.get(1.0, Table.SESSION, ("a",))
    assert row is not None
    assert row.value == b"new"
    assert held(store.lease(1.0, "name", "x", 1.0)).fence == 8
