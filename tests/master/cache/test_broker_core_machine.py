"""The broker's core under every order of calls, beside a plain model that looks through one list."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from master.cache.broker_core import BrokerCore, BrokerPolicy, Entry, Refusal, Stage

KINDS = ("a", "b", "c")
STEPS_S = (0.0, 0.25, 1.0, 3.0)
LIFETIMES_S = (-1.0, 0.0, 0.25, 1.0, 2.0, 5.0)
MANY = 4


@attrs.define(eq=False)
class Known:
    """`place`: queue, parked, worker, late (answered, and the worker is not back) or over."""

    entry: Entry
    place: str = "over"
    outcomes: list[Any] = attrs.Factory(list)

    @property
    def due(self) -> float:
        return self.entry.deadline - (0.0 if self.place == "worker" else self.entry.needs_s)


class Calls(RuleBasedStateMachine):
    @initialize(
        length=st.integers(1, 4),
        workers=st.integers(1, 3),
        per_kind=st.dictionaries(st.sampled_from(KINDS), st.integers(1, 2)),
    )
    def begin(self, length: int, workers: int, per_kind: dict[str, int]) -> None:
        self.policy = BrokerPolicy(length, workers, per_kind, most_parked=2)
        self.core: BrokerCore[Entry] = BrokerCore(self.policy)
        self.now = 100.0
        self.all: list[Known] = []
        self.lapsed: list[Known] = []
        self.closed = False
        self.refused = self.put_out = self.expired = 0

    # The model.

    def at(self, *places: str) -> list[Known]:
        return [known for known in self.all if known.place in places]

    def lapse(self) -> None:
        late = [known for known in self.at("queue", "parked", "worker") if known.due <= self.now]
        for known in late:
            known.place = "late" if known.place == "worker" else "over"
        self.lapsed += late
        self.expired += len(late)

    def may_begin(self, kind: str) -> bool:
        busy = self.at("worker", "late")
        of_kind = sum(known.entry.kind == kind for known in busy)
        return len(busy) < self.policy.workers and of_kind < self.policy.per_kind.get(kind, 99)

    def known(self, entry: Entry) -> Known:
        [found] = [known for known in self.all if known.entry is entry]
        return found

    # The calls.

    @rule(dt=st.sampled_from(STEPS_S))
    def time_passes(self, dt: float) -> None:
        self.now += dt

    @rule(
        count=st.integers(1, MANY),
        kind=st.sampled_from(KINDS),
        priority=st.integers(0, 2),
        lifetime_s=st.sampled_from(LIFETIMES_S),
        needs_s=st.sampled_from([0.0, 0.0, 0.5]),
    )
    def offer(self, count: int, kind: str, priority: int, lifetime_s: float, needs_s: float) -> None:
        for _ in range(count):
            self._offer(Known(Entry(kind, priority, self.now + lifetime_s, None, needs_s)))

    def _offer(self, new: Known) -> None:
        self.lapse()
        in_queue = self.at("queue")
        full = len(in_queue) >= self.policy.length + self.may_begin(new.entry.kind)
        last = max(in_queue, key=lambda known: (known.entry.priority, self.all.index(known)), default=None)
        self.all.append(new)
        offered = self.core.offer(self.now, new.entry)
        if self.closed:
            expected: Refusal | None = Refusal.STOPPING
        elif new.due <= self.now:
            expected = Refusal.EXPIRED
            self.expired += 1
        elif full and (last is None or last.entry.priority <= new.entry.priority):
            expected = Refusal.FULL
            self.refused += 1
        else:
            expected = None
        assert offered.refused is expected
        if expected is not None:
            assert offered.put_out is None
            new.outcomes.append(expected)
            return
        new.place = "queue"
        if full:
            assert last is not None
            assert offered.put_out is last.entry
            self.put_out += 1
            last.place = "over"
            last.outcomes.append(Refusal.FULL)
        else:
            assert offered.put_out is None

    @rule(lifetime_s=st.sampled_from(LIFETIMES_S))
    def park(self, lifetime_s: float) -> None:
        self.lapse()
        new = Known(Entry("", 0, self.now + lifetime_s, None))
        full = len(self.at("parked")) >= self.policy.most_parked
        self.all.append(new)
        refused = self.core.park(self.now, new.entry)
        if self.closed:
            assert refused is Refusal.STOPPING
        elif lifetime_s <= 0:
            assert refused is Refusal.EXPIRED
            self.expired += 1
        elif full:
            assert refused is Refusal.FULL
            self.refused += 1
        else:
            assert refused is None
            new.place = "parked"
            return
        new.outcomes.append(refused)

    @rule()
    def next(self) -> None:
        self.lapse()
        can = [known for known in self.at("queue") if self.may_begin(known.entry.kind)]
        best = min(can, key=lambda known: (known.entry.priority, self.all.index(known)), default=None)
        entry = self.core.next(self.now)
        assert entry is (best.entry if best else None)
        if best:
            best.place = "worker"

    @precondition(lambda self: self.at("worker", "late", "parked"))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.at("worker", "late", "parked")))
        wanted = known.place != "late"
        assert self.core.ended(known.entry) is wanted
        known.place = "over"
        if wanted:
            known.outcomes.append("result")

    @rule()
    def due(self) -> None:
        self.lapse()
        told = self.core.due(self.now)
        assert set(told) == {known.entry for known in self.lapsed}
        assert len(told) == len(self.lapsed)
        for known in self.lapsed:
            known.outcomes.append(Refusal.EXPIRED)
        self.lapsed = []

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.all))
        here = known.place in ("queue", "parked", "worker")
        assert self.core.withdraw(known.entry) is here
        if here:
            known.place = "late" if known.place == "worker" else "over"
            known.outcomes.append("withdrawn")

    @precondition(lambda self: len(self.all) > 8)
    @rule()
    def close(self) -> None:
        left = self.core.close()
        assert left == [known.entry for known in self.at("queue")]
        for known in self.at("queue"):
            known.place = "over"
            known.outcomes.append(Refusal.STOPPING)
        self.closed = True

    # What holds always.

    @invariant()
    def counts_agree(self) -> None:
        core = self.core
        in_queue, busy = self.at("queue"), self.at("worker", "late")
        assert core.length == len(in_queue)
        assert core.parked == len(self.at("parked"))
        assert core.working == len(busy)
        assert core.busy == {
            kind: count for kind in KINDS if (count := sum(known.entry.kind == kind for known in busy))
        }
        assert (core.refused, core.put_out, core.expired) == (self.refused, self.put_out, self.expired)
        oldest = min((known.entry.offered_at for known in in_queue), default=self.now)
        assert core.oldest_s(self.now) == self.now - oldest
        waits = [known.due for known in self.at("queue", "parked", "worker")]
        assert core.next_due() == (float("-inf") if self.lapsed else min(waits, default=float("inf")))

    @invariant()
    def bounds_hold(self) -> None:
        core, policy = self.core, self.policy
        assert core.length <= policy.length + 1, "one that can begin at once may stand beside a full queue"
        assert core.working <= policy.workers
        assert core.parked <= policy.most_parked
        assert all(count <= policy.per_kind.get(kind, 99) for kind, count in core.busy.items())

    @invariant()
    def nobody_has_two_answers(self) -> None:
        assert all(len(known.outcomes) <= 1 for known in self.all)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        open_ = {known.entry for known in (*self.at("queue", "parked", "worker"), *self.lapsed)}
        left = self.core.abandon()
        assert set(left) == open_
        assert len(left) == len(open_)
        for entry in left:
            self.known(entry).outcomes.append(Refusal.STOPPING)
        assert all(len(known.outcomes) == 1 for known in self.all), "nothing is lost, nothing comes twice"
        for known in self.all:
            if known.entry.stage is Stage.LATE:
                assert not self.core.ended(known.entry)
        assert (self.core.working, self.core.busy, self.core.length, self.core.parked) == (0, {}, 0, 0)


TestCalls = Calls.TestCase
TestCalls.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
