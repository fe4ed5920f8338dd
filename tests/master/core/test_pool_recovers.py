"""Nobody is out for ever, whatever happens in whatever order: probes, complaints, time, reloads, what operators want.

Beside the pool stands a plain recount: every sum and every heap is what a look at all members gives.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic, Policy
from master.core.ejection import EjectionPolicy, Verdict
from master.core.health import HealthPolicy, Said
from master.core.load import LoadPolicy
from master.core.member import WORKING, Member
from master.core.pool import Ask, Assignment, Pool, State

EJECTION = EjectionPolicy(
    reservation_s=5.0, window_s=8.0, networks=1, max_ejected_share=0.7, together_share=1.0, open_s=4.0, max_open_s=16.0
)
LOADS = LoadPolicy(connect_s=2.0, reservation_s=5.0, session_s=600.0)
POOL = ("b0", "b1", "b2", "b3")
NAMES = st.sampled_from(POOL)
CLIENTS = st.sampled_from("uvwxyz")
BACKEND = st.builds(
    Backend,
    name=st.just(""),
    weight=st.sampled_from([1.0, 1.0, 0.5, 3.0, 0.0]),
    capacity=st.sampled_from([None, None, 0, 2]),
    zone=st.sampled_from(["", "", "", "x", "y"]),
    priority=st.sampled_from([0, 0, 1]),
)
HEALTH = st.builds(HealthPolicy, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1.5, 3.0, 9.0]))
CHOICE = st.builds(
    ChoicePolicy,
    policy=st.sampled_from(Policy),
    slow_start_s=st.sampled_from([0.0, 20.0]),
    panic_threshold=st.sampled_from([0.0, 0.0, 0.6]),
    panic=st.sampled_from(Panic),
)


def where(name: str) -> tuple[str, int]:
    return f"10.0.0.{name[1:]}", 9001


class RecoveryMachine(RuleBasedStateMachine):
    @initialize(
        health=HEALTH,
        choice=CHOICE,
        together=st.sampled_from([0.6, 1.0, 1.0]),
        seed=st.integers(0, 99),
        out=st.integers(0, 2),
    )
    def begin(self, health: HealthPolicy, choice: ChoicePolicy, together: float, seed: int, out: int) -> None:
        self.now, self.rng = 1000.0, random.Random(seed)
        ejection = attrs.evolve(EJECTION, together_share=together)
        self.pool = Pool(map(Backend, POOL), health, LOADS, choice, ejection)
        self.back_by: dict[str, float] = {}
        """When those that are ejected have to be let in at the latest."""
        self.all_succeed(0)
        for client in "uv"[:out]:
            self.complain(client)

    def is_in(self, name: str) -> bool:
        return any(member.backend.name == name for member in self.pool)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 2.9, 3.1, 9.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=NAMES, count=st.integers(0, 5))
    def succeeds(self, name: str, count: int) -> None:
        if self.is_in(name):
            self.pool.record_report(self.now, self.rng, name, count, self.now, where(name))

    @rule(count=st.integers(0, 5))
    def all_succeed(self, count: int) -> None:
        for name in POOL:
            self.succeeds(name, count)

    @rule(name=NAMES, lost=st.booleans())
    def fails(self, name: str, lost: bool) -> None:
        if self.is_in(name):
            (self.pool.record_lost if lost else self.pool.record_failure)(self.now, name)

    @rule(name=NAMES, said=st.builds(Said, drain=st.booleans(), capacity=st.sampled_from([None, 0, 3])))
    def says(self, name: str, said: Said) -> None:
        if self.is_in(name):
            self.pool.record_said(self.now, name, said)

    @rule(client=st.one_of(st.none(), CLIENTS), zone=st.sampled_from(["", "x"]))
    def asks(self, client: str | None, zone: str) -> None:
        """Whoever does no more than that is a trial that was cancelled, where he is one."""
        self.ask(client, zone)

    def ask(self, client: str | None = None, zone: str = "") -> str | None:
        out = self.pool.ejections.out(self.now)
        if client is None and not zone:
            member = self.pool.pick(self.now, self.rng)
            name = member.backend.name if member is not None else None
        else:
            answer = self.pool.assign(self.now, self.rng, Ask(client=client, zone=zone, alternates=1))
            name = answer.place.name if isinstance(answer, Assignment) else None
        if name in out:
            self.back_by[name] = max(self.back_by.get(name, 0.0), self.now + EJECTION.reservation_s)
        return name

    @rule(client=CLIENTS, times=st.integers(1, 3))
    def asks_and_complains(self, client: str, times: int) -> None:
        for _ in range(times):
            self.complain(client)

    def complain(self, client: str) -> None:
        name = self.ask(client)
        for accused, verdict in self.pool.hear(self.now, self.rng, client, "192.0.2.1", [where(name or "b9")]):
            if verdict in (Verdict.EJECTED, Verdict.TRIAL_FAILED):
                self.back_by[accused] = self.now + EJECTION.max_open_s

    @rule(client=CLIENTS, complains=st.booleans())
    def is_on_trial(self, client: str, complains: bool) -> None:
        """Somebody asks when the time of one that is out is over, and stays, or complains and makes it longer."""
        out = [name for name in self.pool.ejections.out(self.now) if self.is_in(name)]
        if out:
            self.now += self.pool.ejections.barred_s(self.now, out[0])
            self.all_succeed(3)
            self.succeeds(out[0], 0)
            if complains:
                self.complain(client)
            else:
                self.ask(client)

    @rule(name=NAMES, wish=st.sampled_from(Wish), lasts_s=st.sampled_from([0.5, 4.0, math.inf]))
    def operator_wants(self, name: str, wish: Wish, lasts_s: float) -> None:
        if self.is_in(name):
            self.pool.set_admin(self.now, name, Admin(wish, "ann", "why not", self.now + lasts_s))

    @rule(
        names=st.one_of(st.just(POOL), st.permutations(POOL), st.lists(NAMES, unique=True)),
        moved=st.one_of(st.just(set()), st.sets(NAMES)),
        other=st.dictionaries(NAMES, BACKEND, max_size=2),
    )
    def reload(self, names: Sequence[str], moved: set[str], other: dict[str, Backend]) -> None:
        before = {member.backend.name: member.backend for member in self.pool}
        made = {name: attrs.evolve(other[name], name=name) if name in other else before.get(name) for name in names}
        self.pool.change(self.now, [made[name] or Backend(name) for name in names], frozenset(moved & before.keys()))

    @rule(health=HEALTH)
    def reload_with_another_policy(self, health: HealthPolicy) -> None:
        self.pool.set_health(self.now, health)
        assert {member.health.policy for member in self.pool} <= {health}

    @invariant()
    def who_is_ejected_is_let_in_when_the_time_is_over_and_nobody_is_on_trial(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.works(self.now)
        for member in self.pool:
            name = member.backend.name
            bars = self.pool.ejections.barred_s(self.now, name) > 0
            assert not bars or self.now < self.back_by[name]
            assert bars or member.state(self.now) is not State.EJECTED
            assert member.barred_until <= self.back_by.get(name, math.inf)

    @invariant()
    def sums_are_those_of_a_recount(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, now = self.pool, self.now
        pool.works(now)
        for member in pool:
            assert member.load(now) >= 0 if member.backend.weight else member.reservations.count(now) >= 0
            assert member.free(now) is None or member.free(now) >= 0  # type: ignore[operator]
            assert min(member.parts(member.reservations.clock.at(now))) >= 0
            assert member.serving == (member.state(now) in WORKING)
            may = member.state(now) is State.READY or (pool.roll.last_known and member.was_good(now))
            assert bool(member.stamp) == may
            assert now < member.next_look() == math.inf or member.look_at <= max(now, member.next_look()) + 1e-9
        assert pool.roll.working == sum(member.serving for member in pool)
        assert pool.roll.size == sum(member.counted for member in pool)
        assert pool.roll.unheard == sum(member.awaited for member in pool)
        wanted = [member for member in pool if member.wish(now) is Wish.READY and (member.heard or member.awaited)]
        assert pool.roll.size == len(wanted)

    @invariant()
    def heaps_hold_each_candidate_once_by_the_key_and_the_turn_that_it_has(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.works(self.now)
        by_group: dict[int, list[Member]] = {}
        for member in self.pool:
            assert member.groups == member.level.groups(member.backend.zone)
            for group in member.groups if member.stamp else ():
                by_group.setdefault(id(group), []).append(member)
        for level in {id(member.level): member.level for member in self.pool}.values():
            candidates = [member for member in self.pool if member.level is level and member.stamp]
            assert level.candidates == len(candidates)
            assert math.isclose(level.weights, sum(member.backend.weight for member in candidates), abs_tol=1e-9)
            for group in (level.every, *level.zones.values()):
                live = [entry for entry in (*group.ready, *group.row, *group.parked) if entry[2] == entry[3].stamp]
                assert Counter(id(entry[3]) for entry in live) == Counter(map(id, by_group.get(id(group), [])))
                assert all(entry[0] in (entry[3].key, entry[3].permits.turn) for entry in live)

    def teardown(self) -> None:
        """With good probes for long enough, whoever is wanted and has room is a candidate again, and gets clients."""
        if not hasattr(self, "pool"):
            return
        for name in POOL:
            self.says(name, Said())
        # Longer than anybody is out and then on trial, and than a place is reserved; more probes than any rise.
        for second in range(30):
            self.now += 1.0
            self.all_succeed(0)
            if second < 24:
                self.ask()
        wanted = [member for member in self.pool if member.wish(self.now) is Wish.READY]
        usable = {member.backend.name: member for member in wanted if member.backend.weight and member.limit != 0}
        assert {member.state(self.now) for member in usable.values()} <= {State.READY}
        assert {member.backend.name for member in self.pool if member.stamp} >= usable.keys()
        if usable and self.pool.roll.closed is None:
            first = min(each.backend.priority for each in usable.values())
            missing = {name for name, each in usable.items() if each.backend.priority == first and each.limit is None}
            named = Counter[str]()
            for _ in range(80):
                self.now += 0.5
                for name in POOL:
                    self.succeeds(name, named[name])
                named[self.ask() or ""] += 1
            assert named.keys() >= missing
            assert not self.pool.ejections.out(self.now + EJECTION.reservation_s) & missing


TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
