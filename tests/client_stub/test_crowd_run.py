"""A crowd on the wire: against the queue, and against masters that fail."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.client import ClientOptions, run_client
from client_stub.crowd_run import CrowdRun
from lambdamu.address import Address
from lambdamu.caller import Caller
from lambdamu.tcp_server import Ending, PortObserver
from lambdamu.testing import SOCKET_SETTLE_S, FakeBackend, virtual_clock
from tests.queue_master import QueueMaster, queue_master

Capture = pytest.CaptureFixture[str]


class Crowd(PortObserver):
    """Counts the connections of a port: all, and the most there were at once."""

    def __init__(self) -> None:
        self.all = self.now = self.most = 0

    def opened(self) -> None:
        self.all += 1
        self.now += 1
        self.most = max(self.most, self.now)

    def ended(self, how: Ending) -> None:
        self.now -= 1


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


def at(backend: FakeBackend) -> Address:
    return Address(*backend.address)


def crowd(
    *masters: Address, slots: int | None = None, say: Callable[[str], None] = lambda _: None, **options: Any
) -> CrowdRun:
    given = ClientOptions(masters, waits=True, **{"connections": 4, **options})
    return CrowdRun(given, Caller("ann", "ann@example.org", given.timeout_s), random.Random(0), slots, say)


async def let_in(master: QueueMaster, each_s: float, count: int) -> None:
    """Let people go from their backends, so that others can enter, until cancelled."""
    while True:
        await trio.sleep(each_s)
        master.gone(count)


async def test_a_crowd_waits_and_all_get_in_in_order(clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend), places=10) as asked, trio.open_nursery() as nursery:
        nursery.start_soon(let_in, asked, 2.0, 3)
        run = crowd(asked.address, clients=60, rate=30.0)
        await run.run()
        nursery.cancel_scope.cancel()
    tally = run.crowd.tally
    assert (tally.joined, tally.let_in, tally.waiting, tally.overtaken) == (60, 60, 0, 0)
    assert len(set(asked.entered)) == 60
    assert tally.promises > 20
    assert not tally.errors


async def test_no_more_connections_are_open_than_were_ordered_and_they_are_kept(
    master: Any, clock: trio.testing.MockClock
) -> None:
    says = [{"Result": "Wait", "Data": {"Ticket": "t", "RetryAfter": 1.0 + i % 7}} for i in range(2000)]
    observer = Crowd()
    async with FakeBackend() as backend, master(*says, to=(at(backend),), observer=observer) as asked:
        run = crowd(asked.address, clients=1000, connections=3)
        await run.run()
        assert len(asked.asks) == 3000
    assert (observer.most, observer.all) == (3, 3)
    assert run.crowd.tally.let_in == 1000


async def test_a_connection_that_the_master_ended_while_it_was_idle_is_no_failure(
    master: Any, clock: trio.testing.MockClock
) -> None:
    wait = {"Result": "Wait", "Data": {"Ticket": "t", "RetryAfter": 50.0}}
    async with FakeBackend() as backend, master(wait, to=(at(backend),), limits={"idle_s": 20.0}) as asked:
        run = crowd(asked.address, clients=1, connections=1)
        await run.run()
    assert (run.crowd.tally.let_in, run.crowd.tally.errors) == (1, {})


async def test_who_cannot_reach_a_master_asks_the_other(
    master: Any, nobody: Address, clock: trio.testing.MockClock
) -> None:
    async with FakeBackend() as backend, master(to=(at(backend),)) as asked:
        run = crowd(nobody, asked.address, clients=50)
        await run.run()
    assert run.crowd.tally.let_in == 50
    assert set(run.crowd.tally.errors) == {"refused"}


async def test_what_is_not_the_wire_fails_and_nobody_hangs(master: Any, clock: trio.testing.MockClock) -> None:
    async with master({"Result": "Perhaps"}) as asked, master(None) as silent:
        for address in (asked.address, silent.address):
            run = crowd(address, clients=3)
            await run.run()
            assert run.crowd.tally.ended["failed"] == 3


async def test_those_who_stay_hold_a_connection_and_come_back_first_when_it_breaks(
    clock: trio.testing.MockClock,
) -> None:
    async with FakeBackend() as backend, queue_master(at(backend), places=10) as asked, trio.open_nursery() as nursery:
        run = crowd(asked.address, clients=20, stay=100.0)
        nursery.start_soon(run.run)
        await backend.until(lambda stats: stats.open_now == 10)
        await trio.sleep(1.0)
        assert run.crowd.tally.staying == 10
        backend.hang_up()
        await trio.sleep(40.0)
        assert run.crowd.tally.lost == 10
        asked.gone(10)
        await backend.until(lambda stats: stats.open_now == 10)
        assert sorted(asked.entered[:10]) == sorted(asked.entered[10:20])
        asked.gone(100)
    tally = run.crowd.tally
    assert (tally.let_in, tally.ended["done"], tally.staying, tally.overtaken) == (20, 20, 0, 0)
    assert tally.backends[at(backend)].connected == 30


async def test_never_more_stay_than_files_allow(clock: trio.testing.MockClock) -> None:
    said: list[str] = []
    async with FakeBackend() as backend, queue_master(at(backend), places=99) as asked:
        run = crowd(asked.address, clients=9, stay=5.0, slots=4, say=said.append)
        await run.run()
        assert backend.stats().open_most == 4
    assert run.crowd.tally.let_in == 9
    assert len(said) == 1


async def test_to_be_cancelled_has_all_leave(clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend), places=5) as asked:
        run = crowd(asked.address, clients=100, stay=500.0)
        with trio.move_on_after(5.0):
            await run.run()
        assert asked.queues.book.waiting == 0
    assert (run.crowd.tally.ended["left"], run.crowd.tally.waiting, run.crowd.tally.staying) == (95, 0, 0)


async def test_to_leave_takes_no_longer_than_that_where_no_master_hears(
    master: Any, clock: trio.testing.MockClock
) -> None:
    wait = {"Result": "Wait", "Data": {"Ticket": "t", "RetryAfter": 50.0}}
    async with master(wait, None) as asked:
        began = trio.current_time()
        with trio.move_on_after(10.0):
            await crowd(asked.address, clients=1).run()
        assert trio.current_time() - began <= 15.5


async def test_a_signal_shows_what_there_is_so_far(capsys: Capture) -> None:
    async with FakeBackend() as backend, queue_master(at(backend)) as asked, trio.open_nursery() as nursery:
        codes: list[int] = []
        options = ClientOptions((asked.address,), waits=True, clients=20, connections=2, json=True)

        async def run() -> None:
            codes.append(await run_client(options))

        waiting = trio.Event()
        asked.changed = lambda: waiting.set() if len(asked.answers) >= 20 else None
        nursery.start_soon(run)
        await waiting.wait()
        signal.raise_signal(signal.SIGINT)
    shown = capsys.readouterr()
    assert codes == [1]
    assert asked.queues.book.waiting == 0
    assert json.loads(shown.out)["left"] == 20
    assert shown.err == "lambdamu client: stopped by a signal; 20 have left the queue\n"


async def test_the_report_says_how_it_went(capsys: Capture, clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend), places=50) as asked:
        options = ClientOptions((asked.address,), waits=True, clients=30, connections=2, stay=1.0)
        assert await run_client(options) == 0
    shown = capsys.readouterr()
    assert "set out 30 of 30, waiting 0, let in 30\n" in shown.out
    assert "; all in order\n" in shown.out
    assert f"{at(backend)}" in shown.out
    assert shown.err == ""
