"""The pool is changed while it works: who is the same is not touched, who is new waits, who is gone is never named."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest

from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Policy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Member, Pool, Reason, State

PLAIN = ChoicePolicy(join_cap=math.inf, first_round_s=0.0, slow_start_s=0.0)
A, B, C = Backend("a"), Backend("b"), Backend("c")


class Bench:
    def __init__(self, *backends: Backend, choice: ChoicePolicy = PLAIN, health: HealthPolicy | None = None) -> None:
        self.rng = random.Random(1)
        self.pool = Pool(backends, health or HealthPolicy(), LoadPolicy(), choice)

    def report(self, now: float, **counts: int) -> None:
        for name, count in counts.items():
            self.pool.record_report(now, self.rng, name, count, now, (name, 9001))

    def ask(self, now: float, **ask: Any) -> str:
        answer = self.pool.assign(now, self.rng, Ask(**ask))
        return answer.place.name if isinstance(answer, Assignment) else answer.why.value

    def named(self, now: float, times: int = 30, **ask: Any) -> set[str]:
        return {self.ask(now, **ask) for _ in range(times)}


def everything(member: Member) -> dict[str, Any]:
    """Return all that is known of a member, by value."""
    parts = {field.name: getattr(member, field.name) for field in attrs.fields(Member) if field.name != "groups"}
    for name in ("health", "reservations", "permits", "spell"):
        parts[name] = {field.name: repr(getattr(parts[name], field.name)) for field in attrs.fields(type(parts[name]))}
    return parts | {"level": id(member.level)}


@pytest.mark.parametrize("now", [0.3, 2.0, 100.0])
def test_the_same_pool_again_changes_nothing_at_all(now: float) -> None:
    bench = Bench(A, B, C)
    bench.report(0.0, a=3, b=4)
    bench.pool.record_failure(0.1, "b")
    bench.named(0.2)
    bench.pool.works(now)
    before = {member.backend.name: (id(member), everything(member)) for member in bench.pool}
    bench.pool.change(now, [A, B, C])
    assert {member.backend.name: (id(member), everything(member)) for member in bench.pool} == before


def test_others_that_come_and_go_leave_the_same_one_as_it_was() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=3, b=4)
    bench.named(0.2)
    before = everything(bench.pool["a"])
    bench.pool.change(0.3, [C, A])
    assert everything(bench.pool["a"]) == before
    assert [member.backend.name for member in bench.pool] == ["c", "a"]
    assert bench.pool["c"].state(0.3) is State.UNPROBED


def test_who_was_stale_before_is_stale_afterwards_and_the_others_keep_report_and_load() -> None:
    bench = Bench(A, B)
    bench.report(0.0, b=0)
    bench.report(3.5, a=5)
    bench.ask(3.6)
    report, load = bench.pool["a"].report, bench.pool["a"].load(3.7)
    bench.pool.change(3.7, [attrs.evolve(A, zone="x"), attrs.evolve(B, zone="x"), C])
    assert bench.named(3.75, 100) == {"a"}
    assert bench.pool["a"].report is report
    assert bench.pool["b"].state(3.75) is State.STALE
    assert bench.pool["a"].load(3.75) == pytest.approx(load + 100, rel=0.01)
    bench.report(3.8, c=0)
    assert "c" in bench.named(3.8)


def test_a_new_one_waits_for_its_probe_and_closes_no_door() -> None:
    bench = Bench(A, choice=ChoicePolicy(first_round_s=60.0, panic_threshold=0.6))
    bench.report(0.0, a=100)
    assert bench.ask(0.1) == "a"
    bench.pool.change(0.2, [A, B, C])
    assert bench.named(0.3) == {"a"}
    assert {each.name: each.reason for each in bench.pool.explain(0.3, Ask())}["b"] is Reason.UNPROBED
    bench.report(0.4, b=0)
    assert "b" in bench.named(0.4)


def test_a_new_one_that_does_not_answer_counts_among_those_that_do_not_work_from_its_first_probe_on() -> None:
    bench = Bench(A, choice=ChoicePolicy(first_round_s=0.0, panic_threshold=0.6))
    bench.report(0.0, a=0)
    bench.pool.change(0.1, [A, B])
    assert bench.ask(0.2) == "a"
    bench.pool.record_failure(0.3, "b")
    assert bench.ask(0.4) == "panic"


def test_who_is_gone_is_never_named_and_its_return_is_that_of_a_stranger() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=0, b=50)
    assert bench.ask(0.1, client="c") == "a"
    bench.pool.change(0.2, [B])
    assert bench.named(0.3) == {"b"}
    assert bench.ask(0.3, client="c") == "b"
    with pytest.raises(KeyError):
        bench.pool["a"]
    bench.pool.change(0.4, [A, B])
    assert bench.named(0.5) == {"b"}
    bench.report(0.6, a=0)
    assert "a" in bench.named(0.6)


def test_the_last_one_that_goes_is_no_failure_of_the_network() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=0, b=0)
    bench.pool.change(0.1, [])
    assert bench.ask(0.2) == "no_candidate"
    assert not bench.pool.suspects_own_network(0.2)
    assert not bench.pool.works(0.2)


def test_one_that_was_waited_for_and_is_gone_is_waited_for_no_more() -> None:
    bench = Bench(A, B, choice=ChoicePolicy(first_round_s=60.0))
    bench.report(0.0, a=0)
    assert bench.ask(0.1) == "first_round"
    bench.pool.change(0.2, [A])
    assert bench.ask(0.3) == "a"


def test_one_that_stands_elsewhere_now_is_as_new_but_for_what_its_operator_wants() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=0, b=50)
    drain = Admin(Wish.DRAIN, "ann", "why not")
    bench.pool.set_admin(0.1, "a", drain)
    bench.pool.change(0.2, [A, B], moved=frozenset({"a", "b"}))
    assert bench.pool["b"].report is None
    assert bench.ask(0.3) == "no_candidate"
    bench.report(0.4, a=0, b=50)
    assert bench.named(0.4) == {"b"}
    assert bench.pool["a"].admin == drain


def test_a_client_is_not_sent_to_the_old_place_of_one_that_moved() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=0, b=50)
    assert bench.ask(0.1, client="c") == "a"
    bench.pool.change(0.2, [A, B], moved=frozenset({"a"}))
    assert bench.ask(0.3, client="c") == "b"


@pytest.mark.parametrize("policy", Policy)
def test_weight_counts_at_once(policy: Policy) -> None:
    bench = Bench(A, B, choice=attrs.evolve(PLAIN, policy=policy))
    bench.report(0.0, a=0, b=0)
    bench.pool.change(0.1, [attrs.evolve(A, weight=9.0), B])
    assert bench.pool["a"].level.weights == 10.0
    names = [bench.ask(0.2) for _ in range(200)]
    assert names.count("a") > 150 or policy is Policy.TWO_CHOICES
    bench.pool.change(0.3, [attrs.evolve(A, weight=0.0), B])
    assert bench.named(0.4) == {"b"}
    assert bench.pool["a"].report is not None
    bench.pool.change(0.5, [A, attrs.evolve(B, weight=0.0)])
    assert bench.named(0.6) == {"a"}


def test_the_share_of_a_cap_follows_the_weight() -> None:
    bench = Bench(A, B, choice=ChoicePolicy(join_cap=1.0, first_round_s=0.0, slow_start_s=0.0))
    bench.report(0.0, a=0, b=0)
    for i in range(600):
        bench.ask(i / 10)
        if i % 9 == 0:
            bench.report(i / 10, a=0, b=0)
    bench.pool.change(60.0, [attrs.evolve(A, weight=3.0), B])
    names = []
    for i in range(800):
        names.append(bench.ask(60 + i / 10))
        if i % 9 == 0:
            bench.report(60 + i / 10, a=0, b=0)
    assert 0.70 < names.count("a") / 800 < 0.80


def test_a_capacity_below_the_users_means_full_and_never_less_than_nothing() -> None:
    bench = Bench(A, B)
    bench.report(0.0, a=10, b=50)
    bench.pool.change(0.1, [attrs.evolve(A, capacity=4), B])
    assert bench.pool["a"].free(0.2) == 0
    assert bench.pool["a"].state(0.2) is State.FULL
    assert bench.named(0.2) == {"b"}
    bench.pool.change(0.3, [attrs.evolve(A, capacity=11), B])
    assert [bench.ask(0.4) for _ in range(3)] == ["a", "b", "b"]


def test_clients_are_told_a_new_address_at_once() -> None:
    bench = Bench(A)
    bench.report(0.0, a=0)
    bench.pool.change(0.1, [attrs.evolve(A, advertise=(("203.0.113.7", 1), ("2001:db8::7", 2)))])
    places = [bench.pool.assign(0.2, bench.rng, Ask(family)) for family in (4, 6)]
    assert [place.place.endpoint for place in places if isinstance(place, Assignment)] == [
        ("203.0.113.7", 1),
        ("2001:db8::7", 2),
    ]


def test_zones_and_levels_are_those_of_the_new_pool() -> None:
    bench = Bench(A, B, C)
    bench.report(0.0, a=0, b=0, c=0)
    in_x, in_y = attrs.evolve(A, zone="x"), attrs.evolve(B, zone="y")
    bench.pool.change(0.1, [in_x, in_y, C])
    assert bench.ask(0.2, zone="y") == "b"
    assert bench.ask(0.2, zone="x") == "a"
    bench.pool.change(0.25, [attrs.evolve(in_x, zone="y"), attrs.evolve(in_y, zone="x"), C])
    assert (bench.ask(0.27, zone="y"), bench.ask(0.27, zone="x")) == ("a", "b")
    bench.pool.change(0.3, [attrs.evolve(in_x, priority=1), in_y, C])
    assert bench.named(0.4) == {"b", "c"}
    bench.pool.change(0.5, [attrs.evolve(in_x, priority=1), C])
    assert bench.named(0.6) == {"c"}
    assert {each.name: each.reason for each in bench.pool.explain(0.6, Ask(zone="y"))}["c"] is Reason.BEST
    bench.pool.change(0.7, [attrs.evolve(in_x, priority=1)])
    assert bench.named(0.8) == {"a"}
    assert bench.pool.explain(0.8, Ask(zone="y"))[0].reason is Reason.BEST


def eject_a(bench: Bench) -> None:
    bench.report(0.0, a=0, b=50, c=50, d=50)
    for i in range(3):
        bench.ask(0.1, client=f"c{i}")
        bench.pool.hear(0.2, bench.rng, f"c{i}", f"10.{i}.0.1", [("a", 9001)])
    assert bench.pool["a"].state(0.3) is State.EJECTED


def test_an_ejection_is_forgotten_with_the_backend() -> None:
    bench = Bench(*(Backend(name) for name in "abcd"))
    eject_a(bench)
    bench.pool.change(0.4, [B, C])
    assert bench.pool.ejections.out(0.4) == frozenset()
    bench.ask(0.5, client="x")
    assert len(bench.pool.hear(0.6, bench.rng, "x", "10.9.0.1", [("b", 9001), ("c", 9001)])) == 1


def test_who_moved_is_on_no_trial_for_what_was_said_of_its_old_place() -> None:
    bench = Bench(*(Backend(name) for name in "abcd"))
    eject_a(bench)
    bench.pool.change(0.4, list(map(Backend, "abcd")), moved=frozenset("a"))
    bench.report(0.5, a=0)
    assert bench.named(0.5, 20) == {"a"}


def test_who_is_gone_counts_in_no_panic() -> None:
    bench = Bench(*(Backend(name) for name in "abcd"), choice=ChoicePolicy(first_round_s=0.0, panic_threshold=0.6))
    bench.report(0.0, a=0, b=0)
    assert bench.ask(0.1) == "panic"
    bench.pool.change(0.2, [A, B, C])
    assert bench.ask(0.3) in "ab"
    bench.pool.change(0.4, [A, C, Backend("d")])
    assert bench.ask(0.5) == "panic"


def test_an_ejection_outlives_a_change_of_others_and_of_the_weight() -> None:
    bench = Bench(*(Backend(name) for name in "abcd"))
    eject_a(bench)
    bench.pool.change(0.4, [attrs.evolve(A, weight=2.0), B, C])
    assert bench.pool["a"].state(0.5) is State.EJECTED
    bench.pool.change(0.6, [A, B, C], moved=frozenset({"a"}))
    bench.report(0.7, a=0)
    assert bench.pool["a"].state(0.7) is State.READY


def test_mid_rise_and_down_are_kept() -> None:
    bench = Bench(A, B, health=HealthPolicy(rise=2, fall=2))
    bench.report(0.0, a=0)
    bench.pool.record_failure(0.0, "b")
    bench.pool.change(0.1, [A, B, C])
    bench.report(0.2, a=0, b=0)
    assert bench.named(0.2) == {"a"}
    bench.report(0.3, b=0)
    assert "b" in bench.named(0.3)
