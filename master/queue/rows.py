"""What the store keeps of a ticket. Times are of the master's clock; `moved` takes them to the wall clock and back."""

from __future__ import annotations

from operator import attrgetter
from typing import Final, NamedTuple

import attrs

from master.queue.numbers import NumberBlock
from master.queue.ticket import Lane, Stage, Ticket


class TicketRow(NamedTuple):
    """A tuple, and no class of attrs: thousands are made at a time while clients wait, in under half of the time."""

    number: int
    queue: str
    client: bytes | None
    network: bytes | None
    lane: int
    order: int
    stage: str
    joined_at: float
    lease_until: float
    claim_until: float
    returned: bool
    shown: int | None
    polled_at: float
    retry_after_s: float
    away: bool
    grant: str | None

    def moved(self, by_s: float) -> TicketRow:
        """Return it by a clock that shows `by_s` more."""
        return self._replace(
            joined_at=self.joined_at + by_s,
            lease_until=self.lease_until + by_s,
            claim_until=self.claim_until + by_s,
            polled_at=self.polled_at + by_s,
        )


@attrs.frozen
class Changes:
    """What to write: rows to put in place of older ones, numbers to delete, numbers that are not used.

    `unused` None: it stays as it was, because more is to be written before the numbers that were given are all there.
    `anew`: delete all rows first. All others follow, up to the first of which `unused` is not None: it is one commit.
    """

    rows: list[TicketRow]
    gone: list[int]
    unused: tuple[NumberBlock, ...] | None
    anew: bool = False

    @property
    def last(self) -> bool:
        """Whether all of the commit has been told with this one."""
        return self.unused is not None


_VALUES: Final = attrgetter(*TicketRow._fields)


def to_row(ticket: Ticket) -> TicketRow:
    return TicketRow._make(_VALUES(ticket))


def to_ticket(row: TicketRow) -> Ticket:
    """Raise ValueError on a lane or a stage that does not exist."""
    return Ticket(
        row.number,
        row.queue,
        row.client,
        row.network,
        Lane(row.lane),
        row.order,
        row.joined_at,
        row.lease_until,
        stage=Stage(row.stage),
        claim_until=row.claim_until,
        returned=bool(row.returned),
        shown=row.shown,
        polled_at=row.polled_at,
        retry_after_s=row.retry_after_s,
        away=bool(row.away),
        grant=row.grant,
    )
