"""Reads a pool for people, a part at a time where the whole would take long. Changes nothing."""

from __future__ import annotations

from master.core.answers import Ask
from master.core.explain import Scene, set_scene
from master.core.member import Member
from master.core.pool import Pool


def set_pool_scene(pool: Pool, now: float, ask: Ask) -> Scene:
    """Return what `ask` would meet now; `explain` tells with it how some of the members stand."""
    pool._catch_up(now)
    doors = (pool.roll.closed, pool._last_known)
    return set_scene(pool._candidates, now, pool._asks.expect(now), ask.zone, doors)


def find_rivals(pool: Pool, member: Member, most: int) -> list[Member]:
    """Return up to `most` others that come first in the order of choice: what `member` was compared with."""
    return pool._candidates.others(member, most)
