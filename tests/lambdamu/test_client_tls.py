"""Masters that are asked under TLS: whom a client takes for one, and each way in which that fails.

The file is long because each thing that a certificate can be is tried on the one client.
"""

from __future__ import annotations

import functools
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme

import lambdamu
from client_stub.client import ClientOptions, run_client
from lambdamu.address import Address
from lambdamu.answers import Answer, Failure
from lambdamu.breaker import Fault
from lambdamu.caller import Caller
from lambdamu.client_tls import Tls
from lambdamu.errors import LinkError, UnreachableError
from lambdamu.machine import LogicalMachine
from lambdamu.messages import Message
from lambdamu.objects import Peer, Reply
from lambdamu.port import PortLimits
from lambdamu.tcp_server import open_listeners
from lambdamu.tls import TlsDoor, TlsError, TlsPolicy
from lambdamu.tls_stream import TlsStream
from tests.conftest import LOCAL, Master, go_to

if sys.platform == "linux":
    from lambdamu.epoll_guarded import GuardedServer
else:
    pytest.skip("the port under TLS is Linux's", allow_module_level=True)

SOMEWHERE = Address("192.0.2.1", 7001)
OURS, STRANGERS = trustme.CA(), trustme.CA()
Capture = pytest.CaptureFixture[str]


class Knowing(Master):
    """A master that keeps who asks."""

    def __init__(self, *says: Any) -> None:
        super().__init__(*says)
        self.subjects: list[str] = []

    def _answer(self, message: Message, now: float, peer: Peer) -> Reply:
        self.subjects.append(peer.subject)
        return super()._answer(message, now, peer)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return PEM files by name; `_key` is the key of the certificate without it."""
    folder = tmp_path_factory.mktemp("tls")
    issued = {
        "master": OURS.issue_cert("localhost", "127.0.0.1", common_name="master"),
        "named": OURS.issue_cert("master.example"),
        "ann": OURS.issue_cert("ann@example.org", common_name="ann"),
        "eve": STRANGERS.issue_cert("eve@example.org", common_name="eve"),
    }
    for name, certificate in issued.items():
        (folder / name).write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        (folder / f"{name}_key").write_bytes(certificate.private_key_pem.bytes())
    OURS.cert_pem.write_to_path(folder / "ca")
    STRANGERS.cert_pem.write_to_path(folder / "strangers")
    (folder / "none").write_text("no certificate")
    return {path.name: str(path) for path in folder.iterdir()}


@asynccontextmanager
async def secure_master(
    files: dict[str, str], *says: Any, to: Sequence[Address] = (SOMEWHERE,), shows: str = "master", **policy: Any
) -> AsyncIterator[Knowing]:
    """A master under TLS, which shows the certificate `shows`. It leaves no connection behind on this side."""
    master, machine = Knowing(*says, *go_to(*to)), LogicalMachine("master")
    machine.add(master)
    door = TlsDoor(TlsPolicy(files[shows], files[f"{shows}_key"], **policy))
    async with trio.open_nursery() as nursery:
        server = GuardedServer(machine, PortLimits(), tls=door)
        [master.address] = await nursery.start(server.serve, open_listeners(LOCAL))
        yield master
        nursery.cancel_scope.cancel()


def caller(tls: Tls) -> Caller:
    return Caller("ann", "ann@example.org", 5.0, tls)


async def failure(master: Address, tls: Tls) -> Failure:
    """Return why this ask fails: one line that names the master."""
    failed = await caller(tls).ask(master)
    assert isinstance(failed, Failure)
    assert failed.text.startswith(f"master {master}: ")
    assert "\n" not in failed.text
    return failed


@pytest.mark.parametrize("name", ["", "localhost", "127.0.0.1"])
async def test_a_master_whose_certificate_is_good_answers(files: dict[str, str], name: str) -> None:
    async with secure_master(files) as asked:
        for _ in range(3):
            answer = await caller(Tls(files["ca"], name)).ask(asked.address, {"Client": "ann"})
            assert isinstance(answer, Answer)
            assert answer.endpoint == SOMEWHERE
    assert [message.data for message in asked.asks] == [{"Client": "ann"}] * 3
    assert asked.subjects == [""] * 3


async def test_a_certificate_may_be_for_a_name_that_is_not_looked_up(files: dict[str, str]) -> None:
    async with secure_master(files, shows="named") as asked:
        assert isinstance(await caller(Tls(files["ca"], "master.example")).ask(asked.address), Answer)


async def test_an_answer_of_many_records_is_whole(files: dict[str, str]) -> None:
    text = "x" * 60000
    async with secure_master(files, {"Result": "NoServer", "Data": {"Text": text}}) as asked:
        answer = await caller(Tls(files["ca"])).ask(asked.address, {"Client": "ann", "Pass": text})
    assert isinstance(answer, Answer)
    assert answer.data["Text"] == text
    assert asked.asks[0].data["Pass"] == text


@pytest.mark.parametrize(
    ("ca", "shows", "name", "what"),
    [
        ("strangers", "master", "", "unable to get local issuer certificate"),
        ("", "master", "", "unable to get local issuer certificate"),
        ("ca", "named", "", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("ca", "master", "other.example", "Hostname mismatch, certificate is not valid for 'other.example'"),
    ],
)
async def test_a_certificate_that_is_not_good_is_a_failure_for_good_and_nothing_is_asked(
    files: dict[str, str], ca: str, shows: str, name: str, what: str
) -> None:
    async with secure_master(files, shows=shows) as asked:
        failed = await failure(asked.address, Tls(ca and files[ca], name))
    assert failed.text.endswith(f": its certificate is not good: {what}")
    assert (failed.why, failed.final, failed.fault) == ("certificate", True, Fault.SYSTEM)
    assert asked.asks == []


async def test_a_master_without_tls_is_a_failure_for_good(master: Any, files: dict[str, str]) -> None:
    async with master(to=(SOMEWHERE,)) as plain:
        failed = await failure(plain.address, Tls(files["ca"]))
    assert failed == Failure(f"master {plain.address}: what it sends is not TLS", final=True)
    assert failed.why == "tls"


@pytest.mark.parametrize("flight", [b"", b"\x16\x03\x03\x01\x00\x02"])
async def test_a_handshake_that_stalls_ends_by_the_deadline_of_connecting(
    files: dict[str, str], flight: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    tls = Tls(files["ca"])
    async with talking(flight, trio.sleep_forever) as address:
        began = trio.current_time()
        failed = await failure(address, tls)
        assert trio.current_time() - began == pytest.approx(5.0)
    assert failed == Failure(f"master {address}: did not shake hands by TLS within 5 s")
    assert failed.why == "connect_timeout"


async def test_a_master_that_leaves_in_the_handshake_is_a_failure_that_may_pass(files: dict[str, str]) -> None:
    async with talking(b"", trio.lowlevel.checkpoint) as address:
        failed = await failure(address, Tls(files["ca"]))
    assert failed == Failure(f"master {address}: has closed the connection in the TLS handshake")
    assert failed.why == "closed"


@asynccontextmanager
async def talking(flight: bytes, then: Any) -> AsyncIterator[Address]:
    """One that hears the hello, says `flight`, and leaves after `then`. The client has closed, then, by the end."""
    left = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(flight)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(see_off, stream, nursery.cancel_scope)
                await then()
                nursery.cancel_scope.cancel()
        left.set()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(functools.partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Address("127.0.0.1", listener.socket.getsockname()[1])
        await left.wait()
        nursery.cancel_scope.cancel()


async def see_off(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Wait until the peer has closed."""
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    scope.cancel()


@pytest.mark.parametrize("required", [False, True])
async def test_the_certificate_of_the_client_says_who_asks(files: dict[str, str], required: bool) -> None:
    policy = {"client_ca": files["ca"], "client_certificates_required": required}
    async with secure_master(files, **policy) as asked:
        answer = await caller(Tls(files["ca"], "", files["ann"], files["ann_key"])).ask(asked.address)
        assert isinstance(answer, Answer)
        assert asked.subjects == ["ann"]


@pytest.mark.parametrize(("who", "alert"), [("", "certificate required"), ("eve", "unknown ca")])
async def test_who_needs_a_certificate_and_has_none_that_is_good_is_told_so(
    files: dict[str, str], who: str, alert: str
) -> None:
    own = (files[who], files[f"{who}_key"]) if who else ()
    async with secure_master(files, client_ca=files["ca"], client_certificates_required=True) as asked:
        failed = await failure(asked.address, Tls(files["ca"], "", *own))
    assert failed == Failure(f"master {asked.address}: it ends TLS with the alert {alert}", final=True)
    assert failed.why == "tls"
    assert asked.asks == []


async def test_a_client_asks_masters_under_tls_and_goes_to_its_backend_in_the_clear(
    files: dict[str, str], backend: Any
) -> None:
    policy = lambdamu.ClientPolicy(tls=lambdamu.Tls(files["ca"]))
    async with backend() as stub, secure_master(files, to=(stub.address,)) as asked:
        masters = [asked.address]
        async with lambdamu.connect(masters, user_name="ann", user_mail="a@example.org", policy=policy) as connection:
            assert (connection.task, connection.backend) == ("Task-1", stub.address)


async def test_a_client_whose_masters_are_all_strangers_gives_up_at_once(files: dict[str, str]) -> None:
    policy = lambdamu.ClientPolicy(tls=lambdamu.Tls(files["strangers"]))
    async with secure_master(files) as asked:
        with pytest.raises(UnreachableError, match="its certificate is not good"):
            async with lambdamu.connect([asked.address], user_name="ann", user_mail="a@b.org", policy=policy):
                pass


async def test_a_load_of_clients_asks_under_tls(files: dict[str, str], backend: Any, capsys: Capture) -> None:
    async with backend() as stub, secure_master(files, to=(stub.address,)) as asked:
        assert await run_client(ClientOptions((asked.address,), clients=20, tls=Tls(files["ca"]))) == 0
        assert len(asked.asks) == 20
        assert await run_client(ClientOptions((asked.address,), clients=2, tls=Tls(files["strangers"]))) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"lambdamu client: 2 x master {asked.address}: its certificate is not good: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("ca", "certificate", "key", "which", "text"),
    [
        ("missing", "", "", "ca_file", "missing cannot be read: No such file or directory"),
        ("none", "", "", "ca_file", "none has no certificate of an authority, or a damaged one"),
        ("", "ann", "missing", "key", "missing cannot be read: No such file or directory"),
        ("", "ann", "eve_key", "key", "eve_key is not the key of "),
    ],
)
def test_a_file_that_is_not_right_is_named(
    files: dict[str, str], ca: str, certificate: str, key: str, which: str, text: str
) -> None:
    folder = Path(files["ca"]).parent
    with pytest.raises(TlsError) as caught:
        Tls(*(name and str(folder / name) for name in (ca, "", certificate, key)))
    assert caught.value.which == which
    assert f"{folder}/{text}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"certificate": "ann"}, {"key": "ann"}, {"server_name": "a b"}, {"server_name": ".."}]
)
def test_values_that_mean_nothing_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"go together|neither an address nor a host name"):
        Tls(**given)


class Server(trio.abc.Stream):
    """The other end of a connection, in memory: it shakes hands, says `speech`, and goodbye or `last` in the clear."""

    def __init__(self, context: ssl.SSLContext, speech: bytes, last: bytes = b"") -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._speech, self._last = speech, last

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._in.write(data)
        if not data:
            return
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self._tls.write(self._speech)
            if not self._last:
                self._tls.unwrap()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = self._out.read()
        if not data:
            data, self._last = self._last, b""
        return data

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


def spoken_with(files: dict[str, str], version: ssl.TLSVersion, *says: bytes) -> TlsStream:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["master"], files["master_key"])
    context.maximum_version = version
    return TlsStream(Server(context, *says), Tls(files["ca"]).begin("localhost"), SOMEWHERE)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_what_comes_with_the_end_of_the_handshake_is_heard(
    files: dict[str, str], version: ssl.TLSVersion
) -> None:
    stream = spoken_with(files, version, b"full")
    await stream.shake_hands()
    assert [await stream.receive_some() for _ in range(3)] == [b"full", b"", b""]


async def test_rubbish_under_way_is_a_fault_of_tls(files: dict[str, str]) -> None:
    stream = spoken_with(files, ssl.TLSVersion.TLSv1_3, b"half", b"\x17\x03\x03\x00\x20" + bytes(32))
    await stream.shake_hands()
    assert await stream.receive_some() == b"half"
    with pytest.raises(LinkError, match=r"no TLS with it: ") as caught:
        await stream.receive_some()
    assert caught.value.why == "tls"
