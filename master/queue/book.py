"""All tickets: by number, by client, by network, by when they are due, and which of them have changed.

The one place where a ticket changes its stage, so that every count of them is the same count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from master.queue.deadlines import Deadlines
from master.queue.numbers import NumberBlock
from master.queue.rows import Changes, to_row
from master.queue.ticket import CALLED, CLAIMED, GONE, WAITING, Stage, Ticket

_SPARE: Final = 16384


class Book:
    """`most_kept`: so many are remembered of those who have no place; the oldest are forgotten.

    What has changed is a number for each ticket, of those who have gone too. When nobody has taken it for so long that
    it outgrows the tickets, it is dropped, and the store is to be written anew.
    """

    def __init__(self, most_kept: int) -> None:
        self.most_kept = most_kept
        self.called: dict[int, Ticket] = {}
        self._tickets: dict[int, Ticket] = {}
        self._clients: dict[bytes, Ticket] = {}
        self._networks: dict[bytes, int] = {}
        self._kept: OrderedDict[int, Ticket] = OrderedDict()
        self._waiting = 0
        self._claimed = 0
        self._deadlines = Deadlines(self._tickets)
        self._changed: dict[int, None] = {}
        self._anew = False
        self._rest: list[int] = []
        """Of those that are to be written anew; a list, because a dict of a million takes ten times as long to make."""

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def claimed(self) -> int:
        return self._claimed

    @property
    def missed(self) -> int:
        return len(self._kept) - self._claimed

    @property
    def places(self) -> int:
        return self._waiting + len(self.called)

    def places_of(self, network: bytes | None) -> int:
        return self._networks.get(network, 0) if network is not None else 0

    def by_number(self, number: int) -> Ticket | None:
        return self._tickets.get(number)

    def by_client(self, client: bytes | None) -> Ticket | None:
        return self._clients.get(client) if client is not None else None

    def is_due(self, now: float) -> bool:
        return self._deadlines.is_due(now)

    def due(self, now: float, most: int) -> Iterator[Ticket]:
        return self._deadlines.due(now, most)

    @property
    def watched(self) -> int:
        return len(self._deadlines)

    def enter(self, ticket: Ticket) -> Ticket | None:
        """Put one in; return one that had to be forgotten for it."""
        self._tickets[ticket.number] = ticket
        if ticket.client is not None:
            self._clients[ticket.client] = ticket
        return self._take_up(ticket)

    def name(self, ticket: Ticket, client: bytes) -> None:
        """Hear whose a ticket is that was given to somebody without an id."""
        ticket.client = client
        self._clients[client] = ticket
        self._note(ticket.number)

    def turn(self, ticket: Ticket, stage: Stage) -> Ticket | None:
        """Change its stage, its times being set already; return one that had to be forgotten for it."""
        self._lay_down(ticket)
        ticket.stage = stage
        if stage is not GONE:
            return self._take_up(ticket)
        del self._tickets[ticket.number]
        if ticket.client is not None and self._clients.get(ticket.client) is ticket:
            del self._clients[ticket.client]
        self._note(ticket.number)
        return None

    def renewed(self, ticket: Ticket) -> None:
        """Hear that its times have changed."""
        self._deadlines.watch(ticket)
        self._note(ticket.number)

    @property
    def unwritten(self) -> int:
        """How many changes the store has not been told of; to be written anew is one, though there is no ticket."""
        return max(len(self._tickets), 1) if self._anew else len(self._rest) + len(self._changed)

    def take_changes(self, unused: tuple[NumberBlock, ...], most: int) -> Changes:
        """Return what has changed since the last time, the oldest `most` of it."""
        anew, self._anew = self._anew, False
        if anew:
            self._changed.clear()
            self._rest = list(reversed(self._tickets))
        numbers = self._rest[: -most - 1 : -1]
        del self._rest[-most:]
        changed = list(islice(self._changed, most - len(numbers)))
        for number in changed:
            del self._changed[number]
        found = [(number, self._tickets.get(number)) for number in (*numbers, *changed)]
        # Who waits on his connection is gone with the process: his place would only stand in the way of the others.
        rows = [to_row(ticket) for _, ticket in found if ticket is not None and not ticket.held]
        gone = [number for number, ticket in found if ticket is None]
        return Changes(rows, gone, unused if not (self._changed or self._rest) else None, anew)

    def give_back(self, changes: Changes) -> None:
        """Hear that these could not be written: they are among the next."""
        self._anew = self._anew or changes.anew
        for number in [*(row.number for row in changes.rows), *changes.gone]:
            self._note(number)

    def written(self, number: int) -> None:
        """Hear that the store has this one as it is."""
        if number in self._tickets:
            self._changed.pop(number, None)

    def _note(self, number: int) -> None:
        if self._anew:
            return
        self._changed[number] = None
        if len(self._changed) > 2 * len(self._tickets) + _SPARE:
            self._changed.clear()
            self._anew = True

    def _take_up(self, ticket: Ticket) -> Ticket | None:
        self.renewed(ticket)
        stage, number = ticket.stage, ticket.number
        if stage is WAITING or stage is CALLED:
            if stage is WAITING:
                self._waiting += 1
            else:
                self.called[number] = ticket
            if ticket.network is not None:
                self._networks[ticket.network] = self._networks.get(ticket.network, 0) + 1
            return None
        self._claimed += stage is CLAIMED
        self._kept[number] = ticket
        return next(iter(self._kept.values())) if len(self._kept) > self.most_kept else None

    def _lay_down(self, ticket: Ticket) -> None:
        stage, network = ticket.stage, ticket.network
        if stage is WAITING:
            self._waiting -= 1
        elif stage is CALLED:
            del self.called[ticket.number]
        else:
            self._claimed -= stage is CLAIMED
            del self._kept[ticket.number]
            return
        if network is not None:
            left = self._networks[network] - 1
            if left:
                self._networks[network] = left
            else:
                del self._networks[network]
