"""The cache service without a port, for the objects of a backend: the service itself, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import trio

from lambdamu.cache_answers import read_answer
from lambdamu.errors import CacheUnavailableError
from lambdamu.messages import CACHE, SESSION, Command, Message
from lambdamu.objects import Later, Peer
from tests.master.cache.wire import FakeWarm, make_service

PEER = Peer("127.0.0.1", 1)


class DirectCache:
    """What a CacheClient is to those who ask. `down`: it is not there. `delay_s`: each answer comes so late."""

    def __init__(self, warm: FakeWarm | None = None) -> None:
        self._service = make_service(warm)
        self._numbers = count(1)
        self.down = False
        self.away: set[str] = set()
        """Questions that find it not there."""
        self.delay_s = 0.0
        self.asked: list[tuple[float, str]] = []
        """When what was asked, such as Session.Touch."""

    async def ask(self, thing: str, name: str, *, within_s: float = 2.0, **data: Any) -> Mapping[Any, Any]:
        self.asked.append((trio.current_time(), f"{thing}.{name}"))
        await trio.sleep(min(self.delay_s, within_s))
        if self.down or self.delay_s > within_s or f"{thing}.{name}" in self.away:
            raise CacheUnavailableError("the cache is not there")
        question = Message(thing, Command.EVENT, name, data, {"Request": str(next(self._numbers))})
        reply = self._service.handle(question, trio.current_time(), PEER)
        if not isinstance(reply, Later):
            return read_answer(reply[0])
        answers: list[Message] = []
        came = trio.Event()
        reply.attach(lambda messages: (answers.extend(messages), came.set())[0])
        await came.wait()
        return read_answer(answers[0])

    async def backend(self, session: str) -> bytes:
        """Return what stands with a session as its backend."""
        return bytes((await self.ask(CACHE, "Get", Session=session, Key="Backend"))["Value"])

    async def drop(self, session: str) -> None:
        await self.ask(SESSION, "Drop", Session=session)

    def count(self, what: str) -> int:
        return sum(asked == what for _, asked in self.asked)
