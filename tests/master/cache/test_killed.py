"""A process that is killed while it writes: what it was told is kept is there, and nothing is there by half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from master.cache.bounds import StorePolicy
from master.cache.rows import Table
from master.cache.store import CacheStore
from master.store import SqliteCache
from tests.master.cache.writing_program import rows_of

PROGRAM = Path(__file__).with_name("writing_program.py")


@pytest.mark.parametrize("after_s", [0.05, 0.33, 0.7])
def test_a_killed_process_has_lost_nothing_but_its_last_moment(tmp_path: Path, after_s: float) -> None:
    file = tmp_path / "cache.db"
    command = [sys.executable, str(PROGRAM), str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().splitlines() if line]
    saved = SqliteCache(str(file)).load(0.0)
    store = CacheStore(StorePolicy(max_bytes=2**31))
    assert store.restore(1e10, [row._replace(updated_at=1e10) for row in saved.rows]) == len(saved.rows)
    [count] = [row for row in saved.rows if row.table is Table.DEVICE]
    assert count.version >= max(said, default=1)
    expected = {(row.table, row.key): row for number in range(1, count.version + 1) for row in rows_of(number)}
    found = {(row.table, row.key): row._replace(updated_at=0.0) for row in saved.rows}
    assert found == expected, "all up to the last commit, each whole, and those of one moment together"
