"""Keeps the cache in an SQLite file of its own, which stays open: in the tenth of a second between two commits it pays.

Commits go to a log beside the file (WAL), and one that has returned outlives the process. No commit waits for the
disk: `settle`, in another thread beside the next commits, has the disk keep them, so that they outlive the machine too,
as far as the disk says the truth, and carries the log over into the file. What was begun in the moment of a crash is
undone when the file is opened next. No other process opens the file meanwhile: no memory is shared, so nothing of it
lies on the disk either. A lock beside it holds while the file itself cannot be opened.

Each commit counts itself in the file, and before each it is looked whether the file is the one that was opened: what
was taken away or replaced is noticed, and all is written anew. A disk that takes no writes is read all the same.

It is long because each of these ways out of trouble is a function.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from master.cache.rows import SHAPES, Changes, Key, Row, Table, cost_of
from master.store.file_lock import FileLock
from master.store.sqlite import make_file
from master.store.state import RowsLostError, SavedCache, StoreBusyError, StoreError

_BUSY_S: Final = 1.0
"""So long another process may hold the file."""
CACHE_FORM: Final = 1001
"""Far from the forms of the state's file: neither takes the other for its own."""
FORM_AT: Final = slice(60, 64)
"""Where it stands in the file (SQLite file format, section 1.3)."""
_NUMBERS: Final = "INSERT INTO number VALUES ('commit', 0), ('fence', 0)"
_TABLES: Final = (
    # Without a type a column keeps what it gets: a key "1" is not the key 1.
    """CREATE TABLE row (
        tab INTEGER, key1, key2, key3, value BLOB, client TEXT, session TEXT, version INTEGER, type INTEGER,
        updated_at REAL, ttl_s REAL, fence INTEGER, PRIMARY KEY (tab, key1, key2, key3)) WITHOUT ROWID""",
    "CREATE TABLE number (name TEXT PRIMARY KEY, value INTEGER)",
    _NUMBERS,
)
_SETTINGS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA cache_size = -65536",  # KiB
    "PRAGMA wal_autocheckpoint = 0",
    # More than it comes to mostly: a file that is cut off and grows again costs the disk more than one that is there.
    "PRAGMA journal_size_limit = 134217728",
)
_CARRIED: Final = 8192
"""Rows in the log from which on it is carried over: they lie all over the file, so the rarer that is, the fewer pages
are written twice."""
_MOST_PAGES: Final = 32768
"""Of the log."""
_CARRY_OVER: Final = "PRAGMA wal_checkpoint(PASSIVE)"
_PAGE_BYTES: Final = 4096
_LOAD: Final = """SELECT tab, key1, key2, key3, value, client, session, version, type, updated_at - ?, ttl_s, fence
    FROM row"""
_TABLE: Final = attrgetter("table")
_UPDATED_AT: Final = attrgetter("updated_at")
_SPOILT: Final = """SELECT 1 FROM row WHERE typeof(value) != 'blob' OR typeof(client) != 'text'
    OR typeof(session) != 'text' OR typeof(version) != 'integer' OR typeof(type) != 'integer'
    OR typeof(updated_at) != 'real' OR typeof(ttl_s) != 'real' OR typeof(fence) != 'integer' LIMIT 1"""
_MOST_NUMBER: Final = 2**63 - 2**32
"""Those that only grow have far to go before SQLite has no integer for them."""
_COLUMNS: Final = 12
_ROW: Final = f"({', '.join('?' * _COLUMNS)})"
_AT_ONCE: Final = 200
"""Rows in a statement. The loop runs while one is carried out, and between two of them the thread has to wait until the
loop lets it."""
_BYTES_AT_ONCE: Final = 2**20
"""And of values: SQLite copies them."""
_READ_ONLY: Final = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
)

T = TypeVar("T")


class SqliteCache:
    def __init__(self, file: str) -> None:
        self._file = file
        self._lock = FileLock(file)
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[object, ...] = ()
        """Which files were opened."""
        self._commit: int | None = None
        """The number of the last one; None: what is there is not known."""
        self._logged = 0
        """Rows of the log that are not carried over, a large one counted as many."""
        self._between = threading.Lock()
        """Is held in a commit, and for what is to be done between two."""

    def load(self, epoch_s: float) -> SavedCache:
        def read(connection: sqlite3.Connection) -> SavedCache:
            saved, self._commit = _load(connection, epoch_s)
            return saved

        try:
            return self._do(read)
        except StoreError as exc:
            # The disk takes no writes, and SQLite has to write before it can read what a crash has left.
            cause = exc.__cause__
            if not isinstance(cause, OSError) and getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _READ_ONLY:
                raise
            try:
                return self._load_read_only(read)
            except (OSError, sqlite3.Error, ValueError):
                raise exc from None

    def write(self, parts: Sequence[Changes], epoch_s: float) -> None:
        if self._connection is not None and (None in self._opened or self._opened != _identities(self._file)):
            self._drop()
        with self._between:
            self._commit = self._do(lambda connection: _write(connection, parts, epoch_s, self._commit))
            self._logged += sum(
                len(part.gone) + sum(1 + len(row.value) // _PAGE_BYTES for row in part.rows) for part in parts
            )

    def settle(self) -> None:
        try:
            with suppress(FileNotFoundError), Path(f"{self._file}-wal").open("rb") as log:
                os.fdatasync(log.fileno())
            if self._logged >= _CARRIED:
                self._carry_over()
        except OSError as exc:
            raise StoreError(f"{self._file}: {exc.strerror}") from exc
        except sqlite3.Error as exc:
            raise StoreError(f"{self._file}: {exc}{_state_of_disk(self._file)}") from exc

    def _carry_over(self) -> None:
        """Have what is in the log in the file, and then what came meanwhile. A commit that begins when all of it is
        begins the log anew; where they come too fast for that, one waits for what is left."""
        logged = self._logged
        with closing(_open(self._file)) as connection:
            for _ in range(2):
                _, pages, _ = connection.execute(_CARRY_OVER).fetchone()
            if pages >= _MOST_PAGES:
                with self._between:
                    connection.execute(_CARRY_OVER)
        with self._between:
            self._logged -= logged

    def close(self) -> None:
        self._drop()
        self._lock.release()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do all of something, or nothing. After a fault the file is opened anew by the next call."""
        if not self._lock.take():
            raise StoreBusyError(self._file, "another process has it, and each node needs its own")
        try:
            if self._connection is None:
                make_file(self._file)
                self._connection = _connect(self._file)
                self._opened = _identities(self._file)
            with _transaction(self._connection) as connection:
                return work(connection)
        except RowsLostError as exc:
            self._drop()
            raise RowsLostError(f"{self._file}: {exc}") from None
        except OSError as exc:
            self._drop()
            raise StoreError(f"{self._file}: {exc.strerror}") from exc
        except (sqlite3.Error, ValueError) as exc:  # ValueError: no file name, or a value of another version
            self._drop()
            raise self._as_told(exc) from exc

    def _as_told(self, exc: Exception) -> StoreError:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError(self._file, "another process has it open, or its disk knows no locks")
        if code == sqlite3.SQLITE_CORRUPT and _is_ours(self._file):
            # It will be no better; what comes is to be kept all the same.
            with suppress(OSError):
                os.replace(self._file, f"{self._file}.spoilt")
                with suppress(FileNotFoundError):
                    os.replace(f"{self._file}-wal", f"{self._file}.spoilt-wal")
                return StoreError(f"{self._file}: {exc}; it is {self._file}.spoilt now")
        return StoreError(f"{self._file}: {exc}{_state_of_disk(self._file)}")

    def _load_read_only(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Read the file, and the log with it, without a lock: nobody writes to either now."""
        if not os.path.isfile(self._file):
            raise OSError(f"{self._file} is no file")  # a pipe would be waited for
        how = "vfs=unix-none" if os.path.exists(f"{self._file}-wal") else "immutable=1"
        with closing(_open(self._file, f"mode=ro&{how}")) as connection:
            # First of all: what is read without it has memory shared, which lies on the disk.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            _look_at_form(connection)
            connection.execute("BEGIN")
            return read(connection)


def _open(file: str, how: str = "mode=rw&vfs=unix-excl") -> sqlite3.Connection:
    """Return a connection to a file that is there: this process has it for itself, with all of its connections."""
    # A worker thread is another one each time, but there is one at a time.
    place = f"file:{quote(os.fsencode(file))}?{how}"
    return sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True)


def _connect(file: str) -> sqlite3.Connection:
    connection = _open(file)
    try:
        _look_at_form(connection)
        for setting in _SETTINGS:
            connection.execute(setting)
        with _transaction(connection):
            if connection.execute("PRAGMA user_version").fetchone() == (0,):
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {CACHE_FORM}")
    except BaseException:
        connection.close()
        raise
    return connection


def _look_at_form(connection: sqlite3.Connection) -> None:
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    if form not in (0, CACHE_FORM):
        raise ValueError(f"is of form {form}, which is none of a cache that this version knows")
    if form == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise ValueError("is a database of something else")


class _transaction:  # noqa: N801 - used like a function; one made by contextlib would cost its generator
    """Commits at the end of a block, or takes all of it back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        else:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def _identities(file: str) -> tuple[object, ...]:
    """Return which files these are, the log that belongs to it included."""
    return tuple(_identity(path) for path in (file, f"{file}-wal"))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _state_of_disk(file: str) -> str:
    """Return why a disk takes nothing, where it says so: SQLite often calls it an I/O error."""
    try:
        found = os.statvfs(os.path.dirname(file) or ".")
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return " (the disk is read-only)"
    return " (the disk is full)" if found.f_bavail == 0 else ""


def _is_ours(file: str) -> bool:
    with suppress(OSError), Path(file).open("rb") as opened:
        return int.from_bytes(opened.read(100)[FORM_AT]) == CACHE_FORM
    return False


def _numbers(connection: sqlite3.Connection) -> dict[str, int]:
    numbers = dict(connection.execute("SELECT name, value FROM number"))
    if numbers.keys() != {"commit", "fence"} or any(
        type(value) is not int or not 0 <= value < _MOST_NUMBER for value in numbers.values()
    ):
        raise ValueError("its numbers are none")
    return numbers


def _load(connection: sqlite3.Connection, epoch_s: float) -> tuple[SavedCache, int]:
    """Return what is there, and the number of the last commit."""
    if connection.execute(_SPOILT).fetchone() is not None:
        raise ValueError("one of its rows is none")
    numbers = _numbers(connection)
    rows = [_to_row(*found) for found in connection.execute(_LOAD, (epoch_s,))]
    # By SQLite it would want memory, or room on a disk. Who came last is asked for first, also after a restart.
    rows.sort(key=_UPDATED_AT)
    rows.sort(key=_TABLE, reverse=True)
    if any(row.fence >= _MOST_NUMBER for row in rows):
        raise ValueError("one of its fences is none")
    return SavedCache(rows, numbers["fence"]), numbers["commit"]


def _to_row(tab: int, key1: str | int, key2: str | int, key3: str | int, *rest: object) -> Row:
    table = Table(tab)
    key = (key1, key2, key3)[: len(SHAPES[table])]
    if tuple(map(type, key)) != SHAPES[table]:
        raise ValueError("one of its keys is none")
    row = Row(table, key, *rest)  # type: ignore[arg-type] # the types were looked at by SQLite
    cost_of(row)  # the store ends the process over what is no row
    return row


def _write(connection: sqlite3.Connection, parts: Sequence[Changes], epoch_s: float, expected: int | None) -> int:
    """Write them and return the number of the commit; `expected`: that of the last one, by who has written before."""
    try:
        numbers = _numbers(connection)
    except ValueError:
        if not parts[0].anew:
            raise
        connection.execute("DELETE FROM number")
        connection.execute(_NUMBERS)
        numbers = _numbers(connection)
    if numbers["commit"] != expected and not parts[0].anew:
        raise RowsLostError("what was written of the cache is not there any more")
    for part in parts:
        if part.anew:
            connection.execute("DELETE FROM row")
        for batch in _batches(part.rows):
            put = f"""INSERT OR REPLACE INTO row SELECT column1, column2, column3, column4, column5, column6, column7,
                column8, column9, column10 + {epoch_s!r}, column11, column12
                FROM (VALUES {", ".join([_ROW] * len(batch))})"""  # noqa: S608 - numbers of ours
            connection.execute(put, list(chain.from_iterable(map(_from_row, batch))))
        gone = [(table, *_three(key)) for table, key in part.gone]
        connection.executemany("DELETE FROM row WHERE tab = ? AND key1 = ? AND key2 = ? AND key3 = ?", gone)
    connection.execute("UPDATE number SET value = value + 1 WHERE name = 'commit'")
    connection.execute("UPDATE number SET value = max(value, ?) WHERE name = 'fence'", (parts[-1].fence,))
    return numbers["commit"] + 1


def _from_row(row: Row) -> tuple[object, ...]:
    return (row.table, *_three(row.key), *row[2:])


def _three(key: Key) -> tuple[str | int, ...]:
    """Return a key of three parts: none of those of a primary key may be NULL."""
    return (*key, "", "")[:3]


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    first = size = 0
    for at, row in enumerate(rows):
        if at - first >= _AT_ONCE or size > _BYTES_AT_ONCE:
            yield rows[first:at]
            first, size = at, 0
        size += len(row.value)
    if first < len(rows):
        yield rows[first:]
