"""The link by TLS, over real sockets of this machine: whom it takes for its peer, and each way in which that fails.

The file is long because each way in which a handshake or a connection fails is one test of the one link.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trustme

from lambdamu.address import Address
from lambdamu.client_tls import RESUME_S, TlsPeer, Trust, read_trust
from lambdamu.messages import LinkFault
from lambdamu.poller import Poller
from lambdamu.tcp_link import TCPLink
from lambdamu.tls import TlsError
from tests.lambdamu.conftest import reset
from tests.lambdamu.sockets import ipv4, listener
from tests.lambdamu.test_tcp_link import Names, User, begin, made, pause

NAME = "backend.example"
LONG = bytes(range(256)) * 800


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trust(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Trust:
    path = tmp_path_factory.mktemp("trust") / "authorities"
    path.write_bytes("# Zertifizierungsstelle für Prüfungen\n".encode() + authority.cert_pem.bytes())
    return read_trust(str(path))


def context_of(authority: trustme.CA, *names: str, **more: datetime.datetime) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names or (NAME,), **more).configure_cert(context)
    return context


@asynccontextmanager
async def serving(handle: Callable[[trio.SocketStream], object]) -> AsyncIterator[tuple[str, int]]:
    """A server of this process; each connection is handled by `handle`, and its errors are no matter."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, OSError):
            async with stream:
                await handle(stream)  # type: ignore[misc]

    async with trio.open_nursery() as nursery:
        [sock] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [sock])
        yield sock.socket.getsockname()
        nursery.cancel_scope.cancel()


class Echo:
    """A backend that says again what it hears; it knows how each connection ended and which was resumed."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.ends: list[str] = []
        self.resumed: list[bool] = []
        self.goodbye_after: bytes | None = None

    async def __call__(self, stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, self.context, server_side=True)
        try:
            await tls.do_handshake()
            self.resumed.append(tls.session_reused)
            async for data in tls:
                await tls.send_all(data)
                if data == self.goodbye_after:
                    await tls.aclose()
                    return
            self.ends.append("goodbye")
        except trio.BrokenResourceError as exc:
            self.ends.append(getattr(exc.__cause__, "reason", None) or "broken")


@asynccontextmanager
async def linked(
    poller: Poller, trust: Trust, place: tuple[str, int], name: str = NAME
) -> AsyncIterator[tuple[TCPLink, User]]:
    """A link by TLS that runs. What it leaves behind of descriptors is found out."""
    async with made(poller, *place, tls=TlsPeer(trust, name)) as (link, user):
        before = descriptors()
        yield link, user
        link.close()
        await until(lambda: descriptors() == before)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not holds():
            await pause()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_peer_with_the_right_certificate_is_talked_to(
    poller: Poller, authority: trustme.CA, trust: Trust, version: ssl.TLSVersion
) -> None:
    echo = Echo(context_of(authority))
    echo.context.maximum_version = version
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):
        assert not await begin(link)
        assert link.address is None  # not before it is known who it is
        await user.is_told("connected")
        assert link.address == Address(*place)
        link.send(b"question")
        await user.until(lambda: user.data == b"question")
        link.send(LONG)  # more than a record holds, and than is read at once
        link.send(LONG)
        await user.until(lambda: user.data == b"question" + LONG + LONG)
        link.close()
        await until(lambda: echo.ends == ["goodbye"])
    assert set(user.told) == {"connected", "received"}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost.", "::1%lo"])
async def test_a_certificate_is_for_an_address_or_a_name(
    poller: Poller, authority: trustme.CA, trust: Trust, name: str
) -> None:
    echo = Echo(context_of(authority, "127.0.0.1", "localhost", "::1"))
    async with serving(echo) as place, linked(poller, trust, place, name) as (link, user):
        await begin(link)
        await user.is_told("connected")


DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)
STRANGERS = {
    "another name": (lambda ours: context_of(ours, "other.example"), "Hostname mismatch"),
    "unknown authority": (lambda ours: context_of(trustme.CA()), "certificate"),
    "expired": (lambda ours: context_of(ours, not_before=NOW - 2 * DAY, not_after=NOW - DAY), "expired"),
    "not yet": (lambda ours: context_of(ours, not_before=NOW + DAY, not_after=NOW + 2 * DAY), "not yet valid"),
}


@pytest.mark.parametrize(("make", "word"), STRANGERS.values(), ids=STRANGERS)
async def test_a_stranger_is_named_and_told_so(
    poller: Poller, authority: trustme.CA, trust: Trust, make: Callable[[trustme.CA], ssl.SSLContext], word: str
) -> None:
    echo = Echo(make(authority))
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):
        await begin(link)
        await user.is_told("broken: certificate")
        assert str(user.why).startswith(f"{Address(*place)}: its certificate is not good: ")
        assert word in str(user.why)
        await until(lambda: len(echo.ends) == 1)
        assert "ALERT" in echo.ends[0]
        await user.is_told("broken: certificate")


def wants_a_certificate(context: ssl.SSLContext) -> None:
    context.verify_mode = ssl.CERT_REQUIRED


def wants_an_old_version(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1


@pytest.mark.parametrize(
    ("want", "told", "text"),
    [
        (wants_a_certificate, ["connected", "broken: tls"], "certificate required"),
        (wants_an_old_version, ["broken: tls"], "protocol version"),
    ],
)
async def test_a_peer_that_wants_something_else_says_what(
    poller: Poller,
    authority: trustme.CA,
    trust: Trust,
    want: Callable[[ssl.SSLContext], None],
    told: list[str],
    text: str,
) -> None:
    context = context_of(authority)
    want(context)

    def serve(sock: socket.socket) -> None:
        with suppress(OSError), sock.accept()[0] as peer, context.wrap_socket(peer, server_side=True) as tls:
            tls.recv(1)

    with listener() as sock:
        async with made(poller, *sock.getsockname(), tls=TlsPeer(trust, NAME)) as (link, user):
            await begin(link)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, serve, sock)
                await user.is_told(*told)
            assert text in str(user.why)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"\x93\x84plain bytes", "broken: tls"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "broken: tls"),
        (b"", "broken: closed"),
        (b"\x16\x03\x03", "broken: closed"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "broken: tls"),
    ],
    ids=["plain", "http", "closes", "half of a record", "alert"],
)
async def test_who_does_not_speak_tls_is_told_of_in_one_line(
    poller: Poller, trust: Trust, says: bytes, told: str
) -> None:
    async def plain(stream: trio.SocketStream) -> None:
        await stream.receive_some(16384)
        await stream.send_all(says)

    async with serving(plain) as place, linked(poller, trust, place) as (link, user):
        for number in (1, 2):
            await begin(link)
            await user.is_told(*[told] * number)
            assert "TLS" in str(user.why)
            assert str(user.why).startswith(str(Address(*place)))


async def test_a_reset_in_the_handshake_is_a_connection_that_is_closed(poller: Poller, trust: Trust) -> None:
    with listener() as sock:
        async with linked(poller, trust, sock.getsockname()) as (link, user):
            await begin(link)
            reset(sock.accept()[0])
            await user.is_told("broken: closed")


async def test_a_handshake_that_stalls_says_so_at_the_deadline(poller: Poller, trust: Trust) -> None:
    with listener() as sock:
        async with linked(poller, trust, sock.getsockname()) as (link, user):
            for _ in range(3):
                assert not await begin(link)
                with sock.accept()[0] as peer:
                    await pause()
                    why = link.why_not_connected()
                    assert why.why == LinkFault.CONNECT_TIMEOUT
                    assert str(why) == f"{Address(*sock.getsockname())} did not shake hands by TLS in time"
                    link.close()
                    assert peer.recv(1) == b"\x16"
            await pause()
            assert user.told == []


async def test_a_stall_leaves_time_for_the_next_address(poller: Poller, authority: trustme.CA, trust: Trust) -> None:
    with listener() as stalls:
        async with serving(Echo(context_of(authority))) as place:
            names = Names(ipv4(*stalls.getsockname()), ipv4(*place))
            async with made(poller, NAME, resolver=names, tls=TlsPeer(trust, NAME)) as (link, user):
                await begin(link, within_s=0.4)
                await user.is_told("connected")
                assert link.address == Address(*place)


async def test_where_one_address_has_a_stranger_the_next_is_taken(
    poller: Poller, authority: trustme.CA, trust: Trust
) -> None:
    stranger, good = Echo(context_of(trustme.CA())), Echo(context_of(authority))
    async with serving(stranger) as first, serving(good) as second:
        names = Names(ipv4(*first), ipv4(*second))
        async with made(poller, NAME, resolver=names, tls=TlsPeer(trust, NAME)) as (link, user):
            await begin(link)
            await user.is_told("connected")
            assert link.address == Address(*second)
            link.close()
            names.addresses.reverse()
            names.addresses.pop(0)
            await begin(link)
            await user.is_told("connected", "broken: certificate")


@pytest.mark.parametrize("moment", ["connected", "received"])
async def test_it_may_be_closed_in_the_middle_of_what_it_tells(
    poller: Poller, authority: trustme.CA, trust: Trust, moment: str
) -> None:
    echo = Echo(context_of(authority))
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):

        def then(what: str) -> None:
            if what == "connected":
                link.send(b"question")
            if what == moment:
                link.close()

        user.then = then
        for number in (1, 2):
            await begin(link)
            await until(lambda: len(echo.ends) == number)  # noqa: B023 - it is waited for here
            assert link.address is None
    assert user.told == {"connected": ["connected"] * 2, "received": ["connected", "received"] * 2}[moment]


async def test_a_goodbye_ends_it_after_what_was_said(poller: Poller, authority: trustme.CA, trust: Trust) -> None:
    echo = Echo(context_of(authority))
    echo.goodbye_after = b"last"
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):
        user.then = lambda what: link.send(b"last") if what == "connected" else None
        await begin(link)
        await user.is_told("connected", "received", "broken: closed")
        assert user.data == b"last"


async def test_rubbish_after_the_handshake_breaks_it(poller: Poller, authority: trustme.CA, trust: Trust) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, context_of(authority), server_side=True)
        await tls.do_handshake()
        await stream.send_all(b"plain bytes in the middle of it")
        await stream.receive_some(1)

    async with serving(handle) as place, linked(poller, trust, place) as (link, user):
        await begin(link)
        await user.is_told("connected", "broken: tls")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_resumed_for_a_while_and_the_certificate_looked_at_again_after_it(
    poller: Poller, authority: trustme.CA, trust: Trust, version: ssl.TLSVersion
) -> None:
    echo = Echo(context_of(authority))
    echo.context.maximum_version = version
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):
        user.then = lambda what: link.send(b"question") if what == "connected" else link.close()
        start = trio.current_time()
        for number, after_s in enumerate((0, 1, RESUME_S - 1, RESUME_S, RESUME_S + 1), 1):
            link.open(start + after_s, start + after_s + 20)
            await user.until(lambda: len(user.told) == 2 * number)  # noqa: B023 - it is waited for here
        await until(lambda: len(echo.ends) == number)
    assert echo.resumed == [False, True, True, False, True]
    assert set(echo.ends) == {"goodbye"}


async def test_a_stranger_cannot_have_the_session_of_another(
    poller: Poller, authority: trustme.CA, trust: Trust
) -> None:
    echo = Echo(context_of(authority))
    async with serving(echo) as place, linked(poller, trust, place) as (link, user):
        user.then = lambda what: link.send(b"question") if what == "connected" else link.close()
        await begin(link)
        await until(lambda: len(echo.ends) == 1)
        echo.context = context_of(trustme.CA())
        for number in (3, 4):
            await begin(link)
            await user.until(lambda: len(user.told) == number)  # noqa: B023 - it is waited for here
    assert user.told == ["connected", "received", "broken: certificate", "broken: certificate"]


async def test_it_goes_over_to_tls_and_back_between_connections(
    poller: Poller, authority: trustme.CA, trust: Trust
) -> None:
    echo, plain = Echo(context_of(authority)), False

    async def handle(stream: trio.SocketStream) -> None:
        if not plain:
            await echo(stream)
            return
        await stream.send_all(await stream.receive_some(100))

    async with serving(handle) as place, linked(poller, trust, place) as (link, user):
        await begin(link)
        await user.is_told("connected")
        link.tls = TlsPeer(read_trust(), NAME)  # the connection that is there is its peer's still
        link.send(b"question")
        await user.until(lambda: user.data == b"question")
        link.close()
        await begin(link)
        await user.until(lambda: user.told[-1] == "broken: certificate")
        link.tls = None
        plain = True
        assert await begin(link)
        link.send(b"in plain text")
        await user.until(lambda: user.data == b"questionin plain text")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read: No such file"),
        ("", "has no certificate of an authority, or a damaged one"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "has no certificate of an authority, or a damaged one",
        ),
        ("x" * 2**21, "is larger than"),
    ],
    ids=["gone", "empty", "rubbish", "large"],
)
def test_authorities_that_are_none_are_named(tmp_path: Path, text: str | None, fault: str) -> None:
    path = tmp_path / "authorities"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TlsError) as caught:
        read_trust(str(path))
    assert str(caught.value).startswith(f"{path} {fault}")
    assert str(caught.value).isprintable()


def test_trust_is_the_same_when_its_authorities_are(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "authorities"
    authority.cert_pem.write_to_path(path)
    first = read_trust(str(path))
    assert first == read_trust(str(path))
    trustme.CA().cert_pem.write_to_path(path, append=True)
    assert first != read_trust(str(path))
