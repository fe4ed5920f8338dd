"""What the store of the cache keeps: one kind of row for its four tables, and what of them is to be written."""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

import attrs

Key = tuple[str | int, ...]

ROW_OVERHEAD_BYTES: Final = 1100
"""What a row is counted with beside its own bytes: the objects that it is made of, and its places in the indexes.

Measured: 810 bytes for warm data to 1,090 for the device of a client that has no other.
"""
_INT: Final = 2**63
"""Integers beyond it have no place in the file."""


class Table(enum.IntEnum):
    """In the order of eviction: the last one is not evicted. The numbers stand in the file.

    The keys: warm data (client, type, version), a cache entry (session id, key), a device (device, client), a session
    (id,).
    """

    WARM = 1
    CACHE = 2
    DEVICE = 3
    SESSION = 4


SHAPES: Final[dict[Table, tuple[type, ...]]] = {
    Table.WARM: (str, int, int),
    Table.CACHE: (str, str),
    Table.DEVICE: (str, str),
    Table.SESSION: (str,),
}
"""The types of the parts of each key."""
_CLIENT_AT: Final = {Table.WARM: 0, Table.DEVICE: 1}
"""Where the client stands in the key."""
_SESSION_AT: Final = {Table.CACHE: 0, Table.SESSION: 0}


class Row(NamedTuple):
    """A tuple, and no class of attrs: one is made at each put and touch, in a third of the time.

    `updated_at`: by the store's clock, which sets it; whatever a writer says here counts for nothing. `ttl_s`: it lives
    so long from then on. `fence`: of the lease under which it was published; 0: of none. The client of warm data and
    devices, and the session of sessions and cache entries, are those of the key.
    """

    table: Table
    key: Key
    value: bytes
    client: str
    session: str
    version: int
    type: int
    updated_at: float
    ttl_s: float
    fence: int = 0

    @property
    def until(self) -> float:
        return self.updated_at + self.ttl_s


def cost_of(row: Row) -> int:
    """Return the bytes that it is counted with. Raise ValueError where it is no row that can be kept: our bug."""
    table, key = row.table, row.key
    if tuple(map(type, key)) != SHAPES[table]:
        raise ValueError(f"a key of {table.name} is no {key!r}")
    if table in _CLIENT_AT and key[_CLIENT_AT[table]] != row.client:
        raise ValueError("the client of a row is the one of its key")
    if table in _SESSION_AT and key[_SESSION_AT[table]] != row.session:
        raise ValueError("the session of a row is the one of its key")
    if not 0 < row.ttl_s < math.inf:
        raise ValueError(f"a row does not live for {row.ttl_s} s")
    cost = ROW_OVERHEAD_BYTES + len(row.value) + len(row.client.encode()) + len(row.session.encode())
    for part in key:
        if type(part) is str:
            cost += len(part.encode())
        elif not -_INT <= part < _INT:  # type: ignore[operator] # the shape was looked at
            raise ValueError(f"a key has no {part}")
    if not (-_INT <= row.version < _INT and -_INT <= row.type < _INT):
        raise ValueError("a version and a type have 64 bits")
    return cost


@attrs.frozen
class Changes:
    """What to write: rows to put in place of older ones, and those to delete.

    `fence`: no fence up to it may be given again. `anew`: delete all rows first; all others follow, up to the first
    of which `last` is true: it is one commit.
    """

    rows: list[Row]
    gone: list[tuple[Table, Key]]
    fence: int
    last: bool = True
    anew: bool = False
