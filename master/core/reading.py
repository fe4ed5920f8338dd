"""Reads a pool for people. Changes nothing."""

from __future__ import annotations

from master.core.member import Member
from master.core.pool import Pool


def find_rivals(pool: Pool, member: Member, most: int) -> list[Member]:
    """Return up to `most` others that come first in the order of choice: what `member` was compared with."""
    return pool._candidates.others(member, most)
