"""The mean load of the candidates of a level, without a look at all of them for each who asks."""

from __future__ import annotations

import math
from itertools import chain
from typing import Final

import attrs

from master.core.member import Member
from master.core.selection import Level

_SHARE: Final = 4


@attrs.define(eq=False)
class MeanLoad:
    """What the candidates of one level weigh and have to bear, as it was found last; it fades as all loads do.

    It is found anew when the candidates are others, or a quarter as many changes were made as there are candidates, a
    client or a report each: so a choice that wants it costs about the same with ten backends as with ten thousand.
    """

    _level: Level[Member] | None = None
    _weights: float = 0.0
    _users: float = 0.0
    _x: float = 0.0
    _stamp: int = 0

    def users(self, level: Level[Member], stamp: int, x: float) -> float:
        """Return the users of all candidates of `level` together at `x`, in mean sessions.

        `stamp`: that of the last candidate that has changed.
        """
        same = level is self._level and level.weights == self._weights
        if not same or stamp - self._stamp >= max(1, level.candidates // _SHARE):
            self._level, self._weights, self._x, self._stamp = level, level.weights, x, stamp
            group = level.every
            entries = chain(group.ready, group.row, group.parked)
            # A candidate has one entry that counts.
            members = (entry[3] for entry in entries if entry[2] == entry[3].stamp)
            self._users = sum(math.fsum(member.parts(x)) for member in members)
        return self._users * math.exp(self._x - x)
