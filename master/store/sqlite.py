"""Keeps the state, and the virtual queue, in an SQLite file.

Each call opens the file anew: a file that was taken away or a disk that was full is no matter for the next call. That
costs some milliseconds, mostly those in which the disk makes a commit last: each call that has returned outlives the
process, and the machine too, as far as its disk says the truth. What a commit in the middle of which either of them
died had begun is undone when the file is opened next.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final, TypeVar

import attrs

from master.core.admin import Wish
from master.queue.rows import Changes
from master.store import sqlite_queue
from master.store.state import (
    RowsLostError,
    SavedAdmin,
    SavedOrder,
    SavedQueue,
    SavedReport,
    State,
    StoreBusyError,
    StoreError,
)

_BUSY_S: Final = 2.0
"""So long another process may hold the file."""
FORMS: Final = (
    (
        "CREATE TABLE admin (name TEXT PRIMARY KEY, wish TEXT, who TEXT, why TEXT, until REAL)",
        "CREATE TABLE report (name TEXT PRIMARY KEY, place TEXT, count INTEGER, asked_at REAL, host TEXT, port INT)",
    ),
    (
        "CREATE TABLE number (name TEXT PRIMARY KEY, next INTEGER)",
        "CREATE TABLE secret (name TEXT PRIMARY KEY, secret BLOB)",
    ),
    sqlite_queue.TABLES,
)
"""What each form has more than the one before it: a file of an older form is brought up at the first call."""
_MOST: Final = 2**63 - 1
"""The largest integer that it keeps."""

T = TypeVar("T")


class SqliteStore:
    def __init__(self, file: str) -> None:
        self._file = file
        self._next_commit: int | None = None
        """Of the queue; None: what is there is not known."""

    def load(self) -> State:
        return self._do(_load, "BEGIN")  # a file that nobody may write can still be read

    def save(self, state: State) -> None:
        self._do(lambda connection: _save(connection, state))

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        return self._do(lambda connection: _take(connection, name, size, least))

    def secret(self, name: str, fresh: bytes) -> bytes:
        return self._do(lambda connection: _secret(connection, name, fresh))

    def load_queue(self, epoch_s: float) -> SavedQueue:
        queue, self._next_commit = self._do(lambda connection: sqlite_queue.load_queue(connection, epoch_s), "BEGIN")
        return queue

    def write_queue(self, parts: Sequence[Changes], epoch_s: float) -> None:
        expected = self._next_commit
        self._next_commit = self._do(
            lambda connection: sqlite_queue.write_queue(connection, parts, epoch_s, expected, _take)
        )

    def reserve_tickets(self, size: int, least: int = 0) -> int:
        return self._do(lambda connection: sqlite_queue.reserve_tickets(connection, size, least, _take))

    def load_orders(self) -> tuple[SavedOrder, ...]:
        return self._do(sqlite_queue.load_orders, "BEGIN")

    def save_orders(self, orders: Sequence[SavedOrder]) -> None:
        self._do(lambda connection: sqlite_queue.save_orders(connection, orders))

    def _do(self, work: Callable[[sqlite3.Connection], T], begin: str = "BEGIN IMMEDIATE") -> T:
        try:
            make_file(self._file)
            with closing(sqlite3.connect(self._file, timeout=_BUSY_S, isolation_level=None)) as connection, connection:
                # By hand: Python would begin it after the tables are made, and half of a file could be left. Immediate:
                # of two that read before they write, one would be refused at once, and not wait for the other.
                connection.execute(begin)
                _prepare(connection)
                return work(connection)
        except RowsLostError as exc:
            raise RowsLostError(f"{self._file}: {exc}") from None
        except OSError as exc:
            raise StoreError(f"{self._file}: {exc.strerror}") from exc
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusyError(self._file, str(exc)) from exc
            raise StoreError(f"{self._file}: {exc}") from exc
        except (sqlite3.Error, ValueError) as exc:  # ValueError: no file name, or a value of another version
            raise StoreError(f"{self._file}: {exc}") from exc


def make_file(file: str) -> None:
    """Make the file where there is none, for nobody else to read: secrets are in it."""
    # A file that is there is not opened: to close it again would end the locks of all connections of this process.
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: sqlite3.Connection) -> None:
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= form <= len(FORMS):
        raise ValueError(f"is of form {form}, which this version does not know")
    if form == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise ValueError("is a database of something else")
    if form < len(FORMS):
        for table in itertools.chain(*FORMS[form:]):
            connection.execute(table)
        connection.execute(f"PRAGMA user_version = {len(FORMS)}")


def _load(connection: sqlite3.Connection) -> State:
    admins = connection.execute("SELECT name, wish, who, why, until FROM admin")
    reports = connection.execute("SELECT name, place, count, asked_at, host, port FROM report")
    return State(
        {name: SavedAdmin(Wish(wish), *rest) for name, wish, *rest in admins},
        {name: SavedReport(*rest) for name, *rest in reports},
    )


def _save(connection: sqlite3.Connection, state: State) -> None:
    connection.execute("DELETE FROM admin")
    connection.execute("DELETE FROM report")
    admins = [(name, *attrs.astuple(admin)) for name, admin in state.admins.items()]
    reports = [(name, *attrs.astuple(report)) for name, report in state.reports.items()]
    connection.executemany("INSERT INTO admin VALUES (?, ?, ?, ?, ?)", admins)
    connection.executemany("INSERT INTO report VALUES (?, ?, ?, ?, ?, ?)", reports)


def _take(connection: sqlite3.Connection, name: str, size: int, least: int) -> int:
    row = connection.execute("SELECT next FROM number WHERE name = ?", (name,)).fetchone()
    kept = row[0] if row is not None else 0
    # What it cannot count with it would take for 0, and give numbers a second time.
    if type(kept) is not int or not 0 <= max(kept, least) <= _MOST - size:
        raise ValueError(f"its row of numbers {name} cannot be gone on with")
    first = max(kept, least)
    connection.execute("INSERT OR REPLACE INTO number VALUES (?, ?)", (name, first + size))
    return first


def _secret(connection: sqlite3.Connection, name: str, fresh: bytes) -> bytes:
    connection.execute("INSERT OR IGNORE INTO secret VALUES (?, ?)", (name, fresh))
    [(secret,)] = connection.execute("SELECT secret FROM secret WHERE name = ?", (name,)).fetchall()
    if type(secret) is not bytes:
        raise ValueError(f"its secret {name} is no bytes")
    return secret
