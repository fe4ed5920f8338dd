"""Whatever happens in whatever order, the pool keeps its promises: a state machine in virtual time."""

from __future__ import annotations

import math
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, State

STALE_S = 3.0
# Sessions without an end: nothing fades, so the model need not know how. That it fades is tested in test_load.
PLAIN = ChoicePolicy(join_cap=math.inf, first_round_s=0.0)
CONNECT_S = 2.0
RESERVATION_S = 5.0
NAMES = st.sampled_from(["b0", "b1", "b2", "b3"])


class Known:
    """A backend as a plain model sees it: everything that happened, looked through from the start each time."""

    def __init__(self, backend: Backend, rise: int, fall: int) -> None:
        self.backend, self.rise, self.fall = backend, rise, fall
        self.up = self.lost = False
        self.run = 0
        self.last = ""
        self.count: int | None = None
        self.asked_at = -1.0
        self.sent: list[float] = []
        self.admin = Admin()

    def result(self, word: str) -> None:
        self.run, self.last = (self.run + 1 if word == self.last else 1), word
        if word == "good":
            self.lost = False
            self.up = self.up or self.run >= self.rise
        elif self.run >= self.fall:
            self.up = False

    def users(self, now: float) -> int:
        open_places = [at for at in self.sent if at > self.asked_at - CONNECT_S and at + RESERVATION_S > now]
        return (self.count or 0) + len(open_places)

    def usable(self, now: float) -> bool:
        full = self.backend.capacity is not None and self.users(now) >= self.backend.capacity
        fresh = self.count is not None and now - self.asked_at <= STALE_S
        wanted = self.wish(now) is Wish.READY
        return wanted and self.up and not self.lost and fresh and self.backend.weight > 0 and not full

    def wish(self, now: float) -> Wish:
        return self.admin.wish if now < self.admin.until else Wish.READY


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
        capacities=st.lists(st.sampled_from([None, 0, 1, 4]), min_size=4, max_size=4),
        rise=st.integers(1, 2),
        fall=st.integers(1, 3),
        seed=st.integers(0, 2**16),
    )
    def begin(self, weights: list[float], capacities: list[int | None], rise: int, fall: int, seed: int) -> None:
        self.now = 1000.0
        self.rng = random.Random(seed)
        backends = [Backend(f"b{i}", weights[i], capacities[i]) for i in range(4)]
        self.rise, self.fall = rise, fall
        self.known = {backend.name: Known(backend, rise, fall) for backend in backends}
        self.pool = Pool(
            backends, HealthPolicy(rise, fall, STALE_S), LoadPolicy(CONNECT_S, RESERVATION_S, session_s=1e9), PLAIN
        )

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.9, 2.0, 2.9, 3.1, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=NAMES, count=st.integers(0, 6), took=st.sampled_from([0.0, 0.5, 2.5]))
    def good_probe(self, name: str, count: int, took: float) -> None:
        if name not in self.known:
            return
        known, asked_at = self.known[name], self.now - took
        if asked_at >= known.asked_at:
            known.count, known.asked_at = count, asked_at
        known.result("good")
        known.lost = known.wish(self.now) is Wish.MAINT
        self.pool.record_report(self.now, self.rng, name, count, asked_at, ("127.0.0.1", 9001))

    @rule(name=NAMES)
    def failed_probe(self, name: str) -> None:
        if name not in self.known:
            return
        self.known[name].result("failed")
        self.pool.record_failure(self.now, name)

    @rule(name=NAMES)
    def lost_connection(self, name: str) -> None:
        if name not in self.known:
            return
        self.known[name].lost = True
        self.pool.record_lost(self.now, name)

    @rule(name=NAMES, wish=st.sampled_from(Wish), lasts_s=st.sampled_from([0.5, 2.0, math.inf]))
    def operator_wants(self, name: str, wish: Wish, lasts_s: float) -> None:
        if name not in self.known:
            return
        known = self.known[name]
        known.admin = Admin(wish, "ann", "why not", self.now + lasts_s)
        known.lost = known.lost or wish is Wish.MAINT
        self.pool.set_admin(self.now, name, known.admin)

    @rule(
        names=st.lists(NAMES, unique=True),
        moved=st.sets(NAMES),
        weight=st.sampled_from([None, 0.0, 2.0]),
        capacity=st.sampled_from([None, 0, 2]),
        zone=st.sampled_from([None, "x", "y"]),
        changed=st.sets(NAMES),
    )
    def reload(
        self,
        names: list[str],
        moved: set[str],
        weight: float | None,
        capacity: int | None,
        zone: str | None,
        changed: set[str],
    ) -> None:
        before, members = self.known, {member.backend.name: member for member in self.pool}
        self.known = {}
        for name in names:
            known = before.get(name) or Known(Backend(name), self.rise, self.fall)
            if name in changed:
                known.backend = Backend(name, known.backend.weight if weight is None else weight, capacity, zone or "")
            if name in moved and name in before:
                known, admin = Known(known.backend, self.rise, self.fall), known.admin
                known.admin, known.lost = admin, admin.wish is Wish.MAINT and self.now < admin.until
            self.known[name] = known
        self.pool.change(self.now, [known.backend for known in self.known.values()], frozenset(moved))
        assert [member.backend for member in self.pool] == [known.backend for known in self.known.values()]
        for name in before.keys() & self.known.keys() - moved:
            assert self.pool[name] is members[name]

    @rule(times=st.integers(1, 5))
    def asks(self, times: int) -> None:
        for _ in range(times):
            self.ask()

    def ask(self) -> None:
        usable = {name: known for name, known in self.known.items() if known.usable(self.now)}
        assignment = self.pool.assign(self.now, self.rng, Ask())
        assert isinstance(assignment, Assignment) == bool(usable)
        if isinstance(assignment, Assignment):
            chosen = usable[assignment.place.name]  # never a stale, down, lost, full or weightless one
            load = chosen.users(self.now) / chosen.backend.weight
            assert load == min(known.users(self.now) / known.backend.weight for known in usable.values())
            chosen.sent.append(self.now)

    @invariant()
    def what_is_shown_is_what_can_be_chosen(self) -> None:
        if not hasattr(self, "pool"):
            return
        for member in self.pool:
            known = self.known[member.backend.name]
            assert (member.state(self.now) is State.READY) == known.usable(self.now)
            assert member.users(self.now) == known.users(self.now) >= 0
            assert member.free(self.now) is None or member.free(self.now) >= 0  # type: ignore[operator]
            assert member.level.weights == sum(other.backend.weight for other in self.pool if other.stamp)
        assert self.pool.entries <= 3 * (2 * 4 + 64)  # of all, and of up to two zones

    def teardown(self) -> None:
        """Every backend that works and has room is reachable: with the others out of the way, it is named."""
        if not hasattr(self, "pool"):
            return
        for name in self.known:
            if self.known[name].usable(self.now):
                for other in self.known:
                    if other != name:
                        self.pool.record_lost(self.now, other)
                        self.known[other].lost = True
                assignment = self.pool.assign(self.now, self.rng, Ask())
                assert isinstance(assignment, Assignment)
                assert assignment.place.name == name
                return


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
