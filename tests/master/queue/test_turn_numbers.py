"""Numbers: none is given twice, whoever asks, in whatever order, and whoever is killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.turn_numbers import TurnNumbers, first_number
from master.store import MemoryStore, SqliteStore, StoreError

NOW = 1_800_000_000.0


def refill(numbers: TurnNumbers, store: Any, least: int = 0) -> None:
    while numbers.wanted:
        size = numbers.wanted
        numbers.add(store.take_block("turn", size, least), size)


def test_it_gives_what_was_reserved_and_says_when_it_wants_more() -> None:
    numbers = TurnNumbers(size=3, low=2)
    assert (numbers.wanted, numbers.take(), numbers.left) == (3, None, 0)
    numbers.add(10, 3)
    assert (numbers.wanted, numbers.take(), numbers.take(), numbers.wanted) == (0, 10, 11, 3)
    numbers.add(100, 2)
    assert [numbers.take() for _ in range(4)] == [12, 100, 101, None]
    assert numbers.left == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=200), st.integers(1, 7), st.integers(1, 9))
def test_masters_over_one_store_never_give_one_number_twice(steps: list[tuple[int, bool]], size: int, low: int) -> None:
    store = MemoryStore()
    masters = [TurnNumbers(size, low) for _ in range(3)]
    given_out: list[int] = []
    for who, restarts in steps:
        if restarts:
            masters[who] = TurnNumbers(size, low)
        refill(masters[who], store, first_number(0.0, random.Random(who)) if who else 0)
        number = masters[who].take()
        assert number is not None
        given_out.append(number)
    assert len(set(given_out)) == len(given_out)


def test_a_process_begins_above_all_that_was_given_before_though_nothing_was_kept() -> None:
    rng = random.Random(0)
    firsts = [first_number(NOW + second, rng) for second in range(0, 200, 2)]
    assert firsts == sorted(firsts)
    assert all(later - earlier > 1_000_000 for earlier, later in pairwise(firsts))
    assert first_number(2**33 - 1, rng) < 2**53
    assert len({first_number(NOW, rng) for _ in range(100)}) > 90


def test_a_clock_that_is_set_back_is_no_matter_to_the_store(tmp_path: Path) -> None:
    for store in (MemoryStore(), SqliteStore(str(tmp_path / "state.db"))):
        first = store.take_block("turn", 10, least=10**15)
        assert first == 10**15
        assert store.take_block("turn", 10, least=5) == 10**15 + 10
        assert store.take_block("turn", 1, least=2 * 10**15) == 2 * 10**15
        assert store.take_block("ticket", 1) == 0


def test_masters_that_ask_one_file_at_once_get_blocks_of_their_own(tmp_path: Path) -> None:
    file = str(tmp_path / "state.db")
    firsts: list[int] = []

    def take() -> None:
        for _ in range(5):
            firsts.append(SqliteStore(file).take_block("turn", 10))  # noqa: PERF401 - what was got counts, if it raises

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == list(range(0, 200, 10))


def test_who_finds_the_file_in_use_waits_for_it(tmp_path: Path) -> None:
    file, firsts = str(tmp_path / "state.db"), []
    store = SqliteStore(file)
    assert store.take_block("turn", 10) == 0
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=lambda: firsts.append(store.take_block("turn", 10)))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        other.execute("COMMIT")
        thread.join()
    assert firsts == [10]


_KILLED = """
import os, signal, sys
from master.queue.turn_numbers import TurnNumbers
from master.store import SqliteStore
store, numbers = SqliteStore(sys.argv[1]), TurnNumbers(size=50, low=1)
for i in range(int(sys.argv[2])):
    if numbers.wanted:
        numbers.add(store.take_block("turn", 50), 50)
    os.write(1, b"%d\\n" % numbers.take())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_loses_at_most_the_rest_of_its_block(tmp_path: Path) -> None:
    file, given_out = str(tmp_path / "state.db"), []
    for count in (1, 120):
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, file, str(count)], capture_output=True, text=True, check=False
        )
        assert done.returncode == -9, done.stderr
        given_out += [int(line) for line in done.stdout.split()]
    assert len(given_out) == 121
    assert len(set(given_out)) == 121
    assert SqliteStore(file).take_block("turn", 1) == 50 + 150


def test_what_cannot_be_written_gives_no_number(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        SqliteStore(str(tmp_path / "missing" / "state.db")).take_block("turn", 10)


@pytest.mark.parametrize("values", [(0, 1), (1, 0)])
def test_a_block_that_cannot_be_is_refused(values: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        TurnNumbers(*values)
