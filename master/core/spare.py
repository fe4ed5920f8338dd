"""N-1: whether the pool carries the loss of its biggest backend."""

from __future__ import annotations

from collections.abc import Iterable

from master.core.answers import Spare
from master.core.member import Member


def find_spare(members: Iterable[Member], now: float) -> Spare:
    """Return what the loss of the biggest working backend would ask of the others. Looks at every member."""
    takers = [member for member in members if member.works(now) and member.backend.weight > 0]
    if not takers:
        return Spare(None, 0, 0)
    # The users of one fit in the free places of the others when they, and its own free places, do not exceed all
    # free places. So the one with the most of both is the hardest to lose; one without a limit is harder than any.
    biggest = max(takers, key=lambda member: (member.free(now) is None, member.users(now) + (member.free(now) or 0)))
    rest = [member.free(now) for member in takers if member is not biggest]
    limits = [free for free in rest if free is not None]
    return Spare(biggest.backend.name, biggest.users(now), sum(limits) if len(limits) == len(rest) else None)
