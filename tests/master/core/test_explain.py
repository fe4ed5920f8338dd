"""Explain says what assign does, and why, for every backend."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic, Policy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Explanation, Pool, Reason, State

PROBED = ("10.0.0.1", 9001)
CHOSEN = {Reason.BEST, Reason.IN_ZONE, Reason.SPILLED, Reason.EARLIEST, Reason.LAST_KNOWN}
NOBODY = {Reason.FIRST_ROUND, Reason.PANIC}
NAMES = st.sampled_from([f"b{i}" for i in range(5)])
ZONES = st.sampled_from(["", "x", "y"])


def explain(pool: Pool, now: float, ask: Ask | None = None) -> dict[str, Explanation]:
    return {one.name: one for one in pool.explain(now, ask or Ask())}


def test_every_state_and_place_has_its_word_and_the_load_its_parts() -> None:
    rng = random.Random(1)
    backends = [
        Backend("best"),
        Backend("behind"),
        Backend("capped"),
        Backend("full", capacity=1),
        Backend("none", weight=0),
        Backend("silent"),
        Backend("late"),
        Backend("down"),
        Backend("lost"),
        Backend("out"),
        Backend("next", priority=1),
    ]
    pool = Pool(backends, HealthPolicy(), LoadPolicy(session_s=100.0), ChoicePolicy(first_round_s=0.0))
    for name in ("late", "down", "lost"):
        pool.record_report(0.0, rng, name, 1, 0.0, PROBED)
    for name, count in (("best", 9), ("behind", 10), ("capped", 1), ("full", 1), ("none", 0), ("out", 0), ("next", 0)):
        pool.record_report(3.0, rng, name, count, 3.0, PROBED)
    for _ in range(2):
        pool.record_failure(3.0, "down")
    pool.record_lost(3.0, "lost")
    pool.bar(3.0, "out", math.inf)
    assert pool.pick(3.5, rng) is pool["capped"]
    told = explain(pool, 4.0)
    assert {name: one.reason.value for name, one in told.items()} == {
        "best": "best",
        "behind": "behind",
        "capped": "capped",
        "full": "full",
        "none": "no_weight",
        "silent": "unprobed",
        "late": "stale",
        "down": "down",
        "lost": "lost",
        "out": "ejected",
        "next": "lower_priority",
    }
    capped = told["capped"]
    assert (capped.reported, capped.own) == pytest.approx((0.990, 0.995), abs=0.001)
    assert capped.load == pytest.approx(1.985, abs=0.001)
    assert (capped.age_s, capped.weight, capped.state) == (1.0, 1.0, State.READY)
    assert capped.opens_in > 0 == told["best"].opens_in
    assert told["silent"].age_s is told["silent"].load is told["none"].load is None


def test_a_client_of_a_zone_is_told_that_the_others_are_of_another() -> None:
    rng = random.Random(1)
    pool = Pool([Backend("a", zone="x"), Backend("b", zone="y")], HealthPolicy(), LoadPolicy())
    for name in "ab":
        pool.record_report(0.0, rng, name, 5, 0.0, PROBED)
    told = explain(pool, 0.0, Ask(zone="x"))
    assert (told["a"].reason, told["b"].reason) == (Reason.IN_ZONE, Reason.OTHER_ZONE)


class ExplainMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(Policy),
        panic=st.sampled_from(Panic),
        threshold=st.sampled_from([0.0, 0.5]),
        first_round_s=st.sampled_from([0.0, 3.0]),
        priorities=st.lists(st.integers(0, 1), min_size=5, max_size=5),
        zones=st.lists(ZONES, min_size=5, max_size=5),
        capacities=st.lists(st.sampled_from([None, None, 0, 3]), min_size=5, max_size=5),
        seed=st.integers(0, 999),
    )
    def begin(
        self,
        policy: Policy,
        panic: Panic,
        threshold: float,
        first_round_s: float,
        priorities: list[int],
        zones: list[str],
        capacities: list[int | None],
        seed: int,
    ) -> None:
        self.now, self.rng = 1000.0, random.Random(seed)
        rules = ChoicePolicy(policy, panic_threshold=threshold, panic=panic, first_round_s=first_round_s)
        backends = [
            Backend(f"b{i}", weight=i, capacity=capacities[i], zone=zones[i], priority=priorities[i]) for i in range(5)
        ]
        self.pool = Pool(backends, HealthPolicy(), LoadPolicy(reservation_s=4.0), rules)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.9, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=NAMES, count=st.integers(0, 5))
    def a_report(self, name: str, count: int) -> None:
        self.pool.record_report(self.now, self.rng, name, count, self.now, PROBED)

    @rule(name=NAMES, what=st.sampled_from(["lost", "failed", "ejected", "let in"]))
    def a_failure(self, name: str, what: str) -> None:
        if what == "lost":
            self.pool.record_lost(self.now, name)
        elif what == "failed":
            self.pool.record_failure(self.now, name)
        else:
            self.pool.bar(self.now, name, math.inf if what == "ejected" else -math.inf)

    @rule(times=st.integers(1, 5), zone=ZONES, alternates=st.integers(0, 2))
    def asks(self, times: int, zone: str, alternates: int) -> None:
        for _ in range(times):
            self.ask(Ask(zone=zone, alternates=alternates))

    def ask(self, ask: Ask) -> None:
        states = {member.backend.name: member.state(self.now) for member in self.pool}
        told = explain(self.pool, self.now, ask)
        assert told == explain(self.pool, self.now, ask)
        answer = self.pool.assign(self.now, self.rng, ask)
        chosen = {name: one.reason for name, one in told.items() if one.reason in CHOSEN}
        assert {name: one.state for name, one in told.items()} == states
        if isinstance(answer, Assignment):
            assert chosen == {answer.place.name: answer.why}
            if answer.why is not Reason.LAST_KNOWN:
                assert states[answer.place.name] is State.READY
            assert answer.place not in answer.alternates
        else:
            assert chosen == {}
            reasons = {one.reason for one in told.values()}
            assert answer.why is Reason.NO_CANDIDATE or answer.why in reasons or not reasons & NOBODY
            if answer.why is Reason.NO_CANDIDATE:
                assert State.READY not in states.values()

    @invariant()
    def what_is_counted_is_what_is(self) -> None:
        if not hasattr(self, "pool"):
            return
        works = [member.works(self.now) for member in self.pool]
        assert self.pool.works(self.now) == any(works)
        assert self.pool.roll.working == sum(works)
        assert self.pool.entries <= 3 * (2 * 5 + 2 * 64)


TestExplain = ExplainMachine.TestCase
TestExplain.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
