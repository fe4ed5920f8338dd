"""The port over real sockets: who is let in, who is turned away, what bad peers and a short machine do to it.

The file is long because each promise of a port is held against both of them.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.epoll_server import EpollServer
from lambdamu.messages import Message
from lambdamu.objects import LMObject, Peer, Reply
from lambdamu.port import Ending
from lambdamu.tcp_server import bound_addresses, open_listeners

MakePort = Callable[..., Any]

LOCAL = Address("127.0.0.1", 0)
"""Tests that need one port number twice take 127.0.0.2 and up: connections that go out from here have 127.0.0.1."""
PROGRAM = str(Path(__file__).with_name("port_program.py"))


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks into /proc")


def get(*data: Any, name: str = "Echo") -> bytes:
    """Return a batch with a question for each of `data`."""
    return encode([Message("Desk", "Get", name, item) for item in data])


def owe(data: Any) -> bytes:
    return encode([Message("Desk", "Event", "Owe", data)])


def plain_socket(address: Address) -> socket.socket:
    """Return a socket that is connected; it blocks, so the port has not seen it yet."""
    return socket.create_connection((address.host, address.port), timeout=30)


def batches(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    return list(unpacker)


@pytest.fixture
def clock() -> MockClock:
    """A clock that a test moves by hand."""
    return MockClock()


# Where it listens, and who comes.


@pytest.mark.parametrize(
    ("listens", "connects", "seen"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", "127.0.0.1", id="IPv4"),
        pytest.param("0.0.0.0", "127.0.0.1", "127.0.0.1", id="all of IPv4"),
        pytest.param("::1", "::1", "::1", id="IPv6", marks=needs_ipv6),
        pytest.param("::", "::1", "::1", id="IPv6 where both come", marks=needs_ipv6),
        pytest.param("::", "127.0.0.1", "127.0.0.1", id="IPv4 where both come", marks=needs_ipv6),
    ],
)
async def test_a_peer_is_known_by_the_address_it_came_from(
    make_port: MakePort, listens: str, connects: str, seen: str
) -> None:
    port = make_port()
    async with port.listening(listens) as address:
        assert address.host == listens
        peer = await port.connect(Address(connects, address.port))
        await peer.send(get(1))
        assert await peer.data() == [1]
        [known] = port.desk.peers
        own_port = peer.stream.socket.getsockname()[1]
        assert (known.host, known.port, known.family) == (seen, own_port, 6 if ":" in seen else 4)
    assert port.desk.gone == [known]


async def test_two_listeners_are_served_by_one_port(make_port: MakePort, nursery: trio.Nursery) -> None:
    port = make_port()
    addresses = await nursery.start(port.server.serve, open_listeners(LOCAL) + open_listeners(LOCAL))
    for address in addresses:
        peer = await port.connect(address)
        await peer.send(get(1))
        assert await peer.data() == [1]
        await peer.stream.aclose()
    await port.over()
    assert port.ledger.endings == [Ending.LEFT] * 2


def resolved(*hosts: str) -> Callable[..., list[Any]]:
    """Return what stands in for the look-up of a name with these addresses."""

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in hosts
        ]

    return getaddrinfo


@pytest.mark.parametrize(
    ("hosts", "bound"),
    [
        (["127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.3"]),
        (["127.0.0.2", "127.0.0.2"], ["127.0.0.2"]),
        (["198.51.100.1", "127.0.0.2"], ["127.0.0.2"]),
        (["127.0.0.2", "198.51.100.1"], ["127.0.0.2"]),
    ],
    ids=["two", "twice the same", "the first is of another machine", "the last is of another machine"],
)
def test_a_name_is_listened_to_on_each_of_its_addresses_by_one_port_number(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], bound: list[str]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolved(*hosts))
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in open_listeners(Address("name", 0))]
        addresses = bound_addresses(listeners)
        assert [address.host for address in addresses] == bound
        assert len({address.port for address in addresses}) == 1


def test_a_name_with_no_address_of_this_machine_cannot_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolved("198.51.100.1", "198.51.100.2"))
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        open_listeners(Address("name", 0))


def test_a_name_with_an_address_that_is_taken_is_not_listened_to_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    [taken] = open_listeners(Address("127.0.0.3", 0))
    with taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", resolved("127.0.0.2", "127.0.0.3"))
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            open_listeners(Address("name", port))
        monkeypatch.undo()
        [free] = open_listeners(Address("127.0.0.2", port))
        free.close()


async def test_a_socket_that_does_not_listen_ends_the_server(make_port: MakePort) -> None:
    port = make_port()
    with pytest.RaisesGroup(OSError, flatten_subgroups=True), trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            [listener] = open_listeners(LOCAL)
            await nursery.start(port.server.serve, [listener])
            listener.shutdown(socket.SHUT_RD)


class Flaky(socket.socket):
    """A listening socket that fails to accept with the given errors before it works."""

    errors: list[int]

    def _accept(self) -> Any:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super()._accept()  # type: ignore[misc]


@pytest.mark.parametrize(
    "number",
    [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EPERM],
    ids=lambda number: errno.errorcode[number],
)
async def test_a_peer_that_is_gone_before_it_is_let_in_is_passed_over(make_port: MakePort, number: int) -> None:
    await serve_after_errors(make_port(), [number] * 3, shortages=0)


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM], ids=lambda number: errno.errorcode[number]
)
async def test_a_shortage_is_told_and_waited_out(make_port: MakePort, number: int) -> None:
    await serve_after_errors(make_port(), [number] * 3, shortages=3)


async def serve_after_errors(port: Any, numbers: list[int], shortages: int) -> None:
    [plain] = open_listeners(LOCAL)
    listener = Flaky(fileno=plain.detach())
    listener.errors = numbers
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.server.serve, [listener])
        peer = await port.connect(address)
        await peer.send(get(1))
        assert await peer.data() == [1]
        await peer.stream.aclose()
        port.server.stop()
    assert len(port.ledger.shortages) == shortages
    assert port.ledger.endings == [Ending.LEFT]


def kernel_timer(own_port: int, peer_port: int) -> str:
    """Return the kind of timer that runs for a connection over IPv4, as the kernel numbers them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    [timer] = [row[5] for row in rows if (row[1][-4:], row[2][-4:]) == (f"{own_port:04X}", f"{peer_port:04X}")]
    return timer.partition(":")[0]


@needs_proc
async def test_the_kernel_looks_after_peers_that_vanish(make_port: MakePort) -> None:
    port = make_port()
    async with port.listening() as address:
        peer = await port.connect(address)
        await port.until(lambda: port.ledger.open == 1)
        assert kernel_timer(address.port, peer.stream.socket.getsockname()[1]) == "02"  # keepalive


# As many as allowed.


async def test_one_too_many_is_told_so_and_ended(make_port: MakePort) -> None:
    port = make_port(connections=4)
    async with port.listening() as address:
        peers = [await port.connect(address) for _ in range(4)]
        await port.until(lambda: port.ledger.open == 4)
        one_too_many = await port.connect(address)
        [last] = await one_too_many.batch()
        assert (last["Object"], last["Command"], last["Name"]) == ("Master", "Error", "Error")
        assert last["Data"]["Code"] == "Limit"
        assert await one_too_many.rest() == b""
        assert port.ledger.refusals == 1
        assert port.ledger.codes == []

        await peers[0].stream.aclose()
        await port.until(lambda: port.ledger.open == 3)
        after = await port.connect(address)
        await after.send(get(1))
        assert await after.data() == [1]
    assert port.ledger.open_most == 4


async def test_places_of_the_silent_become_free(make_port: MakePort) -> None:
    port = make_port(connections=4, idle_s=0.05)
    async with port.listening() as address:
        silent = [await port.connect(address) for _ in range(4)]
        await port.until(lambda: port.ledger.endings == [Ending.IDLE] * 4)
        with plain_socket(address) as fifth:
            fifth.sendall(get(1))
            await port.until(lambda: port.desk.asked == [1])
        assert [await peer.rest() for peer in silent] == [b""] * 4


async def test_the_count_of_open_connections_is_exact(make_port: MakePort) -> None:
    """A hundred refused, a hundred reset, a hundred cancelled. The observer itself never lets the count go below 0."""
    port = make_port(connections=100)
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.server.serve, open_listeners(LOCAL))
        taken = [plain_socket(address) for _ in range(100)]
        await port.until(lambda: port.ledger.open == 100)
        refused = [plain_socket(address) for _ in range(100)]
        await port.until(lambda: port.ledger.refusals == 100)
        assert port.server.connections == port.ledger.open == 100
        for sock in refused:
            assert sock.recv(1000)
            sock.close()

        for sock in taken:
            reset(sock)
        await port.over()
        assert port.ledger.endings == [Ending.RESET] * 100
        assert port.server.connections == 0

        asking = [plain_socket(address) for _ in range(100)]
        for i, sock in enumerate(asking):
            sock.sendall(owe(i))
        await port.until(lambda: all(port.desk.owes(i) for i in range(100)))
        nursery.cancel_scope.cancel()
    assert Counter(port.ledger.endings) == {Ending.RESET: 100, Ending.STOPPED: 100}
    assert sorted(port.desk.given_up) == list(range(100))
    assert set(port.desk.gone) >= set(port.desk.peers)
    assert (port.ledger.open, port.server.connections, port.ledger.open_most) == (0, 0, 100)
    for sock in asking:
        with suppress(ConnectionResetError):
            assert sock.recv(1000) == b""
        sock.close()


# Bad peers.


def reset(sock: Any) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


@pytest.mark.parametrize("said", [b"", get(1), get(1)[:5], owe(1)], ids=["nothing", "all", "half", "owed"])
async def test_a_thousand_that_ask_and_reset_harm_nobody(make_port: MakePort, said: bytes) -> None:
    port = make_port()
    async with port.listening() as address:
        bystander = await port.connect(address)
        for _ in range(10):
            for _ in range(50):
                sock = plain_socket(address)
                sock.sendall(said)
                reset(sock)  # before it was accepted
            crowd = [await port.connect(address) for _ in range(50)]
            for peer in crowd:
                await peer.send(said)
                peer.reset()
            await bystander.send(get("still here"))
            assert await bystander.data() == ["still here"]
        await port.until(lambda: port.ledger.open == 1)
    assert set(port.ledger.endings) <= {Ending.RESET, Ending.LEFT}
    assert len(port.desk.given_up) == port.desk.asked.count(1) * (said == owe(1))


@pytest.mark.parametrize("behind_bytes", [0, 1000, 100_000])
async def test_what_was_not_read_does_not_destroy_the_last_answer(
    make_port: MakePort, clock: MockClock, behind_bytes: int
) -> None:
    """A socket that is closed with bytes unread resets its connection, and what the peer has not read yet is lost."""
    port = make_port()
    async with port.listening() as address:
        peer = await port.connect(address)
        await peer.send(get(1) + b"\xc1" + bytes(behind_bytes))
        await port.until(lambda: bool(port.ledger.codes))
        await peer.send(bytes(behind_bytes))
        answer, [last] = batches(await peer.rest())
        assert answer[0]["Data"] == 1
        assert last["Data"]["Code"] == "NotMessagePack"


async def test_a_bug_of_the_handler_ends_the_server_loudly(make_port: MakePort) -> None:
    port = make_port()
    bystanders = []
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True), trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(port.server.serve, open_listeners(LOCAL))
            bystanders = [await port.connect(address) for _ in range(3)]
            await port.until(lambda: port.ledger.open == 3)
            await bystanders[0].send(encode([Message("Desk", "Event", "Fail")]))
    for peer in bystanders:
        assert await peer.rest() == b""
        await peer.stream.aclose()
    assert (port.ledger.open, port.server.connections) == (0, 0)
    with pytest.raises(ConnectionRefusedError):
        plain_socket(address)


# The stop.


async def test_at_a_stop_all_in_flight_are_answered_and_new_ones_refused(make_port: MakePort) -> None:
    port = make_port()
    async with port.listening() as address:
        silent = await port.connect(address)
        await silent.send(get("before"))
        assert await silent.data() == ["before"]
        in_flight = [await port.connect(address) for _ in range(50)]
        for i, peer in enumerate(in_flight):
            await peer.send(owe(i))
        await port.until(lambda: all(port.desk.owes(i) for i in range(50)))
        port.server.stop()
        assert await silent.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            plain_socket(address)
        assert all(port.desk.pay(i) for i in range(50))
        assert [await peer.last_data() for peer in in_flight] == [[[i]] for i in range(50)]
    assert Counter(port.ledger.endings) == {Ending.STOPPED: 51}


async def test_at_a_stop_those_whom_the_kernel_has_let_in_are_served(make_port: MakePort, clock: MockClock) -> None:
    """More of them than are accepted at once, by a server that is busy with something else for a while."""
    port = make_port()
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.server.serve, open_listeners(LOCAL))
        await wait_all_tasks_blocked()
        waiting = [plain_socket(address) for _ in range(200)]
        for i, sock in enumerate(waiting):
            sock.sendall(get(i))
            sock.shutdown(socket.SHUT_WR)
        port.server.stop()
        clock.jump(1)
    for i, sock in enumerate(waiting):
        assert [answer["Data"] for [answer] in batches(sock.recv(1000))] == [i]
        assert sock.recv(1000) == b""
        sock.close()
    assert port.ledger.endings == [Ending.LEFT] * 200


async def test_a_port_that_is_stopped_before_it_has_begun_serves_who_is_there_and_returns(
    make_port: MakePort,
) -> None:
    port = make_port()
    listeners = open_listeners(LOCAL)
    [address] = bound_addresses(listeners)
    with plain_socket(address) as sock:
        sock.sendall(get(1))
        sock.shutdown(socket.SHUT_WR)
        port.server.stop()
        with trio.fail_after(30):
            await port.server.serve(listeners)
        assert [answer["Data"] for [answer] in batches(sock.recv(1000))] == [1]
    assert port.ledger.endings == [Ending.LEFT]


async def test_an_address_can_be_taken_again_at_once_but_not_twice(make_port: MakePort) -> None:
    port = make_port()
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.server.serve, open_listeners(Address("127.0.0.2", 0)))
        peers = [await port.connect(address) for _ in range(50)]
        await port.until(lambda: port.ledger.open == 50)
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            open_listeners(address)
        nursery.cancel_scope.cancel()
    [again] = open_listeners(address)
    again.close()
    for peer in peers:
        await peer.stream.aclose()


# Real processes.


class Program:
    """A port in a process of its own; see port_program.py."""

    def __init__(self, port_class: Any, **order: Any) -> None:
        command = [sys.executable, PROGRAM, port_class.__module__, port_class.__qualname__, json.dumps(order)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self.close())
        self.addresses = [Address("127.0.0.2", port) for port in json.loads(line)]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.close() == ""

    def close(self) -> str:
        """Stop it, wait for its end, and return what it complained of."""
        try:
            return self._process.communicate(timeout=30)[1]
        finally:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def ask(sock: socket.socket, question: bytes) -> Any:
    """Return the Data of the one answer to `question`."""
    sock.sendall(question)
    unpacker = msgpack.Unpacker()
    while True:
        for batch in unpacker:
            return batch[0]["Data"]
        data = sock.recv(65536)
        assert data, "the connection ended where an answer was due"
        unpacker.feed(data)


def usage(sock: socket.socket) -> dict[str, Any]:
    return ask(sock, get(None, name="Usage"))  # type: ignore[no-any-return]


def received_all(sock: socket.socket) -> bytes:
    """Return what comes up to the end, be it a reset."""
    received = b""
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    return received


def test_a_program_that_was_killed_can_be_started_again_at_once_but_not_twice(port_class: Any) -> None:
    with Program(port_class) as first:
        [address] = first.addresses
        with ExitStack() as stack:
            for i in range(50):
                assert ask(stack.enter_context(plain_socket(address)), get(i)) == i
            first.kill()
            with Program(port_class, ports=[address.port]), plain_socket(address) as sock:
                assert ask(sock, get(1)) == 1
                with pytest.raises(RuntimeError, match="Address already in use"):
                    Program(port_class, ports=[address.port])
                assert ask(sock, get(2)) == 2


@needs_proc
def test_a_program_that_is_out_of_descriptors_waits_for_them(port_class: Any) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(Program(port_class, ports=[0, 0], descriptors=64))
        before_all = stack.enter_context(plain_socket(program.addresses[0]))
        before, began = usage(before_all), time.monotonic()
        with ExitStack() as crowd:
            for i in range(200):
                crowd.enter_context(plain_socket(program.addresses[i % 2]))
            time.sleep(2)
            after, elapsed_s = usage(before_all), time.monotonic() - began
        assert after["cpu_s"] - before["cpu_s"] < 0.25 * elapsed_s
        assert 0 < after["shortages"] <= 10 * elapsed_s + 1
        for address in program.addresses:
            assert ask(stack.enter_context(plain_socket(address)), get("again")) == "again"


HUGE = {
    "bytes": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "bytes within a message": get("a").replace(b"\xa1a", b"\xc6\x40\0\0\0"),
}


@needs_proc
def test_memory_stays_flat_whatever_peers_announce_and_send(port_class: Any) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(Program(port_class))
        [address] = program.addresses
        bystander = stack.enter_context(plain_socket(address))
        before = usage(bystander)
        for huge in [*HUGE.values()] * 10:
            with plain_socket(address) as sock:
                sock.sendall(huge)
                [[last]] = batches(received_all(sock))
                assert last["Data"]["Code"] == "Limit"
        most = get("x" * 60000)[:-1]  # as much as may wait for its end
        for _ in range(50):
            stack.enter_context(plain_socket(address)).sendall(most)
        for i in range(50):
            sock = stack.enter_context(plain_socket(address))
            with suppress(ConnectionError):
                sock.sendall(b"\xc6" + (2 << 20).to_bytes(4, "big") + bytes(2 << 20))
            assert ask(bystander, get(i)) == i
        assert usage(bystander)["rss_bytes"] - before["rss_bytes"] < 16 << 20


@needs_proc
def test_memory_stays_flat_when_peers_do_not_read(port_class: Any) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(Program(port_class, limits={"send_s": 1.0}))
        [address] = program.addresses
        bystander = stack.enter_context(plain_socket(address))
        before = usage(bystander)
        deaf = [stack.enter_context(plain_socket(address)) for _ in range(20)]
        for sock in deaf:
            sock.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                while sock.send(get(10000, name="Long") * 1000):
                    pass
        time.sleep(0.5)
        assert usage(bystander)["rss_bytes"] - before["rss_bytes"] < 16 << 20
        time.sleep(1)
        for sock in deaf:
            sock.settimeout(30)
            received_all(sock)
        assert ask(bystander, get(1)) == 1


class Slow(LMObject):
    """A question takes it a real part of a millisecond."""

    def __init__(self) -> None:
        super().__init__("Slow", gettable={"Next": self._next})
        self.answered = 0

    def _next(self, message: Message, now: float, peer: Peer) -> Reply:
        self.answered += 1
        end = time.perf_counter() + 3e-4
        while time.perf_counter() < end:
            pass
        return [Message("Slow", "Value", "Next")]


@pytest.mark.skipif(sys.platform != "linux", reason="the port of Linux")
async def test_a_crowd_with_much_to_be_answered_lets_the_rest_of_the_program_run(make_port_of: MakePort) -> None:
    port, slow = make_port_of(EpollServer), Slow()
    port.desk.add(slow)
    most = 0
    async with port.listening() as address:
        peers = [await port.connect(address) for _ in range(60)]
        for peer in peers:  # those who have said nothing are not let in yet
            await peer.send(get(1))
            await peer.data()
        for peer in peers:  # all at once, while the port does not run
            os.write(peer.stream.socket.fileno(), encode([Message("Slow", "Get", "Next")]) * 40)
        while slow.answered < 2400:
            before = slow.answered
            await trio.lowlevel.checkpoint()
            most = max(most, slow.answered - before)
    assert most < 400, "each of the sixty had sixteen answers in one turn"
