"""Single steps of the broker's core; test_broker_core_machine.py has all orders of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from master.cache.broker_core import BrokerCore, BrokerPolicy, Entry, Refusal, Stage


def made(length: int = 10, workers: int = 1, per_kind: Mapping[str, int] | None = None) -> BrokerCore[Entry]:
    return BrokerCore(BrokerPolicy(length, workers, per_kind or {}))


def entry(
    name: str = "", *, kind: str = "k", priority: int = 0, deadline: float = 100.0, needs_s: float = 0.0
) -> Entry:
    return Entry(kind, priority, deadline, name, needs_s)


def names(core: BrokerCore[Entry]) -> str:
    """Return the order in which one worker gets them."""
    order = ""
    while (got := core.next(0.0)) is not None:
        order += got.work
        core.ended(got)
    return order


def test_the_lowest_priority_number_is_first_and_who_came_first_within_it() -> None:
    core = made()
    for name, priority in [("a", 2), ("b", 1), ("c", 2), ("d", 0), ("e", 1), ("f", 0)]:
        core.offer(0.0, entry(name, priority=priority))
    assert names(core) == "dfbeac"


def test_of_one_priority_kinds_take_no_precedence() -> None:
    core = made()
    for name, kind in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "y")]:
        core.offer(0.0, entry(name, kind=kind))
    assert names(core) == "abcde"


def test_a_kind_at_its_limit_is_passed_over_and_keeps_its_order() -> None:
    core = made(workers=3, per_kind={"slow": 1})
    for name, kind in [("a", "slow"), ("b", "slow"), ("c", "slow"), ("d", "quick"), ("e", "quick")]:
        core.offer(0.0, entry(name, kind=kind))
    begun = [core.next(0.0) for _ in range(4)]
    assert [each and each.work for each in begun] == ["a", "d", "e", None]
    assert core.busy == {"slow": 1, "quick": 2}
    assert begun[0] is not None
    core.ended(begun[0])
    following = core.next(0.0)
    assert following is not None
    assert following.work == "b"


def test_in_a_full_queue_a_newcomer_takes_the_place_of_the_last_of_the_lowest() -> None:
    core = made(length=3)
    core.offer(0.0, entry("busy"))
    core.next(0.0)
    first, last, other = entry("first", priority=5), entry("last", priority=5), entry("other", priority=3)
    for each in (first, last, other):
        assert core.offer(0.0, each).refused is None
    assert core.offer(0.0, entry(priority=5)).refused is Refusal.FULL, "its equals were here before it"
    assert core.offer(0.0, entry(priority=4)).put_out is last
    assert core.offer(0.0, entry(priority=1)).put_out is first
    assert (core.length, core.refused, core.put_out) == (3, 1, 2)


def test_a_queue_full_of_a_kind_at_its_limit_stops_nobody_who_can_begin_at_once() -> None:
    core = made(length=2, workers=2, per_kind={"slow": 1})
    core.offer(0.0, entry("a", kind="slow"))
    core.next(0.0)
    for _ in range(2):
        core.offer(0.0, entry(kind="slow"))
    assert core.offer(0.0, entry("b", kind="slow")).refused is Refusal.FULL
    quick = entry("c", kind="quick", priority=9)
    offered = core.offer(0.0, quick)
    assert (offered.refused, offered.put_out) == (None, None)
    assert core.next(0.0) is quick
    assert core.length == 2


@pytest.mark.parametrize("deadline", [5.0, 4.9, float("-inf"), float("nan")])
def test_who_comes_too_late_gets_no_place(deadline: float) -> None:
    core = made()
    assert core.offer(5.0, entry(deadline=deadline)).refused is Refusal.EXPIRED
    assert core.park(5.0, entry(deadline=deadline)) is Refusal.EXPIRED
    assert (core.length, core.parked, core.due(9.0), core.expired) == (0, 0, [], 2)


def test_what_needs_more_than_is_left_is_not_begun_and_what_has_begun_has_all_its_time() -> None:
    core = made()
    begun, waiting = entry(deadline=10.0, needs_s=3.0), entry(deadline=10.0, needs_s=3.0)
    for each in (begun, waiting):
        core.offer(0.0, each)
    assert core.next(0.0) is begun
    assert core.next_due() == 7.0
    assert core.due(6.9) == []
    assert core.due(7.0) == [waiting]
    assert core.next_due() == 10.0
    assert core.due(10.0) == [begun]


def test_a_worker_whose_entry_has_expired_is_busy_until_it_is_back() -> None:
    core = made()
    late = entry(deadline=1.0)
    core.offer(0.0, late)
    core.next(0.0)
    assert core.due(1.0) == [late]
    core.offer(1.0, entry())
    assert core.next(1.0) is None
    assert core.busy == {"k": 1}
    assert not core.ended(late)
    assert late.stage is Stage.OVER
    assert core.next(1.0) is not None


def test_what_is_parked_takes_no_place_and_no_worker() -> None:
    core = made(length=1)
    parked = [entry(deadline=5.0 + number) for number in range(3)]
    for each in parked:
        assert core.park(0.0, each) is None
    assert (core.parked, core.length, core.working) == (3, 0, 0)
    assert core.ended(parked[2])
    assert core.due(5.0) == [parked[0]]
    assert core.withdraw(parked[1])
    assert core.parked == 0


def test_after_the_close_nobody_comes_in_and_what_has_begun_goes_on() -> None:
    core = made()
    begun, waiting, parked = entry(), entry(), entry()
    core.offer(0.0, begun)
    core.next(0.0)
    core.offer(0.0, waiting)
    core.park(0.0, parked)
    assert core.close() == [waiting]
    assert core.offer(0.0, entry()).refused is Refusal.STOPPING
    assert core.park(0.0, entry()) is Refusal.STOPPING
    assert core.ended(begun)
    assert core.ended(parked)
    assert core.close() == core.abandon() == []


def test_neither_deadlines_nor_work_pile_up_behind_what_is_over() -> None:
    """A lifetime is long, work is short: nothing of a million that are over may be held until their deadline."""
    core = made(length=100, workers=10)

    class Work: ...

    held: weakref.WeakSet[Any] = weakref.WeakSet()
    for number in range(20_000):
        work = Work()
        held.add(work)
        core.offer(0.0, Entry("k", 0, 1e9, work, needs_s=number % 2))
        got = core.next(0.0)
        assert got is not None
        core.ended(got)
        assert core.watched <= 2 * 110 + 1024
    del work, got
    gc.collect()
    assert not held


@pytest.mark.parametrize("wrong", [{"length": 0}, {"workers": 0}, {"most_parked": 0}, {"per_kind": {"k": 0}}])
def test_a_broker_without_places_or_workers_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        BrokerPolicy(**wrong)
