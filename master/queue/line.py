"""The people of one queue: who waits in which lane, whose turn it is, and how many are before one.

First all of the resume lane. Then vip and plain: while both wait, of S calls in 1,000 the vip get S. Each such call
adds S to a credit C in [0, 1000); when it comes to 1,000, the call is a vip's and takes 1,000 off. So v calls have gone
to vip after t = ceil((1000 v - C) / S) calls, and the formulas of `ahead` follow from that. Where only one lane has
anybody no credit is counted: who was not here has saved nothing up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from master.queue.limits import Gate
from master.queue.policy import TemplatePolicy
from master.queue.ranks import Ranks
from master.queue.ticket import Lane, Ticket

_WHOLE: Final = 1000


class Line:
    """`gate` is its own rate. `turn_at` and `entry` belong to `Shares`."""

    def __init__(self, queue: str, template: TemplatePolicy, now: float) -> None:
        self.queue = queue
        self.gate = Gate(now, template.per_minute)
        self.turn_at = 0.0
        self.entry = 0
        self.fits = True
        """There is a template still that fits its id: else it takes nobody new."""
        self.tickets = 0
        """All that belong here, those who are only remembered included."""
        self._lanes = tuple(Ranks() for _ in Lane)
        self._credit = _WHOLE - 1
        self.set(now, template)

    def set(self, now: float, template: TemplatePolicy) -> None:
        """Take on a template that has changed."""
        self.template = template
        self.gate.set(now, template.per_minute)
        self._vip = round(template.vip_share * _WHOLE)

    def __len__(self) -> int:
        resume, vip, plain = self._lanes
        return len(resume) + len(vip) + len(plain)

    def __iter__(self) -> Iterator[Ticket]:
        for lane in self._lanes:
            yield from lane

    def by_lane(self) -> tuple[int, int, int]:
        """Return how many wait in each lane, in their order."""
        resume, vip, plain = self._lanes
        return len(resume), len(vip), len(plain)

    def heads(self) -> Iterator[Ticket]:
        """Yield who stands before all others in each lane."""
        for lane in self._lanes:
            if (first := lane.first) is not None:
                yield first

    def waiting(self, lane: Lane) -> int:
        return len(self._lanes[lane])

    def lane_for(self, wanted: Lane) -> Lane:
        """Return the lane of somebody who has a right to `wanted`; where there is none such, it is the plain one."""
        return wanted if wanted in self.template.lanes else Lane.PLAIN

    def add(self, ticket: Ticket) -> None:
        self._lanes[ticket.lane].add(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._lanes[ticket.lane].remove(ticket)

    def next(self) -> Ticket | None:
        """Return whose turn it is, who stays in the line; None when nobody waits."""
        resume, vip, plain = self._lanes
        if len(resume):
            return resume.first
        if not (len(vip) and len(plain)):
            return vip.first or plain.first
        return vip.first if self._credit + self._vip >= _WHOLE else plain.first

    def call(self, ticket: Ticket) -> None:
        """Take out the one whose turn it is."""
        if ticket.lane is not Lane.RESUME and self.waiting(Lane.VIP) and self.waiting(Lane.PLAIN):
            self._credit += self._vip - (_WHOLE if ticket.lane is Lane.VIP else 0)
        self.remove(ticket)

    def ahead(self, ticket: Ticket) -> int:
        """Return how many would be called before one who waits here if nobody came or left any more."""
        rank = self._lanes[ticket.lane].before(ticket)
        if ticket.lane is Lane.RESUME:
            return rank
        resume, vip, plain = map(len, self._lanes)
        if ticket.lane is Lane.VIP:
            return resume + rank + min(plain, self._plain_before(rank))
        return resume + rank + (min(vip, self._vip_before(rank)) if vip else 0)

    @property
    def ahead_of_newcomer(self) -> int:
        """How many would be called before one who joined the plain lane now."""
        resume, vip, plain = map(len, self._lanes)
        return resume + plain + min(vip, self._vip_before(plain))

    def _plain_before(self, rank: int) -> int:
        if not self._vip:
            return self.waiting(Lane.PLAIN)
        calls = -(-(_WHOLE * (rank + 1) - self._credit) // self._vip)
        return calls - rank - 1

    def _vip_before(self, rank: int) -> int:
        if self._vip == _WHOLE:
            return self.waiting(Lane.VIP)
        return (self._vip * rank + self._credit) // (_WHOLE - self._vip)
