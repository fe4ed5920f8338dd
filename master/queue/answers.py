"""What the virtual queue is asked, and what it answers."""

from __future__ import annotations

import attrs

from lambdamu.messages import QueueReason, Reason
from master.queue.limits import Limit
from master.queue.ticket import Lane, Ticket


@attrs.frozen
class SignedPlace:
    """What the text of a ticket says, once its signature has been found good. `joined_at`: None when it is not told."""

    number: int
    queue: str
    lane: Lane
    order: int
    joined_at: float | None = None


@attrs.frozen
class QueueAsk:
    """`queue` "": wherever its place is, else `default`. `client`: hash of its id, None: it has none.

    `renew`: what it was let in with has ended, or is of no use; once it stands where it stood before.

    `network`: where its place counts, None: exempt. `place`: the ticket that it shows. `lane`: the best one that it has
    a right to; the resume lane for a client whose backend has died. `held`: it waits on its connection (a plain one).
    """

    queue: str = ""
    client: bytes | None = None
    network: bytes | None = None
    place: SignedPlace | None = None
    lane: Lane = Lane.PLAIN
    away: bool = False
    leave: bool = False
    held: bool = False
    renew: bool = False


@attrs.frozen
class Waiting:
    """`position`: people ahead, 0: next. `eta_s`, `eta90_s`: None when unknown."""

    ticket: Ticket
    position: int
    eta_s: float | None
    eta90_s: float | None
    retry_after_s: float
    reason: QueueReason


@attrs.frozen
class Go:
    """A place is reserved: send it to a backend and say `claim`, or `put_back` if there is none, before all else."""

    ticket: Ticket


@attrs.frozen
class Again:
    """It was let in a moment ago, and gets the same answer."""

    grant: str


@attrs.frozen
class Closed:
    """`retry_after_s` None: it need not come again."""

    reason: QueueReason | Reason
    retry_after_s: float | None = None
    text: str = ""


@attrs.frozen
class Denied:
    reason: QueueReason


Answer = Waiting | Go | Again | Closed | Denied


@attrs.frozen
class Settled:
    """`called`: how many were, in this turn; `limit`: why not more."""

    called: int
    limit: Limit


@attrs.define(eq=False)
class Tally:
    """What is counted from the start. `missed`: calls that nobody came for; `lapsed`: leases that ended; `would_wait`:
    those who were let through and would have waited.
    """

    joined: int = 0
    rejoined: int = 0
    called: int = 0
    put_back: int = 0
    claimed: int = 0
    missed: int = 0
    lapsed: int = 0
    returned: int = 0
    left: int = 0
    refused: int = 0
    would_wait: int = 0
