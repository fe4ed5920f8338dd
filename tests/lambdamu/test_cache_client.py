"""The client of the cache service, against the service itself and against ends that fail in every way.

The file is long because each way in which the service or the way to it fails is played to the one client.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.cache_answers import read_answer
from lambdamu.cache_client import CacheClient, CachePolicy
from lambdamu.datapack import Decoder, encode_alone
from lambdamu.errors import CacheRefusedError, CacheUnavailableError, SessionGoneError
from lambdamu.messages import Command, Message
from lambdamu.port import PortLimits
from lambdamu.retry import Backoff
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock
from master.cache.port import CachePort
from master.cache.service import Guard
from tests.master.cache.wire import BATCH_BYTES, FakeWarm, make_service

ANY = Address("127.0.0.1", 0)
POLICY = CachePolicy(within_s=2.0, asks=20, backoff=Backoff(0.1, 1.0))


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(3 * SOCKET_SETTLE_S)


@asynccontextmanager
async def asking(address: Address, **options: Any) -> AsyncIterator[CacheClient]:
    """Give a client that keeps a connection there."""
    async with trio.open_nursery() as nursery:
        client = CacheClient(address, **{"policy": POLICY, **options})
        nursery.start_soon(client.run)
        yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def service(warm: FakeWarm | None = None, guard: Guard | None = None, **limits: Any) -> AsyncIterator[Address]:
    """Serve a cache on a free port."""
    port = CachePort(
        make_service(warm, guard),
        PortLimits(batch_bytes=BATCH_BYTES, **limits),
        1000,
        knows=(guard or Guard()).lets_in,
    )
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.serve, open_listeners(ANY))
        yield address
        nursery.cancel_scope.cancel()


class Line:
    """The service's end of one connection of a script, where all may ask."""

    def __init__(self, stream: trio.SocketStream, heard: list[Message]) -> None:
        self._stream = stream
        self._heard = heard
        self._decoder = Decoder()
        self._waiting: list[Message] = []

    async def hear(self) -> Message | None:
        """Return the next question; None at the end."""
        while not self._waiting:
            data = await self._stream.receive_some()
            if not data:
                return None
            for batch in self._decoder.feed(bytes(data)):
                if batch[0].object == "Auth":
                    await self.say(encode_alone(Message("Auth", Command.VALUE, "TaskObject", "Cache")))
                    continue
                self._heard += batch
                self._waiting += batch
        return self._waiting.pop(0)

    async def say(self, data: bytes) -> None:
        await self._stream.send_all(data)


Play = Callable[[Line], Awaitable[None]]


class Scripted:
    """A service to order: each connection is played by the next function, the last one again and again."""

    def __init__(self, *plays: Play) -> None:
        self._plays = list(plays)
        self.connections = 0
        self.heard: list[Message] = []
        self.address = ANY

    async def meet(self, stream: trio.SocketStream) -> None:
        play = self._plays[min(self.connections, len(self._plays) - 1)]
        self.connections += 1
        async with stream:
            with suppress(trio.BrokenResourceError):
                await play(Line(stream, self.heard))


@asynccontextmanager
async def scripted(*plays: Play) -> AsyncIterator[Scripted]:
    made = Scripted(*plays)
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        made.address = Address("127.0.0.1", listener.socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, made.meet, [listener])
        yield made
        nursery.cancel_scope.cancel()


def answer(question: Message, data: Any, error: Any = 0) -> bytes:
    header = {"Error": error, "Request": question.header["Request"], "DataError": False}
    return encode_alone(Message(question.object, Command.VALUE, question.name, data, header))


async def answers(line: Line) -> None:
    while (question := await line.hear()) is not None:
        await line.say(answer(question, question.data))


async def silent(line: Line) -> None:
    while await line.hear() is not None:
        pass


async def hangs_up(line: Line) -> None:
    await line.hear()


async def closes(line: Line) -> None:
    pass


async def says_garbage(line: Line) -> None:
    if await line.hear() is not None:
        await line.say(b"\xc1")


async def test_a_session_is_made_and_found(clock: trio.testing.MockClock) -> None:
    async with service() as address, asking(address) as cache:
        made = await cache.ask("Session", "Create", Client="ann", Value=b"\x01\xff")
        found = await cache.ask("Session", "Get", Session=made["Session"])
        assert (found["Client"], found["Value"]) == ("ann", b"\x01\xff")
        with pytest.raises(SessionGoneError):
            await cache.ask("Session", "Get", Session="nobody's")
        with pytest.raises(CacheRefusedError) as refused:
            await cache.ask("Session", "Get", Session=made["Session"], Client="bob")
        assert refused.value.code == "NotYours"


async def test_an_answer_that_waits_holds_up_no_other(clock: trio.testing.MockClock) -> None:
    warm = FakeWarm()
    async with service(warm) as address, asking(address) as cache, trio.open_nursery() as nursery:
        session = (await cache.ask("Session", "Create", Client="ann"))["Session"]

        async def wait() -> None:
            with pytest.raises(CacheUnavailableError, match="did not answer within 9 s"):
                await cache.ask("Warm", "Get", within_s=9.0, Session=session, Type=1)

        nursery.start_soon(wait)
        await trio.sleep(1.0)
        began = trio.current_time()
        await cache.ask("Session", "Get", Session=session)
        assert trio.current_time() - began < 1.0
    assert len(warm.owed) == 1


async def test_what_has_no_answer_is_told(clock: trio.testing.MockClock) -> None:
    warm = FakeWarm()
    async with service(warm) as address, asking(address) as cache:
        cache.tell("Warm", "AppStart", Device="a phone")
        await cache.ask("Session", "Create", Client="ann")
        assert [device for device, _, _ in warm.starts] == ["a phone"]


@pytest.mark.parametrize("secret", ["open", "", "wrong"])
async def test_the_secret_is_shown_first(clock: trio.testing.MockClock, secret: str) -> None:
    told: list[str | None] = []
    async with service(guard=Guard("open")) as address, asking(address, secret=secret, told=told.append) as cache:
        if secret == "open":
            assert (await cache.ask("Session", "Create", Client="ann"))["Session"]
            assert told == []
            return
        why = "NotYours: " + ("this is not the secret" if secret else "say the secret first")
        with pytest.raises(CacheUnavailableError, match=why):
            await cache.ask("Session", "Create", Client="ann")
        await trio.sleep(60.0)
        assert not cache.connected
        assert len(told) == 1
        assert why in (told[0] or "")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(hangs_up, answers, id="lost in mid-question"),
        pytest.param(closes, answers, id="closed at once"),
        pytest.param(says_garbage, answers, id="no MessagePack"),
    ],
)
async def test_a_question_outlives_its_connection_once(clock: trio.testing.MockClock, first: Play, then: Play) -> None:
    async with scripted(first, then) as there, asking(there.address) as cache:
        assert await cache.ask("Session", "Get", Session="s1") == {"Session": "s1"}
        assert await cache.ask("Session", "Get", Session="s2") == {"Session": "s2"}
    assert there.connections == 2
    assert len({question.header["Request"] for question in there.heard}) == 2


@pytest.mark.parametrize("play", [hangs_up, closes, says_garbage, silent], ids=lambda play: play.__name__)
async def test_a_service_that_fails_is_unavailable_and_no_session_is_gone(
    clock: trio.testing.MockClock, play: Play
) -> None:
    async with scripted(play) as there, asking(there.address) as cache:
        began = trio.current_time()
        with pytest.raises(CacheUnavailableError):
            await cache.ask("Session", "Get", Session="s1")
        assert trio.current_time() - began <= 2.1
        asked = [question for question in there.heard if question.data == {"Session": "s1"}]
        assert len(asked) <= 2, "a question that ends connections is not put again and again"


async def test_a_connection_that_is_silent_is_replaced(clock: trio.testing.MockClock) -> None:
    told: list[str | None] = []
    async with scripted(silent, answers) as there, asking(there.address, told=told.append) as cache:
        with pytest.raises(CacheUnavailableError):
            await cache.ask("Session", "Get", Session="s1")
        assert await cache.ask("Session", "Get", Session="s2") == {"Session": "s2"}
    assert told == [f"the cache {there.address} is silent", None]


async def test_an_answer_that_comes_too_late_is_nobody_elses(clock: trio.testing.MockClock) -> None:
    async def late(line: Line) -> None:
        first = await line.hear()
        await line.say(encode_alone(Message("Session", "Value", "Get", {"Session": "?"}, {"Request": "other"})))
        second = await line.hear()
        assert first is not None
        assert second is not None
        await line.say(answer(first, {"Session": "late"}) + answer(second, {"Session": "s2"}))
        await trio.sleep_forever()

    async with scripted(late) as there, asking(there.address) as cache:
        with pytest.raises(CacheUnavailableError):
            await cache.ask("Session", "Get", within_s=1.0, Session="s1")
        assert await cache.ask("Session", "Get", Session="s2") == {"Session": "s2"}
    assert there.connections == 1


@pytest.mark.parametrize(
    ("error", "data", "raises", "says"),
    [
        (1, {"Text": "no room", "RetryAfter": 1.5}, CacheUnavailableError, "Full: no room"),
        (3, {"Text": "no disk"}, CacheUnavailableError, "NoStore: no disk"),
        (7, {"Text": "ends"}, CacheUnavailableError, "Stopping: ends"),
        (5, {"Text": "too long"}, CacheRefusedError, "TooBig: too long"),
        (99, {}, CacheUnavailableError, "Error 99: it did not say why"),
        ("none", {}, CacheUnavailableError, "without an Error"),
    ],
)
async def test_each_failure_has_its_error(
    clock: trio.testing.MockClock, error: Any, data: Any, raises: type[Exception], says: str
) -> None:
    async def fails(line: Line) -> None:
        while (question := await line.hear()) is not None:
            await line.say(answer(question, data, error))

    async with scripted(fails) as there, asking(there.address) as cache:
        with pytest.raises(raises, match=says) as caught:
            await cache.ask("Session", "Get", Session="s1")
    assert getattr(caught.value, "retry_after_s", None) == data.get("RetryAfter")


async def test_too_many_and_too_long_questions_are_refused_at_once(clock: trio.testing.MockClock) -> None:
    async with scripted(silent) as there, asking(there.address) as cache, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(CacheUnavailableError, match=r"silent|within"):
                await cache.ask("Session", "Get", Session="s1")

        for _ in range(POLICY.asks):
            nursery.start_soon(ask)
        await trio.sleep(0.1)
        with pytest.raises(CacheUnavailableError, match="20 questions"):
            await cache.ask("Session", "Get", Session="s1")
        with pytest.raises(CacheUnavailableError, match="20 questions"):
            cache.tell("Warm", "AppStart", Device="a phone")
    cache = CacheClient(ANY)
    with pytest.raises(CacheRefusedError, match="TooBig"):
        await cache.ask("Session", "Create", Client="ann", Value=bytes(2**20))


async def test_nobody_there_is_told_once_and_so_is_the_return(clock: trio.testing.MockClock, nobody: Address) -> None:
    told: list[str | None] = []
    async with asking(nobody, told=told.append) as cache:
        with pytest.raises(CacheUnavailableError, match=f"the cache {nobody}: Connection refused"):
            await cache.ask("Session", "Get", Session="s1")
        await trio.sleep(20.0)
        assert told == [f"the cache {nobody}: Connection refused"]


async def test_to_be_cancelled_leaves_nothing(clock: trio.testing.MockClock, nobody: Address) -> None:
    cache = CacheClient(nobody, policy=POLICY)
    for _ in range(3 * POLICY.asks):
        with trio.move_on_after(0):
            await cache.ask("Session", "Get", Session="s1")


@pytest.mark.parametrize("told", [math.nan, math.inf, -1.0, True, "soon", None])
def test_what_is_no_time_to_ask_again_is_none(told: Any) -> None:
    answer = Message("Session", Command.VALUE, "Get", {"Text": "no room", "RetryAfter": told}, {"Error": 1})
    with pytest.raises(CacheUnavailableError) as caught:
        read_answer(answer)
    assert caught.value.retry_after_s is None


def documented() -> dict[str, Any]:
    """Run the program of docs/cache.md, but for its `main`."""
    text = (Path(__file__).parents[2] / "docs/cache.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, "docs/cache.md", "exec"), names)
    return names


@pytest.mark.parametrize("there", [True, False])
async def test_the_program_of_the_documentation_runs(capsys: pytest.CaptureFixture[str], there: bool) -> None:
    names = documented()
    async with service() as address:
        names["CACHE"] = str(address) if there else "127.0.0.1:1"
        await names["main"]()
    said = capsys.readouterr().out
    assert said.startswith("kept: b'her basket'\n" if there else "no answer: ")
