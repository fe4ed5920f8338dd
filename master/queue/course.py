"""How a ticket goes from stage to stage, and what goes with it: its line, the limits, the shares, the estimate.

The table of stages is in `master.queue.ticket`. Nothing else changes a line or a limit because of a ticket.
"""

from __future__ import annotations

import math
from typing import Final

from master.queue.answers import Tally
from master.queue.book import Book
from master.queue.estimator import Estimator
from master.queue.limits import Limit, Limits
from master.queue.line import Line
from master.queue.lines import Lines
from master.queue.policy import Mode, QueuePolicy
from master.queue.shares import Shares
from master.queue.ticket import CALLED, CLAIMED, GONE, MISSED, WAITING, Stage, Ticket

_LATE_S: Final = 5.0
"""A client may be so much later than it was told before its call goes to the next."""


class Course:
    def __init__(self, now: float, policy: QueuePolicy, estimator: Estimator) -> None:
        self.policy = policy
        self.book = Book(policy.max_tickets)
        self.lines = Lines(policy.templates, policy.max_queues)
        self.limits = Limits(now, policy.per_minute, policy.burst, policy.max_calls)
        self.limit = Limit.NOBODY
        """Why nobody more was called, the last time that it was tried."""
        self.tally = Tally()
        self.news: list[Ticket] = []
        """Held tickets that were called or have gone, for the shell."""
        self.last_order = 0
        self._estimator = estimator
        self._shares = Shares()
        self._set_mode(policy.mode)

    def set(self, now: float, policy: QueuePolicy) -> None:
        """Take on another policy. Where nobody is to enter, the calls go back to their places."""
        self.policy = policy
        self.limits.set(now, policy.per_minute, policy.burst, policy.max_calls)
        self.lines.set(now, policy.templates, policy.max_queues)
        self.book.most_kept = policy.max_tickets
        for line in self.lines:
            self._shares.changed(line)
        self._set_mode(policy.mode)
        if self.halted:
            for ticket in list(self.book.called.values()):
                self.put_back(now, ticket)
        self.limit, _ = self._look(now)  # what forbade a call before may be over, or another one

    def _set_mode(self, mode: Mode) -> None:
        self.halted = mode in (Mode.HOLD, Mode.CLOSED)
        self.unlimited = mode is Mode.PASS

    def enter(self, now: float, line: Line, ticket: Ticket) -> None:
        """Take in a new ticket, or one of before a restart."""
        self.last_order = max(self.last_order, ticket.order)
        self.lines.enter(line.queue)
        self._forget(self.book.enter(ticket))
        if ticket.stage is WAITING:
            self._stand(now, line, ticket)

    def tend(self, now: float, most: int) -> None:
        """End the stages whose time is over, looking at no more than `most`."""
        if not self.book.is_due(now):
            return
        for ticket in self.book.due(now, most):
            self.end(now, ticket)

    def end(self, now: float, ticket: Ticket) -> None:
        """End a stage whose time is over."""
        if ticket.stage is WAITING:
            self.lines[ticket.queue].remove(ticket)
            self.tally.lapsed += 1
            self._estimator.left(now, ticket)
            self._miss(ticket, ticket.lease_until)
        elif ticket.stage is CALLED:
            self._take_call_back(ticket)
            self.tally.missed += 1
            self._estimator.no_show(now, ticket)
            self._miss(ticket, ticket.claim_until)
        else:
            self.go(ticket)

    def leave(self, now: float, ticket: Ticket) -> None:
        """Let go one whose client gives it up, and what was reserved for it."""
        if ticket.stage is WAITING:
            self.lines[ticket.queue].remove(ticket)
            self._estimator.left(now, ticket)
        elif ticket.stage is CALLED:
            self._take_call_back(ticket)
            self._estimator.no_show(now, ticket)
        self.tally.left += ticket.stage is WAITING or ticket.stage is CALLED
        self.go(ticket)

    def go(self, ticket: Ticket) -> None:
        """Forget one that is in no line and has no call."""
        self.book.turn(ticket, GONE)
        self.lines.leave(ticket.queue)

    def call_next(self, now: float, most: int) -> int:
        """Call those whose turn it is, as far as the limits allow; return how many."""
        before = self.tally.called
        for _ in range(most):
            self.limit, line = self._look(now)
            ticket = line.next() if line is not None else None
            if line is None or ticket is None:
                break
            if ticket.lease_until <= now:
                self.end(now, ticket)
            elif self.unlimited:
                self.let_through(now, line, ticket)
            else:
                ticket.counted = True
                self._call(now, line, ticket)
        return self.tally.called - before

    def let_through(self, now: float, line: Line, ticket: Ticket) -> None:
        """Call one whatever the limits are; who would have waited is counted, and not in the rate."""
        would_wait = self.limits.binding(now) is not None or not line.gate.allows(now) or self.book.waiting > 1
        self.tally.would_wait += would_wait
        ticket.counted = not would_wait
        self._call(now, line, ticket)

    def claim(self, now: float, ticket: Ticket, grant: str) -> None:
        """Hear that a called one was let in."""
        self.limits.claim()
        self.tally.claimed += 1
        self._estimator.claimed(now, ticket)
        ticket.grant, ticket.claim_until = grant, now + self.policy.claimed_s
        self._turn(ticket, CLAIMED)
        if ticket.held and ticket.client is None:  # nobody could ask again
            self.go(ticket)

    def walked_in(self, now: float, line: Line) -> None:
        """Count one who was let in without a place, as if he had been called and had come."""
        for gate in (self.limits.gate, line.gate):
            gate.begin(now)
        self.limits.call(now)
        line.gate.take(now)
        self.limits.claim()
        self.tally.joined += 1
        self.tally.called += 1
        self.tally.claimed += 1

    def put_back(self, now: float, ticket: Ticket) -> None:
        """Let a called one wait again, where it waited."""
        if not ticket.held:  # who does not poll waits no longer for that
            ticket.lease_until = max(ticket.lease_until, now + self.lease_s(ticket))
        self.tally.put_back += 1
        self._turn(ticket, WAITING)
        self._stand(now, self.lines[ticket.queue], ticket)
        self._take_call_back(ticket)  # at the end, or what it gives back would be dropped where nobody else waits

    def bring_back(self, now: float, ticket: Ticket) -> None:
        """Let one that was missed stand where it stood, which is now the head or near it."""
        ticket.returned = True
        ticket.lease_until = now + self.lease_s(ticket)
        self.tally.returned += 1
        self._turn(ticket, WAITING)
        self._stand(now, self.lines[ticket.queue], ticket)

    def lease_s(self, ticket: Ticket) -> float:
        """Return how long it may be silent now."""
        least = self.policy.away_lease_s if ticket.away else self.policy.lease_s
        return max(least, 2 * ticket.retry_after_s)

    def _look(self, now: float) -> tuple[Limit, Line | None]:
        if self.halted:
            return Limit.MODE, None
        if not self.book.waiting:
            return Limit.NOBODY, None
        limit = None if self.unlimited else self.limits.binding(now)
        if limit is not None:
            return limit, None
        line = self._shares.next(math.inf if self.unlimited else now)  # by then every rate allows it
        return (Limit.TURN, line) if line is not None else (Limit.QUEUE_RATE, None)

    def _call(self, now: float, line: Line, ticket: Ticket) -> None:
        line.call(ticket)
        self.limits.call(now, ticket.counted)
        self._shares.serve(now, line, ticket.counted)
        back_by = ticket.polled_at + ticket.retry_after_s + _LATE_S
        ticket.claim_until = max(now + self.policy.claim_s, back_by)
        self._turn(ticket, CALLED)
        self.tally.called += 1
        self._estimator.called(now, ticket)
        if ticket.held:
            self.news.append(ticket)

    def _take_call_back(self, ticket: Ticket) -> None:
        self.limits.take_back(ticket.counted)
        self._shares.take_back(self.lines[ticket.queue], ticket.counted)

    def _miss(self, ticket: Ticket, since: float) -> None:
        if ticket.held:
            self.news.append(ticket)
        if ticket.held or ticket.returned:
            self.go(ticket)
        else:
            ticket.claim_until = since + self.policy.return_s
            self._turn(ticket, MISSED)

    def _stand(self, now: float, line: Line, ticket: Ticket) -> None:
        """Put one who waits into the line, where it wakes what rests while nobody waits."""
        if self.book.waiting == 1:
            self.limits.gate.begin(now)
        line.add(ticket)
        if len(line) == 1:
            self._shares.begin(now, line)

    def _turn(self, ticket: Ticket, stage: Stage) -> None:
        self._forget(self.book.turn(ticket, stage))

    def _forget(self, ticket: Ticket | None) -> None:
        """Let go one for whose memory there is no more room."""
        if ticket is not None:
            self.go(ticket)
