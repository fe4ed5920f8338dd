"""A peer of the cache's port: questions out, answers in, and what to ask with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import trio

from lambdamu.datapack import Decoder, encode_alone
from lambdamu.messages import Message
from lambdamu.objects import Peer
from lambdamu.port import PortLimits
from lambdamu.testing import MemoryStream, memory_pair
from master.cache.objects import Objects, Times
from master.cache.port import CachePort
from master.cache.service import CacheService, Guard
from master.cache.store import CacheStore, StorePolicy
from master.cache.warm_types import Answer

PATIENCE_S = 3000.0
BATCH_BYTES = 2**20
VALUE_BYTES = BATCH_BYTES - 4096
PEER = Peer("127.0.0.1", 4)


class FakeWarm:
    """Owes every answer until it is told to give it; hears what AppStarts there are."""

    def __init__(self) -> None:
        self.owed: list[tuple[int, Callable[[Answer], object]]] = []
        self.left: list[object] = []
        self.starts: list[tuple[str, int | None, bytes | None]] = []
        self.at_once: Answer | None = None

    def app_start(self, device: str, version: int | None, network: bytes | None = None) -> int:
        self.starts.append((device, version, network))
        return 0

    def ask(self, session: str, number: int, version: int, answer: Callable[[Answer], object]) -> object:
        if self.at_once is not None:
            answer(self.at_once)
            return None
        self.owed.append((number, answer))
        return number

    def leave(self, waiter: object) -> None:
        self.left.append(waiter)


def ids() -> Callable[[], str]:
    """Return what makes ids s1, s2, ..."""
    numbers = iter(range(1, 1_000_000))
    return lambda: f"s{next(numbers)}"


def make_service(
    warm: FakeWarm | None = None, guard: Guard | None = None, *, store: CacheStore | None = None
) -> CacheService:
    if store is None:
        store = CacheStore(StorePolicy(max_value_bytes=VALUE_BYTES))
    objects = Objects(store, Times(), VALUE_BYTES, ids())
    return CacheService(objects, random.Random(1), warm=warm, guard=guard)


def question(where: str, data: Any = None, request: str = "r", **header: Any) -> Message:
    """Return a question such as `Session.Create`."""
    name, _, event = where.partition(".")
    return Message(name, "Event", event, data, {"Request": request, **header})


class Caller:
    """One end of a connection to the port."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self._decoder = Decoder(PortLimits(batch_bytes=2 * BATCH_BYTES))
        self._heard: list[Message] = []

    async def send(self, *messages: Message) -> None:
        await self.stream.send_all(b"".join(map(encode_alone, messages)))

    async def hear(self) -> Message | None:
        """Return the next answer; None at the end."""
        with trio.fail_after(PATIENCE_S):
            while not self._heard:
                data = await self.stream.receive_some()
                if not data:
                    return None
                for batch in self._decoder.feed(bytes(data)):
                    assert len(batch) == 1
                    self._heard += batch
        return self._heard.pop(0)

    async def ask(self, where: str, data: Any = None, **header: Any) -> Message:
        await self.send(question(where, data, **header))
        answer = await self.hear()
        assert answer is not None
        return answer


def raw(value: Any, *, bin_type: bool = True) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=bin_type)
    return packed


@asynccontextmanager
async def port_of(
    service: CacheService,
    *,
    asks: int = 1000,
    window_bytes: int = 65536,
    knows: Callable[[Peer], bool] = lambda _: True,
    wanted: str = "",
    **limits: Any,
) -> AsyncIterator[tuple[CachePort, Callable[[], Caller]]]:
    """Serve; give the port, and what connects to it."""
    port = CachePort(service, PortLimits(batch_bytes=BATCH_BYTES, **limits), asks, knows=knows, wanted=wanted)
    async with trio.open_nursery() as nursery:

        def connect() -> Caller:
            ours, theirs = memory_pair(window_bytes=window_bytes)
            nursery.start_soon(port.serve_stream, theirs, Peer("127.0.0.1", 4))
            return Caller(ours)

        yield port, connect
        nursery.cancel_scope.cancel()
