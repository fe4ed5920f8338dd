"""The cache's own port: answers alone and when they are ready, bounds on what one peer may take, ends.

The file is long because each thing that a peer may do to the port is done here.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from lambdamu.datapack import encode_alone
from lambdamu.messages import Message
from lambdamu.port import Ending, PortObserver
from master.cache.service import Guard
from master.cache.warm_types import Warm
from tests.master.cache.wire import BATCH_BYTES, VALUE_BYTES, Caller, FakeWarm, make_service, port_of, question, raw


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


class Endings(PortObserver):
    """Remembers how connections ended."""

    def __init__(self) -> None:
        self.how: list[Ending] = []

    def ended(self, how: Ending) -> None:
        self.how.append(how)


async def session_of(caller: Caller, **data: Any) -> str:
    answer = await caller.ask("Session.Create", {"Client": "c1", **data})
    session: str = answer.data["Session"]
    return session


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536, VALUE_BYTES])
async def test_a_value_goes_in_and_comes_out_as_the_same_bytes(autojump_clock: object, size: int) -> None:
    value = random.Random(size).randbytes(size)
    async with port_of(make_service()) as (_, connect):
        caller = connect()
        session = await session_of(caller, Value=value)
        answer = await caller.ask("Session.Get", {"Session": session})
        assert answer.data["Value"] == value
        assert type(answer.data["Value"]) is bytes


async def test_values_alone_are_bin_and_nothing_is_that_an_old_decoder_does_not_know(autojump_clock: object) -> None:
    async with port_of(make_service()) as (_, connect):
        caller = connect()
        session = await session_of(caller, Value=b"\xff" * 40)
        await caller.send(question("Session.Get", {"Session": session}, "r" * 100))
        heard = b""
        with trio.move_on_after(1):
            while True:
                heard += bytes(await caller.stream.receive_some())
    (told,) = msgpack.unpackb(heard)
    assert told["Data"]["Value"] == b"\xff" * 40
    assert heard.endswith(b"\xc4\x28" + b"\xff" * 40)
    assert b"\xda\x00\x64" + b"r" * 100 in heard  # a text of 100 bytes is no str8
    assert b"\xd9" not in heard


async def test_each_message_of_a_batch_is_answered_alone_in_any_order_and_once(autojump_clock: object) -> None:
    warm = FakeWarm()
    async with port_of(make_service(warm)) as (_, connect):
        caller = connect()
        session = await session_of(caller)
        batch = [
            {"Object": o, "Command": "Event", "Name": n, "Data": {"Session": session, **d}, "Header": {"Request": r}}
            for o, n, d, r in (
                ("Warm", "Get", {"Type": 1}, "a"),
                ("Session", "Get", {}, "b"),
                ("Warm", "AppStart", {"Device": "d"}, "none"),
                ("Warm", "Get", {"Type": 2}, "c"),
                ("Session", "Fly", {}, "d"),
            )
        ]
        await caller.stream.send_all(raw(batch))
        first = [await caller.hear() for _ in range(2)]
        assert [each and each.header["Request"] for each in first] == ["b", "d"]
        for number, tell in reversed(warm.owed):
            tell(Warm(b"%d" % number))
            answer = await caller.hear()
            assert answer is not None
            assert (answer.header["Request"], answer.data["Value"]) == ({1: "a", 2: "c"}[number], b"%d" % number)
        with trio.move_on_after(1) as scope:
            await caller.hear()
        assert scope.cancelled_caught


async def test_batches_and_data_may_be_maps_with_numbers_and_texts_raw_bytes(autojump_clock: object) -> None:
    async with port_of(make_service()) as (_, connect):
        caller = connect()
        asked = {"Object": b"Session", "Command": b"Event", "Name": b"Create"}
        asked |= {"Header": {b"Request": b"r1"}, "Data": {b"Client": b"c1", b"Value": b"\xff"}}
        await caller.stream.send_all(raw({1: asked}))
        answer = await caller.hear()
        assert answer is not None
        assert answer.header["Request"] == "r1"
        assert (await caller.ask("Session.Get", {"Session": answer.data["Session"]})).data["Value"] == b"\xff"


async def test_whole_or_byte_by_byte_the_answers_are_the_same(autojump_clock: object) -> None:
    asked = b"".join(
        encode_alone(question("Session.Create", {"Client": "c", "Value": b"v"}, f"r{i}")) for i in range(5)
    )
    told = []
    for pieces in ([asked], [asked[i : i + 1] for i in range(len(asked))]):
        async with port_of(make_service()) as (_, connect):
            caller = connect()
            for piece in pieces:
                await caller.stream.send_all(piece)
            told.append([await caller.hear() for _ in range(5)])
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xc1", "NotMessagePack"),
        (raw(5), "BadMessage"),
        (raw([5]), "BadMessage"),
        (raw([{"Object": "Session", "Command": "Event", "Name": "Get"}]), "BadMessage"),
        (raw([{"Object": "Session", "Command": "Event", "Name": "Get", "Header": {}}]), "BadMessage"),
        (b"\x91\xa2\xff\xff", "NotMessagePack"),
        (b"\xdd" + (2**31).to_bytes(4, "big"), "Limit"),
        (b"\x91\xc6" + BATCH_BYTES.to_bytes(4, "big"), "Limit"),
        (raw([{"Object": "o" * 257, "Command": "Event", "Name": "Get"}]), "Limit"),
        (raw([{}] * 65), "Limit"),
    ],
)
async def test_what_is_no_question_gets_an_error_and_the_connection_ends(
    autojump_clock: object, data: bytes, code: str
) -> None:
    async with port_of(make_service()) as (_, connect):
        caller = connect()
        await caller.send(question("Session.Create", {"Client": "c"}))
        await caller.stream.send_all(data)
        answer = await caller.hear()
        assert answer is not None
        assert answer.header["Request"] == "r"  # what was asked before it is answered
        last = await caller.hear()
        assert last is not None
        assert (last.object, last.command, last.data["Code"]) == ("Master", "Error", code)
        assert await caller.hear() is None


async def test_a_batch_of_a_mebibyte_is_taken_and_one_byte_more_is_not(autojump_clock: object) -> None:
    async with port_of(make_service()) as (_, connect):
        for more in (0, 1):
            caller = connect()
            message = question("Session.Create", {"Client": "c", "Value": b""})
            around = len(encode_alone(message)) + 3
            message.data["Value"] = bytes(BATCH_BYTES - around + more)
            assert len(encode_alone(message)) == BATCH_BYTES + more
            with suppress(trio.BrokenResourceError):  # what is too long is refused before it is all there
                await caller.send(message)
            answer = await caller.hear()
            assert answer is not None
            if more:
                assert answer.data["Code"] == "Limit"
            else:
                assert answer.header["Error"] == 5


async def test_after_a_wrong_secret_or_none_the_connection_ends(autojump_clock: object) -> None:
    async with port_of(make_service(guard=Guard("secret"))) as (_, connect):
        for message in (Message("Auth", "Set", "UserMail", "other"), question("Session.List", {"Client": "c"})):
            caller = connect()
            await caller.send(message, question("Session.Create", {"Client": "c"}, "never"))
            answer = await caller.hear()
            assert answer is not None
            assert answer.data["Code"] == "NotYours"
            assert await caller.hear() is None
        caller = connect()
        await caller.send(Message("Auth", "Set", "UserName", "f"), Message("Auth", "Set", "UserMail", "secret"))
        answer = await caller.hear()
        assert answer is not None
        assert answer.data == "Cache"
        assert await session_of(caller)


async def test_who_may_not_ask_holds_neither_much_memory_nor_a_connection_for_long(autojump_clock: object) -> None:
    guard = Guard("secret")
    secret = Message("Auth", "Set", "UserMail", "secret")
    long = {"Client": "c", "Value": bytes(65536)}
    async with port_of(make_service(guard=guard), knows=guard.lets_in) as (_, connect):
        caller = connect()
        await caller.send(question("Session.Create", long))
        answer = await caller.hear()
        assert answer is not None
        assert answer.data["Code"] == "Limit"
        began, caller = trio.current_time(), connect()
        for _ in range(4):  # whatever else is said gives no more time
            await trio.sleep(1)
            await caller.send(Message("Auth", "Set", "UserName", "f"))
        assert await caller.hear() is None
        assert trio.current_time() - began == pytest.approx(5.0)
        caller = connect()
        await caller.send(secret, question("Session.Create", long))
        for _ in range(2):
            answer = await caller.hear()
            assert answer is not None
            assert answer.command == "Value"
        await trio.sleep(59)
        assert await session_of(caller)


async def test_strangers_hold_a_part_of_the_connections_and_who_says_the_secret_always_gets_in(
    autojump_clock: object,
) -> None:
    guard = Guard("secret")
    secret = Message("Auth", "Set", "UserMail", "secret")
    async with port_of(make_service(guard=guard), knows=guard.lets_in, connections=64) as (port, connect):
        fronts = [connect() for _ in range(3)]
        for front in fronts:
            await front.send(secret)
            assert await front.hear()
        strangers = []
        for _ in range(5):
            for _ in range(9):
                strangers.append(connect())
                await trio.testing.wait_all_tasks_blocked()
            fronts.append(connect())
            await trio.sleep(0.5)
            await fronts[-1].send(secret)
            assert await fronts[-1].hear()
        assert (port.strangers, port.most_strangers) == (15, 16)
        assert (port.connections, port.put_out) == (23, 30)
        for stranger in strangers[:30]:
            assert await stranger.hear() is None
        for front in fronts:
            assert await session_of(front)


@pytest.mark.parametrize("said", [b"", raw([{"Object": "Auth"}])[:5]], ids=["nothing", "half a batch"])
async def test_a_stranger_whose_time_is_over_is_told_what_to_do(autojump_clock: object, said: bytes) -> None:
    guard = Guard("a secret of 16 and more")
    service = make_service(guard=guard)
    async with port_of(service, message_s=5.0, knows=guard.lets_in, wanted=guard.wanted) as (_, connect):
        stranger = connect()
        if said:
            await stranger.stream.send_all(said)
        last = await stranger.hear()
        assert last is not None
        assert (last.command, last.header) == ("Error", None)
        assert last.data == {"Code": "NotYours", "Text": guard.wanted}
        assert await stranger.hear() is None


async def test_a_stranger_who_never_ends_what_it_says_has_no_more_time_than_others(autojump_clock: object) -> None:
    guard = Guard("a secret of 16 and more")
    said = encode_alone(Message("Auth", "Set", "UserName", "x"))
    async with port_of(make_service(guard=guard), knows=guard.lets_in, message_s=5.0) as (port, connect):
        stranger = connect()
        await stranger.stream.send_all(said[:5])
        with suppress(trio.BrokenResourceError):
            for _ in range(9):
                await trio.sleep(1.0)
                await stranger.stream.send_all(said[5:] + said[:5])
        assert port.strangers == port.connections == 0


async def test_where_all_may_ask_nobody_is_a_stranger(autojump_clock: object) -> None:
    async with port_of(make_service(), connections=4) as (port, connect):
        callers = [connect() for _ in range(4)]
        for caller in callers:
            assert await session_of(caller)
        assert (port.strangers, port.put_out) == (0, 0)


async def test_a_peer_that_half_closes_gets_what_it_is_owed(autojump_clock: object) -> None:
    warm = FakeWarm()
    async with port_of(make_service(warm)) as (_, connect):
        caller = connect()
        session = await session_of(caller)
        await caller.send(question("Warm.Get", {"Session": session, "Type": 1}))
        await caller.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        warm.owed[0][1](Warm(b"d"))
        answer = await caller.hear()
        assert answer is not None
        assert answer.data["Value"] == b"d"
        assert await caller.hear() is None


async def test_a_peer_that_is_gone_is_waited_for_no_more(autojump_clock: object) -> None:
    warm = FakeWarm()
    async with port_of(make_service(warm)) as (port, connect):
        caller = connect()
        session = await session_of(caller)
        await caller.send(*(question("Warm.Get", {"Session": session, "Type": i}) for i in range(3)))
        await trio.testing.wait_all_tasks_blocked()
        caller.stream.reset()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(warm.left) == [0, 1, 2]  # type: ignore[type-var]
        assert port.connections == 0
        for _, tell in warm.owed:
            tell(Warm(b"late"))


async def test_no_more_is_read_from_a_peer_that_is_owed_too_much(autojump_clock: object) -> None:
    warm = FakeWarm()
    async with port_of(make_service(warm), asks=10) as (_, connect):
        caller = connect()
        session = await session_of(caller)
        await caller.send(*(question("Warm.Get", {"Session": session, "Type": i}, f"r{i}") for i in range(30)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(warm.owed) == 10
        heard = set()
        for i in range(30):
            warm.owed[i][1](Warm(b"d"))
            answer = await caller.hear()
            assert answer is not None
            heard.add(answer.header["Request"])
            await trio.testing.wait_all_tasks_blocked()
            assert len(warm.owed) == min(30, 11 + i)
        assert heard == {f"r{i}" for i in range(30)}


async def test_a_peer_that_does_not_read_is_read_no_further_and_ends(autojump_clock: object) -> None:
    observer = Endings()
    service = make_service()
    async with port_of(service, asks=50, send_s=5.0) as (port, connect):
        port.observer = observer
        caller = connect()
        session = await session_of(caller, Value=bytes(100_000))
        asked = encode_alone(question("Session.Get", {"Session": session})) * 1000
        started = trio.current_time()
        with trio.fail_after(100), pytest.raises(trio.BrokenResourceError):
            await caller.stream.send_all(2 * asked)
        assert 5.0 <= trio.current_time() - started <= 6.0
        assert observer.how == [Ending.SEND_DEADLINE]
        assert service.answered["Session", "Get", ""] <= 100


async def test_a_peer_that_does_not_read_while_it_is_owed_ends_too(autojump_clock: object) -> None:
    observer, warm = Endings(), FakeWarm()
    async with port_of(make_service(warm), send_s=5.0) as (port, connect):
        port.observer = observer
        caller = connect()
        session = await session_of(caller)
        await caller.send(*(question("Warm.Get", {"Session": session, "Type": i}) for i in range(20)))
        await trio.testing.wait_all_tasks_blocked()
        for _, tell in warm.owed:
            tell(Warm(bytes(100_000)))
        await trio.sleep(6)
        assert observer.how == [Ending.SEND_DEADLINE]


async def test_a_silent_peer_ends_but_for_one_that_is_owed(autojump_clock: object) -> None:
    observer, warm = Endings(), FakeWarm()
    async with port_of(make_service(warm), idle_s=60.0) as (port, connect):
        port.observer = observer
        caller = connect()
        session = await session_of(caller)
        await caller.send(question("Warm.Get", {"Session": session, "Type": 1}))
        await trio.sleep(500)
        assert observer.how == []
        warm.owed[0][1](Warm(b"d"))
        assert await caller.hear() is not None
        told_at = trio.current_time()
        assert await caller.hear() is None
        assert trio.current_time() - told_at == pytest.approx(60.0)
        assert observer.how == [Ending.IDLE]


async def test_half_a_batch_is_waited_for_no_longer_than_allowed(autojump_clock: object) -> None:
    observer = Endings()
    async with port_of(make_service(), message_s=5.0) as (port, connect):
        port.observer = observer
        caller = connect()
        await caller.stream.send_all(encode_alone(question("Session.List", {"Client": "c"}))[:-1])
        began = trio.current_time()
        assert await caller.hear() is None
        assert trio.current_time() - began == pytest.approx(5.0)
        assert observer.how == [Ending.MESSAGE_DEADLINE]


async def test_at_a_stop_what_is_on_its_way_and_what_is_owed_is_answered(autojump_clock: object) -> None:
    observer, warm = Endings(), FakeWarm()
    async with port_of(make_service(warm)) as (port, connect):
        port.observer = observer
        caller, idle = connect(), connect()
        session = await session_of(caller)
        await caller.send(question("Warm.Get", {"Session": session, "Type": 1}, "owed"))
        await trio.testing.wait_all_tasks_blocked()
        port.stop()
        await caller.send(question("Session.Get", {"Session": session}, "late"))
        answer = await caller.hear()
        assert answer is not None
        assert answer.header["Request"] == "late"
        await trio.sleep(3)
        assert observer.how == [Ending.STOPPED]
        assert await idle.hear() is None
        warm.owed[0][1](Warm(b"d"))
        answer = await caller.hear()
        assert answer is not None
        assert answer.header["Request"] == "owed"
        assert await caller.hear() is None


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_bytes_come_the_others_are_served(autojump_clock: object, seed: int) -> None:
    rng = random.Random(seed)
    good = [
        encode_alone(question("Session.Create", {"Client": "c", "Value": b"v"})),
        raw([{"Object": "Cache", "Command": "Event", "Name": "Put", "Header": {"Request": "r"}, "Data": {1: [2]}}]),
        encode_alone(Message("Auth", "Set", "UserMail", "x")),
    ]
    async with port_of(make_service(FakeWarm())) as (port, connect):
        honest = connect()
        await session_of(honest)
        for _ in range(20):
            caller = connect()
            data = bytearray(b"".join(rng.choices(good, k=3)) + rng.randbytes(rng.randrange(20)))
            for _ in range(rng.randrange(6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            await caller.stream.send_all(bytes(data))
            await caller.stream.send_eof()
            with trio.fail_after(100):
                while bytes(await caller.stream.receive_some()):
                    pass
        assert await session_of(honest)
        await trio.testing.wait_all_tasks_blocked()
        assert port.connections == 1
