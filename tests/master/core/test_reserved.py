"""Asks for which a place is kept already: what "full" means for them, and what it does not."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Reason, Refused, State
from tests.master.core.test_pool import Bench

KEPT = Ask(reserved=True)
TWO = LoadPolicy(connect_s=2.0, masters=2)


def sent(bench: Bench, now: float, ask: Ask = KEPT) -> str | None:
    assignment = bench.pool.assign(now, bench.rng, ask)
    return assignment.place.name if isinstance(assignment, Assignment) else None


def crowded(*full: Backend, loads: LoadPolicy | None = None, count: int = 0) -> Bench:
    """Return a pool that is full by those who were sent a second ago, of whom the reports may have some already."""
    bench = Bench(*full, loads=loads)
    bench.report(0.0, **{each.name: 0 for each in full})
    while sent(bench, 0.5, Ask()) is not None:
        pass
    assert {member.state(0.5) for member in bench.pool} == {State.FULL}
    assert sent(bench, 0.5) is None, "nobody of them can be in a report yet"
    bench.report(1.0, **{each.name: count for each in full})
    return bench


def test_who_may_be_counted_twice_keeps_nobody_out() -> None:
    bench = crowded(Backend("a", capacity=3), count=2)
    assert sent(bench, 1.0, Ask()) is None
    assert [sent(bench, 1.0) for _ in range(2)] == ["a", None]
    assert bench.pool.answers[Reason.BEST] == 4
    bench.report(4.0, a=3)
    assert sent(bench, 4.0) is None, "full by its own count"
    bench.report(5.0, a=2)
    assert [sent(bench, 5.0, Ask()) for _ in range(2)] == ["a", None]


def test_what_other_masters_send_meanwhile_counts() -> None:
    bench = crowded(Backend("a", capacity=4), loads=TWO)
    assert [sent(bench, 1.0) for _ in range(3)] == ["a", "a", None]


def test_the_first_level_comes_first_and_then_the_least_load_for_its_weight() -> None:
    bench = crowded(
        Backend("a", weight=2.0, capacity=9), Backend("b", capacity=9), Backend("c", capacity=9, priority=1)
    )
    counts = Counter(sent(bench, 1.0) for _ in range(12))
    assert counts == {"a": 8, "b": 4}


@pytest.mark.parametrize("state", [State.DRAIN, State.MAINT, State.EJECTED, State.STALE, State.DOWN])
def test_only_fullness_is_forgiven(state: State) -> None:
    bench = crowded(Backend("a", capacity=3), Backend("b", capacity=0))
    at, pool = 1.0, bench.pool
    if state is State.EJECTED:
        pool.bar(at, "a", 60.0)
    elif state is State.STALE:
        at = 4.5
    elif state is State.DOWN:
        pool.record_lost(at, "a")
    else:
        pool.set_admin(at, "a", Admin(Wish.DRAIN if state is State.DRAIN else Wish.MAINT))
    assert pool["a"].state(at) in (state, State.LOST)
    assert isinstance(pool.assign(at, bench.rng, KEPT), Refused)


def test_who_could_not_connect_is_not_sent_back_there() -> None:
    bench = crowded(Backend("a", capacity=3))
    assert sent(bench, 1.0, attrs.evolve(KEPT, failed=frozenset({("a", 9001)}))) is None


def test_of_very_many_some_are_looked_at() -> None:
    bench = crowded(*(Backend(f"b{number}", capacity=1) for number in range(500)))
    found = [sent(bench, 1.0) for _ in range(200)]
    assert None not in found
    assert len(set(found)) == 200


def test_who_has_left_the_pool_is_not_among_them() -> None:
    bench = crowded(Backend("a", capacity=3), Backend("b", capacity=3))
    bench.pool.change(1.0, [Backend("b", capacity=3)])
    assert {sent(bench, 1.0) for _ in range(3)} == {"b"}
