"""The queue against a model of plain lists: whatever people and operators do, in any order.

The model knows who is where and until when, and checks whom the queue calls; it has no heaps, no trees and no shares.
"""

from __future__ import annotations

import random
from typing import Final

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from master.queue.answers import Again, Closed, Go, QueueAsk, Waiting
from master.queue.limits import Limit, Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import Mode, QueuePolicy, TemplatePolicy
from master.queue.queues import Queues
from master.queue.rows import TicketRow
from master.queue.ticket import Lane, Stage
from tests.master.queue.desk import Steady

RETRY_S: Final = 2.0
QUEUES: Final = ("one", "two")
WHO: Final = st.integers(0, 11)
LANES: Final = st.sampled_from([Lane.PLAIN, Lane.PLAIN, Lane.RESUME])
POLICY: Final = QueuePolicy(
    lease_s=10.0,
    away_lease_s=40.0,
    claim_s=8.0,
    claimed_s=15.0,
    return_s=12.0,
    max_calls=3,
    templates=(TemplatePolicy("one", share=2.0), TemplatePolicy("two")),
)


@attrs.define(eq=False)
class Person:
    """Where somebody is, in plain words. `place`: (lane, arrival)."""

    queue: str
    place: tuple[int, int]
    stage: Stage
    until: float
    polled_at: float
    retry_s: float = 0.0
    away: bool = False
    returned: bool = False
    shown: int | None = None


class Machine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(0, 5),
        rate=st.sampled_from([None, None, 60.0]),
        mode=st.sampled_from([Mode.AUTO, Mode.QUEUE_ALL]),
    )
    def open(self, capacity: int, rate: float | None, mode: Mode) -> None:
        self.now, self.arrivals, self.capacity, self.inside = 100.0, 0, capacity, 0
        self.rng = random.Random(1)
        self.policy = attrs.evolve(POLICY, per_minute=rate, mode=mode)
        self.queues = Queues(self.now, self.policy, Steady(RETRY_S), Numbers([NumberBlock(1, 10**6)]))
        self.people: dict[int, Person] = {}
        self.known_calls: set[int] = set()
        self.rows: dict[int, TicketRow] = {}
        self.entered: list[float] = []
        self.settle()

    # What people do.

    @rule(who=WHO, queue=st.sampled_from(QUEUES), lane=LANES, away=st.sampled_from([False, False, False, True]))
    def asks(self, who: int, queue: str, lane: Lane, away: bool) -> None:
        person = self.people.get(who)
        answer = self.queues.ask(self.now, self.rng, QueueAsk(queue, bytes([who]), lane=lane, away=away))
        if person is not None and (queue != person.queue or (person.stage is Stage.CLAIMED and lane is Lane.RESUME)):
            self.forget(who)
            person = None
        if person is None:
            self.arrivals += 1
            place = (lane, self.arrivals)
            self.people[who] = person = Person(queue, place, Stage.WAITING, self.now + 10.0, self.now)
        elif person.stage is Stage.MISSED:
            person.stage, person.returned = Stage.WAITING, True
        if person.stage is Stage.WAITING:
            person.place = min(person.place, (lane, person.place[1]))
        self.follow_calls()
        if person.stage is Stage.CLAIMED:
            assert answer == Again(str(who))
        elif person.stage is Stage.CALLED and not away:
            assert isinstance(answer, Go)
            assert self.queues.claim(self.now, answer.ticket.number, str(who))
            self.inside += 1
            self.entered.append(self.now)
            self.known_calls.discard(who)
            person.stage, person.until = Stage.CLAIMED, self.now + 15.0
        else:
            self.check_waiting(answer, who, person, away)

    def check_waiting(self, answer: object, who: int, person: Person, away: bool) -> None:
        assert isinstance(answer, Waiting)
        ahead = self.line(person.queue).index(who) if person.stage is Stage.WAITING else 0
        person.shown = ahead if person.shown is None else min(ahead, person.shown)
        assert answer.position == person.shown
        person.away, person.polled_at, person.retry_s = away, self.now, RETRY_S
        if person.stage is Stage.WAITING:
            person.until = self.now + (40.0 if away else 10.0)

    @rule(who=WHO)
    def leaves(self, who: int) -> None:
        assert isinstance(self.queues.ask(self.now, self.rng, QueueAsk("", bytes([who]), leave=True)), Closed)
        self.forget(who)

    @precondition(lambda self: self.inside)
    @rule()
    def a_session_ends(self) -> None:
        self.inside -= 1
        self.settle()

    # What time and operators do.

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 8.0, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        while True:
            due = [who for who, person in self.people.items() if person.until <= self.now]
            if not due:
                break
            for who in due:
                self.end(who, self.people[who])
        self.settle()

    @rule(capacity=st.integers(0, 5))
    def backends_come_and_go(self, capacity: int) -> None:
        self.capacity = capacity
        self.settle()

    @precondition(lambda self: self.queues.book.called)
    @rule()
    def there_is_no_backend_after_all(self) -> None:
        number, ticket = next(iter(self.queues.book.called.items()))
        person = self.people[(ticket.client or b"")[0]]
        answer = self.queues.put_back(self.now, self.rng, number)
        assert answer is not None
        self.put_back(person)
        self.check_waiting(answer, (ticket.client or b"")[0], person, away=False)

    @rule(mode=st.sampled_from([Mode.AUTO, Mode.QUEUE_ALL, Mode.HOLD]))
    def mode_changes(self, mode: Mode) -> None:
        self.policy = attrs.evolve(self.policy, mode=mode)
        self.queues.set(self.now, self.policy)
        if mode is Mode.HOLD:
            for person in self.people.values():
                if person.stage is Stage.CALLED:
                    self.put_back(person)
        self.settle()

    @rule()
    def restarts(self) -> None:
        """Everything was written; the next process finds all as it was, each lease and each call begun anew."""
        changes = self.queues.take_changes()
        self.rows |= {row.number: row for row in changes.rows}
        for number in changes.gone:
            self.rows.pop(number, None)
        self.queues = Queues(self.now, self.policy, Steady(RETRY_S), self.queues.numbers)
        self.queues.restore(self.now, self.rows.values(), ())
        for person in self.people.values():
            if person.stage is Stage.WAITING:
                person.until = max(person.until, self.now + (40.0 if person.away else 10.0))
            elif person.stage is Stage.CALLED:
                person.until = max(person.until, self.now + 8.0)
        self.settle()

    # The model.

    def line(self, queue: str) -> list[int]:
        waiting = [
            who for who, person in self.people.items() if person.queue == queue and person.stage is Stage.WAITING
        ]
        return sorted(waiting, key=lambda who: self.people[who].place)

    def forget(self, who: int) -> None:
        self.people.pop(who, None)
        self.known_calls.discard(who)

    def put_back(self, person: Person) -> None:
        person.stage = Stage.WAITING
        person.until = max(self.lease_of(person), self.now + (40.0 if person.away else 10.0))
        self.known_calls = {who for who in self.known_calls if self.people[who] is not person}

    def lease_of(self, person: Person) -> float:
        return person.polled_at + (40.0 if person.away else 10.0)

    def end(self, who: int, person: Person) -> None:
        self.known_calls.discard(who)
        if person.stage in (Stage.MISSED, Stage.CLAIMED) or person.returned:
            del self.people[who]
        else:
            person.stage, person.until = Stage.MISSED, person.until + 12.0

    def settle(self) -> None:
        settled = self.queues.settle(self.now, Room(self.capacity - self.inside))
        self.follow_calls()
        waiting = any(self.line(queue) for queue in QUEUES)
        if settled.limit is Limit.NOBODY:
            assert not waiting
        elif settled.limit is Limit.PLACES:
            assert self.capacity - self.inside <= len(self.known_calls)
        elif settled.limit is Limit.CALLS:
            assert len(self.known_calls) == 3
        elif settled.limit is Limit.MODE:
            assert self.policy.mode is Mode.HOLD
        else:
            assert settled.limit is Limit.RATE
            assert self.policy.per_minute is not None

    def follow_calls(self) -> None:
        """Whom the queue has called since: each was the first of its line."""
        for ticket in self.queues.book.called.values():
            who = (ticket.client or b"")[0]
            if who in self.known_calls:
                continue
            person = self.people[who]
            assert self.line(person.queue)[0] == who
            person.stage = Stage.CALLED
            person.until = max(self.now + 8.0, person.polled_at + person.retry_s + 5.0)
            self.known_calls.add(who)

    @invariant()
    def nobody_is_lost_or_doubled(self) -> None:
        book = self.queues.book
        for queue in QUEUES:
            if queue in {line.queue for line in self.queues.lines}:
                assert [(each.client or b"")[0] for each in self.queues.lines[queue]] == self.line(queue)
            else:
                assert self.line(queue) == []
        stages = [person.stage for person in self.people.values()]
        assert (book.waiting, len(book.called)) == (stages.count(Stage.WAITING), stages.count(Stage.CALLED))
        assert (book.missed, book.claimed) == (stages.count(Stage.MISSED), stages.count(Stage.CLAIMED))
        assert len(book) == len(stages)
        assert self.queues.limits.calls == len(book.called) <= 3

    @invariant()
    def the_rate_is_kept(self) -> None:
        if self.policy.per_minute is not None:
            for at, first in enumerate(self.entered):
                for count, until in enumerate(self.entered[at:], 1):
                    assert count <= (until - first) + POLICY.burst + 3

    def teardown(self) -> None:
        """Everyone who stays gets in, when there is ever a place."""
        if not hasattr(self, "queues"):
            return
        self.mode_changes(Mode.AUTO)
        self.capacity = max(self.capacity, 1)
        staying = [who for who, person in self.people.items() if person.stage in (Stage.WAITING, Stage.CALLED)]
        for _ in range(80):
            self.time_passes(1.0)
            for who in list(staying):
                person = self.people[who]
                self.asks(who, person.queue, Lane.PLAIN, away=False)
                if self.people[who].stage is Stage.CLAIMED:
                    staying.remove(who)
            self.inside = 0
            self.settle()
        assert not staying


TestQueues = Machine.TestCase
TestQueues.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
