"""The link over real sockets of this machine: each way in which it is made, fails, breaks, and is closed.

The file is long because each way in which a connection is made, breaks or is closed is one test of the one link.
"""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

import lambdamu.tcp_link
from lambdamu.address import Address
from lambdamu.client_tls import TlsPeer
from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault
from lambdamu.poller import EpollPoller, Poller, TrioPoller
from lambdamu.resolver import Resolver, SocketAddress
from lambdamu.tcp_link import TCPLink
from tests.lambdamu.sockets import GRID_S, PATIENCE_S, bound, deaf_listener, ipv4, listener


class User:
    """Writes down what it is told, and does what the test says at that."""

    def __init__(self, link: TCPLink) -> None:
        self.told: list[str] = []
        self.data = b""
        self.why: LinkError | None = None
        self.broken_at = 0.0
        self.then: Callable[[str], None] = lambda what: None
        self._changed = trio.lowlevel.ParkingLot()
        self._link = link

    def connected(self, now: float) -> None:
        assert self._link.address is not None
        self._tell("connected")

    def received(self, now: float, data: bytes) -> None:
        assert data
        self.data += data
        self._tell("received")

    def broken(self, now: float, why: LinkError) -> None:
        assert self._link.address is None
        assert str(why).isprintable()
        self.why, self.broken_at = why, now
        self._tell(f"broken: {why.why}")

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not holds():
                await self._changed.park()

    async def is_told(self, *told: str) -> None:
        """Wait until it has been told as much, and find it the same."""
        await self.until(lambda: len(self.told) >= len(told))
        assert self.told == list(told)

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._changed.unpark_all()
        self.then(what)


class Names(Resolver):
    """Knows the addresses of every name, once `ready` is set."""

    def __init__(self, *addresses: SocketAddress) -> None:
        super().__init__()
        self.addresses = list(addresses)
        self.asked = 0
        self.ready = trio.Event()
        self.ready.set()
        self.at_the_end: Callable[[], None] = lambda: None

    async def resolve(self, host: str, port: int) -> list[SocketAddress]:
        self.asked += 1
        await self.ready.wait()
        self.at_the_end()
        if not self.addresses:
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} has no address")
        return list(self.addresses)


def nobody_waits(sock: socket.socket) -> bool:
    sock.setblocking(False)
    with suppress(BlockingIOError):
        sock.accept()[0].close()
        return False
    return True


async def begin(link: TCPLink, within_s: float = PATIENCE_S) -> bool:
    now = trio.current_time()
    return link.open(now, now + within_s)


async def pause() -> None:
    """Let everything that is on its way arrive: what is not to be told is given the time to be told."""
    await trio.sleep(3 * GRID_S)
    await trio.testing.wait_all_tasks_blocked(GRID_S)


@asynccontextmanager
async def made(
    poller: Poller, host: str, port: int = 7000, resolver: Resolver | None = None, tls: TlsPeer | None = None
) -> AsyncIterator[tuple[TCPLink, User]]:
    """A link that runs; at the end it is closed, and has left nothing behind in the poller."""
    link = TCPLink(host, port, resolver=resolver or Resolver(), poller=poller, tls=tls)
    link.user = user = User(link)
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        nursery.start_soon(link.run)
        yield link, user
        link.close()
        link.close()  # again does nothing
        assert not (poller._calls if isinstance(poller, EpollPoller) else poller._scopes)  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def talking(poller: Poller) -> AsyncIterator[tuple[TCPLink, User, socket.socket]]:
    """A link that is there, and its peer."""
    with listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):
            now = trio.current_time()
            assert link.open(now, now + PATIENCE_S)
            peer, _ = sock.accept()
            with peer:
                yield link, user, peer


# Connecting.


async def test_to_a_listener_of_this_machine_it_is_there_at_once(poller: Poller) -> None:
    async with talking(poller) as (link, user, peer):
        assert link.address == Address(*peer.getsockname())
        link.send(b"question")
        assert peer.recv(100) == b"question"
        peer.sendall(b"answer")
        await user.is_told("received")
        assert user.data == b"answer"
        link.close()
        assert link.address is None
        assert peer.recv(100) == b""


async def test_a_closed_port_refuses(poller: Poller) -> None:
    with bound() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):
            assert not await begin(link)
            await user.is_told("broken: refused")
            await pause()
            await user.is_told("broken: refused")


async def test_an_address_without_a_way_is_told_at_once(poller: Poller) -> None:
    async with made(poller, "224.0.0.1") as (link, user):
        with pytest.raises(LinkError) as caught:
            await begin(link)
        assert caught.value.why == LinkFault.UNREACHABLE
        assert link.address is None
        await pause()
        assert user.told == []


async def test_a_connection_needs_a_descriptor(poller: Poller) -> None:
    with listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, _):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                with pytest.raises(LinkError) as caught:
                    await begin(link)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert caught.value.why == LinkFault.NO_DESCRIPTOR
            assert await begin(link)  # when there is one again


async def test_a_host_that_swallows_the_question_is_not_told_of(poller: Poller) -> None:
    with deaf_listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):
            assert not await begin(link, within_s=0.05)
            await pause()
            assert link.address is None
            why = link.why_not_connected()
            link.close()
            assert why.why == LinkFault.CONNECT_TIMEOUT
            assert str(Address(*sock.getsockname())) in str(why)
            await pause()
            assert user.told == []


async def test_a_slow_connection_is_told_when_it_is_there(poller: Poller) -> None:
    with deaf_listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):
            assert not await begin(link)
            await pause()
            with suppress(BlockingIOError):
                sock.setblocking(False)
                while True:
                    sock.accept()[0].close()  # the kernel asks again after a second
            await user.is_told("connected")
            assert link.address == Address(*sock.getsockname())


async def test_a_closed_port_that_is_connected_to_itself_refuses(
    poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bound("127.0.0.2") as sock:
        own = sock.getsockname()
    make = lambdamu.tcp_link._socket

    def from_there(family: socket.AddressFamily) -> socket.socket:
        made = make(family)
        made.bind(own)
        return made

    monkeypatch.setattr(lambdamu.tcp_link, "_socket", from_there)  # what the kernel does by chance
    async with made(poller, *own) as (link, _):
        with pytest.raises(LinkError) as caught:
            await begin(link)
        assert caught.value.why == LinkFault.REFUSED
        assert link.address is None
    with bound(*own):
        pass  # and the connection is gone


# Names.


async def test_a_name_is_looked_up_each_time(poller: Poller) -> None:
    with listener() as first, listener() as second:
        names = Names(ipv4(*first.getsockname()))
        async with made(poller, "name.example", resolver=names) as (link, user):
            assert not await begin(link)
            await user.is_told("connected")
            assert link.address == Address(*first.getsockname())
            link.close()
            names.addresses = [ipv4(*second.getsockname())]
            assert not await begin(link)
            await user.is_told("connected", "connected")
            assert link.address == Address(*second.getsockname())
            assert names.asked == 2


async def test_a_name_without_addresses_has_none(poller: Poller) -> None:
    async with made(poller, "name.example", resolver=Names()) as (link, user):
        for told in (["broken: no_address"], ["broken: no_address"] * 2):
            assert not await begin(link)
            await user.is_told(*told)


@pytest.mark.parametrize("first", [bound, deaf_listener], ids=["refuses", "swallows"])
async def test_where_one_address_is_dead_the_next_is_taken(poller: Poller, first: Callable[[], Any]) -> None:
    with first() as dead, listener() as sock:
        names = Names(ipv4(*dead.getsockname()), ipv4(*sock.getsockname()))
        async with made(poller, "name.example", resolver=names) as (link, user):
            began = trio.current_time()
            assert not await begin(link, within_s=0.2)
            await user.is_told("connected")
            if first is deaf_listener:
                assert trio.current_time() - began >= 0.1  # its share
            assert link.address == Address(*sock.getsockname())
            await trio.sleep(0.15)
            assert link.address is not None  # the share of the dead one is over, and means nothing


async def test_the_time_is_shared_out_among_those_that_swallow(poller: Poller) -> None:
    with deaf_listener() as one, deaf_listener() as two, bound() as last:
        names = Names(*(ipv4(*sock.getsockname()) for sock in (one, two, last)))
        async with made(poller, "name.example", resolver=names) as (link, user):
            began = trio.current_time()
            assert not await begin(link, within_s=0.3)
            await user.is_told("broken: refused")
            assert 0.2 <= user.broken_at - began < 0.3


async def test_where_all_addresses_are_dead_the_last_one_says_why(poller: Poller) -> None:
    with bound() as dead:
        unreachable, refuses = ipv4("224.0.0.1", 7000), ipv4(*dead.getsockname())
        for addresses, told in (([unreachable, refuses], "refused"), ([refuses, unreachable], "unreachable")):
            async with made(poller_like(poller), "name.example", resolver=Names(*addresses)) as (link, user):
                assert not await begin(link)
                await user.is_told(f"broken: {told}")


def poller_like(poller: Poller) -> Poller:
    """Return another one: each runs once."""
    return EpollPoller(GRID_S) if isinstance(poller, EpollPoller) else TrioPoller()


async def test_a_look_up_that_comes_too_late_connects_nothing(poller: Poller) -> None:
    with listener() as sock:
        names = Names(ipv4(*sock.getsockname()))
        names.ready = trio.Event()
        async with made(poller, "name.example", resolver=names) as (link, user):
            assert not await begin(link)
            await pause()
            why = link.why_not_connected()
            assert why.why == LinkFault.NO_ADDRESS
            assert "name.example" in str(why)
            link.close()
            names.ready.set()
            await pause()
            assert link.address is None
            assert user.told == []
            assert nobody_waits(sock)


async def test_a_look_up_that_outlasts_its_probe_serves_the_next(poller: Poller) -> None:
    with listener() as sock:
        names = Names(ipv4(*sock.getsockname()))
        names.ready = trio.Event()
        async with made(poller, "name.example", resolver=names) as (link, user):
            for _ in range(3):
                assert not await begin(link)
                await pause()
                assert names.asked == 1
                link.close()
            assert not await begin(link)
            names.ready.set()
            await user.is_told("connected")
            await pause()
            await user.is_told("connected")
            sock.accept()[0].close()
            assert nobody_waits(sock)


async def test_a_link_that_is_stopped_while_its_name_is_found_connects_nothing(poller: Poller) -> None:
    with listener() as sock:
        names = Names(ipv4(*sock.getsockname()))
        link = TCPLink("name.example", 7000, resolver=names, poller=poller)
        link.user = user = User(link)
        async with trio.open_nursery() as nursery:
            await nursery.start(poller.run)
            nursery.start_soon(link.run)
            names.at_the_end = nursery.cancel_scope.cancel
            await begin(link)
        link.close()
        assert user.told == []
        assert nobody_waits(sock)


# Talking.


async def test_bytes_come_in_their_order_however_they_are_cut(poller: Poller) -> None:
    async with talking(poller) as (_, user, peer):
        said = bytes(range(256))
        for byte in said:
            peer.sendall(bytes([byte]))
            await trio.lowlevel.checkpoint()
        await user.until(lambda: len(user.data) == len(said))
        assert user.data == said
        long = bytes(range(256)) * 400  # more than is read at once
        peer.sendall(long)
        await user.until(lambda: len(user.data) == len(said + long))
        assert user.data == said + long


async def test_what_the_peer_does_not_take_at_once_is_sent_later_in_order(poller: Poller) -> None:
    async with talking(poller) as (link, user, peer):
        peer.setblocking(False)
        said = bytes(range(256)) * 40000
        more = [b"first", b"second" * 100000, b"third"]
        link.send(said)
        for data in more:
            link.send(data)
        peer.sendall(b"news")  # and the peer is heard meanwhile
        await user.until(lambda: user.data == b"news")
        heard = bytearray()
        with trio.fail_after(PATIENCE_S):
            while len(heard) < len(said) + sum(map(len, more)):
                with suppress(BlockingIOError):
                    heard += peer.recv(1 << 20)
                await trio.lowlevel.checkpoint()
        assert heard == said + b"".join(more)
        with trio.fail_after(PATIENCE_S / 3):
            await pause()  # nobody is called in vain for the room that there is now
        peer.sendall(b"!")
        await user.until(lambda: user.data == b"news!")
        link.send(b"small")
        assert peer.recv(100) == b"small"


async def test_what_was_not_sent_is_not_sent_on_the_next_connection(poller: Poller) -> None:
    with listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):
            assert await begin(link)
            link.send(bytes(10_000_000))
            link.close()
            assert await begin(link)
            link.send(b"new")
            sock.accept()[0].close()
            peer, _ = sock.accept()
            with peer:
                assert peer.recv(100) == b"new"
                await pause()
                assert user.told == []


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


LEAVES = pytest.mark.parametrize(
    "leave",
    [socket.socket.close, reset, lambda peer: peer.shutdown(socket.SHUT_WR)],
    ids=["closes", "resets", "half-closes"],
)


@LEAVES
@pytest.mark.parametrize("full", [False, True], ids=["quiet", "with unsent bytes"])
async def test_a_peer_that_leaves_is_told_of_once(
    poller: Poller, leave: Callable[[socket.socket], None], full: bool
) -> None:
    async with talking(poller) as (link, user, peer):
        if full:
            link.send(bytes(10_000_000))
        leave(peer)
        await user.is_told("broken: closed")
        await pause()
        await user.is_told("broken: closed")


async def test_the_last_words_of_a_peer_are_told_before_its_end(poller: Poller) -> None:
    async with talking(poller) as (_, user, peer):
        peer.sendall(b"bye")
        peer.close()
        await user.is_told("received", "broken: closed")


async def test_a_peer_that_is_gone_cannot_be_sent_to(poller: Poller) -> None:
    async with talking(poller) as (link, user, peer):
        reset(peer)
        with pytest.raises(LinkError) as caught:
            link.send(b"question")
        assert caught.value.why == LinkFault.CLOSED
        link.close()
        await pause()
        assert user.told == []


# Closing.


@pytest.mark.parametrize("what", ["received", "broken: closed"])
async def test_a_link_may_be_closed_and_opened_in_what_is_told(poller: Poller, what: str) -> None:
    with listener() as sock:
        async with made(poller, *sock.getsockname()) as (link, user):

            def again(told: str) -> None:
                if told == what and not opened:
                    link.close()
                    now = trio.current_time()
                    opened.append(link.open(now, now + PATIENCE_S))
                    link.send(b"again")

            opened: list[bool] = []
            user.then = again
            assert await begin(link)
            first, _ = sock.accept()
            first.sendall(b"a")
            if what != "received":
                first.close()
            await user.until(lambda: bool(opened))
            assert opened == [True]
            second, _ = sock.accept()
            with first, second:
                assert second.recv(100) == b"again"
                second.sendall(b"b")
                await user.until(lambda: user.data == b"ab")


async def test_nothing_is_told_after_closing(poller: Poller) -> None:
    with listener() as sock, bound() as refuses:
        for target in (sock, refuses):
            async with made(poller_like(poller), *target.getsockname()) as (link, user):
                there = await begin(link)
                assert there == (target is sock)
                if there:
                    peer, _ = sock.accept()
                    peer.sendall(b"too late")
                    peer.close()
                link.close()
                await pause()
                assert user.told == []


async def test_many_links_come_and_go_and_leave_no_descriptor(poller: Poller) -> None:
    with listener() as sock, bound() as refuses:
        async with made(poller, *sock.getsockname()) as (link, _):
            number = None
            for _ in range(200):
                assert await begin(link)
                assert link._socket is not None
                number = number or link._socket.fileno()
                assert link._socket.fileno() == number
                link.close()
                sock.accept()[0].close()
        async with made(poller_like(poller), *refuses.getsockname()) as (link, user):
            for count in range(1, 20):
                await begin(link)
                await user.until(lambda count=count: len(user.told) == count)
            assert set(user.told) == {"broken: refused"}


async def test_an_event_for_a_socket_whose_number_is_used_again_decides_nothing(poller: Poller) -> None:
    with listener() as sock, deaf_listener() as deaf:
        async with made(poller, *sock.getsockname()) as (first, user):
            second = TCPLink(*sock.getsockname(), resolver=Resolver(), poller=poller)
            third = TCPLink(*deaf.getsockname(), resolver=Resolver(), poller=poller)
            second.user = third.user = heard = User(third)
            now = trio.current_time()
            assert first.open(now, now + PATIENCE_S)
            assert second.open(now, now + PATIENCE_S)

            def replace(told: str) -> None:
                second.close()
                assert not third.open(now, now + PATIENCE_S)

            user.then = replace
            peers = [sock.accept()[0] for _ in range(2)]
            for peer in peers:
                peer.send(b"a")  # both are ready in one turn
            await user.is_told("received")
            await pause()
            assert heard.told in ([], ["received"])  # by the second, where it had its turn first
            third.close()
            for peer in peers:
                peer.close()
            first.close()
