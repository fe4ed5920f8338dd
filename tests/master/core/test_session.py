"""Back to the backend of a session: as long as it is good, and has not much more to bear than others."""

from __future__ import annotations

import math
import random
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.admin import Admin
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic, Policy
from master.core.ejection import EjectionPolicy
from master.core.health import HealthPolicy, Said
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, Reason, State, Wish

OPEN = ChoicePolicy(join_cap=math.inf, slow_start_s=0.0, first_round_s=0.0)
"""No cap: the mean load alone decides."""
LOADS = LoadPolicy(session_s=600.0)
NOW = 1000.0


class Bench:
    """Backends with 100 users each, by name; `b` is that of the session."""

    def __init__(self, names: str = "abcd", choice: ChoicePolicy = OPEN, masters: int = 1, **backend: object) -> None:
        self.rng = random.Random(1)
        self.now = NOW
        each = [Backend(name, **(backend if name == "b" else {})) for name in names]  # type: ignore[arg-type]
        loads = attrs.evolve(LOADS, masters=masters)
        self.pool = Pool(each, HealthPolicy(stale_after_s=3.0), loads, choice, EjectionPolicy(networks=1))
        for name in names:
            self.report(name, 100)

    def report(self, name: str, users: int, port: int = 9000) -> None:
        where = (f"10.0.0.{ord(name)}", port)
        self.pool.record_report(self.now, self.rng, name, users, self.now, where)

    def ask(self, **ask: object) -> tuple[str, Reason]:
        given = self.pool.assign(self.now, self.rng, Ask(**{"prefer": "b", **ask}))  # type: ignore[arg-type]
        assert isinstance(given, Assignment)
        return given.place.name, given.why


def test_a_client_goes_back_to_its_session_though_others_have_less() -> None:
    bench = Bench()
    bench.report("b", 110)
    assert bench.ask(prefer="")[0] != "b"
    assert bench.ask() == ("b", Reason.SESSION)
    assert bench.pool.answers[Reason.SESSION] == 1
    assert bench.pool["b"].reservations.total == 1


@pytest.mark.parametrize(("users", "back"), [(100, True), (136, True), (137, False), (400, False)])
def test_it_does_while_the_load_there_is_at_most_a_quarter_above_the_mean(users: int, back: bool) -> None:
    bench = Bench()
    bench.report("b", users)  # of 136, three times 100 and this client the mean is 109.25, and a quarter more 136.6
    assert (bench.ask()[0] == "b") is back


def test_the_mean_is_that_of_the_last_reports() -> None:
    bench = Bench()
    assert bench.ask() == ("b", Reason.SESSION)
    for name in "acd":
        bench.report(name, 50)
    assert bench.ask()[1] is not Reason.SESSION


def test_one_client_more_is_never_too_much() -> None:
    bench = Bench("ab")
    bench.report("a", 0)
    bench.report("b", 1)
    assert bench.ask() == ("b", Reason.SESSION)
    assert bench.ask()[0] == "a"


def test_a_backend_that_weighs_more_bears_more() -> None:
    bench = Bench(weight=2.0)
    bench.report("b", 220)
    assert bench.ask() == ("b", Reason.SESSION)


def full(bench: Bench) -> None:
    bench.pool.record_said(bench.now, "b", Said(capacity=100))


def draining(bench: Bench) -> None:
    bench.pool.set_admin(bench.now, "b", Admin(Wish.DRAIN))


def in_maintenance(bench: Bench) -> None:
    bench.pool.set_admin(bench.now, "b", Admin(Wish.MAINT))


def lost(bench: Bench) -> None:
    bench.pool.record_lost(bench.now, "b")


def down(bench: Bench) -> None:
    for _ in range(2):
        bench.pool.record_failure(bench.now, "b")


def ejected(bench: Bench) -> None:
    bench.pool.bar(bench.now, "b", bench.now + 60.0)


def stale(bench: Bench) -> None:
    bench.now += 3.1
    for name in "acd":
        bench.report(name, 100)


def removed(bench: Bench) -> None:
    bench.pool.change(bench.now, [Backend(name) for name in "acd"])


def overloaded(bench: Bench) -> None:
    bench.report("b", 300)


def reused(bench: Bench) -> None:
    """Another entry has its address."""
    removed(bench)
    bench.pool.change(bench.now, [Backend(name) for name in "acde"])
    bench.pool.record_report(bench.now, bench.rng, "e", 150, bench.now, (f"10.0.0.{ord('b')}", 9000))


@pytest.mark.parametrize(
    "trouble", [full, draining, in_maintenance, lost, down, ejected, stale, removed, overloaded, reused]
)
def test_where_it_is_no_good_the_client_goes_as_any_other(trouble: object) -> None:
    bench = Bench()
    assert bench.ask() == ("b", Reason.SESSION)
    trouble(bench)  # type: ignore[operator]
    name, why = bench.ask()
    assert name in "acd"
    assert why is Reason.BEST


def test_the_address_may_be_another_one_under_the_same_name() -> None:
    bench = Bench()
    bench.report("b", 100, port=9001)
    given = bench.pool.assign(bench.now, bench.rng, Ask(prefer="b"))
    assert isinstance(given, Assignment)
    assert given.place.endpoint == (f"10.0.0.{ord('b')}", 9001)


def test_a_level_that_is_not_in_use_is_not_used_for_it() -> None:
    bench = Bench(priority=1)
    assert bench.ask()[0] != "b"
    for name in "acd":
        bench.pool.record_lost(bench.now, name)
    assert bench.ask() == ("b", Reason.SESSION)


def test_last_reports_tell_nothing_of_sessions() -> None:
    bench = Bench(choice=attrs.evolve(OPEN, panic=Panic.LAST_KNOWN))
    bench.report("b", 110)
    bench.now += 10.0
    name, why = bench.ask()
    assert name != "b"
    assert why is Reason.LAST_KNOWN


def test_one_that_has_been_given_enough_for_now_is_given_no_more() -> None:
    bench = Bench(choice=attrs.evolve(OPEN, join_cap=1.0))
    names = Counter(bench.ask()[0] for _ in range(400))
    assert 100 <= names["b"] <= 112


def test_in_a_crowd_that_all_are_given_too_many_of_each_goes_back() -> None:
    bench = Bench(choice=attrs.evolve(OPEN, join_cap=1.0))
    reasons = Counter(bench.ask(prefer=name)[1] for _ in range(250) for name in bench.rng.sample("abcd", 4))
    assert reasons[Reason.SESSION] == 1000


def test_one_that_has_just_come_back_is_given_a_few_and_no_crowd() -> None:
    bench = Bench(choice=attrs.evolve(OPEN, slow_start_s=60.0, join_cap=3.0))
    for _ in range(35):
        bench.now += 2.0
        for name in "acd":
            bench.report(name, 100)
    bench.report("b", 0)
    names = Counter(bench.ask()[0] for _ in range(400))
    # Ten, and a tenth of its share: while the others are given 377, each has its turn 168 asks later, and it every 13.
    assert 20 <= names["b"] <= 25


def test_the_preference_can_be_switched_off() -> None:
    bench = Bench(choice=attrs.evolve(OPEN, session_slack=0.0))
    assert bench.ask()[1] is Reason.BEST


def test_the_explanation_says_so() -> None:
    bench = Bench()
    bench.report("b", 110)
    reasons = {each.name: each.reason for each in bench.pool.explain(bench.now, Ask(prefer="b"))}
    assert reasons.pop("b") is Reason.SESSION
    assert set(reasons.values()) == {Reason.BEHIND}


def test_who_asks_again_is_sent_where_it_was_sent() -> None:
    bench = Bench()
    first = bench.ask(prefer="c", client="me")
    assert first == ("c", Reason.SESSION)
    assert bench.ask(client="me") == ("c", Reason.AGAIN)


@pytest.mark.parametrize("policy", Policy)
def test_a_crowd_of_one_backend_leaves_all_in_bounds(policy: Policy) -> None:
    """A thousand devices of one backend come at once when its neighbours have just come back empty."""
    bench = Bench(choice=attrs.evolve(OPEN, policy=policy))
    for name in "acd":
        bench.report(name, 0)
    bench.report("b", 500)
    names = Counter(bench.ask()[0] for _ in range(1000))
    assert bench.pool.answers[Reason.SESSION] == 0
    assert names["b"] < 350
    if policy is Policy.LEAST_LOAD:
        assert names["b"] == 0


@pytest.mark.parametrize("cap", [math.inf, 3.0])
def test_a_crowd_of_one_backend_at_the_start_is_shared(cap: float) -> None:
    bench = Bench(choice=attrs.evolve(OPEN, join_cap=cap))
    for name in "abcd":
        bench.report(name, 0)
    names = Counter(bench.ask()[0] for _ in range(1000))
    assert 250 <= names["b"] <= 1.25 * 250 + 1
    assert min(names.values()) > 200


STEPS = ("ask", "ask", "report", "lost", "drain", "wait")


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=7),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(STEPS)), max_size=60),
    st.sampled_from(Policy),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32),
)
def test_nobody_is_sent_back_to_who_is_no_candidate_or_has_too_much(
    members: list[tuple[int, float]], steps: list[tuple[int, str]], policy: Policy, masters: int, seed: int
) -> None:
    rng, now = random.Random(seed), NOW
    backends = [Backend(f"{i}", weight, capacity=400) for i, (_, weight) in enumerate(members)]
    choice = attrs.evolve(OPEN, join_cap=3.0, policy=policy)
    pool = Pool(backends, HealthPolicy(stale_after_s=3.0), attrs.evolve(LOADS, masters=masters), choice)
    for i, (users, _) in enumerate(members):
        pool.record_report(now, rng, f"{i}", users, now, ("10.0.0.1", 9000 + i))
    for number, what in steps:
        name = f"{number % len(members)}"
        if what == "report":
            pool.record_report(now, rng, name, rng.randrange(300), now, ("10.0.0.1", 9000))
        elif what == "lost":
            pool.record_lost(now, name)
        elif what == "drain":
            pool.set_admin(now, name, Admin(rng.choice([Wish.READY, Wish.DRAIN])))
        elif what == "wait":
            now += 0.5
        else:
            before = {each.name: each for each in pool.explain(now, Ask())}
            given = pool.assign(now, rng, Ask(prefer=name))
            if not isinstance(given, Assignment) or given.why is not Reason.SESSION:
                continue
            assert given.place.name == name
            assert before[name].state is State.READY
            candidates = [each for each in before.values() if each.state is State.READY]
            weights = sum(each.weight for each in candidates)
            users = sum(each.reported + each.own for each in candidates) + masters
            load = before[name].load
            assert load is not None
            assert load <= 1.25 * users / weights + 1e-6
