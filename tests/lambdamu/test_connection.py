"""One connection of a port, over streams in memory and in virtual time. Times are in seconds from the start.

The file is long because each promise of a connection is held against both ports.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lambdamu.datapack import encode
from lambdamu.errors import LocalProtocolError
from lambdamu.messages import Message
from lambdamu.objects import Farewell
from lambdamu.port import Ending
from lambdamu.stream_server import StreamServer
from lambdamu.testing import SOCKET_SETTLE_S, at_random, every_byte, virtual_clock, whole
from lambdamu.testing.streams import Cut

MakePort = Callable[..., Any]

CUTS = {"whole": whole, "byte by byte": every_byte}
BATCH_BYTES = 65536
SLACK_S = 1e-6
"""Sums of floats differ in their last digits."""


@pytest.fixture
def clock(port_class: Any) -> MockClock:
    """Time that jumps; where bytes go by sockets, it waits until the kernel has carried them."""
    return virtual_clock(0.0 if port_class is StreamServer else SOCKET_SETTLE_S)


@pytest.fixture
def slow_clock(port_class: Any) -> MockClock:
    """The same for a socket that is full: what finds no room there is sent anew by the kernel's own timers."""
    return virtual_clock(0.0 if port_class is StreamServer else 5 * SOCKET_SETTLE_S)


def get(*data: Any, name: str = "Echo") -> bytes:
    """Return a batch with a question for each of `data`."""
    return encode([Message("Desk", "Get", name, item) for item in data])


def event(name: str, data: Any = None) -> bytes:
    return encode([Message("Desk", "Event", name, data)])


NOTE = encode([Message("Desk", "Set", "Note", "n")])


# What is asked is answered, in order.


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_answers_are_the_same_however_the_questions_are_cut(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, cut: Cut
) -> None:
    peer = make_port().meet(nursery, cut=cut)
    await peer.send(get(1) + get(2, 3) + NOTE + get("x" * 300))
    await peer.finish()
    assert await peer.last_data() == [[1], [2, 3], ["x" * 300]]


@pytest.mark.parametrize("at", range(1, len(get("a"))))
async def test_a_question_in_two_pieces_has_one_answer(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, at: int
) -> None:
    peer = make_port().meet(nursery)
    await peer.send(get("a")[:at])
    await trio.sleep(1)
    await peer.send(get("a")[at:])
    await peer.finish()
    assert await peer.last_data() == [["a"]]


async def test_of_thirty_questions_and_a_half_in_one_write_thirty_are_answered_at_once(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    peer = make_port().meet(nursery)
    last = get(30)
    await peer.send(b"".join(get(i) for i in range(30)) + last[:20])
    assert [await peer.data() for _ in range(30)] == [[i] for i in range(30)]
    await peer.send(last[20:])
    assert await peer.data() == [30]


async def test_every_batch_with_an_answer_is_counted_and_the_time_that_answers_were_owed_is_not(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(get(1) + NOTE + event("Owe", 2) + get(3))
    assert await peer.data() == [1]
    await trio.sleep(20)
    port.desk.pay(2)
    assert [await peer.data(), await peer.data()] == [[2], [3]]
    await port.until(lambda: sum(batches for batches, _ in port.ledger.replies) == 3)
    assert all(took < 1 for _, took in port.ledger.replies)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        pytest.param([NOTE, get(1)], [[1]], id="a batch that nothing answers"),
        pytest.param([encode([]), get(1)], [[1]], id="an empty batch"),
        pytest.param([event("OweNothing", 1), get(2)], [[1], [2]], id="an owed answer that is there already"),
        pytest.param(
            [encode([Message("Desk", "Set", "Note"), Message("Desk", "Get", "Echo", 1)])], [[1]], id="a part of a batch"
        ),
    ],
)
async def test_what_needs_no_answer_gets_none(
    make_port: MakePort,
    nursery: trio.Nursery,
    clock: MockClock,
    asked: list[bytes],
    answered: list[list[Any]],
) -> None:
    peer = make_port().meet(nursery)
    await peer.send(b"".join(asked))
    await peer.finish()
    assert await peer.last_data() == answered


async def test_an_owed_answer_keeps_its_place_among_the_others(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(get(1) + event("Owe", 2) + get(3) + event("Owe", 4) + get(5))
    assert await peer.data() == [1]
    await trio.sleep(100)
    assert port.desk.asked == [1, 2]
    assert port.desk.pay(2)
    assert [await peer.data(), await peer.data()] == [[2], [3]]
    assert port.desk.pay(4)
    assert [await peer.data(), await peer.data()] == [[4], [5]]


async def test_an_owed_answer_comes_in_one_batch_with_those_of_its_batch(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(
        encode(
            [Message("Desk", "Get", "Echo", 1), Message("Desk", "Event", "Owe", 2), Message("Desk", "Get", "Echo", 3)]
        )
    )
    await port.until(lambda: port.desk.owes(2))
    assert port.desk.pay(2)
    assert await peer.data() == [1, 2, 3]


async def test_what_comes_while_an_answer_is_owed_is_not_lost_and_not_hoarded(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery, window_bytes=1000)
    questions = [get(i) for i in range(6000)]
    sent_bytes = 0

    async def ask() -> None:
        nonlocal sent_bytes
        for question in questions:
            await peer.send(question)
            sent_bytes += len(question)
        await peer.finish()

    await peer.send(event("Owe", "first"))
    nursery.start_soon(ask)
    await trio.sleep(1)
    assert sent_bytes < 2 * BATCH_BYTES < len(b"".join(questions))
    assert port.desk.pay("first")
    assert await peer.last_data() == [["first"], *([i] for i in range(6000))]


async def test_a_peer_that_asks_much_at_once_does_not_hold_up_one_that_asks_little(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    greedy, modest = port.meet(nursery), port.meet(nursery)
    await greedy.send(NOTE * 300)
    await modest.send(get("modest"))
    await wait_all_tasks_blocked()
    assert len(port.desk.asked) == 301
    assert port.desk.asked.index("modest") < 100


# Half-closed, reset, cancelled.


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(get(1), [[1]], id="a question"),
        pytest.param(get(1)[:-1], [], id="most of a question"),
        pytest.param(get(1) + get(2)[:3], [[1]], id="a question and a part"),
    ],
)
async def test_who_half_closes_gets_the_answers_to_what_was_whole(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, sent: bytes, answered: list[list[Any]]
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(sent)
    await peer.finish()
    assert await peer.last_data() == answered
    await port.over()
    assert port.ledger.endings == [Ending.LEFT]
    assert len(port.desk.gone) == len(set(port.desk.gone)) <= 1
    assert set(port.desk.gone) >= set(port.desk.peers)


async def test_who_half_closes_still_gets_an_owed_answer(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(event("Owe", 1) + get(2))
    await peer.finish()
    await trio.sleep(1000)
    assert port.desk.pay(1)
    assert await peer.last_data() == [[1], [2]]
    await port.over()
    assert port.ledger.endings == [Ending.LEFT]
    assert port.desk.given_up == []


@pytest.mark.parametrize("between", [b"", get(3), get(3)[:4]], ids=["nothing", "a question", "half a question"])
@pytest.mark.parametrize("after_s", [0, 10], ids=["at once", "later"])
async def test_who_half_closes_gives_up_a_place_that_is_held(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, between: bytes, after_s: float
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(get(1) + event("Hold", 2) + between)
    await trio.sleep(after_s)
    await peer.finish()
    assert await peer.last_data() == [[1]]
    await port.over()
    assert port.ledger.endings == [Ending.LEFT]
    assert port.ledger.ended_at == [after_s]
    assert port.desk.given_up == [2]
    assert not port.desk.pay(2)


async def test_a_place_is_not_held_for_who_had_half_closed_before(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(event("Owe", 1) + event("Hold", 2))
    await peer.finish()
    await wait_all_tasks_blocked()
    assert port.desk.pay(1)
    assert await peer.last_data() == [[1]]
    assert port.desk.given_up == [2]


@pytest.mark.parametrize("name", ["Owe", "Hold"])
@pytest.mark.parametrize("ahead", [b"", get(2), get(2)[:4]], ids=["nothing", "a question", "half a question"])
async def test_a_reset_gives_an_owed_answer_up_once(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, name: str, ahead: bytes
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(event(name, 1) + ahead)
    await trio.sleep(10)
    peer.reset()
    await port.over()
    assert port.ledger.endings == [Ending.RESET]
    assert port.ledger.ended_at == [10]
    assert port.desk.given_up == [1]
    assert not port.desk.pay(1)
    assert port.desk.asked == [1]


async def test_a_reset_of_a_silent_connection_ends_it(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await trio.sleep(10)
    peer.reset()
    await port.over()
    assert (port.ledger.endings, port.ledger.ended_at) == ([Ending.RESET], [10])


async def test_a_port_that_is_cancelled_gives_up_what_it_owes(make_port: MakePort, clock: MockClock) -> None:
    port = make_port()
    async with trio.open_nursery() as nursery:
        peer = port.meet(nursery)
        await peer.send(event("Owe", 1))
        await port.until(lambda: port.desk.owes(1))
        nursery.cancel_scope.cancel()
    assert port.desk.given_up == [1]
    assert port.ledger.endings == [Ending.STOPPED]
    assert len(port.desk.gone) == len(set(port.desk.gone)) <= 1
    assert set(port.desk.gone) >= set(port.desk.peers)


async def test_an_owed_answer_is_given_or_given_up_but_never_both(make_port: MakePort, clock: MockClock) -> None:
    """Whatever happens about the same time, each answer has one fate, and each connection ends once."""

    async def half_close(peer: Any) -> None:
        with suppress(trio.ClosedResourceError):
            await peer.finish()

    rng = random.Random(20)
    fates = set()
    for i in range(500):
        port = make_port()
        paid: list[bool] = []
        async with trio.open_nursery() as nursery:
            peer = port.meet(nursery, cut=at_random(rng))
            await peer.send(
                get(0) * rng.randrange(3) + event(rng.choice(["Owe", "Hold"]), i) + get(1)[: rng.randrange(9)]
            )
            happenings: list[Callable[[], Any]] = [
                lambda: paid.append(port.desk.pay(i)),  # noqa: B023 - called within this turn
                peer.reset,
                nursery.cancel_scope.cancel,
                functools.partial(nursery.start_soon, half_close, peer),
                port.server.stop,
            ]
            await port.until(lambda: port.desk.owes(i))  # noqa: B023
            rng.shuffle(happenings)
            for happen in happenings[: rng.randrange(len(happenings) + 1)]:
                happen()
                for _ in range(rng.randrange(4)):
                    await trio.lowlevel.checkpoint()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (paid == [True]) + len(port.desk.given_up) == 1
        assert len(port.ledger.endings) == len(port.desk.gone) == 1
        fates.add((bool(paid), port.ledger.endings[0]))
    assert len(fates) >= 5


# Deadlines.


@pytest.mark.parametrize(
    ("said", "ends_at"),
    [
        pytest.param([], 60, id="never a word"),
        pytest.param([(50, get(1))], 110, id="one question"),
        pytest.param([(50, NOTE)], 110, id="one message without an answer"),
        pytest.param([(59, get(1)), (118, get(1))], 178, id="two questions"),
        pytest.param([(10, get(1)[:5]), (14, get(1)[5:])], 74, id="a question in two pieces"),
    ],
)
async def test_a_connection_on_which_nothing_is_said_ends_at_the_idle_deadline(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, said: list[tuple[float, bytes]], ends_at: float
) -> None:
    port = make_port(idle_s=60)
    peer = port.meet(nursery)
    for at, data in said:
        await trio.sleep_until(at)
        await peer.send(data)
    await peer.rest()
    await port.over()
    assert (port.ledger.endings, port.ledger.ended_at) == ([Ending.IDLE], [ends_at])


@pytest.mark.parametrize("name", ["Owe", "Hold"])
async def test_the_idle_deadline_rests_while_an_answer_is_owed(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, name: str
) -> None:
    port = make_port(idle_s=60)
    peer = port.meet(nursery)
    await peer.send(event(name, 1))
    await trio.sleep(1000)
    assert port.desk.pay(1)
    assert await peer.last_data() == [[1]]
    await port.over()
    assert (port.ledger.endings, port.ledger.ended_at) == ([Ending.IDLE], [1060])


@pytest.mark.parametrize("idle_s", [60, 2], ids=["before the idle deadline", "after it"])
@pytest.mark.parametrize("step_s", [0.01, 0.4, 3, 4.9, 1000])
async def test_a_batch_that_drips_ends_its_connection_at_the_message_deadline(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, step_s: float, idle_s: float
) -> None:
    port = make_port(message_s=5, idle_s=idle_s)
    peer = port.meet(nursery)
    await trio.sleep(1)
    for byte in every_byte(get("x" * 1000)):
        await peer.send(byte)
        with trio.move_on_after(step_s):
            await port.over()
        if not port.ledger.open:
            break
    assert port.ledger.endings == [Ending.MESSAGE_DEADLINE]
    assert port.ledger.ended_at == [pytest.approx(6, abs=SLACK_S)]
    assert await peer.rest() == b""


async def test_each_batch_has_a_message_deadline_of_its_own(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    """The end of one batch and the beginning of the next come together, so that one is always on its way."""
    port = make_port(message_s=5)
    peer = port.meet(nursery)
    question = get("x")
    await peer.send(question[:9])
    for _ in range(10):
        await trio.sleep(4)
        await peer.send(question[9:] + question[:9])
        assert await peer.data() == ["x"]
    await peer.rest()
    await port.over()
    assert (port.ledger.endings, port.ledger.ended_at) == ([Ending.MESSAGE_DEADLINE], [45])


async def test_the_message_deadline_rests_while_an_answer_is_owed(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port(message_s=5)
    peer = port.meet(nursery)
    await peer.send(event("Owe", 1) + get(2)[:9])
    await trio.sleep(30)
    assert port.desk.pay(1)
    await trio.sleep(1)
    await peer.send(get(2)[9:])
    assert [await peer.data(), await peer.data()] == [[1], [2]]


async def test_the_message_deadline_rests_while_the_peer_takes_its_answers(
    make_port: MakePort, nursery: trio.Nursery, slow_clock: MockClock
) -> None:
    port = make_port(message_s=5, send_s=5)
    peer = port.meet(nursery, window_bytes=10000)
    await peer.send(get(30000, name="Long") * 32 + get("last")[:9])
    await peer.send(get("last")[9:])
    await peer.finish()
    received = await _read_slowly(peer, 20000, 0.5)
    assert trio.current_time() > 2 * 5
    assert [len(answer["Data"]) for [answer] in received] == [30000] * 32 + [len("last")]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(get(1 << 20, name="Long"), id="one long answer"),
        pytest.param(get(100, name="Long") * 2000, id="many short answers"),
        pytest.param(get(1 << 20, name="Long") + b"\xc1", id="a fault behind a long answer"),
        pytest.param(get(1 << 20, name="Long") + event("Owe", 1), id="a long answer before an owed one"),
    ],
)
async def test_who_never_reads_is_ended_at_the_send_deadline(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, asked: bytes
) -> None:
    port = make_port(send_s=5)
    peer = port.meet(nursery)
    nursery.start_soon(peer.send_while_taken, asked)
    await port.until(lambda: bool(port.ledger.endings))
    assert (port.ledger.endings, port.ledger.ended_at) == ([Ending.SEND_DEADLINE], [5])
    assert len(port.desk.gone) == len(set(port.desk.gone)) <= 1
    assert set(port.desk.gone) >= set(port.desk.peers)


async def test_answers_that_nobody_takes_do_not_pile_up(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    answer_bytes = 1000
    port = make_port(send_s=5)
    peer = port.meet(nursery, window_bytes=BATCH_BYTES)
    nursery.start_soon(peer.send_while_taken, get(answer_bytes, name="Long") * 100_000)
    await port.over()
    assert len(port.desk.asked) * answer_bytes < 3 * BATCH_BYTES


async def test_who_reads_slowly_gets_all_of_it(
    make_port: MakePort, nursery: trio.Nursery, slow_clock: MockClock
) -> None:
    port = make_port(send_s=5, idle_s=60)
    peer = port.meet(nursery, window_bytes=20000)
    await peer.send(get(50000, name="Long") * 20)
    await peer.finish()
    assert len(await _read_slowly(peer, 20000, 0.5)) == 20
    assert trio.current_time() > 3 * 5
    await port.over()
    assert port.ledger.endings == [Ending.LEFT]


async def _read_slowly(peer: Any, chunk_bytes: int, pause_s: float) -> list[Any]:
    """Return all batches up to the end, read in chunks with a pause after each."""
    unpacker = msgpack.Unpacker()
    read_bytes = 0
    while data := await peer.stream.receive_some():
        unpacker.feed(data)
        read_bytes += len(data)
        if read_bytes >= chunk_bytes:
            read_bytes = 0
            await trio.sleep(pause_s)
    return list(unpacker)


# Errors.


def fields(object_: Any = "Desk", command: Any = "Get", name: Any = "Echo", **more: Any) -> dict[str, Any]:
    return {"Object": object_, "Command": command, "Name": name} | more


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def without(key: str) -> bytes:
    message = fields()
    del message[key]
    return msgpack.packb([message])  # type: ignore[no-any-return]


REFUSALS = {
    "another object": (Message("Nobody", "Get", "Echo", 1), "UnknownObject"),
    "another name": (Message("Desk", "Get", "Nothing", 1), "UnknownName"),
    "another command": (Message("Desk", "Jump", "Echo", 1), "UnknownCommand"),
    "a name under the wrong command": (Message("Desk", "Set", "Echo", 1), "UnknownCommand"),
    "Data of the wrong kind": (Message("Desk", "Get", "Number", "1"), "BadData"),
    "texts that are empty": (Message("", "", "", 1), "UnknownObject"),
    "a NUL in a name": (Message("Desk", "Get", "Echo\0", 1), "UnknownName"),
}
FAULTS = {
    "a byte that begins no value": (b"\xc1", "NotMessagePack"),
    "such a byte in a batch": (b"\x91\xc1", "NotMessagePack"),
    "a map for a key": (bytes.fromhex("91 81 80 01"), "NotMessagePack"),
    "a name that is not UTF-8": (get(1).replace(b"\xa4Echo", b"\xa4\xff\xfe\xfdo"), "NotMessagePack"),
    "a name as bytes that are not UTF-8": (msgpack.packb([fields(name=b"\xff\xfe")]), "NotMessagePack"),
    "a lone surrogate": (get("abc").replace(b"\xa3abc", b"\xa3\xed\xa0\x80"), "NotMessagePack"),
    "Data that is not UTF-8": (get("abc").replace(b"\xa3abc", b"\xa3\xff\xfe\xfd"), "NotMessagePack"),
    "too long a batch": (get("x" * BATCH_BYTES), "Limit"),
    "too many messages": (get(*range(65)), "Limit"),
    "too deep a value": (get(nested(16)), "Limit"),
    "too long a name": (get(1, name="x" * 257), "Limit"),
    "4 GiB of bytes announced": (b"\xc6\xff\xff\xff\xff", "Limit"),
    "4 GiB of text announced": (b"\xdb\xff\xff\xff\xff", "Limit"),
    "an array of 4 Gi announced": (b"\xdd\xff\xff\xff\xff", "Limit"),
    "a map of 4 Gi announced": (b"\xdf\xff\xff\xff\xff", "Limit"),
}
BAD_MESSAGES = {
    "a number": b"\x01",
    "nil": b"\xc0",
    "a text": b"\xa3abc",
    "a map that is no array": msgpack.packb(fields()),
    "the word of another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a batch of a number": b"\x91\x01",
    "a batch of a batch": b"\x91\x91\x01",
    "a batch of an empty message": b"\x91\x80",
    "no Object": without("Object"),
    "no Command": without("Command"),
    "no Name": without("Name"),
    "a number for an Object": msgpack.packb([fields(object_=1)]),
    "nil for a Command": msgpack.packb([fields(command=None)]),
    "a map for a Name": msgpack.packb([fields(name={})]),
    "a good message before a bad one": msgpack.packb([fields(), 1]),
}
FAULTS |= {name: (data, "BadMessage") for name, data in BAD_MESSAGES.items()}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(("fault", "code"), FAULTS.values(), ids=FAULTS)
async def test_a_fault_ends_the_connection_after_the_answers_to_what_was_good(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, cut: Cut, fault: bytes, code: str
) -> None:
    port = make_port()
    peer = port.meet(nursery, cut=cut, window_bytes=1 << 20)
    await peer.send(get(1) + get(2, 3) + fault + get(4))
    *answers, [last] = await peer.last_data()
    assert answers == [[1], [2, 3]]
    assert last["Code"] == code
    assert last["Text"].isprintable()
    assert port.desk.asked == [1, 2, 3]
    await port.over()
    assert port.ledger.endings == [Ending.PROTOCOL]
    assert port.ledger.codes == [code]


async def test_whatever_is_said_is_answered_in_the_same_bytes_however_it_is_cut(
    make_port: MakePort, clock: MockClock
) -> None:
    rng = random.Random(11)
    sayings = [
        get(1),
        get(2, 3),
        NOTE,
        event("OweNothing", 4),
        *(encode([message]) for message, _ in REFUSALS.values()),
    ]
    rubbish = [fault for fault, _ in FAULTS.values() if len(fault) < 1000]
    for _ in range(60):
        said = b"".join(rng.choice(sayings) for _ in range(rng.randrange(6)))
        said += rng.choice([rng.choice(rubbish), rng.randbytes(rng.randrange(20)), b""]) + rng.choice(sayings)
        heard = []
        for cut in (whole, every_byte, at_random(rng)):
            port = make_port()
            async with trio.open_nursery() as nursery:
                peer = port.meet(nursery, cut=cut)
                await peer.send_while_taken(said)
                await peer.finish()
                heard.append((await peer.rest(), port.ledger.codes))
                await port.over()
                port.server.stop()
            assert port.ledger.endings == [Ending.PROTOCOL if port.ledger.codes else Ending.LEFT]
        assert heard[0] == heard[1] == heard[2], said


@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
async def test_a_bad_message_gets_these_bytes(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, bad: bytes
) -> None:
    peer = make_port().meet(nursery)
    await peer.send(bad)
    received = await peer.rest()
    golden = bytes.fromhex(
        """91 84 a6 4f626a656374 a6 4d6173746572
                 a7 436f6d6d616e64 a5 4572726f72
                 a4 4e616d65 a5 4572726f72
                 a4 44617461 82 a4 436f6465 aa 4261644d657373616765
                                a4 54657874"""
    )
    assert received.startswith(golden)
    assert isinstance(msgpack.unpackb(received[len(golden) :]), str)


async def test_a_fault_is_answered_by_one_error_however_much_comes_behind_it(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    nursery.start_soon(peer.send_while_taken, b"\xc1" * 10_000_000)
    [[last]] = await peer.last_data()
    assert last["Code"] == "NotMessagePack"
    await port.over()
    assert port.ledger.codes == ["NotMessagePack"]


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_fault_is_a_fault_also_of_a_peer_that_does_not_wait_for_the_end(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, leave: str
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(b"\xc1")
    await peer.batch()
    if leave == "close":
        await peer.stream.aclose()
    else:
        peer.reset()
    await port.over()
    assert port.ledger.endings == [Ending.PROTOCOL]


@pytest.mark.parametrize(("message", "code"), REFUSALS.values(), ids=REFUSALS)
async def test_a_message_that_cannot_be_served_gets_an_error_and_the_connection_stays(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, message: Message, code: str
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(encode([message]) + encode([Message("Desk", "Get", "Echo", 1), message]))
    [refusal] = await peer.batch()
    text = refusal["Data"].pop("Text")
    assert text.isprintable()
    assert refusal == fields(message.object, "Error", message.name, Data={"Code": code})
    assert await peer.data() == [1, {"Code": code, "Text": text}]
    await peer.send(get(2))
    assert await peer.data() == [2]
    assert port.ledger.codes == []


@pytest.mark.parametrize("object_", ["Desk", "Nobody"])
@pytest.mark.parametrize("command", ["Value", "Error"])
async def test_an_answer_is_not_answered(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, object_: str, command: str
) -> None:
    peer = make_port().meet(nursery)
    await peer.send(encode([Message(object_, command, "Nothing", 1)]) + get(2))
    assert await peer.data() == [2]


# The stop.


async def test_at_a_stop_silent_connections_end_in_order(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peers = [port.meet(nursery) for _ in range(3)]
    await trio.sleep(10)
    port.server.stop()
    port.server.stop()
    assert [await peer.rest() for peer in peers] == [b""] * 3
    await port.over()
    assert port.ledger.endings == [Ending.STOPPED] * 3
    assert max(port.ledger.ended_at) < 10 + 1


async def test_at_a_stop_a_question_on_its_way_is_answered(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await trio.sleep(1)
    port.server.stop()
    await trio.sleep(0.05)
    await peer.send(get(1))
    assert await peer.last_data() == [[1]]


async def test_at_a_stop_a_server_that_is_behind_answers_what_it_has_not_read_yet(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    await peer.send(get(1))
    port.server.stop()
    clock.jump(3)
    assert await peer.last_data() == [[1]]


async def test_at_a_stop_owed_answers_are_waited_for(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peers = [port.meet(nursery) for _ in range(50)]
    for i, peer in enumerate(peers):
        await peer.send(event("Owe", i) + get("after"))
    await trio.sleep(1)
    port.server.stop()
    await trio.sleep(20)
    assert port.server.connections == 50
    assert all(port.desk.pay(i) for i in range(50))
    assert [await peer.last_data() for peer in peers] == [[[i], ["after"]] for i in range(50)]
    await port.over()
    assert port.ledger.endings == [Ending.STOPPED] * 50


@pytest.mark.parametrize(
    ("rest_after_s", "answers", "ending"),
    [
        pytest.param(1, [["x"]], Ending.STOPPED, id="and comes"),
        pytest.param(2, [], Ending.MESSAGE_DEADLINE, id="and does not"),
    ],
)
async def test_at_a_stop_the_rest_of_a_batch_is_waited_for(
    make_port: MakePort,
    nursery: trio.Nursery,
    clock: MockClock,
    rest_after_s: float,
    answers: list[list[Any]],
    ending: Ending,
) -> None:
    port = make_port(message_s=5)
    peer = port.meet(nursery)
    await peer.send(get("x")[:9])
    await wait_all_tasks_blocked()
    port.server.stop()
    await trio.sleep(rest_after_s)
    await peer.send_while_taken(get("x")[9:])
    assert await peer.last_data() == answers
    await port.over()
    assert port.ledger.endings == [ending]


@pytest.mark.parametrize("tail", [b"", get("x")[:9]], ids=["by whole questions", "by halves"])
async def test_a_peer_that_never_pauses_cannot_put_the_stop_off(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, tail: bytes
) -> None:
    port = make_port(message_s=5)
    peer = port.meet(nursery)
    question = get("x")
    await peer.send(tail)

    async def chat() -> None:
        while port.ledger.open:
            await peer.send_while_taken(question[len(tail) :] + tail)
            await trio.sleep(0.05)

    nursery.start_soon(chat)
    await trio.sleep(10)
    port.server.stop()
    await peer.rest()
    await port.over()
    assert port.ledger.ended_at[0] < 10 + 5 + 1


# Our own bugs.


@pytest.mark.parametrize(
    ("name", "error"),
    [("Fail", ZeroDivisionError), ("Unpackable", LocalProtocolError)],
    ids=["raises", "cannot be sent"],
)
async def test_a_bug_of_the_handler_comes_out(
    make_port: MakePort, clock: MockClock, name: str, error: type[Exception]
) -> None:
    port = make_port()
    with pytest.RaisesGroup(error):
        async with trio.open_nursery() as nursery:
            peer = port.meet(nursery)
            await peer.send(event(name))
            await trio.sleep_forever()
    assert len(port.ledger.endings) == len(port.desk.gone) == 1
    assert port.server.connections == 0
    assert await peer.rest() == b""


# A farewell ends a connection after its answer.

PART = Message("Desk", "Event", "Part", "bye")


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_after_a_farewell_nothing_is_answered_and_the_connection_ends_well(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, cut: Cut
) -> None:
    port = make_port()
    peer = port.meet(nursery, cut=cut)
    ask = [Message("Desk", "Get", "Echo", number) for number in (1, 2, 3)]
    await peer.send_while_taken(encode(ask[:1]) + encode([ask[1], PART, ask[2]]) + encode(ask[2:]))
    assert await peer.last_data() == [[1], [2, "bye"]]
    await peer.finish()
    await port.over()
    assert port.ledger.endings == [Ending.REFUSED]
    assert port.desk.asked == [1, 2, "bye"]
    assert len(port.desk.gone) == 1


@pytest.mark.parametrize("name", ["Owe", "OweFarewell"])
async def test_an_owed_answer_may_be_a_farewell(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock, name: str
) -> None:
    port = make_port()
    peer = port.meet(nursery)
    ask = [Message("Desk", "Get", "Echo", number) for number in (1, 2, 3)]
    await peer.send_while_taken(encode([ask[0], Message("Desk", "Event", name, "bye"), ask[1]]) + encode(ask[2:]))
    if name == "Owe":
        await port.until(lambda: port.desk.owes("bye"))
        assert port.desk.pay("bye", Farewell)
    assert await peer.last_data() == [[1, "bye"]]
    await peer.finish()
    await port.over()
    assert port.ledger.endings == [Ending.REFUSED]
    assert port.desk.asked == [1, "bye"]
    assert port.desk.given_up == []


async def test_a_farewell_is_sent_whole_and_to_those_who_half_close_too(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port()
    peer = port.meet(nursery, window_bytes=1000)
    await peer.send(event("Part", 300_000))
    await peer.finish()
    assert await peer.last_data() == [["x" * 300_000]]
    await port.over()
    assert port.ledger.endings == [Ending.REFUSED]


async def test_a_farewell_that_nobody_takes_ends_at_the_deadline(
    make_port: MakePort, nursery: trio.Nursery, clock: MockClock
) -> None:
    port = make_port(send_s=5.0)
    peer = port.meet(nursery, window_bytes=1000)
    await peer.send(event("Part", 3_000_000))
    await port.until(lambda: bool(port.ledger.endings))  # it may not even be let in yet
    assert port.ledger.endings == [Ending.SEND_DEADLINE]
