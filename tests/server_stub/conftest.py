"""A backend in the test's own loop, and a raw connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import AUTH, SYSTEM, USER_COUNT, USER_MAIL, USER_NAME, Command, Message
from lambdamu.tcp_server import open_listeners
from server_stub.backend import ServerOptions, run_server, serve
from server_stub.faults import parse_fault

ANY_PORT = Address("127.0.0.1", 0)


class RawClient:
    """Writes messages, and reads plain MessagePack values: what is on the wire and not what our decoder makes of it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._unpacker = msgpack.Unpacker(strict_map_key=False)

    async def say(self, *messages: Message) -> None:
        """Send messages as one batch."""
        await self.stream.send_all(encode(messages))

    async def hear(self) -> Any:
        """Return the next batch, or None at the end of the stream."""
        while True:
            for batch in self._unpacker:
                return batch
            received = await self.stream.receive_some()
            if not received:
                return None
            self._unpacker.feed(received)

    async def rest(self) -> bytes:
        """Say that nothing more comes, and return all bytes that still do."""
        await self.stream.send_eof()
        return b"".join([bytes(part) async for part in self.stream])

    async def log_in(self, name: str = "ann", mail: str = "ann@example.org") -> Any:
        await self.say(*log_in(name, mail))
        return (await self.hear())[0]

    async def count(self) -> Any:
        await self.say(ASK_COUNT)
        return (await self.hear())[0]["Data"]


def log_in(name: str = "ann", mail: str = "ann@example.org") -> list[Message]:
    return [Message(AUTH, Command.SET, USER_NAME, name), Message(AUTH, Command.SET, USER_MAIL, mail)]


ASK_COUNT = Message(SYSTEM, Command.GET, USER_COUNT)


class Backend:
    """A backend that serves until the end of its `async with` or until `stop` is set."""

    def __init__(self, address: Address, stop: trio.Event) -> None:
        self.address = address
        self.stop = stop
        self.stopped = trio.Event()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        async with await trio.open_tcp_stream(self.address.host, self.address.port) as stream:
            yield RawClient(stream)


@asynccontextmanager
async def _backend(fault: str | None = None, **options: Any) -> AsyncIterator[Backend]:
    stop = trio.Event()
    given = ServerOptions(Address("127.0.0.1", 0), fault=parse_fault(fault) if fault else None, **options)

    async def run(*, task_status: trio.TaskStatus[list[Address]]) -> None:
        await serve(given, open_listeners(given.listen), stop, task_status=task_status)
        backend.stopped.set()

    async with trio.open_nursery() as nursery:
        backend = Backend(Address("", 0), stop)
        [backend.address] = await nursery.start(run)
        yield backend
        nursery.cancel_scope.cancel()


@pytest.fixture
def backend() -> Callable[..., AbstractAsyncContextManager[Backend]]:
    return _backend


class Process:
    """`run_server` as a process sees it: what it says, and how it exits."""

    def __init__(self, **options: Any) -> None:
        self.options = ServerOptions(**{"listen": ANY_PORT, **options})
        self.said: list[str] = []
        self.complaints: list[str] = []
        self.listening = trio.Event()
        self.exit_code: int | None = None

    async def run(self) -> None:
        self.exit_code = await run_server(self.options, say=self._say, complain=self.complaints.append)

    def _say(self, text: str) -> None:
        self.said.append(text)
        self.listening.set()

    @property
    def address(self) -> Address:
        return Address.parse(self.said[0].rpartition(" ")[2])
