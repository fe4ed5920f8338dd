"""The client's connection: each way in which it cannot be made, breaks, or brings nothing in time.

The file is long because each way in which a connection cannot be made or breaks is one test of the one client.
"""

from __future__ import annotations

import errno
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lambdamu.address import Address
from lambdamu.datapack import WireLimits, encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.link_fault import link_fault
from lambdamu.messages import Batch, LinkFault, Message
from lambdamu.resolver import Resolver, SocketAddress
from lambdamu.tcp_client import TCPClient
from lambdamu.testing import MemoryStream, every_byte, memory_pair, virtual_clock
from tests.lambdamu.sockets import PATIENCE_S, bound, deaf_listener, ipv4, listener

PEER = Address("192.0.2.7", 7000)
ANSWER = [Message("System", "Value", "UserCount", 7)]
QUESTION = encode([Message("System", "Get", "UserCount")])


@pytest.fixture
def clock() -> MockClock:
    return virtual_clock()


class Known(Resolver):
    """Knows the addresses of every name; a look-up takes `takes_s` of a virtual clock, in one jump."""

    def __init__(self, *addresses: SocketAddress, clock: MockClock | None = None, takes_s: float = 0.0) -> None:
        super().__init__()
        self._addresses = list(addresses)
        self._clock = clock
        self._takes_s = takes_s

    async def resolve(self, host: str, port: int) -> list[SocketAddress]:
        if self._clock is not None:
            self._clock.jump(self._takes_s)
        return self._addresses


async def connect(*addresses: SocketAddress, within_s: float = PATIENCE_S) -> TCPClient:
    return await TCPClient.connect(Known(*addresses), "name.example", 7000, within_s=within_s)


async def fault_of(failing: Awaitable[Any]) -> LinkFault:
    """Return why what is awaited fails; it names the other side in one line."""
    with pytest.raises(LinkError) as caught:
        await failing
    assert str(caught.value).isprintable()
    return LinkFault(caught.value.why)


# Connecting.


async def test_a_connection_carries_batches_both_ways() -> None:
    with listener() as sock:
        host, port = sock.getsockname()
        client = await TCPClient.connect(Resolver(), host, port, within_s=PATIENCE_S)
        assert client.address == Address(host, port)
        peer, _ = sock.accept()
        with peer:
            await client.send(QUESTION, within_s=PATIENCE_S)
            assert peer.recv(1000) == QUESTION
            peer.sendall(encode(ANSWER))
            assert await client.receive(within_s=PATIENCE_S) == ANSWER
            await client.aclose()
            assert peer.recv(1000) == b""


async def test_a_closed_port_refuses() -> None:
    with bound() as sock:
        assert await fault_of(connect(ipv4(*sock.getsockname()))) == LinkFault.REFUSED


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(ipv4("224.0.0.1", 7000), id="no way there"),
        pytest.param((socket.AF_PACKET, ("lo", 0)) if hasattr(socket, "AF_PACKET") else None, id="no such family"),
    ],
)
async def test_an_address_without_a_way_is_unreachable(address: SocketAddress | None) -> None:
    if address is None:
        pytest.skip("no family that has no streams")
    assert await fault_of(connect(address)) == LinkFault.UNREACHABLE


async def test_a_connection_needs_a_descriptor() -> None:
    with listener() as sock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            fault = await fault_of(connect(ipv4(*sock.getsockname())))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert fault == LinkFault.NO_DESCRIPTOR


async def test_a_host_that_swallows_the_question_is_waited_for_until_the_deadline() -> None:
    with deaf_listener() as sock:
        assert await fault_of(connect(ipv4(*sock.getsockname()), within_s=0.05)) == LinkFault.CONNECT_TIMEOUT


async def test_a_name_that_is_not_looked_up_in_time_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    really = socket.getaddrinfo

    def hang(host: str, port: int, **options: Any) -> Any:
        if not options.get("flags", 0) & socket.AI_NUMERICHOST:
            let_go.wait(PATIENCE_S)
        return really(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        hanging = TCPClient.connect(Resolver(), "name.invalid", 7000, within_s=0.05)
        assert await fault_of(hanging) == LinkFault.NO_ADDRESS
    finally:
        let_go.set()


async def test_a_name_without_addresses_has_none() -> None:
    assert await fault_of(connect()) == LinkFault.NO_ADDRESS


@pytest.mark.parametrize("takes_s", [1.0, 1.5], ids=["all of the time", "more than that"])
async def test_a_look_up_that_ends_too_late_leaves_no_time_to_connect(clock: MockClock, takes_s: float) -> None:
    with listener() as sock:
        resolver = Known(ipv4(*sock.getsockname()), ipv4(*sock.getsockname()), clock=clock, takes_s=takes_s)
        late = TCPClient.connect(resolver, "name.example", 7000, within_s=1.0)
        assert await fault_of(late) == LinkFault.CONNECT_TIMEOUT


@pytest.mark.parametrize("first", [bound, deaf_listener], ids=["refuses", "swallows"])
async def test_where_one_address_is_dead_the_next_is_taken(first: Callable[[], Any]) -> None:
    with first() as dead, listener() as sock:
        live = sock.getsockname()
        client = await connect(ipv4(*dead.getsockname()), ipv4(*live), within_s=1.0)
        assert client.address == Address(*live)
        await client.aclose()


async def test_where_all_addresses_are_dead_the_last_one_says_why() -> None:
    with bound() as dead:
        unreachable = ipv4("224.0.0.1", 7000)
        refuses = ipv4(*dead.getsockname())
        assert await fault_of(connect(unreachable, refuses)) == LinkFault.REFUSED
        assert await fault_of(connect(refuses, unreachable)) == LinkFault.UNREACHABLE


class OwnAddress(trio.abc.SocketFactory):
    """Makes sockets that go out from the address they are to connect to, as the kernel does by chance."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def socket(self, family: int = -1, type: int = -1, proto: int = -1) -> Any:  # noqa: A002 - so named by trio
        sock = socket.socket(family, type, max(proto, 0))
        sock.bind(self._address)
        return trio.socket.from_stdlib_socket(sock)


async def test_a_closed_port_that_is_connected_to_itself_refuses() -> None:
    with bound("127.0.0.2") as sock:
        own = sock.getsockname()
    trio.socket.set_custom_socket_factory(OwnAddress(own))
    assert await fault_of(connect(ipv4(*own))) == LinkFault.REFUSED
    with bound(*own):
        pass  # and the connection is gone


async def test_a_name_is_looked_up_at_each_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name moves to another address, and an impostor stays at the old one."""
    really = socket.getaddrinfo
    moves_to = ""

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        return really(moves_to if host == "moves.example" and moves_to else host, port, **options)

    resolver = Resolver()
    with listener("127.0.0.2") as old, listener("127.0.0.3", old.getsockname()[1]) as new:
        for sock in (old, new):
            host, port = sock.getsockname()
            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            moves_to = host
            client = await TCPClient.connect(resolver, "moves.example", port, within_s=PATIENCE_S)
            assert client.address == Address(host, port)
            peer, _ = sock.accept()
            peer.close()
            await client.aclose()


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.ECONNREFUSED, LinkFault.REFUSED),
        (errno.EMFILE, LinkFault.NO_DESCRIPTOR),
        (errno.ENFILE, LinkFault.NO_DESCRIPTOR),
        (errno.ECONNRESET, LinkFault.CLOSED),
        (errno.ENOTCONN, LinkFault.CLOSED),
        (errno.ETIMEDOUT, LinkFault.CONNECT_TIMEOUT),
        (errno.ENETUNREACH, LinkFault.UNREACHABLE),
        (errno.EHOSTUNREACH, LinkFault.UNREACHABLE),
        (errno.EACCES, LinkFault.UNREACHABLE),
        (errno.EADDRNOTAVAIL, LinkFault.UNREACHABLE),
    ],
    ids=lambda value: errno.errorcode[value] if type(value) is int else value,
)
def test_errors_of_the_system_have_one_word_each(number: int, fault: LinkFault) -> None:
    assert link_fault(OSError(number, "it broke")) == fault


# Talking, in virtual time.


def talk(**limits: Any) -> tuple[TCPClient, MemoryStream]:
    """Return a client and the peer that it is connected to."""
    here, there = memory_pair(window_bytes=1000)
    return TCPClient(here, PEER, WireLimits(**limits)), there


@pytest.mark.parametrize("cut", [lambda data: [data], every_byte], ids=["whole", "byte by byte"])
async def test_batches_are_received_one_by_one_however_they_come(clock: MockClock, cut: Any) -> None:
    client, peer = talk()
    answers = [[Message("System", "Value", "UserCount", i)] for i in range(3)]
    for piece in cut(b"".join(encode(answer) for answer in answers)):
        await peer.send_all(piece)
    assert [await client.receive(within_s=1) for _ in answers] == answers


async def break_off(peer: MemoryStream) -> None:
    peer.reset()


GOODBYES: dict[str, Callable[[MemoryStream], Awaitable[None]]] = {
    "closes": lambda peer: peer.aclose(),
    "half-closes": lambda peer: peer.send_eof(),
    "resets": break_off,
}


@pytest.mark.parametrize("said", [b"", encode(ANSWER)[:-1]], ids=["nothing said", "half an answer said"])
@pytest.mark.parametrize("leave", GOODBYES.values(), ids=GOODBYES)
async def test_a_peer_that_leaves_before_its_answer_has_closed(
    clock: MockClock, leave: Callable[[MemoryStream], Awaitable[None]], said: bytes
) -> None:
    client, peer = talk()
    await client.send(QUESTION, within_s=1)
    await peer.send_all(said)
    await leave(peer)
    assert await fault_of(client.receive(within_s=1)) == LinkFault.CLOSED


@pytest.mark.parametrize("leave", [GOODBYES["closes"], GOODBYES["resets"]], ids=["closes", "resets"])
async def test_a_peer_that_has_left_cannot_be_sent_to(
    clock: MockClock, leave: Callable[[MemoryStream], Awaitable[None]]
) -> None:
    client, peer = talk()
    await leave(peer)
    assert await fault_of(client.send(QUESTION, within_s=1)) == LinkFault.CLOSED


async def test_an_answer_that_came_before_the_end_is_received(clock: MockClock) -> None:
    client, peer = talk()
    await peer.send_all(encode(ANSWER))
    await peer.aclose()
    assert await client.receive(within_s=1) == ANSWER
    assert await fault_of(client.receive(within_s=1)) == LinkFault.CLOSED


@pytest.mark.parametrize("step_s", [0.1, 0.9, 5.0], ids=["drips fast", "drips slowly", "is silent"])
async def test_an_answer_has_to_be_whole_by_the_deadline(
    clock: MockClock, nursery: trio.Nursery, step_s: float
) -> None:
    client, peer = talk()

    async def drip() -> None:
        for byte in every_byte(encode(ANSWER)):
            await trio.sleep(step_s)
            await peer.send_all(byte)

    nursery.start_soon(drip)
    assert await fault_of(client.receive(within_s=2)) == LinkFault.TIMEOUT
    assert trio.current_time() == 2


async def test_a_peer_that_does_not_read_is_given_up_at_the_deadline(clock: MockClock) -> None:
    client, peer = talk()
    assert await fault_of(client.send(bytes(2000), within_s=2)) == LinkFault.TIMEOUT
    assert trio.current_time() == 2
    assert await peer.receive_some() == bytes(1000)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "BadMessage"),
        (b"\xc1", "NotMessagePack"),
        (encode([Message("System", "Value", "UserCount", "x" * 2000)]), "Limit"),
        (b"\xdd\xff\xff\xff\xff", "Limit"),
    ],
    ids=["another protocol", "no MessagePack", "over the limit", "announced over the limit"],
)
async def test_a_peer_that_does_not_speak_the_wire_is_told_apart(clock: MockClock, data: bytes, code: str) -> None:
    client, peer = talk(batch_bytes=500)
    received: list[Batch] = []
    await peer.send_all(encode(ANSWER) + data[:500])
    received.append(await client.receive(within_s=1))
    assert received == [ANSWER]
    for _ in range(2):  # the stream is out of step, and stays so
        with pytest.raises(RemoteProtocolError) as caught:
            await client.receive(within_s=1)
        assert caught.value.code == code
        await peer.send_all(encode(ANSWER))


async def test_closing_does_not_wait_for_the_peer(clock: MockClock) -> None:
    client, peer = talk()
    await client.aclose()
    assert await peer.receive_some() == b""
    assert trio.current_time() == 0
