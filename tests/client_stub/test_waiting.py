"""One client that a queue holds: what it shows, when it asks, and how it leaves."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.client import ClientOptions, run_client
from client_stub.show import place_text, span
from lambdamu.address import Address
from lambdamu.answers import Place
from lambdamu.testing import SOCKET_SETTLE_S, FakeBackend, virtual_clock
from tests.queue_master import queue_master

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


def at(backend: FakeBackend) -> Address:
    return Address(*backend.address)


def wait(retry_after_s: float = 5.0, **data: Any) -> dict[str, Any]:
    return {"Result": "Wait", "Data": {"Ticket": "t1", "RetryAfter": retry_after_s, **data}}


def waits(*masters: Address, **options: Any) -> ClientOptions:
    return ClientOptions(masters, waits=True, **options)


async def test_it_shows_a_line_per_change_and_then_where_it_went(
    master: Any, capsys: Capture, clock: trio.testing.MockClock
) -> None:
    says = [wait(Position=9, ETA=39.5, ETA90=80.0, Reason="NoPlace")] * 2 + [wait(Position=0, ETA=1.0, ETA90=3.0)]
    async with FakeBackend() as backend, master(*says, to=(at(backend),)) as asked:
        assert await run_client(waits(asked.address, queue="concert")) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{at(backend)} Task\n"
    assert shown.err.splitlines() == [
        "lambdamu client: waiting: 9 ahead, about 40 s, most likely within 1 min 20 s, NoPlace",
        "lambdamu client: waiting: next, about 1 s, most likely within 3 s",
    ]
    assert [ask.data.get("Ticket") for ask in asked.asks] == [None, "t1", "t1", "t1"]
    assert {(ask.data["Queue"], len(ask.data["Client"])) for ask in asked.asks} == {("concert", 32)}
    assert all(5.0 <= after - before < 5.3 for before, after in pairwise(asked.asked_at))


async def test_a_terminal_sees_one_line_that_changes(
    master: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch, clock: trio.testing.MockClock
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    primary, secondary = os.openpty()
    with os.fdopen(secondary, "w") as terminal, os.fdopen(primary, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        async with master(*[wait(Position=i) for i in (12, 11, 10)], {"Result": "NoServer"}) as asked:
            await run_client(waits(asked.address, json=True))
        seen = screen.read(65536)
    lines = seen.split(b"it answered NoServer")[0]
    assert [b"%d ahead" % i in lines for i in (12, 11, 10)] == [True] * 3
    assert lines.count(b"\n") <= 2  # the line is drawn over, not one below the other
    assert json.loads(capsys.readouterr().out)["result"] == "NoServer"


async def test_it_goes_away_says_so_first_and_comes_back(master: Any, clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, master(*[wait()] * 3, to=(at(backend),)) as asked:
        assert await run_client(waits(asked.address, away=60.0)) == 0
    assert [ask.data.get("Away") for ask in asked.asks] == [None, True, None, None]
    assert [round(after - before) for before, after in pairwise(asked.asked_at)] == [0, 60, 5]


async def test_when_it_has_waited_for_so_long_it_leaves(capsys: Capture, clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend)) as asked:
        assert await run_client(waits(asked.address, wait=30.0, json=True)) == 4
        assert asked.asks[-1]["Leave"]
        assert asked.queues.book.waiting == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["result"] == "Wait"
    assert shown.err.endswith("lambdamu client: it was not let in within 30 s, and has left\n")


async def test_a_signal_has_it_leave_the_queue(capsys: Capture) -> None:
    async with FakeBackend() as backend, queue_master(at(backend)) as asked, trio.open_nursery() as nursery:
        codes: list[int] = []

        async def run() -> None:
            codes.append(await run_client(waits(asked.address)))

        waiting = trio.Event()
        asked.changed = waiting.set
        nursery.start_soon(run)
        await waiting.wait()
        with trio.fail_after(30.0):
            while "waiting" not in (shown := capsys.readouterr().err):
                await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGINT)
    assert codes == [1]
    assert asked.queues.book.waiting == 0
    assert "waiting: next, NoPlace" in shown
    assert capsys.readouterr().err == "lambdamu client: stopped by a signal; it has left the queue\n"


async def test_a_place_outlasts_masters_that_are_gone_for_a_moment_and_a_no_server(
    master: Any, capsys: Capture, clock: trio.testing.MockClock
) -> None:
    nothing = {"Result": "NoServer", "Data": {"RetryAfter": 2.0}}
    async with FakeBackend() as backend, master(wait(), None, None, None, nothing, to=(at(backend),)) as asked:
        assert await run_client(waits(asked.address)) == 0
    assert [ask.data.get("Ticket") for ask in asked.asks] == [None, *["t1"] * 5]


async def test_masters_that_stay_away_end_the_wait(master: Any, capsys: Capture, clock: trio.testing.MockClock) -> None:
    async with master(wait(), None) as asked:
        began = trio.current_time()
        assert await run_client(waits(asked.address)) == 1
        assert 30.0 < trio.current_time() - began < 60.0
    assert "did not answer within 5 s" in capsys.readouterr().err


async def test_a_load_says_who_each_is_so_that_none_is_held(master: Any, nobody: Address) -> None:
    async with master({"Result": "Wait", "Data": {"RetryAfter": 3.0}}) as asked:
        assert await run_client(waits(asked.address, clients=5)) == 3
    assert len({ask.data["Client"] for ask in asked.asks}) == 5


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(None, None, None, 2.0), "waiting: nobody knows how long"),
        (Place(0, 0.0, None, 2.0), "waiting: next, about 0 s"),
        (Place(1, None, 7200.0, 2.0, "Rate"), "waiting: 1 ahead, most likely within 2 h, Rate"),
    ],
)
def test_a_place_is_one_line_and_what_is_unknown_is_left_out(place: Place, text: str) -> None:
    assert place_text(place) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.1, "1 s"),
        (59.0, "59 s"),
        (59.5, "1 min"),
        (130.0, "2 min 10 s"),
        (601.0, "11 min"),
        (3600.0, "1 h"),
        (11_100.0, "3 h 5 min"),
        (172_800.0, "2 d"),
        (1e300, "more than a year"),
    ],
)
def test_a_duration_is_said_as_people_do_and_never_too_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"wait": 0.0}, "'wait'"),
        ({"away": -1.0}, "'away'"),
        ({"connections": 0}, "'connections'"),
        ({"stay": -1.0, "connections": 1}, "'stay'"),
        ({"queue": ""}, "'queue'"),
        ({"queue": "x" * 129}, "'queue'"),
        ({"stay": 1.0}, "--stay"),
        ({"hold": 1.0, "connections": 1}, "--stay"),
        ({"clients": 2, "wait": 9.0}, "--connections"),
        ({"waits": False, "queue": "concert"}, "--plain"),
        ({"waits": False, "connections": 2}, "--plain"),
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        ClientOptions((), **{"waits": True, **wrong})
