"""A port under test, and who stands around it: a handler to order, an observer that keeps count, peers that speak.

Nothing here knows how the port is built. A second implementation runs through the same tests as one more `port_class`.

The file is long because both ports, and every kind of client of them, are made here, for many test files.
"""

from __future__ import annotations

import functools
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgpack
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from lambdamu.address import Address
from lambdamu.epoll_server import EpollServer
from lambdamu.machine import LogicalMachine
from lambdamu.messages import Code, Message, error
from lambdamu.objects import NOTHING, Farewell, Later, LMObject, Peer, Reply
from lambdamu.poller import EpollPoller, Poller, TrioPoller
from lambdamu.port import Ending, PortLimits, PortObserver
from lambdamu.stream_server import StreamServer
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import MemoryStream, memory_pair, whole
from lambdamu.testing.streams import Cut
from tests.lambdamu.sockets import GRID_S


def patience_s() -> float:
    """Return how long a test waits before it has failed: longer than anything lasts, in either kind of time."""
    return 3000.0 if isinstance(trio.lowlevel.current_clock(), MockClock) else 30.0


def reset(sock: Any) -> None:
    """Close a socket by a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.fixture(
    params=[
        pytest.param(lambda: EpollPoller(GRID_S), marks=pytest.mark.skipif(sys.platform != "linux", reason="no epoll")),
        TrioPoller,
    ],
    ids=["epoll", "trio"],
)
def poller(request: pytest.FixtureRequest) -> Poller:
    made: Poller = request.param()
    return made


@pytest.fixture(params=[StreamServer, EpollServer], ids=["streams", "epoll"])
def port_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def make_port_of() -> Iterator[Callable[..., Port]]:
    """Make a port of a given class and limits; what its peers have left open is closed after the test."""
    ports: list[Port] = []

    def make(port_class: Any, **limits: Any) -> Port:
        ports.append(Port(port_class, **limits))
        return ports[-1]

    yield make
    for port in ports:
        port.close_sockets()


@pytest.fixture
def make_port(make_port_of: Callable[..., Port], port_class: Any) -> Callable[..., Port]:
    return functools.partial(make_port_of, port_class)


class Desk(LogicalMachine):
    """The handler of the tests. Its one object does as the names of its properties and events say."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__("desk")
        self.asked: list[Any] = []
        """The Data of all that was handled."""
        self.given_up: list[Any] = []
        """The Data of each owed answer that nobody waits for any more, as often as it was said."""
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self._owed: dict[Any, Later] = {}
        self._changed = changed
        self.add(
            LMObject(
                "Desk",
                gettable={"Echo": self._echo, "Long": self._long, "Number": self._number},
                settable={"Note": self._note},
                events={
                    "Owe": functools.partial(self._owe, fin_cancels=False),
                    "Hold": functools.partial(self._owe, fin_cancels=True),
                    "OweNothing": self._owe_nothing,
                    "OweFarewell": self._owe_farewell,
                    "Fail": self._fail,
                    "Unpackable": self._unpackable,
                    "Part": self._part,
                },
            )
        )

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        self.asked.append(message.data)
        if peer not in self.peers:
            self.peers.append(peer)
        self._changed()
        return super().handle(message, now, peer)

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def owes(self, data: Any) -> bool:
        return data in self._owed

    def pay(self, data: Any, kind: Callable[[list[Message]], list[Message]] = list) -> bool:
        """Give the answer owed for `data`; return whether anybody waited for it."""
        return self._owed.pop(data).answer(kind([Message("Desk", "Value", "Owe", data)]))

    def _owe(self, message: Message, now: float, peer: Peer, *, fin_cancels: bool) -> Later:
        later = Later(cancelled=functools.partial(self._gave_up, message.data), fin_cancels=fin_cancels)
        self._owed[message.data] = later
        return later

    def _gave_up(self, data: Any) -> None:
        self.given_up.append(data)
        self._changed()

    def _owe_nothing(self, message: Message, now: float, peer: Peer) -> Later:
        later = Later()
        later.answer([Message("Desk", "Value", "OweNothing", message.data)])
        return later

    def _owe_farewell(self, message: Message, now: float, peer: Peer) -> Later:
        later = Later()
        later.answer(Farewell(self._echo(message, now, peer)))
        return later

    def _echo(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return [Message("Desk", "Value", "Echo", message.data)]

    def _long(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return [Message("Desk", "Value", "Long", "x" * message.data)]

    def _number(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        if type(message.data) is not int:
            return [error(message, Code.BAD_DATA, "a number is an int")]
        return self._echo(message, now, peer)

    def _note(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return NOTHING

    def _fail(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        raise ZeroDivisionError

    def _part(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return Farewell(self._long(message, now, peer) if type(message.data) is int else self._echo(message, now, peer))

    def _unpackable(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return [Message("Desk", "Value", "Unpackable", object())]


class Ledger(PortObserver):
    """The observer of the tests."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.open = 0
        self.open_most = 0
        self.endings: list[Ending] = []
        self.ended_at: list[float] = []
        self.refusals = 0
        self.codes: list[str] = []
        self.shortages: list[float] = []
        self.replies: list[tuple[int, float]] = []
        self._changed = changed

    def opened(self) -> None:
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        self._changed()

    def ended(self, how: Ending) -> None:
        self.open -= 1
        assert self.open >= 0
        self.endings.append(how)
        self.ended_at.append(trio.current_time())
        self._changed()

    def refused(self) -> None:
        self.refusals += 1
        self._changed()

    def replied(self, batches: int, took_s: float) -> None:
        self.replies.append((batches, took_s))
        self._changed()

    def broke_protocol(self, code: str) -> None:
        self.codes.append(code)

    def cannot_accept(self, error: OSError) -> None:
        self.shortages.append(trio.current_time())


class Speaker:
    """A peer of the port: the other end of one connection."""

    def __init__(self, stream: Any, cut: Cut = whole) -> None:
        self.stream = stream
        self._cut = cut
        self._unpacker = msgpack.Unpacker()

    async def send(self, data: bytes) -> None:
        with trio.fail_after(patience_s()):
            for piece in self._cut(data):
                await self.stream.send_all(piece)

    async def send_while_taken(self, data: bytes) -> None:
        """Send as much as the port takes before it ends the connection."""
        with suppress(trio.BrokenResourceError):
            await self.send(data)

    async def finish(self) -> None:
        """Half-close."""
        await self.stream.send_eof()

    def reset(self) -> None:
        if isinstance(self.stream, MemoryStream):
            self.stream.reset()
        else:
            reset(self.stream.socket)

    async def batch(self) -> list[dict[str, Any]]:
        """Return the next batch."""
        with trio.fail_after(patience_s()):
            while (batch := next(self._unpacker, None)) is None:
                data = await self.stream.receive_some()
                assert data, "the connection ended where an answer was due"
                self._unpacker.feed(data)
        return batch

    async def data(self) -> list[Any]:
        """Return the Data of each message of the next batch."""
        return [message.get("Data") for message in await self.batch()]

    async def rest(self) -> bytes:
        """Return all bytes up to the end of the connection, which is no reset."""
        received = bytearray()
        with trio.fail_after(patience_s()):
            while data := await self.stream.receive_some():
                received += data
        return bytes(received)

    async def last_data(self) -> list[list[Any]]:
        """Return the Data of each message of all batches up to the end of the connection."""
        self._unpacker.feed(await self.rest())
        return [[message.get("Data") for message in batch] for batch in self._unpacker]


class Port:
    """A port with its handler and its observer; over streams in memory by `meet`, over sockets by `listening`."""

    def __init__(self, port_class: Any, **limits: Any) -> None:
        self._changed = trio.lowlevel.ParkingLot()
        self.desk = Desk(self._changed.unpark_all)
        self.ledger = Ledger(self._changed.unpark_all)
        self.server = port_class(self.desk, PortLimits(**limits), observer=self.ledger)
        self._speakers: list[Speaker] = []
        self._listeners: list[socket.socket] | None = None
        self._sockets: list[socket.socket] = []

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, which is looked at whenever something happens at the port."""
        with trio.fail_after(patience_s()):
            await trio.lowlevel.checkpoint()
            while not holds():
                await self._changed.park()

    async def over(self) -> None:
        """Wait until no connection is open."""
        await self.until(lambda: self.ledger.open == 0)

    def meet(self, nursery: trio.Nursery, *, cut: Cut = whole, window_bytes: int = 65536) -> Speaker:
        """Begin a connection, in memory where the port takes that; what the peer writes comes `cut`."""
        if not hasattr(self.server, "serve_stream"):
            return self._meet_by_socket(nursery, cut)
        here, there = memory_pair(cut=cut, window_bytes=window_bytes)
        nursery.start_soon(self.server.serve_stream, there, Peer("192.0.2.7", 4711))
        return Speaker(here)

    def close_sockets(self) -> None:
        for sock in (*self._sockets, *(self._listeners or ())):
            sock.close()

    def _meet_by_socket(self, nursery: trio.Nursery, cut: Cut) -> Speaker:
        if self._listeners is None:
            self.server.defer_accept_s = 0
            self._listeners = open_listeners(Address("127.0.0.1", 0))
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._listeners[0].setsockopt(socket.SOL_SOCKET, option, 16384)  # what the kernel holds is not ours
            nursery.start_soon(self.server.serve, self._listeners)
            self._address = self._listeners[0].getsockname()
        sock = socket.socket()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            # Smaller ones have the kernel wait for its own timers, in real time.
            sock.setsockopt(socket.SOL_SOCKET, option, 16384)
        sock.connect(self._address)
        self._sockets.append(sock)
        return Speaker(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), cut)

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[Address]:
        """Serve on a free port; at the end hang all peers up, stop, and wait until the server has returned."""
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(self.server.serve, open_listeners(Address(host, 0)))
            try:
                yield address
            finally:
                for speaker in self._speakers:
                    speaker.stream.socket.close()
            self.server.stop()
            nursery.cancel_scope.deadline = trio.current_time() + patience_s()
        assert not nursery.cancel_scope.cancelled_caught, "the server did not return"
        assert self.server.connections == self.ledger.open == 0

    async def connect(self, address: Address) -> Speaker:
        """Return a peer that is connected, and is hung up at the end of `listening`."""
        speaker = Speaker(await trio.open_tcp_stream(address.host, address.port))
        self._speakers.append(speaker)
        return speaker
