"""What is saved is loaded again, by any store; and a file that is no good is an error and nothing worse."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.admin import Wish
from master.store import MemoryStore, SavedAdmin, SavedReport, SqliteStore, State, Store, StoreError, open_store

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.floats(0, 1e11)
STATES = st.builds(
    State,
    st.dictionaries(TEXT, st.builds(SavedAdmin, st.sampled_from(Wish), TEXT, TEXT, st.none() | TIMES)),
    st.dictionaries(
        TEXT, st.builds(SavedReport, TEXT, st.integers(0, 2**53), TIMES, TEXT, st.integers(1, 65535)), max_size=5
    ),
)
SOME = State({"a": SavedAdmin(Wish.DRAIN, "ann", "why", 5.0)}, {"b": SavedReport("b:1", 3, 4.0, "10.0.0.1", 1)})


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "state.db"))


def test_at_first_there_is_nothing(store: Store) -> None:
    assert store.load() == State()


def test_the_last_state_is_kept_and_none_before_it(store: Store) -> None:
    store.save(SOME)
    store.save(State(reports=SOME.reports))
    assert store.load() == State({}, SOME.reports)


@given(state=STATES)
def test_any_state_outlives_the_process(state: State, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = str(tmp_path_factory.mktemp("state") / "state.db")
    SqliteStore(file).save(state)
    assert SqliteStore(file).load() == state


def test_a_file_makes_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(""), MemoryStore)
    assert isinstance(open_store(str(tmp_path / "state.db")), SqliteStore)


def test_a_file_that_is_taken_away_is_made_anew(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "state.db"))
    store.save(SOME)
    (tmp_path / "state.db").unlink()
    assert store.load() == State()
    store.save(SOME)
    assert store.load() == SOME


def test_a_secret_is_kept_as_it_was_made_first(store: Store) -> None:
    assert [store.secret(name, fresh) for name, fresh in (("a", b"\0one"), ("a", b"two"), ("b", b"two"))] == [
        b"\0one",
        b"\0one",
        b"two",
    ]


def test_what_is_kept_beside_the_state_outlives_the_process_and_the_state(tmp_path: Path) -> None:
    file = str(tmp_path / "state.db")
    assert (SqliteStore(file).take_block("turn", 10), SqliteStore(file).secret("a", b"one")) == (0, b"one")
    SqliteStore(file).save(SOME)
    assert (SqliteStore(file).take_block("turn", 10), SqliteStore(file).secret("a", b"two")) == (10, b"one")
    assert SqliteStore(file).load() == SOME


def test_a_file_of_the_first_form_is_brought_up(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    SqliteStore(str(file)).save(SOME)
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in ("number", "secret", "ticket", "unused", "queue_order"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
    assert SqliteStore(str(file)).take_block("turn", 10) == 0
    assert SqliteStore(str(file)).load() == SOME


@pytest.mark.parametrize(
    ("call", "change"),
    [
        (lambda store: store.take_block("turn", 1), "UPDATE number SET next = 'soon'"),
        (lambda store: store.take_block("turn", 1), "UPDATE number SET next = 9223372036854775807"),
        (lambda store: store.secret("a", b""), "UPDATE secret SET secret = 'text'"),
        (lambda store: store.secret("a", b""), "UPDATE secret SET secret = NULL"),
    ],
)
def test_what_somebody_has_changed_beside_the_state_is_an_error(tmp_path: Path, call: Any, change: str) -> None:
    file = tmp_path / "state.db"
    store = SqliteStore(str(file))
    store.take_block("turn", 1)
    store.secret("a", b"one")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    with pytest.raises(StoreError):
        call(store)


def refused(file: Path) -> None:
    for call in (SqliteStore(str(file)).load, lambda: SqliteStore(str(file)).save(SOME)):
        with pytest.raises(StoreError) as caught:
            call()
        assert str(caught.value).startswith(f"{file}: ")
        assert "\n" not in str(caught.value)


def test_what_is_no_database_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ann, " * 100)
    refused(file)
    assert file.read_text() == "Dear Ann, " * 100


def test_a_database_of_something_else_is_let_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE letters (what TEXT)")
    before = file.read_bytes()
    refused(file)
    assert file.read_bytes() == before


def test_a_file_of_a_version_to_come_is_let_alone(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    SqliteStore(str(file)).save(SOME)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    refused(file)


def test_a_word_of_a_version_to_come_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    SqliteStore(str(file)).save(SOME)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE admin SET wish = 'holiday'")
    with pytest.raises(StoreError):
        SqliteStore(str(file)).load()


@pytest.mark.parametrize("name", ["", "missing/state.db"])
def test_where_no_file_can_be_it_is_an_error(tmp_path: Path, name: str) -> None:
    refused(tmp_path / name)


def test_a_save_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "state.db"))
    store.save(SOME)
    bad = SavedReport("b:1", 2**70, 4.0, "10.0.0.1", 1)
    with pytest.raises((StoreError, OverflowError)):
        store.save(State({}, {"a": bad}))
    assert store.load() == SOME
