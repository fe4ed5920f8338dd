"""The virtual queue as a whole: who asks, whose turn it is, who has gone. The one object that the shell talks to.

It is synchronous and does no I/O, so each call is atomic. `now` is seconds of one monotonic clock, `rng` jitters. The
shell tells how much room there is (`settle`, some times a second, and after news of the pool); what was called since is
taken off until it tells again. So there are never more in than the limits allow: a call reserves its place, and who
comes for it is sent to a backend, and said to be (`claim`), before anybody else is heard.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from lambdamu.messages import QueueReason, Reason
from master.queue.admission import Admission, is_owner
from master.queue.answers import (
    Again,
    Answer,
    Closed,
    Denied,
    Go,
    QueueAsk,
    Settled,
    Waiting,
)
from master.queue.course import Course
from master.queue.estimator import Estimator
from master.queue.limits import Limit, Room
from master.queue.line import Line
from master.queue.lines import DEFAULT
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import Mode, QueuePolicy
from master.queue.rows import Changes, TicketRow, to_ticket
from master.queue.ticket import CALLED, CLAIMED, GONE, MISSED, WAITING, Lane, Ticket

_DUE_PER_ASK: Final = 16
_DUE_PER_TURN: Final = 4096
_CALLS_PER_ASK: Final = 4
_CALLS_PER_TURN: Final = 2048
"""What is due, and whose turn it is, is done in parts: no ask waits for more than that."""

_WAITS_FOR: Final = {
    Limit.CALLS: QueueReason.CALLS,
    Limit.RATE: QueueReason.RATE,
    Limit.QUEUE_RATE: QueueReason.RATE,
    Limit.MODE: QueueReason.HELD,
}


class Queues:
    """`epoch_s`: the wall clock minus the monotonic one, read once at the start: places are ordered by that, so that
    those of a later process come after. No step of a clock changes anything afterwards.
    """

    def __init__(
        self, now: float, policy: QueuePolicy, estimator: Estimator, numbers: Numbers, epoch_s: float = 0.0
    ) -> None:
        self.numbers = numbers
        self.epoch_s = epoch_s
        self._course = course = Course(now, policy, estimator)
        self._admission = Admission(course, numbers, epoch_s)
        self._estimator = estimator
        self.book, self.lines, self.limits, self.tally = course.book, course.lines, course.limits, course.tally

    @property
    def policy(self) -> QueuePolicy:
        return self._course.policy

    @property
    def limit(self) -> Limit:
        """Return why nobody more was called, the last time that it was tried."""
        return self._course.limit

    @property
    def reason(self) -> QueueReason:
        """Return the same in the word that those who wait are told."""
        if self.limit is Limit.PLACES:
            return self.limits.room.why
        return _WAITS_FOR.get(self.limit, QueueReason.IN_LINE)

    # What clients ask.

    def ask(self, now: float, rng: random.Random, ask: QueueAsk) -> Answer:
        """Answer a client that asks for the first time, asks again, goes away or leaves."""
        self._course.tend(now, _DUE_PER_ASK)
        ticket = self._find(now, ask)
        if ask.leave:
            if ticket is not None and (is_owner(ticket, ask) or ticket.stage is not CLAIMED):
                self._course.leave(now, ticket)
            return Closed(Reason.LEFT)
        if ticket is None or self._admission.begins_anew(ticket, ask):
            joined = self._admission.join(now, rng, ask, ticket)
            if not isinstance(joined, Ticket):
                return joined
            ticket = joined
        elif ticket.stage is MISSED:
            self._course.bring_back(now, ticket)
        if ticket.client is None and ask.client is not None and ticket.stage is not CLAIMED:
            self.book.name(ticket, ask.client)
        self._better(ticket, ask.lane)
        self._hurry(now, ticket)
        return self._answer(now, rng, ticket, ask)

    def may_walk_in(self, now: float) -> bool:
        """Whether somebody who gives no name need take no place: nobody waits in any queue, and nothing binds.

        `walked_in` has to be said of each who was let in so, before anybody else is heard.
        """
        line = self._plain_line
        if self.policy.mode is not Mode.AUTO or self.book.waiting or line is None:
            return False
        return self.limits.binding(now) is None and line.gate.allows(now)

    def walked_in(self, now: float) -> None:
        if self._plain_line is not None:
            self._course.walked_in(now, self._plain_line)

    @property
    def _plain_line(self) -> Line | None:
        """The queue of those who name none, if it is open."""
        return self.lines.get(DEFAULT)

    def known(self, now: float, ask: QueueAsk) -> Ticket | None:
        """Return the ticket by which somebody who asks is known, if it is his own."""
        ticket = self._find(now, ask)
        return ticket if ticket is not None and is_owner(ticket, ask) else None

    def leave(self, now: float, number: int) -> None:
        """Hear that a client has gone, whose connection it waited on."""
        ticket = self.book.by_number(number)
        if ticket is not None:
            self._course.leave(now, ticket)

    def claim(self, now: float, number: int, grant: str) -> bool:
        """Hear that a called client was answered OK; `grant` is for when it asks again. False: it is not called."""
        ticket = self.book.called.get(number)
        if ticket is None:
            return False
        self._course.claim(now, ticket, grant)
        return True

    def amend(self, ticket: Ticket, grant: str) -> None:
        """Hear that one who was let in was told more than before."""
        ticket.grant = grant
        self.book.renewed(ticket)

    def put_back(self, now: float, rng: random.Random, number: int) -> Waiting | None:
        """Hear that there is no backend for a called client: it keeps its place, and nobody is called until the next
        room. Return what to answer; None: it is not called.
        """
        ticket = self.book.called.get(number)
        if ticket is None:
            return None
        self._course.put_back(now, ticket)
        self.limits.deny()
        self._course.limit = Limit.PLACES
        return self._wait(now, rng, ticket, away=False)

    # What the shell does.

    def settle(self, now: float, room: Room, most: int = _CALLS_PER_TURN) -> Settled:
        """Hear how much room there is, let go who is due, and call the next ones."""
        self.limits.tell(now, room)
        self._course.tend(now, _DUE_PER_TURN)
        return Settled(self._course.call_next(now, most), self.limit)

    def take_news(self) -> list[Ticket]:
        """Return the held tickets that were called or, their time being over, have gone since the last time."""
        news, self._course.news = self._course.news, []
        return [ticket for ticket in news if ticket.stage in (CALLED, GONE)]

    def set(self, now: float, policy: QueuePolicy) -> None:
        """Take on another mode, rate or bound. Where nobody is to enter, the calls go back to their places."""
        self._course.set(now, policy)

    @property
    def unwritten(self) -> int:
        """Return how many changes the store has not been told of."""
        return self.book.unwritten

    def take_changes(self, most: int = 10_000) -> Changes:
        """Return what the store has to write, so many rows at most; `give_back` if it could not."""
        return self.book.take_changes(self.numbers.unused, most)

    def give_back(self, changes: Changes) -> None:
        """Hear that these could not be written: they are among the next."""
        self.book.give_back(changes)

    def write_anew(self) -> None:
        """Hear that what the store has is of no worth: all is written in its place."""
        self.book.give_back(Changes([], [], None, anew=True))

    def restore(self, now: float, rows: Iterable[TicketRow], lost: Iterable[NumberBlock]) -> None:
        """Put back what was written, before anybody asks; `lost`: what was unused by then. Times are of this clock.

        It may come in parts, in any order; `lost` with the first of them.
        Nobody could ask meanwhile, so each lease and each call begins anew. Raise ValueError on a row that is none.
        """
        self.numbers.lose(lost)
        for row in sorted(rows, key=lambda row: row.order):
            ticket = to_ticket(row)
            ticket.lease_until = max(ticket.lease_until, now + self._course.lease_s(ticket))
            if ticket.stage is CALLED:
                ticket.claim_until = max(ticket.claim_until, now + self.policy.claim_s)
                self.limits.call(now, ticket.counted)
            self.numbers.find(ticket.number)
            self._course.enter(now, self.lines.open_again(now, ticket.queue), ticket)
            self.book.written(ticket.number)
        self.set(now, self.policy)

    # Within.

    def _find(self, now: float, ask: QueueAsk) -> Ticket | None:
        """Return the ticket of a client, also one that it was let in with; what it has lost by now is none."""
        ticket = self._held_by(ask)
        while ticket is not None and ticket.due <= now:
            self._course.end(now, ticket)
            ticket = self._held_by(ask)
        return ticket

    def _held_by(self, ask: QueueAsk) -> Ticket | None:
        ticket = self.book.by_client(ask.client)
        if ticket is not None or ask.place is None:
            return ticket
        shown = self.book.by_number(ask.place.number)
        if shown is None or shown.stage is CLAIMED:
            return shown
        return shown if ask.client is None or shown.client is None else None

    def _better(self, ticket: Ticket, lane: Lane) -> None:
        """Move one who waits to a better lane that it has come to have a right to; it keeps its order."""
        line = self.lines[ticket.queue]
        lane = line.lane_for(lane)
        if ticket.stage is WAITING and lane < ticket.lane:
            line.remove(ticket)
            ticket.lane = lane
            line.add(ticket)

    def _hurry(self, now: float, ticket: Ticket) -> None:
        """Call at once who need not wait."""
        mode = self.policy.mode
        if mode is Mode.AUTO:
            self._course.call_next(now, _CALLS_PER_ASK)
        elif mode is Mode.PASS and ticket.stage is WAITING:
            self._course.let_through(now, self.lines[ticket.queue], ticket)

    def _answer(self, now: float, rng: random.Random, ticket: Ticket, ask: QueueAsk) -> Answer:
        if ticket.stage is CLAIMED:
            same = ticket.client is not None and ticket.client == ask.client
            return Again(ticket.grant or "") if same else Denied(QueueReason.USED)
        if ticket.stage is CALLED and not ask.away:
            return Go(ticket)
        waiting = self._wait(now, rng, ticket, ask.away)
        if self.policy.mode is Mode.CLOSED:
            return Closed(QueueReason.CLOSED, waiting.retry_after_s, self.policy.text)
        return waiting

    def _wait(self, now: float, rng: random.Random, ticket: Ticket, away: bool) -> Waiting:
        """Tell one where it stands, and renew its lease."""
        ahead = self.lines[ticket.queue].ahead(ticket) if ticket.stage is WAITING else 0
        ticket.shown = ahead if ticket.shown is None else min(ticket.shown, ahead)
        if ticket.held:  # it is told nothing, and does not poll
            return Waiting(ticket, ticket.shown, None, None, 0.0, self.reason)
        retry_after_s = self._estimator.retry_after(now, rng, ticket, ahead)
        ticket.polled_at, ticket.retry_after_s, ticket.away = now, retry_after_s, away
        ticket.lease_until = now + self._course.lease_s(ticket)
        self.book.renewed(ticket)
        eta_s, eta90_s = self._estimator.eta(now, ticket, ahead)
        return Waiting(ticket, ticket.shown, eta_s, eta90_s, ticket.retry_after_s, self.reason)
