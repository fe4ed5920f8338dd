"""The virtual queue in an SQLite file: what is done within a transaction.

Each commit has a number of its own, counted in the file, so that one who goes on with another file than it has written
notices.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

import attrs

from master.queue.numbers import NumberBlock
from master.queue.rows import Changes, TicketRow
from master.queue.ticket import Lane, Stage
from master.store.state import RowsLostError, SavedOrder, SavedQueue

TABLES: Final = (
    """CREATE TABLE ticket (
        number INTEGER PRIMARY KEY, queue TEXT, client BLOB, network BLOB, lane INTEGER, place INTEGER, stage TEXT,
        joined_at REAL, lease_until REAL, claim_until REAL, returned INTEGER, shown INTEGER, polled_at REAL,
        retry_after_s REAL, away INTEGER, granted TEXT)""",
    'CREATE TABLE unused (first INTEGER PRIMARY KEY, "end" INTEGER)',
    """CREATE TABLE queue_order (
        queue TEXT PRIMARY KEY, mode TEXT, text TEXT, per_minute REAL, target_load REAL,
        who TEXT, why TEXT, at REAL)""",
)
COMMITS: Final = "commit"
"""The row of numbers that counts the commits."""
_CACHE: Final = "PRAGMA cache_size = -65536"
"""KiB. Rows of people who poll lie all over the file; with less, pages are written in the middle of a commit."""
_AT_ONCE: Final = 200
"""Rows in a statement. The loop runs while one is carried out, and between two of them the thread has to wait until the
loop lets it: a statement for each row takes some times as long beside a loop that is busy."""
_TIMES: Final = frozenset({"joined_at", "lease_until", "claim_until", "polled_at"})
"""What is moved from clock to clock: by SQLite, while the loop runs."""
_SPOILT: Final = f"""SELECT number FROM ticket WHERE
    typeof(queue) != 'text' OR typeof(place) != 'integer' OR typeof(joined_at) != 'real'
    OR typeof(lease_until) != 'real' OR typeof(claim_until) != 'real' OR typeof(polled_at) != 'real'
    OR typeof(retry_after_s) != 'real' OR typeof(returned) != 'integer' OR typeof(away) != 'integer'
    OR typeof(client) NOT IN ('null', 'blob') OR typeof(network) NOT IN ('null', 'blob')
    OR typeof(shown) NOT IN ('null', 'integer') OR typeof(granted) NOT IN ('null', 'text')
    OR ifnull(lane NOT IN ({", ".join(str(int(lane)) for lane in Lane)}), 1)
    OR ifnull(stage NOT IN ({", ".join(f"'{stage}'" for stage in Stage)}), 1) LIMIT 1"""  # noqa: S608 - words of ours

T = TypeVar("T")
Take = Callable[[sqlite3.Connection, str, int, int], int]


def load_queue(connection: sqlite3.Connection, epoch_s: float) -> tuple[SavedQueue, int]:
    """Return what is there, and the number of the next commit."""
    for (number,) in connection.execute(_SPOILT):
        raise ValueError(f"its row of the ticket {number} is none")
    row = connection.execute("SELECT next FROM number WHERE name = ?", (COMMITS,)).fetchone()
    unused = connection.execute('SELECT first, "end" FROM unused ORDER BY first').fetchall()
    if any(type(value) is not int for block in unused for value in block):
        raise ValueError("its blocks of unused numbers are none")
    fields = {"order": "place", "grant": "granted"} | {name: f"{name} - {epoch_s!r}" for name in _TIMES}
    columns = ", ".join(fields.get(name, name) for name in TicketRow._fields)
    select = f"SELECT {columns} FROM ticket ORDER BY place"  # noqa: S608 - words of ours
    rows = list(map(TicketRow._make, connection.execute(select)))
    return SavedQueue(rows, tuple(NumberBlock(*block) for block in unused)), row[0] if row is not None else 0


def write_queue(
    connection: sqlite3.Connection, parts: Sequence[Changes], epoch_s: float, expected: int | None, take: Take
) -> int:
    """Write them and return the number of the next commit; `expected`: that of this one, by who has written before."""
    connection.execute(_CACHE)
    commit = take(connection, COMMITS, 1, 0)
    if commit != expected and not parts[0].anew:
        raise RowsLostError("what was written of the queue is not there any more")
    for part in parts:
        if part.anew:
            connection.execute("DELETE FROM ticket")
        _put(connection, part.rows, epoch_s)
        for numbers in _batches(part.gone, _AT_ONCE):
            connection.execute(f"DELETE FROM ticket WHERE number IN ({_marks(len(numbers))})", numbers)  # noqa: S608
        if part.unused is not None:
            connection.execute("DELETE FROM unused")
            blocks = ((block.first, block.end) for block in part.unused)
            connection.executemany("INSERT OR REPLACE INTO unused VALUES (?, ?)", blocks)
    return commit + 1


def reserve_tickets(connection: sqlite3.Connection, size: int, least: int, take: Take) -> int:
    first = take(connection, "ticket", size, least)
    connection.execute("INSERT OR REPLACE INTO unused VALUES (?, ?)", (first, first + size))
    return first


def load_orders(connection: sqlite3.Connection) -> tuple[SavedOrder, ...]:
    orders = tuple(SavedOrder(*row) for row in connection.execute("SELECT * FROM queue_order ORDER BY rowid"))
    if any(type(text) is not str for order in orders for text in (order.queue, order.who, order.why)):
        raise ValueError("its orders of the queue are none")
    return orders


def save_orders(connection: sqlite3.Connection, orders: Iterable[SavedOrder]) -> None:
    connection.execute("DELETE FROM queue_order")
    rows = [attrs.astuple(order) for order in orders]
    connection.executemany("INSERT INTO queue_order VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _put(connection: sqlite3.Connection, rows: Sequence[TicketRow], epoch_s: float) -> None:
    most = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(TicketRow._fields)
    names = enumerate(TicketRow._fields, 1)
    columns = ", ".join(f"column{at} + {epoch_s!r}" if name in _TIMES else f"column{at}" for at, name in names)
    row = f"({_marks(len(TicketRow._fields))})"
    for batch in _batches(rows, min(most, _AT_ONCE)):
        values = ", ".join([row] * len(batch))
        put = f"INSERT OR REPLACE INTO ticket SELECT {columns} FROM (VALUES {values})"  # noqa: S608
        try:
            connection.execute(put, list(chain.from_iterable(batch)))
        except UnicodeEncodeError:
            # A client may name a queue by half a character, which no file takes: no reason to write nobody's place.
            connection.execute(put, list(chain.from_iterable(map(_written_out, batch))))


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _written_out(row: TicketRow) -> TicketRow:
    grant = row.grant.encode(errors="replace").decode() if row.grant is not None else None
    return row._replace(queue=row.queue.encode(errors="replace").decode(), grant=grant)
