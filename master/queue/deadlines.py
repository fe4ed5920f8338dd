"""Which tickets are due, in the order of time, without a sweep over all.

A heap with one entry that counts for each ticket. A lease that is renewed only changes the ticket: its entry is put
back when it comes to the top. A time that has come nearer gets an entry at once, and the older one no longer counts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Final

from master.queue.ticket import Ticket

_SPARE: Final = 1024


class Deadlines:
    """Of those in `tickets`, by number; who is no longer there is passed over."""

    def __init__(self, tickets: Mapping[int, Ticket]) -> None:
        self._tickets = tickets
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, ticket: Ticket) -> None:
        """Hear that the time of a ticket is set, or set anew."""
        due = ticket.due
        if due < ticket.watched_at:
            ticket.watched_at = due
            heapq.heappush(self._heap, (due, ticket.number))
            if len(self._heap) > 2 * len(self._tickets) + _SPARE:
                self._forget_gone()

    def is_due(self, now: float) -> bool:
        """Return whether there is anything to look at."""
        return bool(self._heap) and self._heap[0][0] <= now

    def due(self, now: float, most: int) -> Iterator[Ticket]:
        """Yield those whose time has come, looking at no more than `most` entries: the rest come next time."""
        heap = self._heap
        for _ in range(most):
            if not heap or heap[0][0] > now:
                return
            at, number = heapq.heappop(heap)
            ticket = self._tickets.get(number)
            if ticket is None or ticket.watched_at != at:
                continue
            ticket.watched_at = math.inf
            if ticket.due > now:
                self.watch(ticket)
            else:
                yield ticket

    def _forget_gone(self) -> None:
        """Drop what no longer counts; as many have left since the last time."""
        self._heap[:] = [(ticket.watched_at, number) for number, ticket in self._tickets.items()]
        heapq.heapify(self._heap)
