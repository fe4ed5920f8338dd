"""The port on Linux among peers that do as chance has it. Whatever they do, nothing of theirs stays, and none of them
gets the answer to another question than its own.

Time is virtual. A seed settles what each peer does and when it is tired of it; how the kernel and the tasks take turns
it does not settle, so a failure that hangs on that may need its seed a few times over.

The file is long because the clients, their steps and what must hold afterwards belong together.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgpack
import pytest
import trio
from trio.testing import MockClock

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.objects import Later, LMObject, Peer, Quick, Reply
from lambdamu.port import Ending
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the port of Linux")

MakePort = Callable[..., Any]

ROUNDS = 60
LIMIT_S = 0.2
PATIENCE_S = 1000.0
KINDS = ("echo", "echo", "row", "row", "known", "unknown", "data", "owe", "owe", "hold", "pay", "pay")
STALLED = ("echo", "echo", "row", "owe", "owe", "hold")
ROW = encode([Message("Counter", "Get", "Next")])
DEADLINES = {Ending.IDLE, Ending.MESSAGE_DEADLINE, Ending.SEND_DEADLINE}
GARBAGE = (b"\xc1", b"\x01", b"\x91\x80", b"\x91\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\xdc\x01\x00", b"\x91" * 40)


class Turnstile(LMObject):
    """Its one property is one more each time it is asked for, and the port may know the question by its bytes."""

    def __init__(self) -> None:
        super().__init__("Counter", gettable={"Next": lambda message, now, peer: [self._next()]})
        self._count = 0
        self._asked = 0

    def prepare(self, message: Message) -> Quick | None:
        return self._quick if (message.command, message.name) == ("Get", "Next") else None

    def _quick(self, now: float, family: Literal[4, 6], address: tuple[str, int]) -> bytes | None:
        self._asked += 1
        return None if self._asked % 3 == 0 else encode([self._next()])  # one in three has to go the long way

    def _next(self) -> Message:
        self._count += 1
        return Message("Counter", "Value", "Next", self._count)


class Debts(LMObject):
    """Owes answers, pays them when chance has it, and keeps account of what became of each."""

    def __init__(self, rng: random.Random, gone: Sequence[Peer]) -> None:
        super().__init__("Debts", events={"Owe": self._owe, "Hold": self._owe, "Pay": self._pay})
        self.open: dict[Any, Later] = {}
        self.fates: dict[Any, list[str]] = {}
        self._rng = rng
        self._gone = gone
        self._peers: dict[Any, Peer] = {}

    def pay(self) -> None:
        """Pay any one that is owed, if there is one."""
        if self.open:
            data = self._rng.choice(list(self.open))
            if self.open.pop(data).answer([Message("Debts", "Value", "Owed", data)]):
                self.fates[data].append("paid")
                assert self._peers[data] not in self._gone, "paid to one who has left"

    def _owe(self, message: Message, now: float, peer: Peer) -> Reply:
        data = message.data
        later = Later(cancelled=lambda: self._gave_up(data), fin_cancels=message.name == "Hold")
        assert data not in self.fates
        self._peers[data] = peer
        self.open[data], self.fates[data] = later, []
        if self._rng.random() < 0.2:
            self.pay()
        return later

    def _gave_up(self, data: Any) -> None:
        self.fates[data].append("given up")
        del self.open[data]
        if self._rng.random() < 0.3:
            self.pay()  # who gives up makes room for another

    def _pay(self, message: Message, now: float, peer: Peer) -> Reply:
        self.pay()
        return [Message("Debts", "Value", "Pay", message.data)]


class Short(socket.socket):
    """A listening socket that often finds its process out of descriptors, or its peer gone."""

    rng: random.Random

    def _accept(self) -> Any:
        if self.rng.random() < 0.3:
            number = self.rng.choice([errno.EMFILE, errno.ECONNABORTED])
            raise OSError(number, os.strerror(number))
        return super()._accept()  # type: ignore[misc]


class Client:
    """A peer with a plan: what it says, in which pieces, what answers it may get, and how it leaves."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self._rng = rng
        self._next = number * 1000
        self.expected: list[list[tuple[str, str, Any]]] = []
        self.received: list[list[dict[str, Any]]] = []
        self.stalls = rng.random() < 0.2
        self.holds = False
        self.said = b"".join(self._question() for _ in range(rng.choice([0, 1, 1, 3, 8, 40])))
        self.breaks = rng.random() < 0.15
        if self.breaks:
            self.said += rng.choice(GARBAGE)
        self.way = rng.choice(["finish", "finish", "reset", "close", "stay"])
        self.source = f"127.0.0.{rng.randint(1, 3)}"
        self.ended_well = False

    def _question(self) -> bytes:
        kind = self._rng.choice(STALLED if self.stalls else KINDS)
        if kind in ("row", "known"):
            count = self._rng.randint(2, 50) if kind == "row" else 1
            self.expected += [[("Counter", "Next", None)]] * count
            return ROW * count
        messages = [self._message(kind) for _ in range(self._rng.choice([1, 1, 1, 3]))]
        self.expected.append([answer for _, answer in messages])
        return encode([message for message, _ in messages])

    def _message(self, kind: str) -> tuple[Message, tuple[str, str, Any]]:
        self._next += 1
        data = self._next
        if kind == "echo" and self.stalls:
            size = self._rng.choice([10, 60000, 60000, 400000])
            return Message("Desk", "Get", "Long", size), ("Desk", "Long", "x" * size)
        if kind == "unknown":
            return Message("Nobody", "Get", "Echo", data), ("Nobody", "Echo", None)
        if kind == "data":
            return Message("Desk", "Get", "Echo", {"N": [data, "y" * 300]}), ("Desk", "Echo", {"N": [data, "y" * 300]})
        if kind in ("owe", "hold"):
            self.holds |= kind == "hold"
            return Message("Debts", "Event", kind.title(), data), ("Debts", "Owed", data)
        if kind == "pay":
            return Message("Debts", "Event", "Pay", data), ("Debts", "Pay", data)
        return Message("Desk", "Get", "Echo", data), ("Desk", "Echo", data)

    async def run(self, address: Address) -> None:
        with socket.socket() as plain:
            if self.stalls:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.bind((self.source, 0))
            try:
                plain.connect((address.host, address.port))
            except ConnectionRefusedError:
                return  # the port has stopped
            with trio.socket.from_stdlib_socket(plain) as sock:
                try:
                    await self._live(sock)
                except OSError:
                    self.ended_well = False

    async def _live(self, sock: Any) -> None:
        async with trio.open_nursery() as nursery:
            talks = trio.CancelScope(deadline=trio.current_time() + self._rng.choice([0.1, 1.0, PATIENCE_S]))
            nursery.start_soon(self._read, sock)
            with talks:
                try:
                    await self._talk(sock)
                except OSError:
                    talks.cancel()
            if self.way == "finish" and not talks.cancel_called:
                self._shut(sock)
                return
            if self.way != "stay":
                if self.way == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                nursery.cancel_scope.cancel()

    def _shut(self, sock: Any) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.way = "stay"  # the port was faster

    async def _talk(self, sock: Any) -> None:
        left = self.said
        if self.way != "finish" and self._rng.random() < 0.5:
            left = left[: self._rng.randrange(len(left) + 1)]
        while left:
            piece = self._rng.choice([1, 20, len(ROW), len(ROW) * 3, 1000, len(left)])
            while piece and left:
                sent = await sock.send(left[:piece])
                left, piece = left[sent:], piece - min(sent, piece)
            for _ in range(self._rng.choice([0, 0, 1, 5])):
                await trio.lowlevel.checkpoint()

    async def _read(self, sock: Any) -> None:
        unpacker = msgpack.Unpacker()
        takes = self._rng.choice([0, 3, 50, 400]) if self.stalls else None
        try:
            while takes is None or takes > 0:
                data = await sock.recv(2000 if self.stalls else 65536)
                if not data:
                    self.ended_well = True
                    return
                unpacker.feed(data)
                self.received += unpacker
                takes = None if takes is None else takes - 1
        except OSError:
            return

    def check(self, *, all_due: bool) -> None:
        """Compare what came with what was asked: in order, each answer whole; the port's last word may follow."""
        last: list[str] = []
        count = 0
        for batch, expected in zip(self.received, [*self.expected, *[None] * len(self.received)], strict=False):
            assert not last, "something came after the last word"
            if batch[0]["Object"] == "Master":
                [message] = batch
                last.append(message["Data"]["Code"])
                continue
            assert expected is not None, "more answers than questions"
            assert [(message["Object"], message["Name"]) for message in batch] == [item[:2] for item in expected]
            for message, (object_name, _, data) in zip(batch, expected, strict=True):
                if object_name == "Counter":
                    assert message["Data"] > count
                    count = message["Data"]
                elif object_name != "Nobody":
                    assert message["Data"] == data
        if all_due and not last and self.way == "finish" and self.ended_well:
            assert self.breaks or self.holds or len(self.received) == len(self.expected)


@pytest.fixture
def port_class() -> Any:
    from lambdamu.epoll_server import EpollServer  # noqa: PLC0415 - it is there on Linux alone

    return EpollServer


@pytest.fixture
def clock() -> MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def heard(ledger: Any) -> list[None]:
    """Return a list that grows by one with each connection the ledger hears was let in."""
    opened: list[None] = []
    opened_as_before = ledger.opened

    def note() -> None:
        opened.append(None)
        opened_as_before()

    ledger.opened = note
    return opened


def listeners_of(rng: random.Random) -> list[socket.socket]:
    """Return one or two listening sockets, in some rounds such as often fail to accept."""
    listeners = [open_listeners(Address("127.0.0.1", 0))[0] for _ in range(rng.choice([1, 1, 2]))]
    for listener in listeners:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    if rng.random() < 0.25:
        listeners = [Short(fileno=listener.detach()) for listener in listeners]
        for listener in listeners:
            listener.rng = rng  # type: ignore[attr-defined]
    return listeners


async def live_through(server: Any, clients: Sequence[Client], debts: Debts, rng: random.Random) -> bool:
    """Have all clients do as they plan, and stop the server; return whether that came when all had left."""
    gone: set[Client] = set()
    stops_early = rng.random() < 0.3
    stops_at = rng.randrange(300)

    async def run(client: Client, address: Address) -> None:
        await client.run(address)
        gone.add(client)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(server.serve, listeners_of(rng))
            for client in clients:
                nursery.start_soon(run, client, rng.choice(addresses))
            turns = 0
            while len(gone) < len(clients) or server.connections or debts.open:
                turns += 1
                if stops_early and turns == stops_at:
                    server.stop()
                if rng.random() < 0.3:
                    debts.pay()
                # Others get their turn, and now and then the time that makes deadlines run out.
                with trio.move_on_after(rng.choice([0.0, 0.0, 0.0, 0.0, 0.01, LIMIT_S])):
                    await trio.sleep_forever()
            server.stop()
    return not stops_early or turns < stops_at


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_nothing_stays_of_peers_that_do_as_chance_has_it(
    make_port: MakePort, clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    open_before = descriptors()
    port = make_port(
        message_s=LIMIT_S,
        idle_s=LIMIT_S,
        send_s=LIMIT_S,
        connections=rng.choice([2, 1000]),
        connections_per_address=rng.choice([0, 1, 3]),
    )
    server, desk, ledger = port.server, port.desk, port.ledger
    opened = heard(ledger)
    server.defer_accept_s = 0  # the kernel's own time is real
    debts = Debts(rng, desk.gone)
    desk.add(Turnstile())
    desk.add(debts)
    clients = [Client(random.Random(f"{seed} {i}"), i) for i in range(rng.randint(1, 7))]
    stopped_last = await live_through(server, clients, debts, rng)

    assert descriptors() == open_before
    everyone = server._all
    tables = (everyone._by_activity, everyone._partial, everyone._sending, everyone._lingering)
    assert (server.connections, [len(table) for table in tables]) == (0, [0] * 4)
    assert not server._cap._open
    assert (ledger.open, len(ledger.endings)) == (0, len(opened))
    assert {len(fate) for fate in debts.fates.values()} <= {1}, "an owed answer had no end, or two"
    assert not debts.open
    assert {desk.gone.count(peer) for peer in desk.peers} <= {1}
    assert len(desk.gone) == len(set(desk.gone))
    # Where the machine stalls, the clock jumps while bytes are on their way, and a deadline may cut anybody off.
    in_time = DEADLINES.isdisjoint(ledger.endings)
    for client in clients:
        client.check(all_due=stopped_last and in_time)


async def test_garbage_behind_an_owed_answer_and_a_half_close_is_told_as_what_it_is(make_port: MakePort) -> None:
    port = make_port()
    debts = Debts(random.Random(0), port.desk.gone)
    port.desk.add(debts)
    async with port.listening() as address:
        peer = await port.connect(address)
        await peer.send(encode([Message("Debts", "Event", "Owe", 1)]) + GARBAGE[0])
        await peer.finish()
        await port.until(lambda: 1 in debts.open)
        debts.pay()
        assert [len(batch) for batch in await peer.last_data()] == [1, 1]
        await port.over()
    assert port.ledger.endings == [Ending.PROTOCOL]
