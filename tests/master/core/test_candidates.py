"""Policies, zones and levels of priority."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Policy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.orders import least_load
from master.core.pool import Ask, Assignment, Pool, Reason

PROBED = ("10.0.0.1", 9001)


class Bench:
    def __init__(self, *backends: Backend, policy: Policy = Policy.LEAST_LOAD, seed: int = 1, **choice: float) -> None:
        self.rng = random.Random(seed)
        rules = ChoicePolicy(policy, join_cap=choice.pop("join_cap", math.inf), first_round_s=0.0, **choice)
        self.pool = Pool(backends, HealthPolicy(stale_after_s=1e9), LoadPolicy(reservation_s=1e9), rules)

    def report(self, now: float = 0.0, **counts: int) -> None:
        for name, count in counts.items():
            self.pool.record_report(now, self.rng, name, count, now, PROBED)

    def ask(self, zone: str = "", now: float = 0.0) -> tuple[str, Reason]:
        answer = self.pool.assign(now, self.rng, Ask(zone=zone))
        assert isinstance(answer, Assignment)
        return answer.place.name, answer.why

    def many(self, times: int, zone: str = "") -> Counter[str]:
        return Counter(self.ask(zone)[0] for _ in range(times))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 4), (3, 1), (100, 1)])
def test_each_policy_gives_shares_by_weight(policy: Policy, weights: tuple[float, ...]) -> None:
    bench = Bench(*(Backend(f"b{i}", weight=weight) for i, weight in enumerate(weights)), policy=policy)
    bench.report(**{f"b{i}": 0 for i in range(len(weights))})
    named = Counter[str]()
    for _ in range(200):
        named += bench.many(100)
        bench.report(**{f"b{i}": named[f"b{i}"] for i in range(len(weights))})
    for i, weight in enumerate(weights):
        assert named[f"b{i}"] / 20_000 == pytest.approx(weight / sum(weights), rel=0.04, abs=0.004)


def test_in_turns_everyone_has_a_turn_before_anyone_has_the_next() -> None:
    bench = Bench(*(Backend(name) for name in "abc"), policy=Policy.ROUND_ROBIN)
    bench.report(a=500, b=0, c=20)
    for _ in range(10):
        assert bench.many(3) == {"a": 1, "b": 1, "c": 1}


def test_who_comes_back_to_a_round_does_not_make_up_for_the_turns_it_missed() -> None:
    bench = Bench(Backend("a"), Backend("b"), policy=Policy.ROUND_ROBIN)
    bench.report(a=0)
    bench.many(100)
    bench.report(b=0)
    named = bench.many(10)
    assert abs(named["a"] - named["b"]) <= 1


def test_by_chance_the_next_one_does_not_depend_on_the_last() -> None:
    bench = Bench(*(Backend(name) for name in "abcd"), policy=Policy.RANDOM)
    bench.report(a=0, b=0, c=0, d=0)
    names = [bench.ask()[0] for _ in range(8000)]
    pairs = Counter(itertools.pairwise(names))
    assert all(400 < pairs[first, second] < 600 for first in "abcd" for second in "abcd"), pairs


def test_of_two_by_chance_the_one_with_fewer_reported_users_is_taken() -> None:
    """The second least of four is the better one of two in a third of all draws, the worst one never."""
    bench = Bench(*(Backend(name) for name in "abcd"), policy=Policy.TWO_CHOICES)
    bench.report(a=1, b=2, c=3, d=4)
    named = bench.many(6000)
    assert named["d"] == 0
    for name, part in (("a", 1 / 2), ("b", 1 / 3), ("c", 1 / 6)):
        assert named[name] / 6000 == pytest.approx(part, abs=0.03)


def test_two_choices_are_drawn_anew_for_a_client_whose_zone_is_full() -> None:
    bench = Bench(Backend("home", zone="h", capacity=1), *(Backend(name) for name in "abc"), policy=Policy.TWO_CHOICES)
    bench.report(home=1, a=0, b=1, c=2)
    named = bench.many(3000, zone="h")
    assert named["a"] / 3000 == pytest.approx(2 / 3, abs=0.05)
    assert named["b"] / 3000 == pytest.approx(1 / 3, abs=0.05)


def test_two_choices_of_one_are_that_one() -> None:
    bench = Bench(Backend("a"), policy=Policy.TWO_CHOICES)
    bench.report(a=1)
    assert bench.many(10) == {"a": 10}


def zoned(**choice: float) -> Bench:
    return Bench(Backend("a1", zone="a"), Backend("a2", zone="a"), Backend("b1", zone="b"), Backend("n"), **choice)


def test_a_client_stays_in_its_zone_while_the_load_there_is_not_much_higher() -> None:
    bench = zoned(zone_slack=0.2)
    bench.report(a1=110, a2=200, b1=100, n=100)
    assert [bench.ask("a") for _ in range(12)] == [("a1", Reason.IN_ZONE)] * 12
    assert bench.ask("a")[1] is Reason.SPILLED


def test_a_client_without_a_zone_or_of_one_that_nobody_has_goes_to_the_least_loaded() -> None:
    bench = zoned()
    bench.report(a1=110, a2=200, b1=100, n=50)
    assert bench.ask() == ("n", Reason.BEST)
    assert bench.ask("z") == ("n", Reason.BEST)


def test_a_zone_that_is_full_spills_over() -> None:
    bench = Bench(Backend("a", zone="a", capacity=2), Backend("b", zone="b"))
    bench.report(a=0, b=0)
    assert [bench.ask("a")[0] for _ in range(3)] == ["a", "a", "b"]
    assert bench.pool.answers[Reason.SPILLED] == 1


def test_a_zone_whose_backends_have_been_given_enough_spills_over_to_those_who_have_not() -> None:
    bench = zoned(join_cap=3.0)
    bench.report(a1=0, a2=0, b1=1000, n=1000)
    assert Counter(bench.ask("a")[1] for _ in range(4)) == {Reason.IN_ZONE: 2, Reason.SPILLED: 2}
    assert bench.ask("a")[1] is Reason.EARLIEST


def test_in_its_slow_start_a_pool_still_sends_clients_to_their_zone() -> None:
    rng = random.Random(1)
    backends = [Backend(f"b{i}", zone="ab"[i % 2]) for i in range(6)]
    pool = Pool(backends, HealthPolicy(stale_after_s=1e9), LoadPolicy())
    for backend in backends:
        pool.record_report(0.0, rng, backend.name, 100, 0.0, PROBED)
    home = 0
    for i in range(1000):
        answer = pool.assign(1.0 + i / 50, rng, Ask(zone="ab"[i % 2]))
        assert isinstance(answer, Assignment)
        home += pool[answer.place.name].backend.zone == "ab"[i % 2]
    assert home > 950


def test_one_client_more_is_never_too_much_for_a_zone() -> None:
    bench = zoned()
    bench.report(a1=0, a2=1, b1=0, n=0)
    assert bench.ask("a") == ("a1", Reason.IN_ZONE)


def test_with_clients_of_one_zone_alone_the_others_are_filled_up_too() -> None:
    bench = zoned(zone_slack=0.2)
    bench.report(a1=0, a2=0, b1=0, n=0)
    named = bench.many(4400, "a")
    assert named["a1"] / named["b1"] == pytest.approx(1.2, rel=0.02)


def levels() -> Bench:
    return Bench(Backend("first", capacity=3), Backend("second", priority=1), Backend("third", priority=5))


def test_the_next_level_is_taken_only_when_nobody_of_the_one_before_can() -> None:
    bench = levels()
    bench.report(first=0, second=0, third=0)
    assert [bench.ask()[0] for _ in range(5)] == ["first", "first", "first", "second", "second"]
    bench.pool.record_lost(1.0, "second")
    assert bench.ask()[0] == "third"
    bench.report(2.0, first=1)
    assert bench.ask(now=2.0)[0] == "first"


def test_a_level_that_has_been_given_enough_is_still_taken_before_the_next() -> None:
    bench = Bench(Backend("first"), Backend("second", priority=1), join_cap=1.0)
    bench.report(first=0, second=0)
    assert bench.many(20) == {"first": 20}


def test_alternates_come_level_by_level_and_never_the_chosen_one() -> None:
    bench = levels()
    bench.report(first=0, second=0, third=0)
    answer = bench.pool.assign(0.0, bench.rng, Ask(alternates=2))
    assert isinstance(answer, Assignment)
    assert answer.place.name == "first"
    assert [place.name for place in answer.alternates] == ["second", "third"]


def test_in_a_zone_the_least_loaded_of_all_may_be_an_alternate() -> None:
    bench = zoned()
    bench.report(a1=105, a2=200, b1=100, n=300)
    answer = bench.pool.assign(0.0, bench.rng, Ask(zone="a", alternates=3))
    assert isinstance(answer, Assignment)
    assert answer.place.name == "a1"
    assert [place.name for place in answer.alternates] == ["b1", "a2", "n"]


def test_entries_are_bounded_with_zones_that_nobody_asks_for() -> None:
    bench = zoned(join_cap=3.0)
    bench.report(a1=0, a2=0, b1=0, n=0)
    for step in range(2000):
        bench.ask(now=step / 100)
        assert bench.pool.entries <= 2 * (2 * 4 + 64) + 2 * 64


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0.5, 4.0)), min_size=1, max_size=6),
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=40),
    st.integers(1, 4),
    st.floats(1.0, 4.0),
)
def test_the_way_of_every_ask_does_what_the_parts_do(
    backends: list[tuple[int, float]], gaps: list[float], masters: int, join_cap: float
) -> None:
    rng = random.Random(1)
    members = [Backend(f"b{i}", weight=weight) for i, (_, weight) in enumerate(backends)]
    rules = ChoicePolicy(join_cap=join_cap, slow_start_s=10.0, first_round_s=0.0)
    loads = LoadPolicy(session_s=20.0, masters=masters)
    pool = Pool(members, HealthPolicy(stale_after_s=1e9), loads, rules)
    for i, (count, _) in enumerate(backends):
        pool.record_report(0.0, rng, f"b{i}", count, 0.0, PROBED)
    now = 0.0
    for gap in gaps:
        now += gap
        pool.works(now)  # what time alone changes has changed
        parts = {m.backend.name: (copy.deepcopy(m.reservations), copy.copy(m.permits), m.level.weights) for m in pool}
        chosen = pool.pick(now, rng)
        assert chosen is not None
        reservations, permits, weights = parts[chosen.backend.name]
        x = pool.clock.at(now)
        reservations.add(now, x)
        permits.take(now, pool._asks.expect(now), weights)
        assert (chosen.reservations.own, chosen.reservations.own_at) == (reservations.own, reservations.own_at)
        assert chosen.reservations.sent == reservations.sent
        assert chosen.reservations.total == reservations.total
        assert chosen.permits.turn == permits.turn
        assert chosen.key == pytest.approx(least_load(chosen, x), abs=1e-12)
