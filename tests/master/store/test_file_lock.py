"""A file for one process: who has it, until when, and what takes no lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from master.store.file_lock import FileLock


def test_one_has_it_until_it_lets_go(tmp_path: Path) -> None:
    first, second = (FileLock(str(tmp_path / "kept.db")) for _ in range(2))
    assert [first.take(), second.take(), first.take()] == [True, False, True]
    second.release()
    assert not second.take(), "who has it not lets nothing go"
    first.release()
    assert os.listdir(tmp_path) == []
    assert [second.take(), first.take()] == [True, False]
    second.release()


def test_with_the_process_ends_its_lock(tmp_path: Path) -> None:
    take = f"import os; from master.store.file_lock import FileLock; FileLock({str(tmp_path / 'kept.db')!r}).take(); "
    subprocess.run([sys.executable, "-c", take + "os.kill(os.getpid(), 9)"], check=False)
    assert os.listdir(tmp_path) == ["kept.db.lock"]
    lock = FileLock(str(tmp_path / "kept.db"))
    assert lock.take()
    lock.release()


def test_who_comes_as_another_takes_its_file_away_locks_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, flock = FileLock(str(tmp_path / "kept.db")), fcntl.flock

    def late(fd: int, how: int) -> None:
        monkeypatch.undo()
        (tmp_path / "kept.db.lock").unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert lock.take()
    assert not FileLock(str(tmp_path / "kept.db")).take()
    lock.release()


def test_where_nothing_can_be_locked_there_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(str(tmp_path / "missing" / "kept.db"))
    assert lock.take()
    (tmp_path / "missing").mkdir()
    assert lock.take()
    assert not FileLock(str(tmp_path / "missing" / "kept.db")).take(), "by now it could be taken"
    lock.release()

    def knows_none(_fd: int, _how: int) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", knows_none)
    assert FileLock(str(tmp_path / "kept.db")).take()
