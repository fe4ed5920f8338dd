"""The virtual queue in a store: what was written is read, whole or not at all, by any store."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.numbers import NumberBlock
from master.queue.rows import Changes, TicketRow
from master.queue.ticket import Lane, Stage
from master.store import MemoryStore, RowsLostError, SavedOrder, SavedQueue, SqliteStore, Store, StoreError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.floats(-1e9, 1e11) | st.just(float("inf"))
ROWS = st.builds(
    TicketRow,
    number=st.integers(0, 9),
    queue=TEXT,
    client=st.none() | st.binary(min_size=16, max_size=16),
    network=st.none() | st.binary(max_size=8),
    lane=st.sampled_from(Lane),
    order=st.integers(-(2**63), 2**63 - 1),
    stage=st.sampled_from(Stage),
    joined_at=TIMES,
    lease_until=TIMES,
    claim_until=TIMES,
    returned=st.booleans(),
    shown=st.none() | st.integers(0, 2**40),
    polled_at=TIMES,
    retry_after_s=st.floats(0, 1e6),
    away=st.booleans(),
    grant=st.none() | TEXT,
)
BLOCKS = st.lists(st.integers(0, 99), unique=True, max_size=4).map(
    lambda firsts: tuple(NumberBlock(10 * first, 10 * first + 5) for first in sorted(firsts))
)
CHANGES = st.builds(
    Changes, st.lists(ROWS, max_size=4), st.lists(st.integers(0, 9), max_size=3), st.none() | BLOCKS, st.booleans()
)
ROW = TicketRow(1, "default", b"c" * 16, b"n", 2, 5, "waiting", 1.0, 31.0, 0.0, False, 0, 1.0, 2.0, False, None)
BLOCK = NumberBlock(100, 200)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "state.db"))


def opened(file: Path) -> SqliteStore:
    store = SqliteStore(str(file))
    store.load_queue(0.0)
    return store


def test_at_first_nobody_waits(store: Store) -> None:
    saved = store.load_queue(0.0)
    assert (list(saved.rows), saved.unused) == ([], ())
    assert store.load_orders() == ()


@given(commits=st.lists(st.lists(CHANGES, min_size=1, max_size=3), max_size=4))
def test_what_was_written_outlives_the_process_in_order(
    commits: list[list[Changes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("state") / "state.db"
    memory, rows, unused = MemoryStore(), dict[int, TicketRow](), tuple[NumberBlock, ...]()
    sqlite = opened(file)
    for commit in commits:
        memory.write_queue(commit, 0.0)
        sqlite.write_queue(commit, 0.0)
        for part in commit:
            rows = ({} if part.anew else rows) | {row.number: row for row in part.rows}
            rows = {number: row for number, row in rows.items() if number not in part.gone}
            unused = part.unused if part.unused is not None else unused
    for store in (memory, SqliteStore(str(file))):
        saved = store.load_queue(0.0)
        assert sorted(saved.rows) == sorted(rows.values())
        assert [row.order for row in saved.rows] == sorted(row.order for row in rows.values())
        assert saved.unused == unused


def test_a_block_is_unused_in_the_store_as_soon_as_it_is_reserved(store: Store) -> None:
    store.load_queue(0.0)
    assert store.reserve_tickets(10, least=100) == 100
    store.write_queue([Changes([ROW], [], None)], 0.0)
    assert store.reserve_tickets(10, least=5) == 110
    assert store.load_queue(0.0).unused == (NumberBlock(100, 110), NumberBlock(110, 120))
    assert store.take_block("turn", 10) == 0


def test_orders_of_operators_are_kept_whole(store: Store) -> None:
    orders = (
        SavedOrder("", "hold", "back at noon", 60.0, 0.5, "ann", "a release", 1e9),
        SavedOrder("a", None, None, None, None, "bob", "why", 1e9),
    )
    store.save_orders(orders)
    assert store.load_orders() == orders
    store.save_orders(orders[1:])
    assert store.load_orders() == orders[1:]


def test_a_commit_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "state.db")
    store.write_queue([Changes([ROW], [], (BLOCK,))], 0.0)
    bad: Any = ROW._replace(number=2, client=object())
    with pytest.raises(StoreError):
        store.write_queue([Changes([ROW._replace(number=3)], [1], ()), Changes([bad], [], None)], 0.0)
    assert store.load_queue(0.0) == SavedQueue([ROW], (BLOCK,))
    store.write_queue([Changes([], [1], None)], 0.0)
    assert store.load_queue(0.0).rows == []


def test_half_a_character_costs_nobody_his_place(tmp_path: Path) -> None:
    store = opened(tmp_path / "state.db")
    store.write_queue([Changes([ROW, ROW._replace(number=2, order=6, queue="\ud800", grant="\udfff")], [], ())], 0.0)
    assert [(row.number, row.queue, row.grant) for row in store.load_queue(0.0).rows] == [
        (1, "default", None),
        (2, "?", "?"),
    ]


def _remove(file: Path) -> None:
    file.unlink()


def _put_an_older_copy_back(file: Path) -> None:
    file.write_bytes((file.parent / "copy").read_bytes())


def _have_another_write(file: Path) -> None:
    opened(file).write_queue([Changes([], [], None)], 0.0)


@pytest.mark.parametrize("change", [_remove, _put_an_older_copy_back, _have_another_write])
def test_who_goes_on_with_what_it_has_not_written_is_told_and_writes_all_anew(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    file = tmp_path / "state.db"
    store = opened(file)
    store.write_queue([Changes([ROW], [], (BLOCK,))], 0.0)
    (tmp_path / "copy").write_bytes(file.read_bytes())
    store.write_queue([Changes([ROW._replace(number=2)], [], None)], 0.0)
    change(file)
    with pytest.raises(RowsLostError) as caught:
        store.write_queue([Changes([ROW._replace(number=3)], [], None)], 0.0)
    assert str(caught.value).startswith(f"{file}: ")
    store.write_queue([Changes([ROW._replace(number=4)], [], None, anew=True), Changes([], [], ())], 0.0)
    store.write_queue([Changes([ROW._replace(number=5)], [], None)], 0.0)
    assert [row.number for row in store.load_queue(0.0).rows] == [4, 5]


def test_who_could_not_read_the_file_does_not_write_into_what_is_there(tmp_path: Path) -> None:
    opened(tmp_path / "state.db").write_queue([Changes([ROW], [], ())], 0.0)
    with pytest.raises(RowsLostError):
        SqliteStore(str(tmp_path / "state.db")).write_queue([Changes([], [], None)], 0.0)


def test_a_file_is_made_for_nobody_else_to_read(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    before = os.umask(0)
    try:
        opened(file).write_queue([Changes([ROW], [], ())], 0.0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state.db"]


def test_a_file_of_the_second_form_is_brought_up(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    assert SqliteStore(str(file)).take_block("turn", 10) == 0
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in ("ticket", "unused", "queue_order"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 2")
    opened(file).write_queue([Changes([ROW], [], ())], 0.0)
    assert opened(file).load_queue(0.0).rows == [ROW]
    assert SqliteStore(str(file)).take_block("turn", 10) == 10


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ticket SET stage = 'asleep'",
        "UPDATE ticket SET stage = NULL",
        "UPDATE ticket SET lane = 7",
        "UPDATE ticket SET lane = 'plain'",
        "UPDATE ticket SET place = 'first'",
        "UPDATE ticket SET queue = NULL",
        "UPDATE ticket SET client = 'text'",
        "UPDATE ticket SET lease_until = NULL",
        "UPDATE ticket SET shown = 'none'",
        "UPDATE ticket SET granted = x'00'",
        "UPDATE unused SET \"end\" = 'far'",
        "UPDATE number SET next = 'many'",
    ],
)
def test_what_somebody_has_changed_is_an_error(tmp_path: Path, change: str) -> None:
    file = tmp_path / "state.db"
    opened(file).write_queue([Changes([ROW], [], (BLOCK,))], 0.0)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    with pytest.raises(StoreError):
        opened(file).write_queue([Changes([], [], None)], 0.0)


def test_orders_that_somebody_has_changed_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    SqliteStore(str(file)).save_orders([SavedOrder("a", None, None, None, None, "bob", "why", 1e9)])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE queue_order SET who = NULL")
    with pytest.raises(StoreError):
        SqliteStore(str(file)).load_orders()
