"""The testing kit itself: virtual time, streams in memory, and what a fake backend says."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock, check_half_closeable_stream

from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.testing import (
    ABSENT,
    SOCKET_SETTLE_S,
    FakeBackend,
    MemoryStream,
    Script,
    at_random,
    every_byte,
    memory_pair,
    run_virtual,
    virtual_clock,
    whole,
)
from lambdamu.testing.script import fields_from_json, fields_to_json
from lambdamu.testing.streams import Cut

AUTH = encode([Message("Auth", "Set", "UserName", "master"), Message("Auth", "Set", "UserMail", "m@localhost")])
COUNT = encode([Message("System", "Get", "UserCount")])
TASK_ANSWER = encode([Message("Auth", "Value", "TaskObject", "Task")])
COUNT_ANSWER = encode([Message("System", "Value", "UserCount", 10)])
BOTH_ANSWERS = TASK_ANSWER + COUNT_ANSWER
SILENCE_S = 60.0


@pytest.fixture
def clock() -> MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


async def exchange(stream: trio.abc.Stream, question: bytes = b"") -> tuple[bytes, str]:
    """Send `question`; return all that comes, and how it ends: closed, reset, or silence."""
    data = b""
    with trio.move_on_after(SILENCE_S):
        try:
            await stream.send_all(question)
            while some := await stream.receive_some():
                data += some
        except trio.BrokenResourceError:
            return data, "reset"
        return data, "closed"
    return data, "silence"


async def ask(backend: FakeBackend, question: bytes = AUTH + COUNT) -> tuple[bytes, str]:
    async with await trio.open_tcp_stream(*backend.address) as stream:
        return await exchange(stream, question)


# Virtual time


async def slept(seconds: float) -> float:
    start = trio.current_time()
    await trio.sleep(seconds)
    return trio.current_time() - start


def test_a_year_passes_at_once_and_the_result_comes_out() -> None:
    assert run_virtual(slept, 365 * 86400.0) == 365 * 86400.0


async def test_a_fixture_puts_a_test_in_virtual_time(clock: MockClock) -> None:
    assert await slept(86400.0) == 86400.0


# Streams


@pytest.mark.parametrize("cut", [whole, at_random(random.Random(7))], ids=["whole", "cut"])
async def test_an_end_of_a_pair_does_all_that_trio_asks_of_a_stream(cut: Cut) -> None:
    async def pair() -> tuple[MemoryStream, MemoryStream]:
        return memory_pair(cut=cut)

    async def clogged_pair() -> tuple[MemoryStream, MemoryStream]:
        ends = memory_pair(cut=cut, window_bytes=1)
        for end in ends:
            await end.send_all(b"x")
        return ends

    await check_half_closeable_stream(pair, clogged_pair)


async def pieces(cut: Cut, data: bytes) -> list[bytes]:
    near, far = memory_pair(cut=cut)
    await near.send_all(data)
    await near.send_eof()
    return [piece async for piece in far]


async def test_a_write_comes_in_the_pieces_that_it_is_cut_into() -> None:
    data = bytes(range(200))
    assert await pieces(whole, data) == [data]
    assert await pieces(every_byte, data) == [bytes([byte]) for byte in data]
    one, same, other = [await pieces(at_random(random.Random(seed)), data) for seed in (1, 1, 2)]
    assert one == same != other
    assert b"".join(one) == b"".join(other) == data


async def test_a_reset_loses_what_was_under_way_and_breaks_both_ways() -> None:
    near, far = memory_pair()
    await near.send_all(b"lost")
    near.reset()
    with pytest.raises(trio.BrokenResourceError):
        await far.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await far.send_all(b"x")
    with pytest.raises(trio.ClosedResourceError):
        await near.receive_some()


async def test_a_write_to_a_peer_that_never_reads_waits_once_the_window_is_full(clock: MockClock) -> None:
    near, far = memory_pair(window_bytes=10)
    with trio.move_on_after(SILENCE_S) as scope:
        await near.send_all(b"0123456789")
        await near.send_all(b"x")
    assert scope.cancelled_caught
    assert await far.receive_some() == b"0123456789"


# What a fake backend says

USERS = [-1, 2**63, 3.5, 1e308, math.inf, True, "12", b"12", [], {1: 2}, None, msgpack.ExtType(1, b"x")]


def count_answer(users: Any) -> bytes:
    return msgpack.packb(
        [{"Object": "System", "Command": "Value", "Name": "UserCount", "Data": users}], use_bin_type=False
    )


ERROR = {"Code": "UnknownObject", "Text": "there is no such object here"}
EXTRA = encode([Message("Clock", "Value", "Time", 0)])
BOTH = [Message("Auth", "Value", "TaskObject", "Task"), Message("System", "Value", "UserCount", 10)]
SAYS: dict[str, tuple[Script, bytes, str]] = {
    "good": (Script(), BOTH_ANSWERS, "silence"),
    **{f"users {users!r}": (Script(users=users), TASK_ANSWER + count_answer(users), "silence") for users in USERS},
    "users nan": (Script(users=math.nan), TASK_ANSWER + count_answer(math.nan), "silence"),
    "users absent": (Script(users=ABSENT), TASK_ANSWER + encode([Message("System", "Value", "UserCount")]), "silence"),
    "task empty": (Script(task=""), encode([Message("Auth", "Value", "TaskObject", "")]) + COUNT_ANSWER, "silence"),
    "drop auth": (Script(drop="auth"), COUNT_ANSWER, "silence"),
    "drop count": (Script(drop="count"), TASK_ANSWER, "silence"),
    "drop both": (Script(drop="both"), b"", "silence"),
    "double": (Script(double=True), TASK_ANSWER * 2 + COUNT_ANSWER * 2, "silence"),
    "garbage": (Script(garbage=b"HTTP/1.1 400\r\n"), b"HTTP/1.1 400\r\n", "silence"),
    "reset at accept": (Script(reset="accept"), b"", "reset"),
    "reset at the request": (Script(reset="request"), b"", "reset"),
    "reset half way": (Script(reset="half"), BOTH_ANSWERS[: len(BOTH_ANSWERS) // 2], "reset"),
    "half": (Script(half=True), BOTH_ANSWERS[: len(BOTH_ANSWERS) // 2], "silence"),
    "half, then close": (Script(half_then_close=True), BOTH_ANSWERS[: len(BOTH_ANSWERS) // 2], "closed"),
    "one batch": (Script(one_batch=True), encode(BOTH), "silence"),
    "swapped": (Script(swapped=True), COUNT_ANSWER + TASK_ANSWER, "silence"),
    "swapped in one batch": (Script(swapped=True, one_batch=True), encode(BOTH[::-1]), "silence"),
    "split": (Script(split=True), BOTH_ANSWERS, "silence"),
    "extra": (Script(extra=True), EXTRA + BOTH_ANSWERS, "silence"),
    "error": (
        Script(error=True),
        encode([Message("Auth", "Error", name, ERROR) for name in ("UserName", "UserMail")])
        + encode([Message("System", "Error", "UserCount", ERROR)]),
        "silence",
    ),
}


@pytest.mark.parametrize(("script", "says", "ending"), SAYS.values(), ids=SAYS.keys())
async def test_a_fake_says_what_its_script_says(clock: MockClock, script: Script, says: bytes, ending: str) -> None:
    async with FakeBackend(script) as backend:
        assert await ask(backend) == (says, ending)


async def test_a_fake_that_closes_what_it_accepted_says_nothing(clock: MockClock) -> None:
    async with FakeBackend(Script(close=True)) as backend:
        assert await ask(backend, b"") == (b"", "closed")


@pytest.mark.parametrize("script", [script for script, _, _ in SAYS.values()], ids=SAYS.keys())
def test_a_script_survives_json(script: Script) -> None:
    fields = {name: getattr(script, name) for name in Script.__match_args__}
    assert repr(fields_from_json(json.loads(json.dumps(fields_to_json(fields), allow_nan=False)))) == repr(
        {name: str(value) if name in ("drop", "reset") else value for name, value in fields.items()}
    )


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"users": {1}}, ValueError),
        ({"task": 2**64}, ValueError),
        ({"drop": "some"}, ValueError),
        ({"reset": "now"}, ValueError),
        ({"delay_s": -1.0}, ValueError),
        ({"delay_s": math.nan}, ValueError),
        ({"garbage": "text"}, TypeError),
        ({"half": "no"}, TypeError),
        ({"nonsense": 1}, TypeError),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        FakeBackend().script(**changes)


async def test_an_answer_that_must_not_be_the_first_waits_for_the_other_question(clock: MockClock) -> None:
    async with FakeBackend(Script(swapped=True)) as backend, await trio.open_tcp_stream(*backend.address) as stream:
        assert await exchange(stream, AUTH) == (b"", "silence")
        assert await exchange(stream, COUNT) == (COUNT_ANSWER + TASK_ANSWER, "silence")


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
async def test_after_half_an_answer_the_connection_is_silent_and_a_new_one_is_not(
    clock: MockClock, delay_s: float
) -> None:
    async with FakeBackend(Script(half=True, delay_s=delay_s)) as backend:
        async with await trio.open_tcp_stream(*backend.address) as stream:
            await stream.send_all(COUNT)
            await trio.sleep(delay_s / 2)
            await stream.send_all(COUNT)
            assert await stream.receive_some() == COUNT_ANSWER[: len(COUNT_ANSWER) // 2]
            backend.script(half=False)
            assert await exchange(stream, COUNT) == (b"", "silence")
        assert await ask(backend) == (BOTH_ANSWERS, "silence")


async def test_a_question_in_single_bytes_is_answered_once(clock: MockClock) -> None:
    async with FakeBackend() as backend, await trio.open_tcp_stream(*backend.address) as stream:
        for byte in every_byte(AUTH + COUNT):
            await stream.send_all(byte)
        assert await exchange(stream) == (BOTH_ANSWERS, "silence")


async def test_each_answer_comes_so_long_after_its_question(clock: MockClock) -> None:
    async with FakeBackend(Script(delay_s=4.0)) as backend, await trio.open_tcp_stream(*backend.address) as stream:
        start = trio.current_time()
        for pause_s in (1.0, 0.0):
            await stream.send_all(COUNT)
            await trio.sleep(pause_s)
        came_s = []
        for _ in range(2):
            assert await stream.receive_some() == COUNT_ANSWER
            came_s.append(trio.current_time() - start)
        assert came_s == [4.0, 5.0]


async def test_a_change_of_the_script_holds_from_the_next_answer_on(clock: MockClock) -> None:
    async with FakeBackend() as backend, await trio.open_tcp_stream(*backend.address) as stream:
        for users in (10, 11, "many"):
            backend.script(users=users)
            await stream.send_all(COUNT)
            assert await stream.receive_some() == count_answer(users)
