"""When few work: the first round, panic, and a failure of all at once."""

from __future__ import annotations

import math
import random

import pytest

from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, Reason, Refused

PROBED = ("10.0.0.1", 9001)
LAST_KNOWN = ChoicePolicy(panic=Panic.LAST_KNOWN, panic_threshold=0.5, first_round_s=0.0)


class Bench:
    def __init__(self, size: int, choice: ChoicePolicy | None = None, **backend: int) -> None:
        self.rng = random.Random(1)
        self.names = [f"b{i}" for i in range(size)]
        self.pool = Pool(
            [Backend(name, **backend) for name in self.names], HealthPolicy(), LoadPolicy(), choice or ChoicePolicy()
        )

    def report(self, now: float, *names: str, count: int = 0) -> None:
        for name in names or self.names:
            self.pool.record_report(now, self.rng, name, count, now, PROBED)

    def ask(self, now: float) -> tuple[str, Reason]:
        answer = self.pool.assign(now, self.rng, Ask())
        return (answer.place.name if isinstance(answer, Assignment) else ""), answer.why


def test_nobody_is_named_before_every_backend_was_probed_once_well_or_badly() -> None:
    bench = Bench(3)
    bench.report(100.0, "b0", "b1")
    assert bench.ask(100.1) == ("", Reason.FIRST_ROUND)
    assert bench.pool.pick(100.1, bench.rng) is None
    bench.pool.record_failure(100.2, "b2")
    assert bench.ask(100.3)[0] in ("b0", "b1")
    assert bench.pool.answers[Reason.FIRST_ROUND] == 2


@pytest.mark.parametrize("first", ["an ask", "a report", "a failure"])
def test_the_first_round_is_over_when_its_time_is(first: str) -> None:
    bench = Bench(2, ChoicePolicy(first_round_s=2.5))
    if first == "an ask":
        bench.ask(100.0)
    elif first == "a failure":
        bench.pool.record_failure(100.0, "b0")
    bench.report(100.0, "b0")
    assert bench.ask(102.4) == ("", Reason.FIRST_ROUND)
    assert bench.ask(102.5)[0] == "b0"


def test_a_backend_that_was_not_probed_keeps_nobody_out_later() -> None:
    bench = Bench(2, ChoicePolicy(first_round_s=0.0))
    bench.report(0.0, "b0")
    assert bench.ask(0.0)[0] == "b0"


def test_below_the_threshold_everybody_is_refused() -> None:
    bench = Bench(4, ChoicePolicy(panic_threshold=0.5))
    bench.report(0.0)
    bench.pool.record_lost(1.0, "b0")
    bench.pool.record_lost(1.0, "b1")
    assert bench.ask(1.0)[0] in ("b2", "b3")
    bench.pool.record_lost(1.0, "b2")
    assert bench.ask(1.0) == ("", Reason.PANIC)
    bench.report(1.5, "b2")
    assert bench.ask(1.5)[0] in ("b2", "b3")


def test_by_default_the_last_one_that_works_is_named_and_after_it_nobody() -> None:
    bench = Bench(3)
    bench.report(0.0)
    for name in ("b0", "b1"):
        bench.pool.record_lost(1.0, name)
    assert bench.ask(1.0) == ("b2", Reason.BEST)
    assert bench.ask(3.1) == ("", Reason.NO_CANDIDATE)


def test_too_few_by_age_alone_are_too_few() -> None:
    bench = Bench(4, ChoicePolicy(panic_threshold=0.5))
    bench.report(0.0, "b0", "b1", "b2")
    bench.report(2.0, "b3")
    assert bench.ask(3.0)[0] != ""
    assert bench.ask(3.5) == ("", Reason.PANIC)


def test_in_panic_the_last_good_reports_are_taken_for_true_and_marked() -> None:
    bench = Bench(4, LAST_KNOWN)
    bench.report(0.0, "b0", count=5)
    bench.report(0.0, "b1", "b2", count=500)
    for name in ("b0", "b1"):
        bench.pool.record_lost(1.0, name)
    assert bench.ask(1.0) == ("b0", Reason.LAST_KNOWN)
    bench.report(1.5, "b0", "b1", count=500)
    assert bench.ask(1.5)[1] is not Reason.LAST_KNOWN
    named = {bench.ask(1000.0)[0] for _ in range(50)}
    assert named == {"b0", "b1", "b2"}  # never b3, which gave no report
    assert bench.pool.answers[Reason.LAST_KNOWN] == 51


def test_with_last_known_none_at_all_is_too_few_for_any_threshold() -> None:
    bench = Bench(2, ChoicePolicy(panic=Panic.LAST_KNOWN))
    bench.report(0.0)
    bench.pool.record_lost(1.0, "b0")
    assert bench.ask(1.0)[0] == "b1"
    bench.pool.record_lost(1.0, "b1")
    assert {bench.ask(1.0) for _ in range(10)} == {("b0", Reason.LAST_KNOWN), ("b1", Reason.LAST_KNOWN)}


def test_in_panic_nobody_gets_more_than_its_room_and_nobody_who_was_never_known_is_named() -> None:
    bench = Bench(1, LAST_KNOWN, capacity=2)
    assert bench.ask(0.0) == ("", Reason.NO_CANDIDATE)
    bench.report(0.0)
    bench.pool.record_lost(0.5, "b0")
    assert [bench.ask(1.0)[0] for _ in range(3)] == ["b0", "b0", ""]


def test_panic_ends_when_enough_work_and_the_dead_are_not_named_any_more() -> None:
    bench = Bench(4, LAST_KNOWN)
    bench.report(0.0)
    for name in bench.names:
        bench.pool.record_lost(1.0, name)
    assert bench.ask(1.0)[1] is Reason.LAST_KNOWN
    bench.report(2.0, "b0", "b1")
    assert {bench.ask(2.0)[0] for _ in range(20)} == {"b0", "b1"}


@pytest.mark.parametrize("how", ["lost", "stale"])
def test_when_all_fail_together_the_masters_own_network_is_suspected_until_one_works(how: str) -> None:
    bench = Bench(5)
    bench.report(0.0)
    assert not bench.pool.suspects_own_network(1.0)
    if how == "lost":
        for name in bench.names:
            bench.pool.record_lost(1.0, name)
    assert bench.pool.suspects_own_network(4.0)
    assert bench.pool.roll.suspicions == 1
    bench.report(5.0, "b3")
    assert not bench.pool.suspects_own_network(5.0)
    assert bench.pool.roll.suspicions == 1


def test_who_fail_one_after_the_other_or_alone_raise_no_suspicion() -> None:
    bench = Bench(4)
    for step, name in enumerate(bench.names):
        bench.report(10.0 * step, *bench.names[step:])
        bench.pool.record_lost(10.0 * step + 1, name)
        bench.report(10.0 * step + 1, *bench.names[step + 1 :]) if step < 3 else None
    assert not bench.pool.works(32.0)
    assert not bench.pool.suspects_own_network(32.0)
    lonely = Bench(1)
    lonely.report(0.0)
    lonely.pool.record_lost(1.0, "b0")
    assert not lonely.pool.suspects_own_network(1.0)


def test_the_dead_of_an_outage_stay_out_for_hours() -> None:
    bench = Bench(20)
    bench.report(0.0)
    for hour in range(1, 6):
        now = 3600.0 * hour
        bench.report(now, *bench.names[10:])
        assert {bench.ask(now)[0] for _ in range(100)} <= set(bench.names[10:])


def test_a_refusal_says_why() -> None:
    assert Bench(0).pool.assign(0.0, random.Random(1), Ask()) == Refused(Reason.NO_CANDIDATE)


def test_an_ejected_backend_is_out_until_it_is_let_in() -> None:
    bench = Bench(2)
    bench.report(0.0)
    bench.pool.bar(0.5, "b0", math.inf)
    assert {bench.ask(0.5)[0] for _ in range(10)} == {"b1"}
    bench.report(1.0)
    assert {bench.ask(1.0)[0] for _ in range(10)} == {"b1"}
    bench.pool.bar(1.5, "b0", -math.inf)
    assert "b0" in {bench.ask(1.5)[0] for _ in range(20)}


def test_those_of_the_first_round_are_equally_new_and_share_a_crowd_evenly() -> None:
    rng = random.Random(1)
    pool = Pool([Backend(name) for name in "abc"], HealthPolicy(), LoadPolicy())
    pool.works(0.0)
    for name, count, now in (("a", 10, 0.1), ("b", 11, 0.5), ("c", 12, 0.9)):
        pool.record_report(now, rng, name, count, now, ("10.0.0.1", 9001))
    for i in range(300):
        assert pool.pick(1.0 + i / 1000, rng) is not None
    users = [pool[name].users(1.5) for name in "abc"]
    assert max(users) - min(users) <= 2, users
    pool.record_lost(2.0, "a")
    pool.record_report(9.0, rng, "a", 0, 9.0, ("10.0.0.1", 9001))
    assert pool["a"].permits.began_at == 9.0
