"""The cache in a file: what was written is read, whole or not at all, and whatever becomes of the file is told.

The file is long because each thing that may become of a file is done to one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.cache.rows import Changes, Key, Row, Table
from master.store import RowsLostError, SavedCache, SqliteCache, SqliteStore, State, StoreBusyError, StoreError
from tests.master.cache.making import device, entry, session, warm
from tests.small_disk import SmallDisk, small_disk

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
MORE: dict[str, Any] = {
    "value": st.binary(max_size=9),
    "ttl_s": st.floats(1e-3, 1e9),
    "updated_at": st.floats(-1e9, 1e9),
    "fence": st.integers(0, 2**62),
}
ROWS = st.one_of(
    st.builds(session, TEXT, TEXT, version=NUMBERS, type=NUMBERS, **MORE),
    st.builds(entry, st.sampled_from(["", "1", "b"]), st.sampled_from("st"), client=TEXT, **MORE),
    st.builds(warm, st.sampled_from(["", "1", "b"]), st.integers(1, 2) | NUMBERS, **MORE),
    st.builds(device, st.sampled_from(["", "1", "b"]), TEXT, **MORE),
)
GONE = ROWS.map(lambda row: (row.table, row.key))
CHANGES = st.builds(
    Changes, st.lists(ROWS, max_size=5), st.lists(GONE, max_size=3), st.integers(0, 9), st.just(True), st.booleans()
)


def file_in(path: Path) -> Path:
    return path / "cache.db"


def opened(file: Path) -> SqliteCache:
    cache = SqliteCache(str(file))
    cache.load(0.0)
    return cache


def put(cache: SqliteCache, *rows: Row, gone: tuple[tuple[Table, Key], ...] = (), anew: bool = False) -> None:
    cache.write([Changes(list(rows), list(gone), 1, anew=anew)], 0.0)


def kept(file: Path) -> list[Row]:
    """Return what another process finds."""
    cache = SqliteCache(str(file))
    try:
        return list(cache.load(0.0).rows)
    finally:
        cache.close()


def test_sessions_are_read_first_and_of_a_table_what_came_last_comes_last(tmp_path: Path) -> None:
    rows = [session(name, updated_at=at) for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0))]
    cache = opened(file_in(tmp_path))
    put(cache, device(updated_at=0.0), *rows, anew=True)
    cache.close()
    assert [row.key[0] for row in kept(file_in(tmp_path))] == ["b", "c", "a", device().key[0]]


def test_at_first_there_is_nothing(tmp_path: Path) -> None:
    assert opened(file_in(tmp_path)).load(0.0) == SavedCache([], 0)


@settings(max_examples=30)  # each commit waits for the disk
@given(commits=st.lists(st.lists(CHANGES, min_size=1, max_size=3), max_size=3))
def test_what_was_written_outlives_the_process(
    commits: list[list[Changes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = file_in(tmp_path_factory.mktemp("cache"))
    cache = opened(file)
    rows: dict[tuple[Table, Key], Row] = {}
    for commit in commits:
        cache.write(commit, 0.0)
        for part in commit:
            rows = ({} if part.anew else rows) | {(row.table, row.key): row for row in part.rows}
            rows = {place: row for place, row in rows.items() if place not in part.gone}
    cache.close()
    saved = SqliteCache(str(file)).load(0.0)
    assert {(row.table, row.key): row for row in saved.rows} == rows
    assert len(saved.rows) == len(rows)
    assert [row.table for row in saved.rows] == sorted((row.table for row in saved.rows), reverse=True)
    assert saved.fence == max((commit[-1].fence for commit in commits), default=0)


def test_the_log_is_carried_over_and_grows_no_further(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    log = file.with_name("cache.db-wal")
    cache = opened(file)
    rows = [session(f"s{n:05}") for n in range(2_000)]
    sizes = []
    for version in range(30):
        put(cache, *(row._replace(version=version) for row in rows))
        cache.settle()
        sizes.append(log.stat().st_size)
    assert max(sizes) < 8 * sizes[0], "after the fifth it begins anew"
    for path in (file, log):  # as a process that was killed leaves it
        shutil.copy(path, tmp_path / f"killed{path.name}")
    assert sorted(kept(tmp_path / "killedcache.db")) == [row._replace(version=29) for row in rows]


def test_times_are_kept_by_the_clock_on_the_wall(tmp_path: Path) -> None:
    cache = opened(file_in(tmp_path))
    cache.write([Changes([session(updated_at=5.0)], [], 1)], 1e9)
    assert cache.load(1e9 - 100.0).rows[0].updated_at == 105.0


def test_many_rows_and_large_ones_are_one_commit(tmp_path: Path) -> None:
    rows = [session(f"s{n:04}", value=bytes(300_000) if n % 100 == 0 else b"x") for n in range(1_001)]
    cache = opened(file_in(tmp_path))
    put(cache, *rows)
    cache.close()
    assert sorted(kept(file_in(tmp_path))) == sorted(rows)


def test_a_commit_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    cache = opened(file_in(tmp_path))
    put(cache, session("a"))
    with pytest.raises(StoreError):
        put(cache, session("b"), session("c")._replace(client=object()))  # type: ignore[arg-type]
    with pytest.raises((StoreError, OverflowError)):
        put(cache, session("b"), session("c", version=2**63))
    put(cache, session("d"))
    cache.close()
    assert sorted(row.session for row in kept(file_in(tmp_path))) == ["a", "d"]


def test_nobody_else_opens_it_meanwhile_and_later_it_can_be(tmp_path: Path) -> None:
    cache = opened(file_in(tmp_path))
    put(cache, session())
    with pytest.raises(StoreError):
        put(cache, session("b")._replace(client=object()))  # type: ignore[arg-type]  # the file itself is closed by it
    other = f"from master.store import SqliteCache; SqliteCache({str(file_in(tmp_path))!r}).load(0.0)"
    told = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False).stderr
    assert told.splitlines()[-1].endswith(
        f"StoreBusyError: {file_in(tmp_path)}: another process has it, and each node needs its own"
    )
    cache.close()
    assert kept(file_in(tmp_path)) == [session()]


def test_who_opens_it_by_other_means_is_told_of_too(tmp_path: Path) -> None:
    opened(file_in(tmp_path)).close()
    with closing(sqlite3.connect(file_in(tmp_path))) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        cache = SqliteCache(str(file_in(tmp_path)))
        with pytest.raises(StoreBusyError, match=r"another process has it open, or its disk knows no locks$"):
            cache.load(0.0)
        cache.close()


def test_it_is_for_nobody_else_to_read_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = opened(file_in(tmp_path))
        put(cache, session())
    finally:
        os.umask(before)
    assert sorted(os.listdir(tmp_path)) == ["cache.db", "cache.db-wal", "cache.db.lock"]
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in os.listdir(tmp_path)} == {0o600}
    cache.close()
    assert os.listdir(tmp_path) == ["cache.db"]


# What may become of a file.


def _remove(file: Path) -> None:
    file.unlink()


def _remove_all(file: Path) -> None:
    for path in file.parent.iterdir():
        path.unlink()


def _replace_by_an_older_copy(file: Path) -> None:
    copy = file.parent / "copy"
    copy.write_bytes((file.parent / "older").read_bytes())
    copy.replace(file)
    (file.parent / "cache.db-wal").unlink()


@pytest.mark.parametrize("change", [_remove, _remove_all, _replace_by_an_older_copy])
def test_who_goes_on_with_what_it_has_not_written_is_told_and_writes_all_anew(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    file = file_in(tmp_path)
    cache = opened(file)
    put(cache, session("a"))
    cache.close()
    (tmp_path / "older").write_bytes(file.read_bytes())
    put(cache, session("b"))
    put(cache, session("c"))
    change(file)
    with pytest.raises(RowsLostError) as caught:
        put(cache, session("d"))
    assert str(caught.value).startswith(f"{file}: ")
    put(cache, session("b"), session("d"), anew=True)
    put(cache, session("e"))
    cache.close()
    assert sorted(row.session for row in kept(file)) == ["b", "d", "e"]


def test_a_log_that_is_taken_away_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    cache = opened(file)
    put(cache, session("a"))
    (tmp_path / "cache.db-wal").unlink()
    put(cache, session("b"))
    cache.close()
    assert sorted(row.session for row in kept(file)) == ["a", "b"]


def test_who_could_not_read_it_writes_nothing_into_what_is_there(tmp_path: Path) -> None:
    cache = opened(file_in(tmp_path))
    put(cache, session())
    cache.close()
    with pytest.raises(RowsLostError):
        put(SqliteCache(str(file_in(tmp_path))), session("b"))


def test_a_spoilt_file_is_put_aside_and_one_is_begun_anew(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    cache = opened(file)
    put(cache, *(session(f"s{n}", value=bytes(1000)) for n in range(100)))
    cache.close()
    data = bytearray(file.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    file.write_bytes(data)
    cache = SqliteCache(str(file))
    with pytest.raises(StoreError, match=r"cache\.db\.spoilt now$"):
        cache.load(0.0)
    assert (tmp_path / "cache.db.spoilt").read_bytes() == data
    put(cache, session(), anew=True)
    cache.close()
    assert kept(file) == [session()]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE row SET tab = 9",
        "UPDATE row SET key1 = 5",
        "UPDATE row SET value = 'text'",
        "UPDATE row SET client = NULL",
        "UPDATE row SET updated_at = 'noon'",
        "UPDATE row SET ttl_s = NULL",
        "UPDATE row SET fence = 'high'",
        "UPDATE number SET value = 'many'",
        "DELETE FROM number",
    ],
)
def test_what_somebody_has_changed_is_an_error(tmp_path: Path, change: str) -> None:
    cache = opened(file_in(tmp_path))
    put(cache, session())
    cache.close()
    with closing(sqlite3.connect(file_in(tmp_path))) as connection, connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=r"cache\.db: [^\n]+$"):
        opened(file_in(tmp_path))


def _letter(file: Path) -> None:
    file.write_text("Dear Ann, " * 1000)


def _other_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE letters (what TEXT)")


def _state(file: Path) -> None:
    SqliteStore(str(file)).save(State())


def _version_to_come(file: Path) -> None:
    opened(file).close()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA user_version = 1002")


@pytest.mark.parametrize("make", [_letter, _other_database, _state, _version_to_come])
def test_what_is_somebody_elses_is_let_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    file = file_in(tmp_path)
    make(file)
    before = file.read_bytes()
    for call in (lambda cache: cache.load(0.0), lambda cache: put(cache, session(), anew=True)):
        cache = SqliteCache(str(file))
        with pytest.raises(StoreError, match=r"cache\.db: [^\n]+$") as caught:
            call(cache)
        assert not isinstance(caught.value, StoreBusyError)
        cache.close()
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["cache.db"]


def test_the_file_of_a_cache_is_no_state(tmp_path: Path) -> None:
    opened(file_in(tmp_path)).close()
    with pytest.raises(StoreError):
        SqliteStore(str(file_in(tmp_path))).load()


@pytest.mark.parametrize("name", ["", "missing/cache.db", "."])
def test_where_no_file_can_be_it_is_an_error(tmp_path: Path, name: str) -> None:
    for call in (lambda cache: cache.load(0.0), lambda cache: put(cache, session(), anew=True)):
        with pytest.raises(StoreError):
            call(SqliteCache(str(tmp_path / name)))


# Disks that take nothing.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_is_an_error_and_all_is_there_when_it_has_room(disk: SmallDisk) -> None:
    file = file_in(disk.path)
    cache = opened(file)
    put(cache, session("a"))
    disk.fill()
    for _ in range(2):
        with pytest.raises(StoreError, match="full"):
            put(cache, session("b", value=bytes(200_000)))
    disk.empty()
    put(cache, session("c"))
    cache.close()
    assert sorted(row.session for row in kept(file)) == ["a", "c"]


def test_a_disk_that_is_full_at_the_start_is_read_all_the_same(disk: SmallDisk) -> None:
    file = file_in(disk.path)
    first = opened(file)
    put(first, session("a"))
    copies = {path.name: path.read_bytes() for path in disk.path.iterdir()}
    first.close()
    for name, data in copies.items():  # as a process that was killed leaves it
        (disk.path / name).write_bytes(data)
    disk.fill()
    cache = SqliteCache(str(file))
    assert cache.load(0.0).rows == [session("a")]
    with pytest.raises(StoreError):
        put(cache, session("b", value=bytes(200_000)))
    disk.empty()
    put(cache, session("c"))
    cache.close()
    assert sorted(row.session for row in kept(file)) == ["a", "c"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_that_takes_no_writes_is_read_and_written_when_it_does(disk: SmallDisk, killed: bool) -> None:
    file = file_in(disk.path)
    first = opened(file)
    put(first, session("a"))
    copies = {path.name: path.read_bytes() for path in disk.path.iterdir()}
    first.close()
    if killed:
        for name, data in copies.items():
            (disk.path / name).write_bytes(data)
    disk.remount("ro")
    cache = SqliteCache(str(file))
    assert cache.load(0.0).rows == [session("a")]
    with pytest.raises(StoreError, match=r"\(the disk is read-only\)$"):
        put(cache, session("b"))
    disk.remount("rw")
    put(cache, session("c"))
    cache.close()
    assert sorted(row.session for row in kept(file)) == ["a", "c"]


def test_a_disk_that_becomes_read_only_is_an_error(disk: SmallDisk) -> None:
    cache = opened(file_in(disk.path))
    put(cache, session("a"))
    cache.close()
    disk.remount("ro")
    with pytest.raises(StoreError, match=r"\(the disk is read-only\)$"):
        put(cache, session("b"))
    disk.remount("rw")
    put(cache, session("c"))
    cache.close()
    assert sorted(row.session for row in kept(file_in(disk.path))) == ["a", "c"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE row SET ttl_s = 9e999",
        "UPDATE row SET session = 'other'",
        "UPDATE row SET key1 = 'other'",
        f"UPDATE row SET fence = {2**63 - 1}",
        f"UPDATE number SET value = {2**63 - 1}",
        "UPDATE number SET value = -1",
    ],
)
def test_a_file_with_what_the_store_cannot_take_is_not_read_and_written_anew(tmp_path: Path, change: str) -> None:
    file = file_in(tmp_path)
    cache = opened(file)
    put(cache, session("a"))
    cache.close()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    cache = SqliteCache(str(file))
    with pytest.raises(StoreError, match=r"cache\.db: "):
        cache.load(0.0)
    put(cache, session("b"), anew=True)
    cache.close()
    assert kept(file) == [session("b")]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/full", path)])
def test_what_is_no_file_is_an_error_and_not_waited_for(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(file_in(tmp_path))
    with pytest.raises(StoreError, match=r"cache\.db: "):
        SqliteCache(str(file_in(tmp_path))).load(0.0)
