"""What outlives a node of its cache: all but the last moment; and no disk stops anybody, nor fails in silence.

The file is long because each way in which a disk fails is played to the one keeper.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from master.cache.bounds import StorePolicy
from master.cache.keeper import CacheKeeper, Pace
from master.cache.leases import Lease
from master.cache.rows import Changes, Key, Row, Table
from master.cache.store import CacheStore
from master.store import CacheFile, RowsLostError, SavedCache, SqliteCache, StoreBusyError
from tests.master.cache.making import device, entry, session, warm
from tests.master.slow_disk import SlowDisk
from tests.master.thread_clock import thread_clock

WALL = 1.8e9


@pytest.fixture
def autojump_clock() -> Iterator[trio.testing.MockClock]:
    with thread_clock() as clock:
        yield clock


class Disk(SlowDisk):
    """A file in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[tuple[Table, Key], Row] = {}
        self.fence = 0
        self.lost = False
        self.writes = 0
        self.closed = False
        self.settles = SlowDisk()
        self.settled = 0

    def settle(self) -> None:
        with self.settles:
            self.settled = self.writes

    def load(self, epoch_s: float) -> SavedCache:
        with self:
            rows = sorted(self.rows.values(), key=lambda row: -row.table)
            return SavedCache([row._replace(updated_at=row.updated_at - epoch_s) for row in rows], self.fence)

    def write(self, parts: Sequence[Changes], epoch_s: float) -> None:
        with self:
            self.writes += 1
            if self.lost and not parts[0].anew:
                raise RowsLostError("it is another file")
            self.lost = False
            for part in parts:
                if part.anew:
                    self.rows.clear()
                for row in part.rows:
                    self.rows[row.table, row.key] = row._replace(updated_at=row.updated_at + epoch_s)
                for place in part.gone:
                    self.rows.pop(place, None)
                self.fence = max(self.fence, part.fence)

    def close(self) -> None:
        self.closed = True

    def names(self) -> list[str]:
        return sorted(row.session for row in self.rows.values() if row.table is Table.SESSION)


class Node:
    """One process: its store, and what keeps it. `wall`: what the clock on the wall shows at the virtual second 0."""

    def __init__(self, file: CacheFile | None, wall: float = WALL, **policy: Any) -> None:
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.told: list[tuple[str, str]] = []
        self.store = CacheStore(StorePolicy(**policy))
        self.keeper = CacheKeeper(
            self.store, file, 0.1, log, lambda kind, text: self.told.append((kind, text)), epoch_s=wall
        )

    def put(self, *rows: Row) -> None:
        for row in rows:
            assert self.store.put(trio.current_time(), row) is None

    def put_sessions(self, *names: str) -> None:
        self.put(*(session(name, ttl_s=1000.0) for name in names))

    def get(self, row: Row) -> Row | None:
        return self.store.get(trio.current_time(), row.table, row.key)

    def names(self) -> list[str]:
        rows = self.store.by_client(trio.current_time(), Table.SESSION, "ann", 99)
        return sorted(row.session for row in rows)

    def fence(self) -> int:
        lease = self.store.lease(trio.current_time(), "name", "a", 0.01)
        assert isinstance(lease, Lease)
        return lease.fence

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.capture.entries]


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    """Run it, and kill it at the end."""
    async with trio.open_nursery() as nursery:
        await node.keeper.restore()
        nursery.start_soon(node.keeper.run)
        yield
        nursery.cancel_scope.cancel()


async def test_all_of_it_is_there_after_a_restart_and_lives_by_the_clock_on_the_wall(autojump_clock: object) -> None:
    disk = Disk()
    rows = [session(ttl_s=60.0), entry(ttl_s=60.0), warm(ttl_s=60.0), device(ttl_s=60.0)]
    first = Node(disk)
    async with running(first):
        first.put(*rows, session("short", ttl_s=20.0))
        await trio.sleep(1.0)
        assert first.keeper.unwritten == 0
    await trio.sleep(20.0)
    # Another boot: the clock of the loop is another one, and 30 s more have gone by.
    second = Node(disk, wall=WALL + 30.0)
    async with running(second):
        for row in rows:
            there = second.get(row)
            assert there is not None
            assert there._replace(updated_at=0.0) == row
            assert trio.current_time() - there.updated_at == pytest.approx(51.0, abs=1.0)
        assert second.get(session("short")) is None
        await trio.sleep(10.0)
        assert [second.get(row) for row in rows] == [None] * 4
        assert disk.rows == {}, "the dead are swept, and taken out of the file"


@pytest.mark.parametrize("step_s", [-86400.0, 0.0, 86400.0])
async def test_a_step_of_the_clock_lets_nothing_live_longer_than_its_ttl(autojump_clock: object, step_s: float) -> None:
    disk = Disk()
    first = Node(disk)
    async with running(first):
        first.put(session(ttl_s=10.0))
        await trio.sleep(1.0)
    second = Node(disk, wall=WALL + step_s)
    async with running(second):
        assert (second.get(session()) is not None) == (step_s <= 0)
        await trio.sleep(10.0)
        assert second.get(session()) is None


async def test_what_was_dropped_stays_dropped(autojump_clock: object) -> None:
    disk = Disk()
    first = Node(disk)
    async with running(first):
        first.put_sessions("a", "b")
        await trio.sleep(1.0)
        first.store.drop_session(trio.current_time(), "a")
        await trio.sleep(1.0)
    second = Node(disk)
    async with running(second):
        assert second.names() == ["b"]
        assert second.events() == ["cache_restored"]


async def test_commits_are_few_one_at_a_time_and_none_on_the_loop(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        assert (node.keeper.commits, node.keeper.failing) == (1, False), "whether anything can be kept is known at once"
        for wave in range(40):
            node.put(*(warm(f"{wave}-{n}") for n in range(250)))
            await trio.sleep(0.025)
        await trio.sleep(0.5)
        assert len(disk.rows) == 10_000
        assert threading.get_ident() not in disk.threads
        assert node.keeper.commits == disk.writes <= 1 + 1.0 / 0.05 + 2, "one each half of `commit_s` at most"
        assert disk.most_at_once == 1
        assert trio.current_time() - node.keeper.written_at == pytest.approx(0.5, abs=0.2)
        writes = disk.writes
        await trio.sleep(5.0)
        assert disk.writes == writes, "nothing has changed"


@pytest.mark.parametrize(
    ("takes", "begins"),
    [
        pytest.param([0.0, 0.0], [0.1, 0.2], id="at once"),
        pytest.param([0.03, 0.03], [0.07, 0.14], id="each ends 0.1 s after the one before has begun"),
        pytest.param([0.2, 0.08, 0.0, 0.0], [0.05, 0.1, 0.15, 0.2], id="half of the time is left for what changes"),
        pytest.param([0.04, 0.01, 0.01], [0.06, 0.124, 0.1916], id="what took long now and then is reckoned with"),
    ],
)
def test_a_commit_is_to_end_so_soon_after_the_last_one_began(takes: list[float], begins: list[float]) -> None:
    pace, began, found = Pace(0.1), 0.0, []
    for takes_s in takes:
        began = pace.next(began, began + takes_s)
        found.append(began)
    assert found == pytest.approx(begins)


async def test_no_commit_waits_until_the_disk_has_kept_the_one_before(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    try:
        async with running(node):
            disk.settles.held.clear()
            for name in ("a", "b", "c"):
                node.put_sessions(name)
                await trio.sleep(1.0)
                assert node.keeper.unwritten == 0
            assert disk.settled < disk.writes
            assert disk.settles.most_at_once == 1
            disk.settles.held.set()
            await trio.sleep(1.0)
            assert disk.settled == disk.writes
            assert node.told == []
    finally:
        disk.settles.held.set()


async def test_a_disk_that_does_not_keep_what_it_took_is_told_of_once(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        disk.settles.full = True
        for name in ("a", "b", "c"):
            node.put_sessions(name)
            await trio.sleep(5.0)
        assert node.keeper.failing
        assert disk.names() == ["a", "b", "c"]
        assert node.told == [("cache_not_written", "the disk is full")]
        disk.settles.full = False
        await trio.sleep(5.0)
        assert not node.keeper.failing
        assert disk.settled == disk.writes


async def test_what_comes_while_it_is_written_is_in_the_next_commit(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        disk.held.clear()
        node.put_sessions("a")
        await trio.sleep(0.3)
        node.put_sessions("b")
        assert node.keeper.unwritten == 2
        disk.held.set()
        await trio.sleep(0.3)
        assert disk.names() == ["a", "b"]
        assert node.keeper.unwritten == 0


async def test_a_full_disk_stops_nobody_says_so_and_all_is_written_when_there_is_room(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        node.put_sessions("a", "b")
        await trio.sleep(1.0)
        disk.full = True
        node.put_sessions("c")
        node.store.drop_session(trio.current_time(), "a")
        await trio.sleep(25.0)
        assert node.keeper.failing
        assert 5 < node.keeper.failures < 20
        assert node.keeper.unwritten == 3
        assert trio.current_time() - node.keeper.written_at > 24.0
        assert node.events() == ["cache_not_written"], "once, however often"
        assert node.names() == ["b", "c"]
        disk.full = False
        await trio.sleep(5.0)
        assert not node.keeper.failing
        assert node.told == [("cache_not_written", "the disk is full"), ("cache_written", "the cache is kept again")]
        assert disk.names() == ["b", "c"]


async def test_a_file_that_cannot_be_read_is_told_of_and_written_over_in_time(autojump_clock: object) -> None:
    disk = Disk()
    first = Node(disk)
    async with running(first):
        first.put_sessions("old")
        await trio.sleep(1.0)
    disk.full = True
    second = Node(disk)
    async with running(second):
        assert second.told == [("cache_not_read", "the disk is full")]
        assert second.names() == []
        assert second.keeper.failing
        second.put_sessions("new")
        disk.full = False
        await trio.sleep(5.0)
        assert disk.names() == ["new"]


async def test_a_file_that_is_another_one_is_written_anew(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        node.put_sessions("a", "b")
        await trio.sleep(1.0)
        disk.rows.clear()
        disk.lost = True
        node.put_sessions("c")
        await trio.sleep(5.0)
        assert disk.names() == ["a", "b", "c"]
        assert [kind for kind, _ in node.told] == ["cache_not_written", "cache_written"]
        assert node.keeper.error == "it is another file"


async def test_a_file_that_somebody_else_holds_for_a_moment_is_read_afterwards(autojump_clock: object) -> None:
    class Busy(Disk):
        tries = 0

        def load(self, epoch_s: float) -> SavedCache:
            self.tries += 1
            if 1 < self.tries <= 4:
                raise StoreBusyError("kept.db", "database is locked")
            return super().load(epoch_s)

    disk = Busy()
    first = Node(disk)
    async with running(first):
        first.put_sessions("a")
        await trio.sleep(1.0)
    second = Node(disk)
    async with running(second):
        assert second.names() == ["a"]
        assert second.told == []
        [waits] = [each for each in second.capture.entries if each["event"] == "cache_waits"]
        assert waits["message"] == "for kept.db, which another process has open, 15 s at most"


async def test_a_file_that_is_another_process_s_ends_the_start_and_is_left_as_it_is(autojump_clock: object) -> None:
    class Held(Disk):
        def load(self, epoch_s: float) -> SavedCache:
            raise StoreBusyError("kept.db", "another process has it open")

    disk = Held()
    node = Node(disk)
    with pytest.raises(StoreBusyError):
        await node.keeper.restore()
    assert trio.current_time() == pytest.approx(15.0, abs=0.5)
    assert disk.writes == 0
    assert node.told == []


async def test_a_disk_that_hangs_holds_nobody_up(autojump_clock: object) -> None:
    disk = Disk()
    disk.held.clear()
    node = Node(disk)
    try:
        with trio.fail_after(70.0):
            await node.keeper.restore()
        assert node.keeper.failing
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.keeper.run)
            node.put(session(ttl_s=5.0))
            node.put_sessions("a")
            await trio.sleep(30.0)
            assert len(node.store) == 1, "it is swept all the same"
            assert node.keeper.failing
            assert disk.most_at_once == 1
            disk.held.set()
            await trio.sleep(15.0)
            assert not node.keeper.failing
            assert disk.names() == ["a"]
            nursery.cancel_scope.cancel()
    finally:
        disk.held.set()


async def test_fences_only_grow_whatever_was_lost(autojump_clock: object) -> None:
    disk = Disk()
    fences = []
    for wall, full in ((WALL, False), (WALL - 3e7, False), (WALL - 3e7, True), (WALL + 10.0, False)):
        node = Node(disk, wall=wall)
        async with running(node):
            disk.full = full
            fences.append(node.fence())
            await trio.sleep(0.02)
            fences.append(node.fence())
    assert fences == sorted(set(fences))


async def test_without_a_file_it_is_swept_and_nothing_fails(autojump_clock: object) -> None:
    node = Node(None)
    async with running(node):
        node.put(*(warm(f"c{n}", ttl_s=1.0) for n in range(2_500)))
        fence = node.fence()
        await trio.sleep(1.5)
        assert len(node.store) == 0
        assert (node.keeper.unwritten, node.keeper.failing, node.keeper.failures) == (0, False, 0)
    await node.keeper.finish()
    later = Node(None, wall=WALL + 5.0)
    async with running(later):
        assert later.fence() > fence


async def test_the_last_moment_is_written_at_a_stop_and_the_file_is_let_go(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        await trio.sleep(0.5)
        node.put_sessions("a")
    await node.keeper.finish()
    assert disk.names() == ["a"]
    assert disk.closed


async def test_a_commit_that_the_stop_cuts_short_ends_before_the_last_one_begins(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        disk.held.clear()
        node.put_sessions("a", "b")
        await trio.sleep(1.0)
        node.store.drop_session(trio.current_time(), "a")
    assert node.keeper.unwritten == 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.keeper.finish)
        await trio.testing.wait_all_tasks_blocked()
        disk.held.set()
    assert disk.names() == ["b"]
    assert disk.most_at_once == 1


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(autojump_clock: object) -> None:
    disk = Disk()
    node = Node(disk)
    async with running(node):
        await trio.sleep(0.5)
    disk.held.clear()
    node.put_sessions("a")
    try:
        with trio.fail_after(3.0):
            await node.keeper.finish()
    finally:
        disk.held.set()
    assert node.keeper.unwritten == 2


def _remove(file: Path) -> None:
    file.unlink()


def _spoil(file: Path) -> None:
    file.write_bytes(b"spoilt" * 1000)


def _leave(file: Path) -> None:
    pass


async def is_kept(node: Node) -> None:
    with trio.fail_after(30.0):
        while node.keeper.unwritten:  # noqa: ASYNC110 - the keeper tells nobody
            await trio.sleep(0.01)


@pytest.mark.parametrize(("change", "left"), [(_leave, ["a"]), (_remove, []), (_spoil, [])])
async def test_a_real_file_is_read_or_said_to_be_none(
    tmp_path: Path, change: Callable[[Path], None], left: list[str]
) -> None:
    file = tmp_path / "cache.db"
    first, wall = SqliteCache(str(file)), time.time() - trio.current_time()
    node = Node(first, wall)
    async with running(node):
        node.put_sessions("a")
        await is_kept(node)
    first.close()
    change(file)
    second = SqliteCache(str(file))
    node = Node(second, wall)
    async with running(node):
        assert node.names() == left
        assert bool(node.told) == node.keeper.failing == (change is _spoil)
        node.put_sessions("b")
        assert node.names() == [*left, "b"]
        if change is not _spoil:
            await is_kept(node)
    second.close()


@settings(max_examples=20)  # each takes real time: threads have their turns
@given(
    orders=st.lists(
        st.sampled_from(["put", "drop", "full", "room", "wait", "wait", "kill", "lost"]), min_size=3, max_size=12
    )
)
def test_whatever_fails_when_what_was_written_is_what_was_there(orders: list[str]) -> None:
    async def play() -> None:
        disk = Disk()
        wall, at, there = WALL, 0, list[str]()
        while at < len(orders):
            node = Node(disk, wall=wall)
            whole = not disk.full
            async with running(node):
                # What cannot be read is lost; else what the file had, which is all that was there at some moment.
                assert node.names() == (disk.names() if whole else [])
                there = node.names()
                for order in orders[at:]:
                    at += 1
                    if order == "kill":
                        break
                    if order == "put":
                        node.put_sessions(f"s{at:02}")
                        there = [*there, f"s{at:02}"]
                    elif order == "drop" and there:
                        node.store.drop_session(trio.current_time(), there.pop(0))
                    elif order == "wait":
                        await trio.sleep(5.0)
                        if not disk.full:
                            assert disk.names() == there
                            assert node.keeper.unwritten == 0
                    elif order == "lost":
                        disk.rows.clear()
                        disk.lost = True
                        node.fence()
                        await trio.sleep(3.0)
                    else:
                        disk.full = order == "full"
                assert node.names() == there

    with thread_clock() as clock:
        trio.run(play, clock=clock)
