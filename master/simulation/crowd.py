"""People who wait as they are told, and the queue they wait in: what the simulations of the queue have in common."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from master.queue.answers import Go, QueueAsk, Waiting
from master.queue.estimates import Estimates, Outlook
from master.queue.limits import Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import QueuePolicy
from master.queue.polls import PollPolicy
from master.queue.queues import Queues
from master.queue.ticket import Lane, Ticket
from master.simulation.masters import Setting

_QUEUE: Final = "default"
_LOOK_S: Final = 0.25
_LOOKS_A_SECOND: Final = 4


class Watching(Estimates):
    """Sees in addition in which order people are called, and how far estimates are from what came."""

    out_of_order = 0
    """Calls of the plain lane that came after one of somebody who had joined later; who was missed does not count."""
    _latest = -1

    def __init__(self, rng: random.Random, polls: PollPolicy) -> None:
        super().__init__(rng, polls)
        self._shown: dict[int, tuple[int, float, float, float]] = {}
        """By ticket: how many estimates, and the sums of when, of the means and of the 90 % points."""
        self._sums = [0.0, 0.0, 0.0]

    @property
    def over_wait(self) -> tuple[float, float]:
        """All means, and all 90 % points, that were shown to those who got in, over the waits that came of them."""
        waited, means, points = self._sums
        return (means / waited, points / waited) if waited else (math.nan, math.nan)

    def eta(self, now: float, ticket: Ticket, ahead: int) -> tuple[float | None, float | None]:
        mean_s, point90_s = super().eta(now, ticket, ahead)
        if mean_s is not None and point90_s is not None:
            count, at, means, points = self._shown.get(ticket.number, (0, 0.0, 0.0, 0.0))
            self._shown[ticket.number] = (count + 1, at + now, means + mean_s, points + point90_s)
        return mean_s, point90_s

    def claimed(self, now: float, ticket: Ticket) -> None:
        super().claimed(now, ticket)
        count, at, means, points = self._shown.pop(ticket.number, (0, 0.0, 0.0, 0.0))
        for number, part in enumerate((count * now - at, means, points)):
            self._sums[number] += part

    def called(self, now: float, ticket: Ticket) -> None:
        super().called(now, ticket)
        if ticket.lane is Lane.PLAIN and not ticket.returned:
            self.out_of_order += ticket.order < self._latest
            self._latest = max(self._latest, ticket.order)


@attrs.define
class Waited:
    """`asks` of the busiest second; `waits` of all who got in, seconds."""

    waits: list[float] = attrs.field(factory=list)
    most_asks_per_s: int = 0
    asks: int = 0
    _second: int = -1
    _in_second: int = 0

    def asked(self, now: float) -> None:
        self.asks += 1
        if math.floor(now) != self._second:
            self._second, self._in_second = math.floor(now), 0
        self._in_second += 1
        self.most_asks_per_s = max(self.most_asks_per_s, self._in_second)


class Crowd:
    """`enter(now, person)` sends one to a backend: None when there is none, else what it was told.

    `room(now)` is how much room there is, and how many are to be let in a second as it is planned.
    """

    def __init__(
        self,
        policy: QueuePolicy,
        seed: int,
        room: Callable[[float], tuple[Room, float | None]],
        enter: Callable[[float, int], str | None],
    ) -> None:
        setting = Setting(seed=seed)
        self.rng = setting.rng("people")
        self.estimates = Watching(setting.rng("promises"), PollPolicy(policy.max_polls_per_s))
        self.queues = Queues(0.0, policy, self.estimates, Numbers([NumberBlock(1, 1 << 40)]))
        self.waited = Waited()
        self.moved: set[int] = set()
        """Who has lost the place that he had at first."""
        self._room, self._enter = room, enter
        self._master_rng = setting.rng("master")
        self._joined: dict[int, float] = {}
        self._orders: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        """How often each has gone away: what he was told before is forgotten."""
        self._sequence = itertools.count()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []

    def plan(self, at: float, what: Callable[[float], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._due, (at, next(self._sequence), what))

    def join(self, at: float, person: int, lane: Lane = Lane.PLAIN) -> None:
        """Have somebody ask, and do as he is told from then on."""
        life = self._lives.get(person, 0)
        self.plan(at, lambda now: self._ask(now, person, life, lane))

    def forget(self, person: int) -> None:
        """Have somebody go without a word; he may come back by `join`."""
        self._lives[person] = self._lives.get(person, 0) + 1

    def run(self, until: Callable[[], bool]) -> Iterator[float]:
        """Go on while `until` is false; yield the time, each second of it."""
        for look in itertools.count():
            now = look * _LOOK_S
            while self._due and self._due[0][0] <= now:
                at, _, what = heapq.heappop(self._due)
                what(at)
            room, planned = self._room(now)
            if look % _LOOKS_A_SECOND == 0:
                self.estimates.look(now, {_QUEUE: Outlook(self.queues.book.waiting, planned)})
                yield now
            self.queues.settle(now, room)
            if until():
                return

    def _ask(self, now: float, person: int, life: int, lane: Lane) -> None:
        if life != self._lives.get(person, 0):
            return
        self._joined.setdefault(person, now)
        self.waited.asked(now)
        client = person.to_bytes(16)
        answer = self.queues.ask(now, self._master_rng, QueueAsk(client=client, lane=lane))
        if isinstance(answer, Go):
            grant = self._enter(now, person)
            if grant is not None:
                self.queues.claim(now, answer.ticket.number, grant)
                self.waited.waits.append(now - self._joined.pop(person))
                return
            again = self.queues.put_back(now, self._master_rng, answer.ticket.number)
            answer = again or answer
        if not isinstance(answer, Waiting):
            raise TypeError(f"{person} was told {answer}")
        if lane is Lane.PLAIN and self._orders.setdefault(person, answer.ticket.order) != answer.ticket.order:
            self.moved.add(person)
        self.join(now + answer.retry_after_s, person, lane)
