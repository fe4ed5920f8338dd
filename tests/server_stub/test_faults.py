"""Faults: how they are read, and what a raw client sees of each."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
import trio

from lambdamu.datapack import encode
from lambdamu.messages import AUTH, SYSTEM, TASK_OBJECT, USER_COUNT, USER_MAIL, USER_NAME, Command, Message
from server_stub.faults import GARBAGE, Fault, Kind, parse_fault

LOG_IN = [Message(AUTH, Command.SET, USER_NAME, "ann"), Message(AUTH, Command.SET, USER_MAIL, "ann@example.org")]
ASK_COUNT = Message(SYSTEM, Command.GET, USER_COUNT)
TASK = Message(AUTH, Command.VALUE, TASK_OBJECT, "Task-1")


def count(value: Any) -> Message:
    return Message(SYSTEM, Command.VALUE, USER_COUNT, value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang-auth", Fault(Kind.HANG_AUTH)),
        ("hang-count", Fault(Kind.HANG_COUNT)),
        ("no-count", Fault(Kind.NO_COUNT)),
        ("garbage", Fault(Kind.GARBAGE)),
        ("close", Fault(Kind.CLOSE)),
        ("half", Fault(Kind.HALF)),
        ("slow:0", Fault(Kind.SLOW, delay_s=0.0)),
        ("slow:1.5", Fault(Kind.SLOW, delay_s=1.5)),
        ("slow:.5", Fault(Kind.SLOW, delay_s=0.5)),
        ("slow:2e1", Fault(Kind.SLOW, delay_s=20.0)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("007", 7),
        ("0" * 5000, 0),
        ("9223372036854775808", 2**63),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("3.5", 3.5),
        ("3.", 3.0),
        ("1e3", 1000.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("true", True),
        ("false", False),
        ("nil", None),
        ("[]", []),
        ("many", "many"),
        ("1:2", "1:2"),
        ("1_000", "1_000"),
        ("٣", "٣"),
        ('"12"', "12"),
        ('"true"', "true"),
        ('""', ""),
        ('"', '"'),
        (" ", " "),
    ],
)
def test_a_count_is_read_with_its_type(text: str, value: object) -> None:
    read = parse_fault(f"count:{text}").count
    assert (type(read), read) == (type(value), value)


def test_a_count_can_be_no_number() -> None:
    assert math.isnan(parse_fault("count:nan").count)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "there are hang-auth, hang-count, no-count, garbage, close, half, slow:SECONDS, count:VALUE"),
        ("Half", '"Half" is no fault'),
        ("half:", '"half:" is no fault'),
        ("half:2", '"half:2" is no fault'),
        ("slow", '"slow" is no fault'),
        ("slow:", '"slow:" is no fault'),
        ("slow:-1", '"-1" is no delay'),
        ("slow:nan", '"nan" is no delay'),
        ("slow:inf", '"inf" is no delay'),
        ("slow:1e999", '"1e999" is no delay'),
        ("slow:1_0", '"1_0" is no delay'),
        ("count", '"count" is no fault'),
        ("count:", '"count:" is no fault'),
        ("count:18446744073709551616", "outside of what MessagePack can carry"),
        ("count:-9223372036854775809", "outside of what MessagePack can carry"),
        ("count:" + "9" * 5000, "outside of what MessagePack can carry"),
        ("count:\udcff", "not valid UTF-8"),
        ("half\nclose", '"half\\nclose" is no fault'),
    ],
)
def test_what_is_no_fault_is_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        parse_fault(text)
    assert part in str(refusal.value)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        ("hang-auth", [[count(3)]]),
        ("hang-count", [[TASK]]),
        ("no-count", [[TASK], [count(None)]]),
        ("count:-1", [[TASK], [count(-1)]]),
        ("count:3.5", [[TASK], [count(3.5)]]),
        ("count:true", [[TASK], [count(True)]]),
        ("count:[]", [[TASK], [count([])]]),
        ('count:"12"', [[TASK], [count("12")]]),
        ("count:9223372036854775808", [[TASK], [count(2**63)]]),
    ],
)
async def test_a_raw_client_sees_an_answer_left_out_or_changed(
    backend: Any, fault: str, sent: list[list[Message]]
) -> None:
    async with backend(fault, users=3) as faulty, faulty.client() as client:
        await client.say(*LOG_IN)
        await client.say(ASK_COUNT)
        assert await client.rest() == b"".join(encode(batch) for batch in sent)


async def test_a_count_of_nil_is_said_and_not_left_out(backend: Any) -> None:
    async with backend("count:nil") as faulty, faulty.client() as client:
        await client.say(ASK_COUNT)
        assert (await client.hear())[0] == {"Object": SYSTEM, "Command": "Value", "Name": USER_COUNT, "Data": None}


async def test_no_count_has_no_data_at_all(backend: Any) -> None:
    async with backend("no-count") as faulty, faulty.client() as client:
        await client.say(ASK_COUNT)
        assert (await client.hear())[0].keys() == {"Object", "Command", "Name"}


async def test_garbage_comes_instead_of_each_answer(backend: Any) -> None:
    async with backend("garbage") as faulty, faulty.client() as client:
        await client.say(*LOG_IN)
        await client.say(ASK_COUNT)
        received = await client.rest()
    assert received == GARBAGE * 2
    with pytest.raises(msgpack.FormatError):
        msgpack.unpackb(received[:1])


async def test_close_takes_a_connection_and_ends_it_without_a_word(backend: Any) -> None:
    async with backend("close") as faulty, faulty.client() as client:
        assert await client.hear() is None
        async with faulty.client() as another:
            assert await another.hear() is None


async def test_half_of_the_first_answer_comes_then_nothing(backend: Any) -> None:
    async with backend("half") as faulty, faulty.client() as client:
        await client.say(*LOG_IN)
        await client.say(ASK_COUNT)
        await client.say(ASK_COUNT)
        half = encode([TASK])
        assert await client.rest() == half[: len(half) // 2]


async def test_half_holds_for_each_connection_anew(backend: Any) -> None:
    half = encode([count(0)])[: len(encode([count(0)])) // 2]
    async with backend("half") as faulty:
        for _ in range(2):
            async with faulty.client() as client:
                await client.say(ASK_COUNT)
                assert await client.rest() == half


async def test_half_is_silent_to_none_but_those_that_had_theirs(backend: Any) -> None:
    """A peer that breaks the rules gets half of its Error, and takes nothing from one that has asked before it."""
    async with backend("half") as faulty, faulty.client() as quiet, faulty.client() as client:
        await quiet.say(LOG_IN[0])
        await client.stream.send_all(b"\xc1")
        assert await client.rest() != b""
        await quiet.say(ASK_COUNT)
        assert await quiet.rest() != b""


async def test_slow_answers_late(backend: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with backend("slow:0.75", users=3) as faulty, faulty.client() as client:
        began = trio.current_time()
        assert await client.count() == 3
        assert trio.current_time() - began == pytest.approx(0.75)


async def test_slow_holds_one_connection_up_and_not_the_next(
    backend: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend("slow:1") as faulty, faulty.client() as client, faulty.client() as another:
        began = trio.current_time()
        await client.say(ASK_COUNT)
        await another.say(ASK_COUNT)
        await client.hear()
        await another.hear()
        assert trio.current_time() - began == pytest.approx(1.0)


async def test_slow_forgets_what_it_owes_to_one_that_left(backend: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with backend("slow:1000") as faulty:
        async with faulty.client() as client:
            await client.say(*LOG_IN)
        began = trio.current_time()
        faulty.stop.set()
        await faulty.stopped.wait()
        assert trio.current_time() - began < 5.0
