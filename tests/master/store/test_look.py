"""What is seen of a file before anything is kept in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from master.cli import main
from master.store import SqliteCache, SqliteStore, State
from master.store.look import fault_of_cache, fault_of_state

LOOKS: tuple[tuple[str, Callable[[str], str]], ...] = (("cache", fault_of_cache), ("state", fault_of_state))


def make_cache(file: Path) -> None:
    cache = SqliteCache(str(file))
    cache.load(0.0)
    cache.close()


def make_state(file: Path) -> None:
    SqliteStore(str(file)).save(State())


@pytest.mark.parametrize(("what", "look"), LOOKS)
def test_a_file_in_which_nothing_can_be_kept_is_named(
    what: str, look: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("of something else")
    os.mkfifo(tmp_path / "pipe")
    (make_state if what == "cache" else make_cache)(tmp_path / "other.db")
    assert look("none/kept.db") == 'there is no folder "none"'
    assert look(str(tmp_path)) == f'"{tmp_path}" is a folder'
    assert look("pipe") == '"pipe" is no file'
    assert look("a\0b") == '"a\\x00b" is no name of a file'
    for name in ("text", "other.db"):
        assert look(name) == f'"{name}" is no file of the {what} that this version knows'


@pytest.mark.parametrize(("what", "look"), LOOKS)
def test_one_that_is_right_is_not_and_nothing_is_made(
    what: str, look: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert look("new.db") == ""
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty.db").touch()
    (make_cache if what == "cache" else make_state)(tmp_path / "kept.db")
    assert (look("empty.db"), look("kept.db")) == ("", "")


def test_one_that_this_user_may_not_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The system says to root that it may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: bool(os.stat(path).st_mode & 0o200))
    file = tmp_path / "kept.db"
    make_cache(file)
    file.chmod(0o400)
    assert fault_of_cache(str(file)) == f'this user may not write "{file}"'
    tmp_path.chmod(0o500)
    assert fault_of_cache(str(file)) == f'this user may not write in the folder "{tmp_path}"'


def test_a_check_warns_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pool.toml"
    config.write_text(f'[master]\n[state]\nfile = "/nope/a"\n[cache]\nfile = "{tmp_path}"\n')
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["check", str(config)])
    warnings = capsys.readouterr().err
    assert 'warning: [state] file: there is no folder "/nope"; a master runs, and keeps nothing there\n' in warnings
    assert f'warning: [cache] file: "{tmp_path}" is a folder; a master runs, and keeps nothing there\n' in warnings
