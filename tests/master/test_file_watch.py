"""A change of the file is told once, when nobody is still writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from master.file_watch import FileWatch, stamp_of
from tests.master.test_operations import HEAD, fleet, house, write


class Watched:
    """A file and who looks at it; `looks` returns how often it was to be read."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "pool.toml"
        self.file.write_text("old")
        self.watch = FileWatch()
        self.watch.take(stamp_of(str(self.file)))

    def look(self) -> str | None:
        return self.file.read_text() if self.watch.look(stamp_of(str(self.file))) else None

    def looks(self, times: int = 5) -> list[str]:
        return [text for text in (self.look() for _ in range(times)) if text is not None]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_file_that_stays_is_not_read_again(watched: Watched) -> None:
    assert watched.looks() == []


def in_place(file: Path) -> None:
    file.write_text("new!")


def rename_over(file: Path) -> None:
    (file.parent / "next").write_text("new")
    (file.parent / "next").rename(file)


def delete_and_make(file: Path) -> None:
    file.unlink()
    file.write_text("newer")


@pytest.mark.parametrize("change", [in_place, rename_over, delete_and_make])
def test_a_change_is_told_once(watched: Watched, change: Callable[[Path], None]) -> None:
    watched.looks(2)
    change(watched.file)
    assert watched.looks() == [watched.file.read_text()]
    assert watched.looks() == []


def test_half_of_a_file_is_not_taken_for_one(watched: Watched) -> None:
    watched.file.write_text("ne")
    assert watched.look() is None
    watched.file.write_text("new whole")
    assert watched.looks() == ["new whole"]


def test_a_file_that_is_gone_is_waited_for(watched: Watched) -> None:
    watched.file.unlink()
    assert watched.looks() == []
    watched.file.write_text("back again")
    assert watched.looks() == ["back again"]


def test_a_symlink_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pool.toml").write_text(name)
        os.utime(tmp_path / name / "pool.toml", ns=(1, 1))
    (tmp_path / "..data").symlink_to("v1")
    link = tmp_path / "pool.toml"
    link.symlink_to("..data/pool.toml")
    watch = FileWatch()
    watch.take(stamp_of(str(link)))
    (tmp_path / "..data_tmp").symlink_to("v2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert [watch.look(stamp_of(str(link))) for _ in range(4)] == [False, True, False, False]


def test_what_was_read_by_order_is_not_read_again(watched: Watched) -> None:
    watched.file.write_text("new!")
    assert watched.look() is None
    watched.watch.take(stamp_of(str(watched.file)))
    assert watched.looks() == []


async def test_a_master_follows_its_file_where_it_is_told_to(tmp_path: Path) -> None:
    head = "[master]\nreload_on_change = true\n" + HEAD
    async with fleet(2) as backends, house(tmp_path / "pool.toml", *backends[:1], head=head) as home:  # noqa: SIM117
        async with trio.open_nursery() as nursery:
            nursery.start_soon(home.operations.watch)
            await trio.sleep(1.2)
            assert not home.events("reloaded")
            write(tmp_path / "next", *backends, head=HEAD)
            (tmp_path / "next").rename(home.file)
            await trio.sleep(2.5)
            await home.until_ready("b1")
            assert [entry["who"] for entry in home.events("reloaded")] == ["change of the file"]
            home.write(*backends[:1], head=head)  # told not to by what it has read
            await trio.sleep(2.5)
            assert len(home.events("reloaded")) == 1
            nursery.cancel_scope.cancel()
