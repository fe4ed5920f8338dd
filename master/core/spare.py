"""Whether the pool carries the loss of backends: of the biggest (N-1), or of those that would be ejected."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from master.core.answers import Spare, State
from master.core.member import Member


@attrs.frozen
class Taker:
    """What a backend has: `users`, who would need a place, and `free` places, None for no limit.

    `takes`: whether it is one of those that new clients are sent to.
    """

    name: str
    users: int
    free: int | None
    takes: bool


def weigh(member: Member, now: float) -> Taker | None:
    """Return what `member` has; None for one whose loss would ask nothing of the others.

    A drained one may fall too while it has users; it has no place for those of another.
    """
    if member.serving and member.backend.weight > 0:
        return Taker(member.backend.name, member.users(now), member.free(now), takes=True)
    if member.state(now) is State.DRAIN:
        return Taker(member.backend.name, member.users(now), 0, takes=False)
    return None


def find_spare(weighed: Iterable[Taker | None]) -> Spare:
    """Return what the loss of the biggest working backend would ask of the others."""
    takers = [taker for taker in weighed if taker is not None]
    if not any(taker.takes for taker in takers):
        return Spare(None, 0, 0)
    # The users of one fit in the free places of the others when they, and its own free places, do not exceed all
    # free places. So the one with the most of both is the hardest to lose; one without a limit is harder than any.
    biggest = max(takers, key=lambda taker: (taker.free is None, taker.users + (taker.free or 0)))
    rest = [taker.free for taker in takers if taker.name != biggest.name]
    limits = [free for free in rest if free is not None]
    return Spare(biggest.name, biggest.users, sum(limits) if len(limits) == len(rest) else None)


def carry_without(members: Iterable[Member], now: float, out: frozenset[str]) -> bool:
    """Return whether others than `out` can take clients, and have the free places for the users of these."""
    users, free = 0, []
    for member in members:
        if member.backend.name in out:
            users += member.users(now)
        elif member.serving and member.backend.weight > 0:
            free.append(member.free(now))
    return bool(free) and (None in free or sum(places or 0 for places in free) >= users)
