"""Who gets a place: in which queue, in which lane, with which number, and why not."""

from __future__ import annotations

import random
from typing import Final

import attrs

from lambdamu.messages import QueueReason
from master.queue.answers import Closed, Denied, QueueAsk, SignedPlace
from master.queue.course import Course
from master.queue.line import Line
from master.queue.lines import DEFAULT
from master.queue.numbers import Numbers
from master.queue.policy import Mode
from master.queue.ticket import CLAIMED, Lane, Ticket

_MICROSECONDS: Final = 1e6


class Admission:
    """`epoch_s`: as in `Queues`."""

    def __init__(self, course: Course, numbers: Numbers, epoch_s: float) -> None:
        self._course = course
        self._numbers = numbers
        self._epoch_s = epoch_s

    def begins_anew(self, ticket: Ticket, ask: QueueAsk) -> bool:
        """Return whether it asks for another place: in another queue, or because what it was let in with is over."""
        if not is_owner(ticket, ask):
            return False
        elsewhere = bool(ask.queue) and self._course.lines.called(ask.queue) != ticket.queue
        return elsewhere or (ticket.stage is CLAIMED and (ask.renew or ask.lane is Lane.RESUME))

    def join(
        self, now: float, rng: random.Random, ask: QueueAsk, instead_of: Ticket | None
    ) -> Ticket | Closed | Denied:
        """Give somebody a place. One client has one, so an older one goes, once it is sure that there is a new."""
        policy = self._course.policy
        if policy.mode is Mode.CLOSED:
            return Closed(QueueReason.CLOSED, self._again_s(rng), policy.text)
        if instead_of is None and ask.place is not None and self._numbers.find(ask.place.number):
            return self._rejoin(now, ask, ask.place)
        line = self._course.lines.open(now, self._course.lines.called(ask.queue or DEFAULT))
        if line is QueueReason.NO_QUEUE:
            self._course.tally.refused += 1
            return Denied(line)
        number = None if isinstance(line, QueueReason) or self._is_full(line, ask) else self._numbers.take()
        if isinstance(line, QueueReason) or number is None:
            self._course.tally.refused += 1
            return Closed(QueueReason.FULL, self._again_s(rng))
        before = instead_of if instead_of is not None and self._is_back(instead_of, ask) else None
        if instead_of is not None:
            self._course.leave(now, instead_of)
        order = max(self._course.last_order + 1, int((now + self._epoch_s) * _MICROSECONDS))
        self._course.tally.joined += 1
        if before is None:
            return self._take_in(now, line, ask, number, order)
        ticket = self._take_in(now, line, attrs.evolve(ask, lane=before.lane), number, before.order)
        ticket.returned = True
        return ticket

    def _is_back(self, before: Ticket, ask: QueueAsk) -> bool:
        """Return whether it may stand where it stood before, which it may once."""
        here = not ask.queue or self._course.lines.called(ask.queue) == before.queue
        return ask.renew and here and before.stage is CLAIMED and not before.returned

    def _again_s(self, rng: random.Random) -> float:
        lease_s = self._course.policy.lease_s
        return rng.uniform(lease_s, 2 * lease_s)

    def _rejoin(self, now: float, ask: QueueAsk, place: SignedPlace) -> Ticket:
        """Give back a place that the store had not heard of when the process before this one ended."""
        self._course.tally.rejoined += 1
        line = self._course.lines.open_again(now, place.queue)
        ticket = self._take_in(now, line, attrs.evolve(ask, lane=place.lane), place.number, place.order)
        if place.joined_at is not None:
            ticket.joined_at = min(now, place.joined_at)
        return ticket

    def _take_in(self, now: float, line: Line, ask: QueueAsk, number: int, order: int) -> Ticket:
        lease_s = self._course.policy.hold_plain_s if ask.held else self._course.policy.lease_s
        ticket = Ticket(
            number,
            line.queue,
            ask.client,
            ask.network,
            line.lane_for(ask.lane),
            order,
            joined_at=now,
            lease_until=now + lease_s,
            held=ask.held,
            polled_at=now,
        )
        self._course.enter(now, line, ticket)
        return ticket

    def _is_full(self, line: Line, ask: QueueAsk) -> bool:
        policy, book = self._course.policy, self._course.book
        if book.places >= policy.max_tickets:
            return True
        if ask.lane is Lane.RESUME:
            return False
        full = book.places_of(ask.network) >= policy.max_tickets_per_network
        return full or len(line) >= line.template.max_waiting


def is_owner(ticket: Ticket, ask: QueueAsk) -> bool:
    """Return whether it is asked by the client that it belongs to; one without an id is whoever holds the ticket."""
    return ticket.client == ask.client
