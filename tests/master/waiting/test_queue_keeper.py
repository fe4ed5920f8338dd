"""What outlives a master of its virtual queue: no place is lost, no number comes twice, and no disk stops anybody.

The file is long because each way in which a disk fails or a process ends is played to the one keeper.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.testing import run_virtual
from master.queue.answers import Again, Go, QueueAsk, Waiting
from master.queue.limits import Room
from master.queue.numbers import Numbers
from master.queue.policy import QueuePolicy
from master.queue.queues import Queues
from master.queue.rows import Changes
from master.queue.ticket_text import TicketText
from master.queue.turn_numbers import TurnNumbers
from master.store import MemoryStore, QueueStore, SavedQueue, SqliteStore, StoreBusyError, StoreError
from master.waiting.keeper import TICKETS, QueueKeeper
from tests.master.queue.desk import Steady, signed
from tests.master.slow_disk import SlowDisk
from tests.master.thread_clock import thread_clock

WALL = 1.8e9


@pytest.fixture
def autojump_clock() -> Iterator[trio.testing.MockClock]:
    with thread_clock() as clock:
        yield clock


class Disk(SlowDisk, MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.sizes: list[int] = []

    def write_queue(self, parts: Sequence[Changes], epoch_s: float) -> None:
        self.writes += 1
        self.sizes.append(sum(len(part.rows) for part in parts))
        self._call(lambda: super(Disk, self).write_queue(parts, epoch_s))

    def load_queue(self, epoch_s: float) -> SavedQueue:
        return self._call(lambda: super(Disk, self).load_queue(epoch_s))

    def reserve_tickets(self, size: int, least: int = 0) -> int:
        return self._call(lambda: super(Disk, self).reserve_tickets(size, least))

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        if name == "ticket":  # from within
            return super().take_block(name, size, least)
        return self._call(lambda: super(Disk, self).take_block(name, size, least))

    def secret(self, name: str, fresh: bytes) -> bytes:
        return self._call(lambda: super(Disk, self).secret(name, fresh))

    def _call(self, work: Callable[[], Any]) -> Any:
        with self:
            return work()


class Master:
    """One process: its queue, and what keeps it. `wall`: what the clock on the wall shows at the virtual second 0."""

    def __init__(
        self,
        store: QueueStore,
        wall: float = WALL,
        free: int = 0,
        keeper_class: type[QueueKeeper] = QueueKeeper,
        **policy: Any,
    ) -> None:
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.rng = random.Random(1)
        self.policy = QueuePolicy(**{"commit_s": 0.5, **policy})
        self.queues = Queues(trio.current_time(), self.policy, Steady(), Numbers(), wall)
        self.turns = TurnNumbers()
        self.told: list[tuple[str, str]] = []
        self.free = free
        self.keeper = keeper_class(
            store,
            self.queues,
            self.turns,
            lambda: self.policy.commit_s,
            log,
            lambda kind, text: self.told.append((kind, text)),
            epoch_s=wall,
        )

    def settle(self) -> None:
        self.queues.settle(trio.current_time(), Room(self.free))

    def ask(self, who: str, **ask: Any) -> Any:
        return self.queues.ask(trio.current_time(), self.rng, QueueAsk(client=who.encode(), **ask))

    def join(self, *names: str) -> list[int]:
        """Return the numbers of their tickets."""
        return [self.ask(name).ticket.number for name in names]

    def line(self) -> list[str]:
        lines = [line for line in self.queues.lines if line.queue == "default"]
        return [(ticket.client or b"").decode() for line in lines for ticket in line]

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.capture.entries]


@asynccontextmanager
async def running(master: Master) -> AsyncIterator[None]:
    """Run it, and kill it at the end."""
    async with trio.open_nursery() as nursery:
        await master.keeper.restore()
        master.settle()
        nursery.start_soon(master.keeper.run)
        yield
        nursery.cancel_scope.cancel()


async def test_the_queue_is_there_after_a_restart_with_all_times_by_the_new_clock(autojump_clock: object) -> None:
    disk = Disk()
    first = Master(disk, free=2)
    async with running(first):
        entered = first.ask("in")
        assert isinstance(entered, Go)
        first.queues.claim(trio.current_time(), entered.ticket.number, "place of in")
        first.join("called", "a", "b", "c")
        first.ask("b", leave=True)
        first.ask("c", away=True)
        await trio.sleep(1.0)
        assert first.keeper.unwritten == 0
    await trio.sleep(50.0)
    # Another boot: the clock of the loop is another one.
    second = Master(disk, wall=WALL + 40.0)
    async with running(second):
        assert second.line() == ["a", "c"]
        assert second.ask("in") == Again("place of in")
        assert isinstance(second.ask("called"), Go)
        joined_at = second.ask("a").ticket.joined_at
        assert joined_at == pytest.approx(-40.0, abs=1.0), "when it was, by the clock of this process"
        assert second.ask("new").position == 2
        await trio.sleep(45.0)
        second.settle()
        assert second.line() == ["c"], "who is away has its longer lease"


async def test_a_step_of_the_clock_between_two_processes_loses_nobody(autojump_clock: object) -> None:
    disk = Disk()
    for step_s in (0.0, -86400.0, 86400.0):
        master = Master(disk, wall=WALL + step_s)
        async with running(master):
            assert master.line() == [name for name in "abc" if disk.load_queue(0.0).rows]
            master.join("a", "b", "c")
            await trio.sleep(1.0)


async def test_a_crowd_is_few_commits_one_at_a_time_and_none_on_the_loop(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        for wave in range(10):
            master.join(*(f"{wave}-{i}" for i in range(500)))
            await trio.sleep(0.25)
        await trio.sleep(1.0)
        assert threading.get_ident() not in disk.threads
        assert len(disk.load_queue(0.0).rows) == 5000
        assert master.keeper.unwritten == 0
        assert master.keeper.commits == disk.writes <= 7
        assert disk.most_at_once == 1
        assert trio.current_time() - master.keeper.written_at == pytest.approx(1.0, abs=0.6)
        await trio.sleep(10.0)
        assert disk.writes <= 7, "nothing has changed"


async def test_what_comes_while_it_is_written_is_in_the_next_commit(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        disk.held.clear()
        master.join("a")
        await trio.sleep(1.0)
        master.join("b")
        assert master.keeper.unwritten == 2
        disk.held.set()
        await trio.sleep(1.0)
        assert disk.sizes == [1, 1]
        assert master.keeper.unwritten == 0


async def test_a_full_disk_stops_nobody_and_all_is_written_when_there_is_room(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        master.join("a", "b")
        await trio.sleep(1.0)
        disk.full = True
        master.join("c")
        master.ask("a", leave=True)
        await trio.sleep(25.0)
        assert master.keeper.failing
        assert 5 < master.keeper.failures < 20
        assert master.keeper.unwritten == 2
        assert master.events() == ["queue_not_written"], "once, however often"
        assert master.line() == ["b", "c"]
        disk.full = False
        await trio.sleep(5.0)
        assert not master.keeper.failing
        assert master.told == [("queue_not_written", "the disk is full"), ("queue_written", "the queue is kept again")]
        assert [row.client for row in disk.load_queue(0.0).rows] == [b"b", b"c"]


async def test_numbers_go_on_without_a_disk_and_are_counted_before_they_are_written(autojump_clock: object) -> None:
    disk = Disk()
    disk.full = True
    first = Master(disk)
    async with running(first):
        mine = first.join("a", "b")
        turn = first.turns.take()
        await trio.sleep(10.0)
        disk.full = False
        await trio.sleep(5.0)
        assert [row.number for row in disk.load_queue(0.0).rows] == mine
        assert disk.take_block("ticket", 1) > max(mine), "the store counts on from there"
    # The clock was set back by a year, so only the store tells what was given.
    second = Master(disk, wall=WALL - 3e7)
    async with running(second):
        assert second.line() == ["a", "b"]
        assert min(second.join("c", "d")) > max(mine)
        other = second.turns.take()
        assert turn is not None
        assert other is not None
        assert other > turn


async def test_a_store_that_cannot_be_read_is_written_over_in_time(autojump_clock: object) -> None:
    disk = Disk()
    first = Master(disk)
    async with running(first):
        old = first.join("old")
        await trio.sleep(1.0)
    disk.full = True
    second = Master(disk, wall=WALL + 10.0)
    async with running(second):
        assert second.events() == ["queue_not_read"]
        assert second.line() == []
        new = second.join("new")
        assert new > old
        disk.full = False
        await trio.sleep(5.0)
        assert [row.client for row in disk.load_queue(0.0).rows] == [b"new"]


async def test_a_store_that_somebody_else_holds_for_a_moment_is_read_afterwards(autojump_clock: object) -> None:
    class Busy(Disk):
        tries = 0

        def load_queue(self, epoch_s: float) -> SavedQueue:
            self.tries += 1
            if 1 < self.tries <= 4:
                raise StoreBusyError("kept.db", "database is locked")
            return super().load_queue(epoch_s)

    disk = Busy()
    first = Master(disk)
    async with running(first):
        first.join("ann")
        await trio.sleep(1.0)
    second = Master(disk, wall=WALL + 10.0)
    async with running(second):
        assert second.line() == ["ann"]
        assert second.events() == ["queue_waits", "queue_restored"]


async def test_a_disk_that_hangs_holds_neither_the_start_nor_the_numbers(autojump_clock: object) -> None:
    disk = Disk()
    disk.held.clear()
    master = Master(disk)
    try:
        with trio.fail_after(70.0):
            await master.keeper.restore()
        master.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(master.keeper.run)
            await trio.sleep(1.0)
            before = len(master.queues.numbers)
            assert before >= TICKETS
            for _ in range(before - 10):
                master.queues.numbers.take()
            await trio.sleep(1.0)
            assert len(master.queues.numbers) > TICKETS // 2
            master.join("a")
            await trio.sleep(30.0)
            assert master.keeper.failing
            assert disk.most_at_once == 1
            disk.held.set()
            await trio.sleep(15.0)
            assert not master.keeper.failing
            assert [row.client for row in disk.load_queue(0.0).rows] == [b"a"]
            nursery.cancel_scope.cancel()
    finally:
        disk.held.set()


async def test_the_secret_is_the_one_that_is_kept(autojump_clock: object) -> None:
    disk = Disk()
    secrets = []
    for _ in range(2):
        master = Master(disk)
        async with running(master):
            secrets.append(master.keeper.secrets[0])
    assert secrets[0] == secrets[1]
    disk.full = True
    master = Master(disk)
    async with running(master):
        [own] = master.keeper.secrets
        assert own not in secrets
        disk.full = False
        await trio.sleep(5.0)
        assert master.keeper.secrets == (secrets[0], own), "its own tickets stay good"


async def test_a_secret_that_somebody_has_spoilt_is_told_of_and_all_else_is_written(autojump_clock: object) -> None:
    disk = Disk()
    disk.secret("ticket", b"short")
    master = Master(disk)
    async with running(master):
        TicketText(master.keeper.secrets)
        assert master.told[0][0] == "queue_not_read"
        master.join("a")
        await trio.sleep(1.0)
        assert len(disk.load_queue(0.0).rows) == 1


async def test_the_last_moment_is_written_at_a_stop(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        await trio.sleep(0.5)
        master.join("a")
    await master.keeper.finish()
    assert [row.client for row in disk.load_queue(0.0).rows] == [b"a"]


async def test_a_commit_that_the_stop_cuts_short_ends_before_the_last_one_begins(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        disk.held.clear()
        master.join("a", "b")
        await trio.sleep(1.0)
        master.ask("a", leave=True)
    assert master.keeper.unwritten == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.keeper.finish)
        await trio.testing.wait_all_tasks_blocked()
        disk.held.set()
    assert [row.client for row in disk.load_queue(0.0).rows] == [b"b"]
    assert disk.most_at_once == 1


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(autojump_clock: object) -> None:
    disk = Disk()
    master = Master(disk)
    async with running(master):
        await trio.sleep(0.5)
    disk.held.clear()
    master.join("a")
    try:
        with trio.fail_after(3.0):
            await master.keeper.finish()
    finally:
        disk.held.set()
    assert master.keeper.unwritten == 1


@pytest.mark.parametrize("count", [0, 1, 2500])
def test_a_file_that_is_taken_away_is_written_anew_and_gives_no_number_twice(tmp_path: Path, count: int) -> None:
    with thread_clock() as clock:
        trio.run(_take_away, tmp_path / "state.db", count, clock=clock)


async def _take_away(file: Path, count: int) -> None:
    first = Master(SqliteStore(str(file)))
    async with running(first):
        given_out = first.join(*(f"{i:05}" for i in range(count)), "last")
        await trio.sleep(1.0)
        file.unlink()  # noqa: ASYNC240 - as an operator would
        first.ask("last", leave=True)
        await trio.sleep(1.0)
        assert first.told[0][0] == "queue_not_written"
        await trio.sleep(3.0)
        assert not first.keeper.failing
        given_out += first.join("more")
        await trio.sleep(1.0)
        assert first.keeper.unwritten == 0
    second = Master(SqliteStore(str(file)), wall=WALL - 1000.0)
    async with running(second):
        assert second.line() == [*(f"{i:05}" for i in range(count)), "more"]
        assert min(second.join("new")) > max(given_out)


async def test_what_comes_back_is_put_back_in_parts(autojump_clock: object) -> None:
    disk = Disk()
    names = [f"{i:04}" for i in range(3500)]
    first = Master(disk)
    async with running(first):
        first.join(*names)
        await trio.sleep(1.0)
    second = Master(disk)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        saved = disk.load_queue(0.0)
        turns = 0
        await second.keeper._put_back(saved)
        assert turns >= 3
        nursery.cancel_scope.cancel()
    assert second.line() == names


class Doomed(MemoryStore):
    """Answers so many calls, and then none: the process is killed in it, before or after it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: list[str] = []

    def write_queue(self, parts: Sequence[Changes], epoch_s: float) -> None:
        self._meet(lambda: super(Doomed, self).write_queue(parts, epoch_s))

    def reserve_tickets(self, size: int, least: int = 0) -> int:
        return self._meet(lambda: super(Doomed, self).reserve_tickets(size, least))

    def _meet(self, work: Callable[[], Any]) -> Any:
        fate = self.fates.pop(0) if self.fates else "done"
        if fate == "lost":
            raise StoreError("it was not done")
        result = work()
        if fate == "unknown":
            raise StoreError("it was done, and nobody heard of it")
        return result


class Prompt(QueueKeeper):
    """Needs no thread: virtual time stands still meanwhile."""

    async def _do(self, call: Callable[[], Any], within_s: float = 0.0) -> Any:
        await trio.lowlevel.checkpoint()
        return call()


FATES = st.lists(st.sampled_from(["done", "done", "lost", "unknown"]), max_size=12)


@given(st.lists(st.tuples(FATES, st.integers(0, 2**32)), min_size=1, max_size=4))
def test_whatever_fails_and_whenever_it_is_killed_no_place_is_lost_and_no_number_comes_twice(
    lives: list[tuple[list[str], int]],
) -> None:
    run_virtual(_live, lives)


async def _live(lives: list[tuple[list[str], int]]) -> None:
    """Each life is a process. Who waits keeps its ticket, and shows it to the next one."""
    store, given_out, places = Doomed(), set[int](), dict[str, Any]()
    for life, (fates, seed) in enumerate(lives):
        rng = random.Random(seed)
        master = Master(store, wall=WALL + 10.0 * life, keeper_class=Prompt)
        store.fates = list(fates)
        async with running(master):
            for name in sorted(places, key=lambda _: rng.random()):
                answer = master.ask(name, place=places[name])
                assert isinstance(answer, Waiting)
                ticket = answer.ticket
                if ticket.number != places[name].number:  # the store had not heard of it: a place of its own, again
                    assert "lost" in fates_before(lives, life) or "unknown" in fates_before(lives, life)
                    assert ticket.number not in given_out
                    given_out.add(ticket.number)
                places[name] = signed(ticket)
            line = [name for name in master.line() if name in places]  # that somebody left may not have been written
            assert line == sorted(places, key=lambda name: places[name].order)
            for step in range(rng.randrange(6)):
                name = f"{life}-{step}"
                answer = master.ask(name)
                assert answer.ticket.number not in given_out
                given_out.add(answer.ticket.number)
                places[name] = signed(answer.ticket)
                if rng.random() < 0.3:
                    gone = rng.choice(sorted(places))
                    master.ask(gone, leave=True)
                    del places[gone]
                await trio.sleep(rng.choice([0.0, 0.5, 3.0]))


def fates_before(lives: list[tuple[list[str], int]], life: int) -> set[str]:
    return {fate for fates, _ in lives[: life + 1] for fate in fates}


_KILLED = """
import os, random, signal, sys, time
import structlog, trio
from master.queue.answers import QueueAsk
from master.queue.limits import Room
from master.queue.numbers import Numbers
from master.queue.policy import QueuePolicy
from master.queue.queues import Queues
from master.queue.turn_numbers import TurnNumbers
from master.store import SqliteStore
from master.waiting.keeper import QueueKeeper
from tests.master.queue.desk import Steady

async def main():
    epoch_s = time.time() - trio.current_time()
    queues = Queues(trio.current_time(), QueuePolicy(), Steady(), Numbers(), epoch_s)
    log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
    keeper = QueueKeeper(SqliteStore(sys.argv[1]), queues, TurnNumbers(), lambda: 0.02, log, print, epoch_s=epoch_s)
    await keeper.restore()
    queues.settle(trio.current_time(), Room(0))
    print(*(ticket.number for line in queues.lines for ticket in line), flush=True)
    first, rng = int(sys.argv[2]), random.Random(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        for i in range(20_000):
            answer = queues.ask(trio.current_time(), rng, QueueAsk(client=b"%d" % (first + i)))
            if i % 100 == 99:
                os.write(1, b"%d %d %d\\n" % (answer.ticket.number, len(queues.book), keeper.unwritten))
                await trio.sleep(0.002)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def _run_and_kill(file: Path, first: int, lines: int) -> tuple[list[int], list[list[int]]]:
    """Return the line that it restored, and what it told until it was killed: number, tickets, unwritten."""
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(file), str(first)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        restored = [int(number) for number in process.stdout.readline().split()]
        told = [[int(word) for word in process.stdout.readline().split()] for _ in range(lines)]
        process.kill()
        told += [[int(word) for word in line.split()] for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -9
    return restored, told


def test_processes_that_are_killed_while_thousands_join_keep_the_order_and_all_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    before: list[int] = []
    lowest = 0
    for life, lines in enumerate((60, 150, 1)):
        restored, told = _run_and_kill(file, 100_000 * life, lines)
        assert restored == sorted(restored)
        assert restored[: len(before)] == before, "who was there is there, in order"
        assert len(restored) >= lowest, "all but what the process said it had not written"
        before = restored
        # What it told last may be older than its end, and then more was written, not less.
        lowest = max(tickets - unwritten for _, tickets, unwritten in told)
        assert min(number for number, _, _ in told) > max(restored, default=0), "no number twice"
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
