"""The join cap, and the slow start."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.health import HealthPolicy
from master.core.join_cap import Permits
from master.core.load import LoadPolicy
from master.core.pool import Pool, State

PROBED = ("10.0.0.1", 9001)
PATIENT = HealthPolicy(stale_after_s=1e9)


@pytest.mark.parametrize(
    ("now", "ramp"), [(100.0, 0.1), (115.0, 0.325), (130.0, 0.55), (160.0, 1.0), (161.0, 1.0), (1e9, 1.0)]
)
def test_the_share_rises_from_a_tenth_to_the_whole(now: float, ramp: float) -> None:
    permits = Permits(ChoicePolicy(slow_start_s=60.0), 1.0)
    permits.begin(100.0)
    assert permits.ramp(now) == pytest.approx(ramp)


def test_without_a_slow_start_the_share_is_whole_at_once() -> None:
    permits = Permits(ChoicePolicy(slow_start_s=0.0), 1.0)
    permits.begin(100.0)
    assert permits.ramp(100.0) == 1.0


def test_a_permit_costs_so_many_asks_that_the_cap_is_kept() -> None:
    permits = Permits(ChoicePolicy(join_cap=3.0), 2.0)
    permits.take(0.0, 100.0, 12.0)  # a sixth of the weight, three times that share: one ask of two
    assert permits.turn == 101.0  # it lay back by 100 asks, of which one counts
    permits.take(0.0, 100.0, 12.0)
    assert permits.turn == 103.0
    permits.begin(0.0)
    permits.take(0.0, 100.0, 12.0)
    assert permits.turn == 123.0  # a tenth of its share


class Crowd:
    """A pool of equal backends without users to speak of, asked at a steady pace."""

    def __init__(self, *weights: float, choice: ChoicePolicy | None = None, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        backends = [Backend(f"b{i}", weight=weight) for i, weight in enumerate(weights)]
        self.pool = Pool(backends, PATIENT, LoadPolicy(), choice or ChoicePolicy())

    def report(self, **counts: int) -> None:
        for name, count in counts.items():
            self.pool.record_report(self.now, self.rng, name, count, self.now, PROBED)

    def ask(self, seconds: float, per_s: float) -> Counter[str]:
        """Return who was named; reports are not renewed."""
        named = Counter[str]()
        for _ in range(round(seconds * per_s)):
            self.now += 1 / per_s
            member = self.pool.pick(self.now, self.rng)
            named["nobody" if member is None else member.backend.name] += 1
        return named

    def warm(self) -> None:
        """Let the slow start be over, and the rate be known."""
        self.report(**{member.backend.name: 1000 for member in self.pool})
        self.ask(70.0, 100.0)


def test_however_empty_a_backend_looks_it_is_given_three_times_its_share_at_most() -> None:
    crowd = Crowd(*[1.0] * 10)
    crowd.warm()
    crowd.report(b0=0)
    named = crowd.ask(20.0, 100.0)
    assert named["b0"] == pytest.approx(3 * 2000 / 10, abs=5)


def test_a_share_is_of_those_who_can_be_chosen_and_not_of_the_dead() -> None:
    crowd = Crowd(*[1.0] * 10)
    crowd.warm()
    for i in range(2, 10):
        crowd.pool.record_lost(crowd.now, f"b{i}")
    crowd.report(b0=0, b1=9000)
    assert crowd.ask(10.0, 100.0)["b0"] > 900


def test_a_returned_backend_gets_some_clients_at_once_then_more_and_then_its_full_share() -> None:
    """Window 60 s, 100 asks a second, two backends: never nothing, rising, equal after."""
    crowd = Crowd(1.0, 1.0)
    crowd.warm()
    crowd.pool.record_lost(crowd.now, "b1")
    crowd.ask(600.0, 100.0)
    crowd.report(b0=3000, b1=0)
    got = [crowd.ask(10.0, 100.0)["b1"] for _ in range(6)]
    assert 100 < got[0] < 400
    assert got[0] < got[1] <= got[2] <= 1000
    crowd.report(b0=1000, b1=1000)
    named = crowd.ask(100.0, 100.0)
    assert named["b0"] == pytest.approx(named["b1"], rel=0.05)


def test_the_slow_start_begins_with_each_return_and_not_with_the_process() -> None:
    crowd = Crowd(1.0, 1.0)
    member = crowd.pool["b1"]
    for _ in range(2):
        crowd.now += 600.0
        crowd.report(b0=0, b1=0)
        assert member.permits.ramp(crowd.now) == pytest.approx(0.1)
        crowd.now += 60.0
        crowd.report(b0=0, b1=0)
        assert member.permits.ramp(crowd.now) == 1.0
        crowd.pool.record_failure(crowd.now, "b1")
        assert member.permits.ramp(crowd.now) == 1.0
        crowd.pool.record_failure(crowd.now, "b1")


def test_when_nobody_is_open_the_cap_yields_to_whose_turn_is_next_and_no_client_is_refused() -> None:
    crowd = Crowd(1.0, 2.0, 1.0)
    crowd.warm()
    crowd.report(b0=0)
    named = Counter(member.backend.name for _ in range(4000) if (member := crowd.pool.pick(crowd.now, crowd.rng)))
    assert named.total() == 4000
    assert named["b1"] == pytest.approx(2000, abs=5)
    assert named["b0"] == pytest.approx(1000, abs=5)


def test_who_comes_back_in_a_storm_is_not_given_the_storm() -> None:
    crowd = Crowd(*[1.0] * 10)
    crowd.warm()
    crowd.pool.record_lost(crowd.now, "b0")
    crowd.ask(3.0, 5000.0)
    crowd.report(b0=0)
    assert crowd.ask(1.0, 5000.0)["b0"] < 75  # a tenth of its share, rising, and a few


def test_whose_share_is_seen_to_have_grown_first_is_not_given_all_clients() -> None:
    """At the start all turns lie far ahead; a report brings one nearer, and those of the others come later."""
    crowd = Crowd(*[1.0] * 10)
    crowd.report(**{f"b{i}": 0 for i in range(10)})
    crowd.ask(14.0, 100.0)
    crowd.report(b0=140)
    assert crowd.ask(1.0, 100.0)["b0"] <= (3 * 100 + 100) / 10 + 2


def test_where_few_ask_a_backend_is_not_kept_out_after_its_slow_start() -> None:
    crowd = Crowd(1.0, 1.0)
    crowd.report(b0=0, b1=0)
    crowd.ask(1.0, 1.0)
    crowd.now += 70.0
    crowd.report(b0=1, b1=1)
    assert crowd.ask(0.001, 20_000.0) == {"b0": 10, "b1": 10}


def test_five_hundred_at_once_are_all_served() -> None:
    crowd = Crowd(1.0, 1.0)
    crowd.report(b0=0, b1=0)
    named = [crowd.pool.pick(crowd.now, crowd.rng) for _ in range(500)]
    assert None not in named


@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (1, 2), (3, 1), (100, 1), (1, 2, 4)])
def test_shares_match_weights_under_the_cap_too(weights: tuple[float, ...]) -> None:
    crowd = Crowd(*weights)
    crowd.report(**{f"b{i}": 0 for i in range(len(weights))})
    named = crowd.ask(100.0, 100.0)
    for i, weight in enumerate(weights):
        assert named[f"b{i}"] == pytest.approx(10_000 * weight / sum(weights), rel=0.02, abs=10)


class StormMachine(RuleBasedStateMachine):
    """In no second is a backend given more than its share of (3 R + the asks of that second), and 2.

    Its share is of the backends that work, where one in its slow start counts for as much as it may be given; R as it
    was at the highest in that second.
    """

    @initialize(
        weights=st.lists(st.sampled_from([1.0, 1.0, 2.0, 0.5]), min_size=2, max_size=6), seed=st.integers(0, 99)
    )
    def begin(self, weights: list[float], seed: int) -> None:
        self.rng, self.now = random.Random(seed), 1000.0
        backends = [Backend(f"b{i}", weight=weight) for i, weight in enumerate(weights)]
        self.pool = Pool(backends, PATIENT, LoadPolicy(), ChoicePolicy())
        self.given: dict[str, deque[float]] = {backend.name: deque() for backend in backends}
        self.asks: deque[float] = deque()
        self.facts: deque[tuple[float, float, float]] = deque()
        for backend in backends:
            self.report(int(backend.name[1:]), 500)

    def report(self, which: int, count: int) -> None:
        """Have one report; the others are probed as often, of course, and say what they said before."""
        self.pool.record_report(self.now, self.rng, f"b{which % len(self.pool)}", count, self.now, PROBED)
        self.note()

    def note(self) -> None:
        """Remember how much the working ones weighed, and R."""
        ready = [member for member in self.pool if member.state(self.now) is State.READY]
        weights = sum(member.backend.weight * member.permits.ramp(self.now) for member in ready)
        self.facts.append((self.now, weights, self.pool.ask_rate))

    @rule(which=st.integers(0, 5), count=st.sampled_from([0, 100, 500, 2000]))
    def a_report(self, which: int, count: int) -> None:
        self.report(which, count)

    @rule(which=st.integers(0, 5))
    def a_loss(self, which: int) -> None:
        if sum(member.works(self.now) for member in self.pool) > 1:
            self.pool.record_lost(self.now, f"b{which % len(self.pool)}")
            self.note()

    @rule(seconds=st.sampled_from([0.5, 5.0, 70.0]))
    def nobody_asks(self, seconds: float) -> None:
        self.now += seconds
        for member in self.pool:
            if member.works(self.now) and member.report is not None:
                self.report(int(member.backend.name[1:]), member.report.count)

    @rule(times=st.sampled_from([1, 20, 100]), seconds=st.sampled_from([0.0, 0.2, 3.0]))
    def asks_come(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.now += seconds / times
            self.ask()

    def ask(self) -> None:
        member = self.pool.pick(self.now, self.rng)
        assert member is not None
        self.facts.append((self.now, self.facts[-1][1], self.pool.ask_rate))
        given = self.given[member.backend.name]
        given.append(self.now)
        self.asks.append(self.now)
        for times in (given, self.asks):
            while times[0] <= self.now - 1:
                times.popleft()
        while len(self.facts) > 1 and self.facts[1][0] <= self.now - 1:
            self.facts.popleft()
        share = member.backend.weight / min(weights for _, weights, _ in self.facts)
        bound = share * (3 * max(rate for _, _, rate in self.facts) + len(self.asks)) + 2
        assert len(given) <= bound


TestStorm = StormMachine.TestCase
TestStorm.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
