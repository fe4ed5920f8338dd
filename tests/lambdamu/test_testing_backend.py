"""The testing kit itself: what a fake backend counts, how it lives, and many of them."""

from __future__ import annotations

import resource
import socket
import struct
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.testing import SOCKET_SETTLE_S, FakeBackend, FakeFleet, Script, Stats, virtual_clock

AUTH = encode([Message("Auth", "Set", "UserName", "master"), Message("Auth", "Set", "UserMail", "m@localhost")])
COUNT = encode([Message("System", "Get", "UserCount")])
TASK_ANSWER = encode([Message("Auth", "Value", "TaskObject", "Task")])
COUNT_ANSWER = encode([Message("System", "Value", "UserCount", 10)])
ALL = len(TASK_ANSWER + COUNT_ANSWER)
RST = struct.pack("ii", 1, 0)


@pytest.fixture
def clock() -> MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


async def after(backend: FakeBackend, question: bytes, *, reset: bool = False, answer_bytes: int = 0) -> Stats:
    """Return the stats once a client has asked, read a part of the answer, and gone."""
    stream = await trio.open_tcp_stream(*backend.address)
    await stream.send_all(question)
    received = b""
    while len(received) < answer_bytes:
        received += await stream.receive_some(answer_bytes - len(received))
    if reset:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    await stream.aclose()
    return await backend.until(lambda stats: stats.opened > stats.open_now == 0)


VISITS: dict[str, tuple[Script, bytes, bool, int, str]] = {
    "a whole probe": (Script(), AUTH + COUNT, False, ALL, "ended_well"),
    "a count alone": (Script(), COUNT, False, len(COUNT_ANSWER), "ended_well"),
    "an Auth alone": (Script(), AUTH, False, len(TASK_ANSWER), "ended_well"),
    "errors for answers": (Script(error=True), COUNT, False, 1, "aborted"),
    "connect and drop": (Script(), b"", False, 0, "aborted"),
    "half of a question": (Script(), (AUTH + COUNT)[:-1], False, len(TASK_ANSWER), "aborted"),
    "gone before the answers": (Script(delay_s=1.0), AUTH + COUNT, False, 0, "aborted"),
    "one answer unread": (Script(), AUTH + COUNT, False, len(TASK_ANSWER), "aborted"),
    "a reset after the answers": (Script(), AUTH + COUNT, True, ALL, "aborted"),
    "no answer to Auth": (Script(drop="auth"), AUTH + COUNT, False, len(COUNT_ANSWER), "aborted"),
    "garbage for answers": (Script(garbage=b"xy"), AUTH + COUNT, False, 2, "aborted"),
    "half of the answers": (Script(half=True), AUTH + COUNT, False, ALL // 2, "aborted"),
    "gone while the answers come": (Script(split=True), AUTH + COUNT, False, 1, "aborted"),
    "a close half way": (Script(half_then_close=True), AUTH + COUNT, False, ALL // 2, "ended_here"),
    "bytes that are no MessagePack": (Script(), b"\xc1", False, 0, "ended_here"),
}


@pytest.mark.parametrize(("script", "question", "reset", "answer_bytes", "counted"), VISITS.values(), ids=VISITS.keys())
async def test_a_visit_is_counted_once_as_what_it_was(
    clock: MockClock, script: Script, question: bytes, reset: bool, answer_bytes: int, counted: str
) -> None:
    async with FakeBackend(script) as backend:
        stats = await after(backend, question, reset=reset, answer_bytes=answer_bytes)
    assert {end: getattr(stats, end) for end in ("aborted", "ended_well", "ended_here")} == {
        end: int(end == counted) for end in ("aborted", "ended_well", "ended_here")
    }


async def test_a_fake_remembers_who_asked_what_and_when(clock: MockClock) -> None:
    async with FakeBackend() as backend, await trio.open_tcp_stream(*backend.address) as stream:
        await trio.sleep(7.0)
        start = trio.current_time()
        for number, question in enumerate([AUTH + COUNT, COUNT, COUNT], 1):
            await stream.send_all(question)
            stats = await backend.until(lambda stats, number=number: stats.answered == number)
            assert stats.last_question == question
            await trio.sleep(1.0)
        assert (stats.user_name, stats.user_mail) == ("master", "m@localhost")
        assert stats.asked_at == (start, start + 1.0, start + 2.0)


async def test_an_answer_to_a_peer_that_had_already_gone_makes_the_visit_an_aborted_one(clock: MockClock) -> None:
    async with FakeBackend() as backend:
        with socket.create_connection(backend.address) as peer:
            peer.sendall(COUNT)
        assert (await backend.until(lambda stats: stats.opened > stats.open_now)).aborted == 1


async def test_a_probe_with_an_answer_still_owed_is_not_answered(clock: MockClock) -> None:
    async with FakeBackend(Script(drop="auth")) as backend:
        assert (await after(backend, AUTH + COUNT, answer_bytes=len(COUNT_ANSWER))).answered == 0


async def test_a_probe_given_up_waits_no_more(clock: MockClock) -> None:
    async with FakeBackend(Script(delay_s=1.0)) as backend:
        for _ in range(3):
            stats = await after(backend, COUNT)
        assert (stats.aborted, stats.concurrent_most) == (3, 1)


@pytest.mark.parametrize(("together", "most"), [(True, 3), (False, 1)])
async def test_probes_at_one_time_are_told_from_probes_one_after_the_other(
    clock: MockClock, *, together: bool, most: int
) -> None:
    async with FakeBackend(Script(delay_s=1.0)) as backend, trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(partial(after, backend, AUTH + COUNT, answer_bytes=ALL))
            await backend.until(lambda stats, number=number: stats.opened > number and (together or not stats.open_now))
        stats = await backend.until(lambda stats: stats.ended_well == 3)
    assert (stats.answered, stats.concurrent_most, stats.open_most) == (3, most, most)


# How it lives


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
async def test_a_fake_has_an_address_that_it_takes_again_when_it_is_started_again(clock: MockClock, host: str) -> None:
    backend = FakeBackend(host=host)
    ports = set()
    for _ in range(2):
        async with backend:
            assert (await after(backend, COUNT, answer_bytes=1)).opened
            ports.add(backend.address[1])
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*backend.address)
    assert backend.address == (host, *ports)


async def test_a_nursery_can_start_a_fake(clock: MockClock, nursery: trio.Nursery) -> None:
    backend = await nursery.start(FakeBackend().serve)
    assert (await after(backend, COUNT, answer_bytes=len(COUNT_ANSWER))).ended_well == 1


async def test_a_taken_address_is_an_error_at_once() -> None:
    async with FakeBackend() as backend:
        with pytest.raises(OSError, match="in use"):
            async with FakeBackend(port=backend.address[1]):
                pytest.fail("two listen at one address")


async def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with FakeBackend():
            raise KeyError("body")


@pytest.mark.parametrize("reset", [False, True])
async def test_hanging_up_ends_what_is_open_and_nothing_else(clock: MockClock, *, reset: bool) -> None:
    async with FakeBackend() as backend, await trio.open_tcp_stream(*backend.address) as stream:
        await backend.until(lambda stats: stats.open_now == 1)
        backend.hang_up(reset=reset)
        try:
            ended = "closed" if await stream.receive_some() == b"" else "data"
        except trio.BrokenResourceError:
            ended = "reset"
        assert ended == ("reset" if reset else "closed")
        stats = await after(backend, COUNT, answer_bytes=len(COUNT_ANSWER))
        assert (stats.opened, stats.ended_here, stats.ended_well) == (2, 1, 1)


async def test_a_fleet_is_many_backends_each_with_an_address_a_script_and_counters(clock: MockClock) -> None:
    async with FakeFleet(300, Script(delay_s=1.0)) as fleet:
        assert len(set(fleet.addresses)) == len(fleet) == 300
        fleet.script(delay_s=2.0)
        fleet[7].script(drop="both")
        async with trio.open_nursery() as nursery:
            for backend in fleet:
                nursery.start_soon(partial(after, backend, COUNT, answer_bytes=0 if backend is fleet[7] else 1))
        await fleet[7].until(lambda stats: stats.aborted == 1)
        assert trio.current_time() == 2.0
        assert sum(backend.stats().answered for backend in fleet) == 299


async def test_a_fleet_raises_the_soft_limit_of_descriptors_as_far_as_it_must(clock: MockClock) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (260, hard))
    try:
        async with FakeFleet(20):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20 * 3 + 256, hard)
        async with FakeFleet(1):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20 * 3 + 256, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
