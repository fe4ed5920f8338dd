"""The load generator: what adds up, when clients set out, and how many there are at once."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.client import ClientOptions, run_client
from client_stub.load import IN_FLIGHT, Load, file_slots
from lambdamu.address import Address
from lambdamu.caller import Caller
from lambdamu.tcp_server import Ending, PortObserver

Capture = pytest.CaptureFixture[str]

NO_SERVER = {"Result": "NoServer", "Data": {"RetryAfter": 1.0}}


class Crowd(PortObserver):
    """Counts the connections of a port, and keeps the most there were at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def opened(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def ended(self, how: Ending) -> None:
        self.now -= 1


def make_load(
    *masters: Address, slots: int | None = None, say: Callable[[str], None] = lambda _: None, **options: Any
) -> Load:
    given = ClientOptions(masters, **options)
    return Load(given, Caller("ann", "ann@example.org", given.timeout_s), random.Random(0), slots, say)


def send_to(*addresses: Address) -> list[dict[str, Any]]:
    return [{"Result": "OK", "Data": {"IP": to.host, "Port": to.port}} for to in addresses]


async def test_what_is_counted_adds_up(master: Any, backend: Any, nobody: Address, capsys: Capture) -> None:
    async with (
        backend() as one,
        backend(capacity=0) as full,
        master(*send_to(one.address, full.address, nobody) * 10, NO_SERVER) as asked,
    ):
        code = await run_client(ClientOptions((asked.address,), json=True, clients=40))
        assert len(asked.asks) == 40
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert code == 1
    assert report["backends"] == {
        str(one.address): {"sent": 10, "connected": 10, "failed": 0},
        str(full.address): {"sent": 10, "connected": 0, "failed": 10},
        str(nobody): {"sent": 10, "connected": 0, "failed": 10},
    }
    assert (report["asked"], report["no_server"], report["failed"]) == (40, 10, 20)
    times = list(report["answer_s"].values())
    assert times == sorted(times)
    assert times[0] > 0
    assert f"lambdamu client: 10 x backend {full.address}: it answered the error Full" in shown.err


async def test_when_every_client_gets_through_it_exits_0(master: Any, backend: Any, capsys: Capture) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked:
        assert await run_client(ClientOptions((asked.address,), clients=20)) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert str(stub.address) in shown.out
    assert "asked 20, no server 0, failed 0\nanswered in p50 " in shown.out


async def test_when_there_is_a_backend_for_none_it_exits_3(master: Any, capsys: Capture) -> None:
    async with master(NO_SERVER) as asked:
        assert await run_client(ClientOptions((asked.address,), clients=7, json=True)) == 3
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["backends"], report["no_server"]) == ({}, 7)
    assert shown.err == f"lambdamu client: 7 x master {asked.address}: it answered NoServer\n"


async def test_when_no_master_answers_it_exits_1_and_has_no_times(
    nobody: Address, capsys: Capture, autojump_clock: trio.testing.MockClock
) -> None:
    assert await run_client(ClientOptions((nobody,), clients=7, json=True)) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["asked"], report["failed"]) == (7, 7)
    assert report["answer_s"] == {"p50": None, "p90": None, "p99": None, "max": None}


async def test_ask_only_counts_who_was_sent(master: Any, nobody: Address, capsys: Capture) -> None:
    async with master(to=(nobody,)) as asked:
        code = await run_client(ClientOptions((asked.address,), clients=9, ask_only=True, json=True))
    assert code == 0
    assert json.loads(capsys.readouterr().out)["backends"] == {str(nobody): {"sent": 9, "connected": 0, "failed": 0}}


async def test_one_client_with_a_rate_is_a_load(master: Any, nobody: Address, capsys: Capture) -> None:
    async with master(to=(nobody,)) as asked:
        await run_client(ClientOptions((asked.address,), rate=10.0, ask_only=True, json=True))
    assert json.loads(capsys.readouterr().out)["asked"] == 1


async def test_a_master_that_fails_is_skipped_by_each(master: Any, nobody: Address) -> None:
    async with master(to=(nobody,)) as asked:
        load = make_load(nobody, asked.address, clients=50, ask_only=True)
        await load.run()
    assert (load.tally.sent, load.tally.failed) == (50, 0)


async def test_clients_set_out_when_they_are_due(
    master: Any, nobody: Address, autojump_clock: trio.testing.MockClock
) -> None:
    async with master(to=(nobody,)) as asked:
        began = trio.current_time()
        await make_load(asked.address, clients=6, rate=10.0, ask_only=True).run()
    assert [at - began for at in asked.asked_at] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


async def test_with_a_rate_clients_set_out_however_slow_those_before_are(
    master: Any, autojump_clock: trio.testing.MockClock
) -> None:
    crowd = Crowd()
    async with master(None, observer=crowd) as silent:
        await make_load(silent.address, clients=250, rate=100.0).run()
    assert crowd.most == 250


async def test_without_a_rate_a_bounded_number_asks_at_once(
    master: Any, autojump_clock: trio.testing.MockClock
) -> None:
    crowd = Crowd()
    async with master(None, observer=crowd) as silent:
        await make_load(silent.address, clients=250).run()
    assert crowd.most == IN_FLIGHT


async def test_those_that_stay_hold_nobody_up(
    master: Any, backend: Any, autojump_clock: trio.testing.MockClock
) -> None:
    crowd = Crowd()
    async with backend(observer=crowd) as stub, master(to=(stub.address,)) as asked:
        began = trio.current_time()
        await make_load(asked.address, clients=250, hold=30.0).run()
        assert trio.current_time() - began == pytest.approx(30.0)
    assert crowd.most == 250


@pytest.mark.parametrize("rate", [None, 1000.0])
async def test_never_more_are_connected_than_files_allow(
    master: Any, backend: Any, autojump_clock: trio.testing.MockClock, rate: float | None
) -> None:
    crowd, said = Crowd(), list[str]()
    async with backend(observer=crowd) as stub, master(to=(stub.address,)) as asked:
        load = make_load(asked.address, slots=3, say=said.append, clients=20, rate=rate, hold=5.0)
        await load.run()
    assert crowd.most == 3
    assert load.tally.backends[stub.address].connected == 20
    assert said == ["held back: the limit of open files (ulimit -n) allows 3 clients at once"]


async def test_who_is_not_held_back_hears_nothing_of_limits(master: Any, nobody: Address) -> None:
    said: list[str] = []
    async with master(to=(nobody,)) as asked:
        await make_load(asked.address, slots=100, say=said.append, clients=20, ask_only=True).run()
    assert said == []


@pytest.mark.parametrize(
    ("open_files", "slots"), [(1024, 960), (65, 1), (64, 1), (0, 1), (resource.RLIM_INFINITY, None)]
)
def test_a_limit_of_open_files_leaves_some_for_all_else(open_files: int, slots: int | None) -> None:
    assert file_slots(open_files) == slots


async def test_a_backend_that_ends_a_stay_makes_nobody_fail(master: Any, backend: Any) -> None:
    async with backend() as stub, master(to=(stub.address,)) as asked, trio.open_nursery() as nursery:
        load = make_load(asked.address, clients=5, hold=float("inf"))
        nursery.start_soon(load.run)
        while load.tally.sent < 5 or load.tally.backends[stub.address].connected < 5:
            await trio.lowlevel.checkpoint()
        stub.stop.set()
    assert (load.tally.done, load.tally.exit_code()) == (5, 0)


async def test_a_signal_shows_what_there_is_so_far(
    master: Any, capsys: Capture, nobody: Address, autojump_clock: trio.testing.MockClock
) -> None:
    async with master(*send_to(nobody, nobody), None) as asked, trio.open_nursery() as nursery:
        codes: list[int] = []

        async def run() -> None:
            options = ClientOptions((asked.address,), clients=10, ask_only=True, json=True, timeout_s=1000.0)
            codes.append(await run_client(options))

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        while len(asked.asks) < 10:
            await trio.lowlevel.checkpoint()
        began = trio.current_time()
        signal.raise_signal(signal.SIGINT)
        while not codes:
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == began
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert codes == [1]
    assert (report["asked"], report["backends"][str(nobody)]["sent"], report["failed"]) == (10, 2, 0)
    assert shown.err == "lambdamu client: stopped by a signal after 2 of 10 clients\n"


async def test_a_terminal_sees_a_bar_and_the_output_stays_clean(
    master: Any, nobody: Address, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    primary, secondary = os.openpty()
    with os.fdopen(secondary, "w") as terminal, os.fdopen(primary, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        async with master(to=(nobody,)) as asked:
            await run_client(ClientOptions((asked.address,), clients=5, ask_only=True, json=True))
        assert b"clients" in screen.read(4096)
    assert json.loads(capsys.readouterr().out)["asked"] == 5
