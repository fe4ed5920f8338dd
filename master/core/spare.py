"""Whether the pool carries the loss of backends: of the biggest (N-1), or of those that would be ejected."""

from __future__ import annotations

from collections.abc import Iterable

from master.core.answers import Spare, State
from master.core.member import Member


def find_spare(members: Iterable[Member], now: float) -> Spare:
    """Return what the loss of the biggest working backend would ask of the others. Looks at every member.

    A drained one may fall too while it has users; it has no place for those of another.
    """
    takers = [
        (member.backend.name, member.users(now), member.free(now))
        for member in members
        if member.serving and member.backend.weight > 0
    ]
    if not takers:
        return Spare(None, 0, 0)
    takers += [(member.backend.name, member.users(now), 0) for member in members if member.state(now) is State.DRAIN]
    # The users of one fit in the free places of the others when they, and its own free places, do not exceed all
    # free places. So the one with the most of both is the hardest to lose; one without a limit is harder than any.
    biggest = max(takers, key=lambda taker: (taker[2] is None, taker[1] + (taker[2] or 0)))
    rest = [free for name, _, free in takers if name != biggest[0]]
    limits = [free for free in rest if free is not None]
    return Spare(biggest[0], biggest[1], sum(limits) if len(limits) == len(rest) else None)


def carry_without(members: Iterable[Member], now: float, out: frozenset[str]) -> bool:
    """Return whether others than `out` can take clients, and have the free places for the users of these."""
    users, free = 0, []
    for member in members:
        if member.backend.name in out:
            users += member.users(now)
        elif member.serving and member.backend.weight > 0:
            free.append(member.free(now))
    return bool(free) and (None in free or sum(places or 0 for places in free) >= users)
