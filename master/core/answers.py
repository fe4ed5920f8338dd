"""What is asked of the pool, what it answers, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import attrs

from master.core.backend import Endpoint, Family


class State(StrEnum):
    """Whether a backend can be chosen now, and if not, the first reason why."""

    READY = "ready"
    NO_WEIGHT = "no_weight"
    UNPROBED = "unprobed"
    DOWN = "down"
    LOST = "lost"
    STALE = "stale"
    DRAIN = "drain"
    MAINT = "maint"
    EJECTED = "ejected"
    FULL = "full"


class Reason(StrEnum):
    """Why a backend is chosen or not. The words of `State` say why one is no candidate."""

    BEST = "best"
    """Chosen: the first in the order of the policy."""
    IN_ZONE = "in_zone"
    """Chosen: the first in the zone of the client."""
    SPILLED = "spilled"
    """Chosen: the first of all; in the zone of the client there is none, or the load there is too high."""
    EARLIEST = "earliest"
    """Chosen: all have been given as many as they may be; this one was due first."""
    AGAIN = "again"
    """Chosen: the client was sent there a moment ago, and asks again."""
    SESSION = "session"
    """Chosen: the client has a session there, and the load is not much above the mean."""
    LAST_KNOWN = "last_known"
    """Chosen: too few work, so the last good reports are taken for true."""

    BEHIND = "behind"
    """Not chosen: another stands before it in the order of the policy."""
    CAPPED = "capped"
    """Not chosen: it has been given as many as it may be for now."""
    OTHER_ZONE = "other_zone"
    """Not chosen: the client has a zone, and one there will do."""
    LOWER_PRIORITY = "lower_priority"
    """Not chosen: a level of higher priority has candidates."""

    FIRST_ROUND = "first_round"
    """Nobody is chosen: not every backend has been probed since the start."""
    PANIC = "panic"
    """Nobody is chosen: too few backends work."""
    NO_CANDIDATE = "no_candidate"
    """Nobody is chosen: none can take anyone."""

    NO_WEIGHT = "no_weight"
    UNPROBED = "unprobed"
    DOWN = "down"
    LOST = "lost"
    STALE = "stale"
    DRAIN = "drain"
    MAINT = "maint"
    EJECTED = "ejected"
    FULL = "full"


OUTCOMES: Final = (
    Reason.BEST,
    Reason.IN_ZONE,
    Reason.SPILLED,
    Reason.EARLIEST,
    Reason.AGAIN,
    Reason.SESSION,
    Reason.LAST_KNOWN,
    Reason.FIRST_ROUND,
    Reason.PANIC,
    Reason.NO_CANDIDATE,
)
"""The reasons an ask can be answered for."""


@attrs.frozen
class Ask:
    """What a client asked for: the family it came by, how many alternates it wants, the zone it is in, if any.

    `client`: a hash of its id, if it gave one; with the same one it is sent to the same place again for a while, unless
    it is `anew`: then a place is reserved for this ask, too. `prefer`: the name of the backend that has its session, ""
    where none is known; `failed`: where it could not connect, so that it is not sent back there. `reserved`: a place is
    kept for it already, among all that were free: it need not be counted as one who comes from the street.
    """

    family: Family = 4
    alternates: int = 0
    zone: str = ""
    client: str | None = None
    anew: bool = False
    prefer: str = ""
    failed: frozenset[Endpoint] = frozenset()
    reserved: bool = False


@attrs.frozen
class Place:
    """A backend to go to, and where it is."""

    name: str
    endpoint: Endpoint


@attrs.frozen
class Assignment:
    """Where a client is sent; `alternates` are next best, with nothing reserved there.

    `why` is `Reason.LAST_KNOWN` where the backend may not work at all: its last good report is taken for true.
    """

    place: Place
    alternates: tuple[Place, ...] = ()
    why: Reason = Reason.BEST


@attrs.frozen
class Refused:
    """No backend can take anyone now."""

    why: Reason = Reason.NO_CANDIDATE


@attrs.frozen
class Explanation:
    """How one backend stands in a choice. Times are seconds; what is unknown is None.

    `load` is (`reported` + `own`) / `weight`: users by the last report and by own assignments since, faded to now.
    `opens_in`: expected asks until its turn comes, 0 when it has come.
    """

    name: str
    state: State
    age_s: float | None
    reported: float
    own: float
    weight: float
    load: float | None
    opens_in: float
    reason: Reason


@attrs.frozen
class Spare:
    """Whether the pool carries the loss of its biggest backend: `users` of it would need a place, `room` is elsewhere.

    `biggest` is the working backend with the most users and free places together; None when none works. `room`
    is None for no limit.
    """

    biggest: str | None
    users: int
    room: int | None

    @property
    def left(self) -> int | None:
        """Places that are left when its users have gone there, below 0 where they do not fit; None for no limit."""
        return None if self.room is None else self.room - self.users

    @property
    def fits(self) -> bool:
        return self.biggest is not None and (self.room is None or self.users <= self.room)
