"""How much the store of the cache takes, and what it says to more."""

from __future__ import annotations

import enum
from typing import Final

import attrs
from attrs.validators import ge

from master.cache.rows import ROW_OVERHEAD_BYTES

__all__ = ["REFUSED", "Refused", "StorePolicy", "TableCounts", "Why"]


@attrs.frozen
class StorePolicy:
    """`max_bytes`: of all rows, each counted with its own bytes and `ROW_OVERHEAD_BYTES`; `max_value_bytes`: of one
    value; `max_entries`: cache entries of one session, which all go at once with it; `max_leases`: held at once;
    `sessions_per_client`: one more ends the one of them that was used least lately; 0: no such bound."""

    max_bytes: int = attrs.field(default=256 * 2**20, validator=ge(2 * ROW_OVERHEAD_BYTES))
    max_value_bytes: int = attrs.field(default=512 * 2**10, validator=ge(1))
    max_entries: int = attrs.field(default=1000, validator=ge(1))
    max_leases: int = attrs.field(default=100_000, validator=ge(1))
    sessions_per_client: int = attrs.field(default=0, validator=ge(0))


class Why(enum.StrEnum):
    FULL = "full"
    """No room, and none to be made for such a row; or too many entries of one session."""
    TOO_BIG = "too_big"
    NO_SESSION = "no_session"
    """A cache entry of a session that is gone."""
    OUTDATED = "outdated"
    """There is a row of a later lease; or the lease does not hold any more."""


@attrs.frozen
class Refused:
    """Nothing has changed."""

    why: Why


REFUSED: Final = {why: Refused(why) for why in Why}


@attrs.frozen
class TableCounts:
    """Of now: `rows`, `bytes` (as counted), the dead included that are not swept yet; the others since the start."""

    rows: int
    bytes: int
    evicted: int
    expired: int
    refused: int
