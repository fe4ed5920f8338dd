"""Whether there is room: for a client at all, and for the users of the biggest backend if it falls.  Pure.

Room comes and goes with every user, so neither is told before it has held for some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from master.core.answers import Spare
from master.core.pool import Pool

_FULL_S: Final = 3.0
"""Nobody can be taken for so long before it is told; a report that is late or a burst of asks is over by then."""
_AGAIN_S: Final = 10.0
_SPARE_S: Final = 10.0

NO_TAKERS: Final = "no_takers"
TAKERS: Final = "takers_again"
SPARE_LOST: Final = "spare_lost"
SPARE_REGAINED: Final = "spare_regained"
PROBLEMS: Final = frozenset({NO_TAKERS, SPARE_LOST})


@attrs.frozen
class Look:
    """How a pool stands in which somebody works. `fits` is None where one alone is in service, so nobody can stand in.

    `takes`: whether a client would be sent anywhere now; `why_not` says why, in a line.
    """

    takes: bool
    why_not: str
    fits: bool | None
    spare: Spare


def take_look(pool: Pool, spare: Spare) -> Look:
    """Look at a pool that has taken in all that time has changed."""
    closed = pool.roll.closed is not None
    takes = not closed and any(member.stamp for member in pool)
    why_not = "too few backends work" if closed else "the backends that work have no room"
    fits = spare.fits if pool.roll.size > 1 and spare.biggest is not None else None
    return Look(takes, why_not, fits, spare)


@attrs.define(eq=False)
class Settled:
    """A yes or no that is believed when it has held: a yes for `yes_s`, a no for `no_s`. It is yes at first."""

    yes_s: float
    no_s: float
    value: bool = True
    _since: float | None = attrs.field(default=None, init=False)
    """Since when it has been seen to be the other."""

    def turns(self, now: float, seen: bool) -> bool:
        """Take in what is seen now; return whether the value has turned."""
        if seen == self.value:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < (self.yes_s if seen else self.no_s):
            return False
        self.value, self._since = seen, None
        return True


class RoomWatch:
    """Tells what has turned, as a kind of event and a line."""

    def __init__(self) -> None:
        self._takes = Settled(yes_s=_AGAIN_S, no_s=_FULL_S)
        self._fits = Settled(yes_s=_SPARE_S, no_s=_SPARE_S)

    def look(self, now: float, look: Look) -> Iterator[tuple[str, str]]:
        """Take in how the pool stands; yield what is to be told of it."""
        if self._takes.turns(now, look.takes):
            yield (TAKERS, "a backend takes clients again") if look.takes else (NO_TAKERS, look.why_not)
        if look.fits is not None and self._fits.turns(now, look.fits):
            yield (
                (SPARE_REGAINED, "the users fit again if the biggest backend falls")
                if look.fits
                else (
                    SPARE_LOST,
                    _lost(look.spare),
                )
            )


def _lost(spare: Spare) -> str:
    need = "1 user needs" if spare.users == 1 else f"{spare.users} users need"
    free = "1 is" if spare.room == 1 else f"{spare.room} are"
    return f"if {spare.biggest} falls, {need} a place and {free} free"
