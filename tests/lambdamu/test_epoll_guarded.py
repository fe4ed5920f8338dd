"""A port behind a balancer, and under TLS, over real sockets.

The file is long because each promise of a port is held once more behind a balancer, and under TLS.
"""

from __future__ import annotations

import socket
import ssl
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.port import Ending
from lambdamu.tcp_server import open_listeners
from lambdamu.tls import TlsDoor, TlsError, TlsPolicy
from tests.lambdamu.test_proxy_protocol import LOCAL, header
from tests.papers import write_papers

if sys.platform == "linux":
    from lambdamu.epoll_guarded import GuardedServer
else:
    pytest.skip("this port is Linux's", allow_module_level=True)

HERE = Address("127.0.0.1", 0)
PATIENCE_S = 20.0
Make = Callable[..., Any]


def get(*data: Any, name: str = "Echo") -> bytes:
    return encode([Message("Desk", "Get", name, item) for item in data])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = authority.issue_cert("localhost", common_name="master")
    return write_papers(tmp_path_factory.mktemp("tls"), authority, own)


@pytest.fixture
def guarded(make_port_of: Make, files: dict[str, str]) -> Make:
    """Return a maker of ports with a desk and a ledger, as `make_port` does, that are guarded."""

    def make(*, tls: bool = False, proxies: tuple[str, ...] = (), policy: Any = None, **limits: Any) -> Any:
        policy = policy or {}
        given = {name: files[name] for name in ("certificate", "key")} | policy
        door = TlsDoor(TlsPolicy(**given)) if tls else None

        def port_class(handler: Any, limits: Any, **more: Any) -> GuardedServer:
            networks = tuple(map(ip_network, proxies))
            return GuardedServer(handler, limits, tls=door, proxies=networks, **more)

        return make_port_of(port_class, **limits)

    return make


@asynccontextmanager
async def listening(port: Any) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.server.serve, open_listeners(HERE))
        with trio.fail_after(PATIENCE_S):
            yield address
        port.server.stop()
        nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
    assert not nursery.cancel_scope.cancelled_caught
    assert port.server.connections == port.ledger.open == port.server.entering == 0


class Client:
    """One that asks and reads batches."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._unpacker = msgpack.Unpacker(max_buffer_size=2**24)

    async def ask(self, data: bytes) -> list[dict[str, Any]]:
        await self.stream.send_all(data)
        return await self.batch()

    async def batch(self) -> list[dict[str, Any]]:
        while (batch := next(self._unpacker, None)) is None:
            data = await self.stream.receive_some(65536)
            assert data, "the connection ended where an answer was due"
            self._unpacker.feed(data)
        return batch

    async def echo(self, *data: Any) -> list[Any]:
        return [message["Data"] for message in await self.ask(get(*data))]

    async def ended(self) -> bytes:
        rest = b""
        while data := await self.stream.receive_some(65536):
            rest += data
        return rest


async def connect(address: Address, first: bytes = b"") -> trio.SocketStream:
    stream = await trio.open_tcp_stream(address.host, address.port)
    if first:
        await stream.send_all(first)
    return stream


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def connect_tls(address: Address, context: ssl.SSLContext, first: bytes = b"") -> Client:
    stream = await connect(address, first)
    return Client(trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True))


# Behind a balancer


@pytest.mark.parametrize("pieces", [1, 28])
async def test_the_peer_is_the_one_that_a_trusted_balancer_tells_of(guarded: Make, pieces: int) -> None:
    port = guarded(proxies=("127.0.0.0/8",))
    async with listening(port) as address:
        stream = await connect(address)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        told = header("2001:db8::9", 5)
        for at in range(0, len(told), len(told) // pieces + 1):
            await stream.send_all(told[at : at + len(told) // pieces + 1])
        client = Client(stream)
        assert await client.echo(1) == [1]
        assert await client.echo(2, 3) == [2, 3]
        assert [(peer.host, peer.port, peer.family) for peer in port.desk.peers] == [("2001:db8::9", 5, 6)]
        await stream.aclose()


async def test_header_and_ask_in_one_write_are_both_read(guarded: Make) -> None:
    port = guarded(proxies=("127.0.0.1/32",))
    async with listening(port) as address:
        client = Client(await connect(address, header() + get(1)))
        assert [message["Data"] for message in await client.batch()] == [1]
        await client.stream.aclose()


async def test_a_look_of_the_balancer_itself_comes_from_its_own_address(guarded: Make) -> None:
    port = guarded(proxies=("127.0.0.1/32",))
    async with listening(port) as address:
        client = Client(await connect(address, header(command=LOCAL)))
        assert await client.echo(1) == [1]
        assert [peer.host for peer in port.desk.peers] == ["127.0.0.1"]
        await client.stream.aclose()


@pytest.mark.parametrize(("proxies", "first"), [(("10.0.0.0/8",), header()), (("127.0.0.1/32",), get(1))])
async def test_who_is_not_trusted_claims_nothing_and_who_is_must_say(
    guarded: Make, proxies: tuple[str, ...], first: bytes
) -> None:
    port = guarded(proxies=proxies)
    async with listening(port) as address:
        client = Client(await connect(address, first))
        [message] = await client.batch()
        assert message["Data"]["Code"] == "BadMessage"
        assert await client.ended() == b""
        await client.stream.aclose()
        await port.over()
    assert port.ledger.endings == [Ending.PROTOCOL]
    assert port.desk.peers == []


async def test_the_limit_on_an_address_is_that_of_the_client(guarded: Make) -> None:
    port = guarded(proxies=("127.0.0.1/32",), connections_per_address=1)
    async with listening(port) as address:
        clients = [Client(await connect(address, header(host))) for host in ("203.0.113.7", "203.0.113.8")]
        assert [await client.echo(1) for client in clients] == [[1], [1]]
        second = Client(await connect(address, header("203.0.113.7")))
        [message] = await second.batch()
        assert "from this network" in message["Data"]["Text"]
        for client in (*clients, second):
            await client.stream.aclose()
        await port.over()
        again = Client(await connect(address, header("203.0.113.7")))
        assert await again.echo(1) == [1]
        await again.stream.aclose()


# Under TLS


async def test_asks_are_answered_under_tls_in_all_sizes(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True)
    async with listening(port) as address:
        client = await connect_tls(address, context_of(authority))
        assert [await client.echo(number) for number in range(50)] == [[number] for number in range(50)]
        assert await client.echo("x" * 60000) == ["x" * 60000]
        [message] = await client.ask(get(2**20, name="Long"))
        assert len(message["Data"]) == 2**20
        await client.stream.send_all(get(1) * 300)
        assert [[message["Data"] for message in await client.batch()] for _ in range(300)] == [[1]] * 300
        assert sum(batches for batches, _ in port.ledger.replies) == 352
        await client.stream.aclose()
        await port.over()
    assert port.ledger.endings == [Ending.LEFT]


async def test_a_peer_that_reads_late_gets_all_of_a_long_answer(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True)
    async with listening(port) as address:
        client = await connect_tls(address, context_of(authority))
        await client.echo(1)
        for _ in range(8):
            await client.stream.send_all(get(2**20, name="Long"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _ in range(8):
            [message] = await client.batch()
            assert len(message["Data"]) == 2**20
        await client.stream.aclose()


async def test_the_word_of_a_balancer_comes_before_the_handshake(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True, proxies=("127.0.0.0/8",))
    async with listening(port) as address:
        client = await connect_tls(address, context_of(authority), header())
        assert await client.echo(1) == [1]
        assert [peer.host for peer in port.desk.peers] == ["203.0.113.7"]
        await client.stream.aclose()


@pytest.mark.parametrize(
    "rubbish", [b"GET / HTTP/1.1\r\n\r\n", get(1), b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + bytes(70000)]
)
async def test_rubbish_ends_its_own_connection(guarded: Make, authority: trustme.CA, rubbish: bytes) -> None:
    port = guarded(tls=True)
    async with listening(port) as address:
        good = await connect_tls(address, context_of(authority))
        assert await good.echo(1) == [1]
        stream = await connect(address)
        try:
            await stream.send_all(rubbish)
            await Client(stream).ended()
        except trio.BrokenResourceError:
            pass
        await stream.aclose()
        assert await good.echo(2) == [2]
        await good.stream.aclose()
        await port.over()
    assert counted(port.ledger.endings) == {Ending.HANDSHAKE: 1, Ending.LEFT: 1}


def counted(endings: list[Ending]) -> dict[Ending, int]:
    return {ending: endings.count(ending) for ending in endings}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_goodbye_from_both_sides_ends_one_connection_and_not_the_port(
    guarded: Make, authority: trustme.CA, version: ssl.TLSVersion
) -> None:
    port = guarded(tls=True)
    context = context_of(authority)
    context.maximum_version = version

    def leave(address: Address) -> None:
        with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            tls.write(b"\xc1")  # to no protocol: the port says why, and goodbye
            with suppress(ssl.SSLError):
                tls.unwrap()
            sock.sendall(outgoing.read())  # the rubbish and our goodbye in one
            sock.recv(65536)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass

    async with listening(port) as address:
        await trio.to_thread.run_sync(leave, address)
        client = await connect_tls(address, context)
        assert await client.echo(1) == [1]
        await client.stream.aclose()
        await port.over()
    assert port.ledger.endings[0] is Ending.PROTOCOL


async def test_who_stops_in_the_middle_of_a_handshake_is_ended_by_the_deadline_of_a_message(guarded: Make) -> None:
    port = guarded(tls=True, message_s=0.05)
    async with listening(port) as address:
        stream = await connect(address, b"\x16\x03\x01\x02\x00\x01")
        assert await stream.receive_some() == b""
        await stream.aclose()
        await port.over()
    assert port.ledger.endings == [Ending.MESSAGE_DEADLINE]


async def test_of_too_many_handshakes_the_one_that_began_first_gives_way(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True, policy={"handshakes": 2})
    async with listening(port) as address:
        slow = [await connect(address, b"\x16\x03\x01") for _ in range(2)]
        await port.until(lambda: port.server.entering == 2)
        client = await connect_tls(address, context_of(authority))
        assert await client.echo(1) == [1]
        with suppress(trio.BrokenResourceError):
            assert not await slow[0].receive_some()
        assert port.server.entering == 1
        assert await client.echo(2) == [2]
        for stream in (*slow, client.stream):
            await stream.aclose()
        await port.over()
    assert counted(port.ledger.endings)[Ending.HANDSHAKE] == 2
    assert port.ledger.refusals == 0


@pytest.mark.parametrize("required", [False, True])
async def test_the_peer_is_known_by_its_certificate(
    guarded: Make, authority: trustme.CA, files: dict[str, str], required: bool
) -> None:
    port = guarded(tls=True, policy={"client_ca": files["client_ca"], "client_certificates_required": required})
    context = context_of(authority)
    authority.issue_cert("ann@example.org", common_name="ann").configure_cert(context)
    async with listening(port) as address:
        client = await connect_tls(address, context)
        assert await client.echo(1) == [1]
        await client.stream.aclose()
        stranger = await connect_tls(address, context_of(authority))
        if required:
            with pytest.raises((trio.BrokenResourceError, AssertionError)):
                await stranger.echo(1)
        else:
            assert await stranger.echo(1) == [1]
        await stranger.stream.aclose()
    assert [peer.subject for peer in port.desk.peers] == ["ann"] + [""] * (not required)


async def test_a_certificate_of_strangers_is_refused(
    guarded: Make, authority: trustme.CA, files: dict[str, str]
) -> None:
    port = guarded(tls=True, policy={"client_ca": files["client_ca"]})
    context = context_of(authority)
    trustme.CA().issue_cert("eve@example.org", common_name="eve").configure_cert(context)
    async with listening(port) as address:
        client = await connect_tls(address, context)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            await client.echo(1)
        await client.stream.aclose()
    assert port.desk.peers == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_resumed(guarded: Make, authority: trustme.CA, version: ssl.TLSVersion) -> None:
    port = guarded(tls=True)
    context = context_of(authority)
    context.minimum_version = context.maximum_version = version

    def twice(address: Address) -> bool:
        session, reused = None, False
        for _ in range(2):
            with (
                socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock,
                context.wrap_socket(sock, server_hostname="localhost", session=session) as tls,
            ):
                tls.sendall(get(1))
                assert tls.recv(1000)
                session, reused = tls.session, bool(tls.session_reused)
        return reused

    async with listening(port) as address:
        assert await trio.to_thread.run_sync(twice, address)


async def test_older_versions_than_1_2_are_refused(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with listening(port) as address:
        client = await connect_tls(address, context)
        with pytest.raises(trio.BrokenResourceError):
            await client.echo(1)
        await client.stream.aclose()


async def test_a_new_certificate_holds_for_those_who_come_and_not_for_those_who_are_in(
    guarded: Make, authority: trustme.CA, files: dict[str, str], tmp_path: Path
) -> None:
    other = trustme.CA()
    fresh = other.issue_cert("localhost")
    (tmp_path / "certificate").write_bytes(b"".join(blob.bytes() for blob in fresh.cert_chain_pems))
    (tmp_path / "key").write_bytes(fresh.private_key_pem.bytes())
    port = guarded(tls=True)
    async with listening(port) as address:
        before = await connect_tls(address, context_of(authority))
        assert await before.echo(1) == [1]
        port.server.tls.adopt(TlsDoor(TlsPolicy(str(tmp_path / "certificate"), str(tmp_path / "key"))))
        after = await connect_tls(address, context_of(other))
        assert await after.echo(2) == [2]
        assert await before.echo(3) == [3]
        for client in (before, after):
            await client.stream.aclose()


async def test_at_a_stop_those_who_are_in_are_told_goodbye(guarded: Make, authority: trustme.CA) -> None:
    port = guarded(tls=True)
    async with listening(port) as address:
        client = await connect_tls(address, context_of(authority))
        silent = await connect(address, b"\x16\x03")
        assert await client.echo(1) == [1]
        port.server.stop()
        assert await client.ended() == b""
        await client.stream.aclose()
        assert await silent.receive_some() == b""
        await silent.aclose()
    assert Ending.STOPPED in port.ledger.endings


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"certificate": "nowhere.pem"}, "^nowhere.pem cannot be read: No such file or directory$"),
        ({"certificate": "KEY"}, "has no certificate in PEM$"),
        ({"key": "nowhere.pem"}, "^nowhere.pem cannot be read: No such file or directory$"),
        ({"key": "CERTIFICATE"}, "certificate is not the key of .*certificate: "),
        ({"key": "OTHER"}, "other is not the key of .*certificate: key values mismatch$"),
        ({"key": "LOCKED"}, "locked is not the key of .*: the key has a passphrase, and nobody is here to type it$"),
        ({"client_ca": "KEY"}, "has no certificates of authorities"),
        ({"client_ca": "/dev/null"}, "/dev/null is no regular file$"),
    ],
)
def test_files_that_are_not_right_are_named(
    files: dict[str, str], authority: trustme.CA, tmp_path: Path, wrong: dict[str, str], text: str
) -> None:
    swapped = {"CERTIFICATE": files["certificate"], "KEY": files["key"]}
    swapped |= {name: str(tmp_path / name.lower()) for name in ("OTHER", "LOCKED")}
    pem = authority.issue_cert("elsewhere").private_key_pem.bytes()
    Path(swapped["OTHER"]).write_bytes(pem)
    locked = load_pem_private_key(pem, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    Path(swapped["LOCKED"]).write_bytes(locked)
    given = {"certificate": files["certificate"], "key": files["key"]}
    given |= {name: swapped.get(path, path) for name, path in wrong.items()}
    with pytest.raises(TlsError, match=text) as caught:
        TlsDoor(TlsPolicy(**given))
    assert [caught.value.which] == list(wrong)
