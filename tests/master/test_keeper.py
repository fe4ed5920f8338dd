"""What outlives a master: it is taken out of the pool and put back, and no disk stops anybody. In virtual time."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio

from master.config import BackendConfig, ChoiceConfig, Config
from master.core.admin import READY, Admin, Wish
from master.core.choice import Panic
from master.core.pool import Ask, Assignment
from master.keeper import Keeper
from master.node import Node
from master.operations import Operations
from master.store import MemoryStore, SavedAdmin, SavedReport, State, StoreError
from tests.master.slow_disk import SlowDisk
from tests.master.thread_clock import thread_clock

CONFIG = Config(
    choice=ChoiceConfig(panic=Panic.LAST_KNOWN, first_round_s=0.0),
    backends=tuple(BackendConfig(name, "10.0.0.1", i + 1) for i, name in enumerate("abc")),
)


@pytest.fixture
def autojump_clock() -> Iterator[trio.testing.MockClock]:
    with thread_clock() as clock:
        yield clock


class Disk(MemoryStore):
    """Fails while it is told to, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.saves = 0
        self.threads: set[int] = set()

    def load(self) -> State:
        if self.full:
            raise StoreError("the disk is gone")
        return super().load()

    def save(self, state: State) -> None:
        self.saves += 1
        self.threads.add(threading.get_ident())
        if self.full:
            raise StoreError("the disk is full")
        super().save(state)


class House:
    """`wall` is what the clock on the wall shows at the virtual second 0."""

    def __init__(self, disk: Disk, config: Config = CONFIG, wall: float = 1e9) -> None:
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.node = Node(config, rng=random.Random(1), log=log)
        began = trio.current_time()
        self.keeper = Keeper(disk, self.node, log, lambda: wall + trio.current_time() - began)
        self.operations = Operations(self.node, self.keeper, log, "pool.toml")

    def want(self, name: str, admin: Admin) -> None:
        self.node.pool.set_admin(trio.current_time(), name, admin)
        self.keeper.changed()

    def report(self, name: str, count: int) -> None:
        now = trio.current_time()
        self.node.pool.record_report(now, random.Random(1), name, count, now, ("10.0.0.9", 9))

    def failures(self) -> float | None:
        return self.node.metrics.registry.get_sample_value("lambdamu_store_failures_total")


@asynccontextmanager
async def kept(house: House) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await house.keeper.restore()
        nursery.start_soon(house.keeper.run)
        yield
        nursery.cancel_scope.cancel()


async def test_what_an_operator_wants_is_there_after_a_restart_and_ends_when_it_was_to_end(
    autojump_clock: object,
) -> None:
    disk = Disk()
    first = House(disk)
    async with kept(first):
        now = trio.current_time()
        first.want("a", Admin(Wish.DRAIN, "ann", "a release", now + 100.0))
        first.want("b", Admin(Wish.MAINT, "bob", "a disk"))
        first.want("c", Admin(Wish.DRAIN, "ann", "for a moment", now + 30.0))
        await trio.sleep(1.0)
    await trio.sleep(10.0)
    second = House(disk, wall=1e9 + 51.0)  # 40 seconds without a master
    async with kept(second):
        now = trio.current_time()
        assert second.node.pool["a"].admin.until == pytest.approx(now + 49.0, abs=0.1)
        assert second.node.pool["b"].admin == Admin(Wish.MAINT, "bob", "a disk")
        assert second.node.pool["c"].admin is READY
        restored = [entry["backend"] for entry in second.capture.entries if entry["event"] == "admin_restored"]
        assert restored == ["a", "b"]


async def test_the_last_good_report_is_there_after_a_restart_with_its_age(autojump_clock: object) -> None:
    disk = Disk()
    first = House(disk)
    async with kept(first):
        first.report("a", 70)
        await trio.sleep(15.0)
    second = House(disk, wall=1e9 + 100.0)
    async with kept(second):
        now = trio.current_time()
        report = second.node.pool["a"].report
        assert report is not None
        assert (report.count, report.age(now)) == (70, pytest.approx(100.0, abs=1.0))
        assert second.node.pool["b"].report is None
        answer = second.node.pool.assign(now, random.Random(1), Ask())
        assert isinstance(answer, Assignment)
        assert answer.place.endpoint == ("10.0.0.9", 9)


async def test_a_report_of_a_backend_that_stood_elsewhere_is_of_no_use(autojump_clock: object) -> None:
    disk = Disk()
    disk.save(State({}, {"a": SavedReport("10.0.0.1:999", 5, 1e9, "10.0.0.9", 9), "z": SavedReport("z", 1, 1, "z", 1)}))
    house = House(disk)
    async with kept(house):
        assert house.node.pool["a"].report is None


async def test_a_clock_that_was_set_back_makes_no_report_of_the_future(autojump_clock: object) -> None:
    disk = Disk()
    disk.save(State({}, {"a": SavedReport("10.0.0.1:1", 5, 2e9, "10.0.0.9", 9)}))
    house = House(disk)
    async with kept(house):
        report = house.node.pool["a"].report
        assert report is not None
        assert report.asked_at <= trio.current_time()


async def test_many_changes_are_few_writes_and_none_of_them_on_the_loop(autojump_clock: object) -> None:
    disk = Disk()
    house = House(disk, Config(backends=CONFIG.backends))
    async with kept(house):
        for i in range(1000):
            house.want("a", Admin(Wish.DRAIN, "ann", str(i)))
        await trio.sleep(100.0)
        assert 1 <= disk.saves <= 3
        assert disk.load().admins["a"].why == "999"
        assert threading.get_ident() not in disk.threads
        assert disk.load().reports == {}


async def test_a_full_disk_stops_nobody_is_told_of_and_tried_again(autojump_clock: object) -> None:
    disk = Disk()
    house = House(disk, Config(backends=CONFIG.backends))
    async with kept(house):
        disk.full = True
        house.want("a", Admin(Wish.DRAIN, "ann", "why"))
        await trio.sleep(300.0)
        assert 10 < (house.failures() or 0) < 40
        told = [entry for entry in house.capture.entries if entry["event"] == "state_not_written"]
        assert [entry["error"] for entry in told] == ["the disk is full"]
        disk.full = False
        await trio.sleep(30.0)
        told = [(event.kind, event.text) for event in house.node.events.last(9)]
        assert told == [("state_not_written", "the disk is full"), ("state_written", "the state is kept again")]
        assert disk.load().admins == {"a": SavedAdmin(Wish.DRAIN, "ann", "why")}
        saves = disk.saves
        await trio.sleep(300.0)
        assert disk.saves == saves


async def test_who_changes_much_while_the_disk_is_full_has_it_tried_no_more_often(autojump_clock: object) -> None:
    disk = Disk()
    disk.full = True
    house = House(disk, Config(backends=CONFIG.backends))
    async with kept(house):
        for i in range(300):
            house.want("a", Admin(Wish.DRAIN, "ann", str(i)))
            await trio.sleep(0.2)
        assert disk.saves <= 10


async def test_what_was_wanted_at_the_very_last_is_kept_too(autojump_clock: object) -> None:
    disk = Disk()
    house = House(disk)
    house.want("a", Admin(Wish.DRAIN, "ann", "just now"))
    await house.keeper.finish()
    assert disk.load().admins["a"].why == "just now"
    await house.keeper.finish()
    assert disk.saves == 1


async def test_a_write_that_the_stop_cuts_short_is_begun_again(autojump_clock: object) -> None:
    first = SlowDisk()
    first.held.clear()

    class Slow(Disk):
        def save(self, state: State) -> None:
            if not self.saves:
                self.saves += 1
                with first:
                    pass
            super().save(state)

    disk = Slow()
    house = House(disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.keeper.run)
        house.want("a", Admin(Wish.DRAIN, "ann", "just now"))
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    await house.keeper.finish()
    first.held.set()
    assert disk.load().admins["a"].why == "just now"


async def test_a_state_that_cannot_be_read_is_as_none(autojump_clock: object) -> None:
    disk = Disk()
    disk.full = True
    house = House(disk)
    async with kept(house):
        assert house.failures() == 1
        assert all(member.admin is READY for member in house.node.pool)


async def test_a_disk_that_hangs_holds_no_start_up_for_long(autojump_clock: object) -> None:
    hanging = SlowDisk()
    hanging.held.clear()

    class Hanging(Disk):
        def load(self) -> State:
            with hanging:
                return State()

    house = House(Hanging())
    try:
        with trio.fail_after(8):
            await house.keeper.restore()
    finally:
        hanging.held.set()
    assert house.failures() == 1
