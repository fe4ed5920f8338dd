"""The backend on a real port: over connections, at a stop, and by signals."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import AUTH, SESSION, SYSTEM, USER_COUNT, USER_MAIL, USER_NAME, Command, Message
from lambdamu.tcp_server import PortLimits, open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock
from master.cache.port import CachePort
from master.cache.service import Guard
from server_stub.backend import ServerOptions, parse_fault, run_server
from tests.master.cache.wire import make_service
from tests.server_stub.conftest import ANY_PORT, Process, RawClient, log_in


async def test_a_pair_may_come_in_two_batches(backend: Any) -> None:
    async with backend() as stub, stub.client() as client:
        await client.say(Message(AUTH, Command.SET, USER_NAME, "ann"))
        await client.say(Message(AUTH, Command.SET, USER_MAIL, "ann@example.org"))
        assert (await client.hear())[0]["Data"] == "Task-1"


async def test_a_probe_in_one_write_gets_both_answers(backend: Any) -> None:
    async with backend(users=3) as stub, stub.client() as client:
        await client.log_in("lambdamu-master", "master@localhost")
        assert await client.count() == 3


async def test_a_user_that_leaves_is_counted_no_more(backend: Any) -> None:
    async with backend() as stub, stub.client() as watcher:
        async with stub.client() as client:
            await client.log_in()
            assert await watcher.count() == 1
            await client.rest()
        while await watcher.count():
            await trio.lowlevel.checkpoint()


async def test_one_too_many_is_told_so_and_stays_connected(backend: Any) -> None:
    async with backend(capacity=1) as stub, stub.client() as client, stub.client() as late:
        await client.log_in()
        refusal = await late.log_in()
        assert (refusal["Command"], refusal["Data"]["Code"]) == ("Error", "Full")
        assert await late.count() == 1


async def test_an_unknown_name_is_answered_with_an_error(backend: Any) -> None:
    async with backend() as stub, stub.client() as client:
        await client.say(Message(SYSTEM, Command.GET, "Weather"))
        assert (await client.hear())[0]["Data"]["Code"] == "UnknownName"


async def test_a_stop_ends_open_connections(backend: Any) -> None:
    async with backend() as stub, stub.client() as client:
        await client.log_in()
        stub.stop.set()
        assert await client.hear() is None
        await client.stream.send_eof()
        await stub.stopped.wait()


async def test_a_stop_waits_for_an_answer_that_is_owed_soon(
    backend: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend("slow:2") as stub, stub.client() as client:
        await client.say(Message(SYSTEM, Command.GET, USER_COUNT))
        await trio.testing.wait_all_tasks_blocked()
        stub.stop.set()
        assert (await client.hear())[0]["Data"] == 0


async def test_a_stop_is_over_within_five_seconds_whatever_is_owed(
    backend: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend("slow:1000") as stub, stub.client() as client:
        await client.say(Message(SYSTEM, Command.GET, USER_COUNT))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        stub.stop.set()
        await stub.stopped.wait()
        assert trio.current_time() - began < 5.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_well(number: signal.Signals) -> None:
    process = Process(name="b1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        await process.listening.wait()
        async with await trio.open_tcp_stream(process.address.host, process.address.port) as stream:
            await stream.send_all(encode([Message(SYSTEM, Command.GET, USER_COUNT)]))
            assert await stream.receive_some()
            signal.raise_signal(number)
            assert await stream.receive_some() == b""
    assert process.exit_code == 0
    assert process.said == [f"lambdamu server b1 listening on {process.address}"]


async def test_sigusr1_has_it_drain_and_ends_that_and_stops_nothing() -> None:
    lines: list[str] = []

    async def signals() -> None:
        while not lines:  # noqa: ASYNC110 - the line that says that it listens
            await trio.sleep(0.01)
        for number in (signal.SIGUSR1, signal.SIGUSR1):
            signal.raise_signal(number)
            await trio.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(signals)
            options = ServerOptions(listen=ANY_PORT, load=True)
            assert await run_server(options, say=lines.append, complain=lines.append) == 0
    assert lines[1:] == ["lambdamu server drains", "lambdamu server drains no more"]


async def test_a_second_signal_ends_it_at_once(autojump_clock: trio.testing.MockClock) -> None:
    process = Process(fault=parse_fault("slow:1000"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        await process.listening.wait()
        async with await trio.open_tcp_stream(process.address.host, process.address.port) as stream:
            await stream.send_all(encode([Message(SYSTEM, Command.GET, USER_COUNT)]))
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            signal.raise_signal(signal.SIGTERM)
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGTERM)
            assert await stream.receive_some() == b""
        assert trio.current_time() == began
    assert process.exit_code == 1


async def test_without_a_name_it_is_called_by_its_address() -> None:
    process = Process()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        await process.listening.wait()
        signal.raise_signal(signal.SIGTERM)
    assert process.said == [f"lambdamu server {process.address} listening on {process.address}"]
    assert process.address.port != 0


async def test_a_name_stays_on_its_line() -> None:
    process = Process(name="b1\nb2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        await process.listening.wait()
        signal.raise_signal(signal.SIGTERM)
    assert process.said[0].startswith("lambdamu server b1\\nb2 listening on ")


async def test_a_port_that_is_taken_is_one_line_and_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname()[:2])
        process = Process(listen=address)
        await process.run()
    assert process.exit_code == 1
    assert process.said == []
    assert process.complaints == [f"lambdamu server: cannot listen on {address}: Address already in use"]


async def test_a_host_that_is_not_ours_is_one_line_and_a_failure() -> None:
    process = Process(listen=Address("192.0.2.1", 0))
    await process.run()
    assert process.exit_code == 1
    assert [line.isprintable() for line in process.complaints] == [True]


@pytest.mark.parametrize("wrong", [{"users": -1}, {"users": 2**53}, {"capacity": -1}])
def test_options_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ServerOptions(ANY_PORT, **wrong)


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(3 * SOCKET_SETTLE_S)


@pytest.mark.parametrize(
    ("secret", "why"),
    [("", "say the secret first, as Auth.Set UserName and UserMail"), ("old", "this is not the secret")],
)
async def test_what_the_cache_wants_is_for_the_log_and_the_app_hears_that_it_keeps_its_session(
    clock: trio.testing.MockClock, secret: str, why: str
) -> None:
    guard = Guard("a secret")
    async with trio.open_nursery() as nursery:
        port = CachePort(make_service(guard=guard), PortLimits(), 1000, knows=guard.lets_in, wanted=guard.wanted)
        [cache] = await nursery.start(port.serve, open_listeners(ANY_PORT))
        process = Process(cache=cache, cache_secret=secret)
        nursery.start_soon(process.run)
        await process.listening.wait()
        for shown in ("", "s1"):
            async with await trio.open_tcp_stream("127.0.0.1", process.address.port) as stream:
                client = RawClient(stream)
                await client.say(Message(AUTH, Command.SET, SESSION, shown), *log_in())
                [answer] = await client.hear()
                text = "sessions cannot be had now; keep yours, and try again"
                assert answer["Data"] == {"Code": "NoStore", "Text": text}
        await trio.sleep(60.0)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    how = "" if secret else "without a secret "
    said = f"the cache {cache}: {how}it answered the error NotYours: {why}; nobody can log in with a session"
    assert process.complaints == [f"lambdamu server: {said}"]
