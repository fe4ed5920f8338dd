"""The desk: an ask of a client goes in, and what the queue and the pool make of it comes out. No task, no await.

Whoever is called is sent to a backend in the same step, so a place that was reserved is taken before anybody else is
heard. Those who wait on their connection (plain clients) are told when `settle` finds that they were called.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Final

import attrs

from lambdamu.messages import TURN, QueueReason, Result
from lambdamu.networks import Networks
from lambdamu.passes import VIP
from lambdamu.turns import NOBODY, backend_hash
from master.ask_data import spelled
from master.core.answers import Assignment, Refused, State
from master.core.answers import Reason as PoolReason
from master.core.pool import Pool
from master.devices import Devices
from master.queue.answers import Again, Closed, Denied, Go, QueueAsk, SignedPlace, Waiting
from master.queue.limits import Room
from master.queue.lines import DEFAULT
from master.queue.queues import Queues
from master.queue.ticket import CALLED, CLAIMED, WAITING, Lane, Ticket
from master.queue.ticket_text import SignedPlace as TicketPlace
from master.queue.ticket_text import TicketText, queue_hash
from master.told import AnswerPolicy, describe
from master.waiting.grants import Grant
from master.waiting.turns import Turns
from master.waiting.visits import TEXTS, TOLD, Held, Outcome, Visit

_DEAD: Final = frozenset({State.DOWN, State.LOST, State.STALE, State.MAINT, State.UNPROBED})
"""A backend in one of these has lost its users. One that is ejected is so by the word of clients, which is no proof."""
_CLOSED: Final = frozenset({State.DRAIN, State.EJECTED})
"""In one of these it has its users still, and gets no others."""


class Desk:
    """`texts` writes the tickets; it may be replaced. `networks`: what counts as one network; exempt: none."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        rng: random.Random,
        *,
        turns: Turns,
        texts: TicketText,
        networks: Networks,
        times: AnswerPolicy,
        clock: Callable[[], float],
    ) -> None:
        self.queues = queues
        self.turns = turns
        self.texts = texts
        self.times = times
        self.max_held = 10_000
        """So many plain clients wait on their connections at once."""
        self.devices: Devices | None = None
        """Who knows where those who are let in have their sessions, where there is a cache."""
        self.told: dict[tuple[Result, str], int] = dict.fromkeys(TOLD, 0)
        """How often somebody was told so, by the result and its reason."""
        self._clock = clock
        self._pool = pool
        self._rng = rng
        self._networks = networks
        self._epoch_s = queues.epoch_s
        self._held: dict[int, tuple[Visit, Callable[[float, Outcome], object]]] = {}
        self._working = -1
        self.adopt_backends()

    def adopt_backends(self) -> None:
        """Hear that the pool has other members."""
        self._names = frozenset(member.backend.name for member in self._pool)
        self._by_hash = {backend_hash(name): name for name in self._names}

    @property
    def turned_away(self) -> int:
        """How many plain clients were told to come again because too many are held."""
        return self.told[Result.NO_SERVER, QueueReason.FULL]

    @property
    def held(self) -> int:
        """How many wait on their connections."""
        return len(self._held)

    def ask(self, now: float, visit: Visit) -> Outcome | Held:
        """Answer a client; `Held`: say `hold` who is to be told, before anything else happens."""
        if visit.hold and len(self._held) >= self.max_held:
            return self._no_server(QueueReason.FULL)
        self._mind_the_pool()
        ask = self._read(now, visit)
        answer = self.queues.ask(now, self._rng, ask)
        if isinstance(answer, Go):
            return self._let_in(now, answer.ticket, visit) or self._put_back(now, answer.ticket, visit)
        if isinstance(answer, Waiting):
            return Held(answer.ticket.number) if visit.hold else self._wait(answer)
        if isinstance(answer, Again):
            return self._again(now, visit, ask, answer.grant)
        return self._refuse(answer)

    def may_walk_in(self, now: float) -> bool:
        """Whether a plain client need not ask: say `queues.walked_in` of each that is let in so."""
        self._mind_the_pool()
        return self.queues.may_walk_in(now)

    def settle(self, now: float, room: Room) -> None:
        """Hear how much room there is, call the next, and tell those who wait on their connections."""
        self._working = self._pool.roll.working
        self.queues.settle(now, room)
        self._serve_held(now)

    def _mind_the_pool(self) -> None:
        """Where other backends work than when the room was told, call nobody until it is told anew: it may be less."""
        if self._pool.roll.working != self._working:
            self.queues.limits.deny()

    def hold(self, number: int, visit: Visit, tell: Callable[[float, Outcome], object]) -> None:
        """Have somebody told later what became of a place."""
        self._held[number] = visit, tell

    def give_up(self, number: int) -> None:
        """Hear that the connection has gone on which somebody waited."""
        if self._held.pop(number, None) is not None:
            self.queues.leave(self._clock(), number)

    def release(self, now: float) -> None:
        """Tell all who wait on their connections to come again: this master stops."""
        held, self._held = self._held, {}
        for number, (_, tell) in held.items():
            self.queues.leave(now, number)
            tell(now, self._no_server(self.queues.reason))

    def _serve_held(self, now: float) -> None:
        """Tell those who were called, or have waited for long enough."""
        for ticket in self.queues.take_news():
            visit, tell = self._held.get(ticket.number, (None, None))
            if visit is None or tell is None or ticket.stage is WAITING:
                continue  # it has gone, or was called twice since the last time and is back in its place
            if ticket.stage is not CALLED:
                outcome: Outcome | None = self._no_server(self.queues.reason)
            else:
                outcome = self._let_in(now, ticket, visit)
                if outcome is None:
                    self.queues.put_back(now, self._rng, ticket.number)
            if outcome is not None:
                del self._held[ticket.number]
                tell(now, outcome)

    def _let_in(self, now: float, ticket: Ticket, visit: Visit) -> Outcome | None:
        """Send somebody who was called to a backend; None when there is none for it after all."""
        turned = TURN in visit.wants and self.turns.keys.signer is not None
        if turned and self.turns.out_of_numbers:
            return None
        asked = attrs.evolve(visit.ask, alternates=0 if turned else visit.ask.alternates, reserved=True)
        if self.devices is not None:
            asked = self.devices.seek(now, asked, visit.data)
        assignment = self._pool.assign(now, self._rng, asked)
        if isinstance(assignment, Refused):
            return None
        if ticket.lane is Lane.RESUME:
            self.turns.resumed(ticket.client)
        grant = self._grant(now, assignment.place.name, ticket, turned=turned)
        self.queues.claim(now, ticket.number, grant.write())
        return self._ok(assignment, visit, grant.turn)

    def _grant(self, now: float, name: str, ticket: Ticket, *, turned: bool) -> Grant:
        turn = self.turns.sign(ticket.client, name) if turned else None
        return Grant(name, turn, now + self._epoch_s + self.turns.turn_s)

    def _put_back(self, now: float, ticket: Ticket, visit: Visit) -> Outcome | Held:
        waiting = self.queues.put_back(now, self._rng, ticket.number)
        if visit.hold or waiting is None:
            return Held(ticket.number)
        return self._wait(waiting)

    def _again(self, now: float, visit: Visit, ask: QueueAsk, text: str) -> Outcome:
        """Tell somebody the same as before; the address is that of now."""
        grant = Grant.read(text)
        assert grant is not None  # noqa: S101 - or it would have begun anew
        if self._is_awaited(grant.name):
            return self._no_server(QueueReason.NO_BACKEND)
        if TURN in visit.wants and grant.turn is None:
            ticket = self.queues.known(now, ask)
            if ticket is not None:
                grant = self._grant(now, grant.name, ticket, turned=True)
                self.queues.amend(ticket, grant.write())
        turn = grant.turn if TURN in visit.wants else None
        place = self._pool[grant.name].place(visit.ask.family)
        return self._ok(Assignment(place, (), PoolReason.AGAIN), visit, turn)

    def _ok(self, assignment: Assignment, visit: Visit, turn: str | None) -> Outcome:
        data = describe(assignment, visit.wants, self.times.ttl_s, turn)
        return Outcome(Result.OK, data, assignment.why, assignment)

    def _wait(self, waiting: Waiting) -> Outcome:
        ticket = waiting.ticket
        data = {
            "Queue": ticket.queue,
            "Ticket": self._write_ticket(ticket),
            "Position": waiting.position,
            "ETA": waiting.eta_s,
            "ETA90": waiting.eta90_s,
            "RetryAfter": waiting.retry_after_s,
            "Reason": waiting.reason,
        }
        return self._count(Outcome(Result.WAIT, data, waiting.reason))

    def _refuse(self, answer: Closed | Denied) -> Outcome:
        if isinstance(answer, Denied):
            return self._count(Outcome(Result.DENIED, {"Reason": answer.reason, "RetryAfter": None}, answer.reason))
        text = answer.text or TEXTS.get(answer.reason, "")
        data = {"Reason": answer.reason, "RetryAfter": answer.retry_after_s, "Text": text}
        return self._count(Outcome(Result.CLOSED, data, answer.reason))

    def _no_server(self, reason: str) -> Outcome:
        return self._count(Outcome(Result.NO_SERVER, {"RetryAfter": self.times.again_s(self._rng)}, reason))

    def _count(self, outcome: Outcome) -> Outcome:
        told = outcome.result, outcome.reason
        self.told[told] = self.told.get(told, 0) + 1
        return outcome

    def _read(self, now: float, visit: Visit) -> QueueAsk:
        """Return what is asked of the queue: by whom, with which place, in which lane."""
        data, client = visit.data, bytes.fromhex(visit.ask.client) if visit.ask.client else None
        shown: str = data.get("Ticket", "")
        # Who is known by his id needs no ticket, and to read one takes a sixth of a poll.
        known = self.queues.known(now, QueueAsk(client=client)) if client is not None else None
        ask = QueueAsk(
            queue=data.get("Queue", ""),
            client=client,
            network=self._networks.of(visit.host),
            place=self._read_ticket(shown, data.get("Queue", ""), client) if shown and known is None else None,
            lane=Lane.VIP if VIP in visit.rights else Lane.PLAIN,
            away=data.get("Away", False),
            leave=data.get("Leave", False),
            held=visit.hold,
        )
        if client is None and ask.place is None:
            return ask
        if ask.place is not None:
            known = self.queues.known(now, ask)
        if known is None:
            resumes = shown and self.turns.shown(shown, client, lambda name: self._has_died(now, name))
            return attrs.evolve(ask, lane=Lane.RESUME) if resumes else ask
        return self._read_claimed(now, ask, known, visit) if known.stage is CLAIMED else ask

    def _read_claimed(self, now: float, ask: QueueAsk, known: Ticket, visit: Visit) -> QueueAsk:
        """Judge what somebody who was let in may have: the same again, or a new place."""
        grant = Grant.read(known.grant)
        state = self._state(now, grant.name) if grant is not None else None
        if grant is not None and self._is_awaited(grant.name):
            return ask  # nobody knows yet what became of it while this master was not there
        if grant is None or state is None or state in _DEAD:
            return attrs.evolve(ask, lane=Lane.RESUME)
        # Its place went to somebody else long ago if it never came there: what it was told lets nobody in any more.
        over = now + self._epoch_s >= grant.until
        return attrs.evolve(ask, renew=over or self._failed(grant.name, visit) or state in _CLOSED)

    def _failed(self, name: str, visit: Visit) -> bool:
        """Whether it says that it could not use a backend; what it says of others is of an earlier ask."""
        told = self._pool[name].told.values()
        return any((spelled(ip), port) in told for ip, port, _ in visit.data.get("Failed", ()))

    def _is_awaited(self, name: str) -> bool:
        """Whether a backend was there at the start and has not been probed since."""
        return name in self._names and self._pool[name].awaited

    def _state(self, now: float, name: str) -> State | None:
        """Return how a backend stands; None for one that is not configured any more."""
        return self._pool[name].state(now) if name in self._names else None

    def _has_died(self, now: float, name_hash: bytes) -> bool:
        name = self._by_hash.get(name_hash)
        return name is None or (self._state(now, name) in _DEAD and not self._is_awaited(name))

    def _read_ticket(self, text: str, queue: str, client: bytes | None) -> SignedPlace | None:
        """Return the place that a text stands for, whoever remembers it; None where it is not this client's."""
        said = self.texts.read(text)
        if said is None or (client is not None and said.client not in (client, NOBODY)):
            return None
        candidates = chain((queue or DEFAULT, DEFAULT), (line.queue for line in self.queues.lines))
        name = next((each for each in candidates if queue_hash(each) == said.queue), None)
        if name is None or said.lane not in Lane.__members__.values():
            return None
        return SignedPlace(said.number, name, Lane(said.lane), said.order, said.joined - self._epoch_s)

    def _write_ticket(self, ticket: Ticket) -> str:
        joined = ticket.joined_at + self._epoch_s
        place = TicketPlace(
            ticket.number, queue_hash(ticket.queue), ticket.lane, ticket.order, joined, ticket.client or NOBODY
        )
        return self.texts.write(place)
