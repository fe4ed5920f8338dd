"""A place in a queue, and the stages that it goes through.

    from        to        when
    -           waiting   its client asks for the first time
    waiting     called    it is its turn: a place is reserved for it
    waiting     missed    its lease has ended
    called      claimed   a poll was answered OK
    called      waiting   there was no backend after all, or the operator holds the queue
    called      missed    nobody came for it in time
    missed      waiting   its client is back within the time, once: its old order puts it at the head
    any         gone      its client gives it up, it has been missed twice, or nobody need remember it any more

Whoever waits or is called has a place. Who is missed or claimed has none, and is remembered.
"""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any, Final

import attrs


class Lane(IntEnum):
    """Lanes in their order. Within a lane, first come, first served."""

    RESUME = 0
    VIP = 1
    PLAIN = 2


class Stage(StrEnum):
    WAITING = "waiting"
    CALLED = "called"
    MISSED = "missed"
    CLAIMED = "claimed"
    GONE = "gone"


WAITING: Final = Stage.WAITING
CALLED: Final = Stage.CALLED
MISSED: Final = Stage.MISSED
CLAIMED: Final = Stage.CLAIMED
GONE: Final = Stage.GONE
"""Up to Python 3.11 it takes 0.1 us to look a member up in its class, and some calls would do that ten times."""


@attrs.define(eq=False, weakref_slot=False)
class Ticket:
    """Times are seconds of the master's monotonic clock.

    `client`: hash of its id, None for one without; `network`: where it counts, None: it counts nowhere. `order`: its
    place in the lane, unique; it grows with the time of arrival, microseconds. `held`: it waits on its connection and
    does not poll. `shown`: the lowest Position that it was told, None: none yet. `grant`: the answer it was let in
    with, whatever the shell made of it. `promise` belongs to the estimate.
    """

    number: int
    queue: str
    client: bytes | None
    network: bytes | None
    lane: Lane
    order: int
    joined_at: float
    lease_until: float
    held: bool = False
    stage: Stage = WAITING
    claim_until: float = 0.0
    """Called: until then the place is reserved. Missed or claimed: until then it is remembered."""
    returned: bool = False
    """Its one return to the head is used."""
    shown: int | None = None
    polled_at: float = 0.0
    retry_after_s: float = 0.0
    """What it was told last, at `polled_at`."""
    away: bool = False
    counted: bool = True
    """Its call took part of the rate, which is given back if nobody comes."""
    grant: str | None = None
    promise: Any = None
    watched_at: float = math.inf
    """The entry that counts in the order of deadlines."""

    @property
    def due(self) -> float:
        """When its stage ends by time alone."""
        return self.lease_until if self.stage is WAITING else self.claim_until
