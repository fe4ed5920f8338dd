"""The ports of a whole master over real sockets: bad peers beside good ones, who must be answered all the time."""

from __future__ import annotations

import gc
import random
import resource
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio
import trustme

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import Message
from lambdamu.port import PortLimits
from lambdamu.testing import FakeBackend, Script
from master.config import BackendConfig, Config, GatewayConfig, MasterPolicy, ProbePolicy, TlsConfig
from master.entrances import Entrance, open_sockets
from master.node import Node
from tests.fuzz.inputs import SEEDS, mutate
from tests.lambdamu.conftest import reset
from tests.lambdamu.test_proxy_protocol import header
from tests.papers import write_papers

DOORS: Final = ("clients", "proxy", "gateway", "tls", "records")
_HERE: Final = Address("127.0.0.1", 0)
_BALANCER: Final = "127.0.0.2"
_ASK: Final = encode([Message("Master", "Event", "DoSendServer")])
_GET: Final = b"GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n"
_AT_ONCE: Final = 16
_GOOD_EVERY: Final = 64
_PATIENCE_S: Final = 30.0


class Growth:
    """What has been added since it was made; str() says it."""

    def __init__(self) -> None:
        self._objects, self._pages = _objects(), _rss()

    @property
    def objects(self) -> int:
        return _objects() - self._objects

    @property
    def rss_bytes(self) -> int:
        return _rss() - self._pages

    def __str__(self) -> str:
        return f"{self.objects:+,} objects, {self.rss_bytes / 1e6:+.1f} MB"


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@attrs.frozen
class Told:
    """What came of it. `endings`: how the connections ended."""

    inputs: int
    good: int
    growth: str
    objects: int
    rss_bytes: int
    errors: list[Any]

    def __str__(self) -> str:
        return f"{self.inputs:,} inputs, {self.good:,} good asks answered; in the second half {self.growth}"


async def fuzz_sockets(inputs: int, seed: int) -> Told:
    """Put inputs to the ports in turn, several at once. Raise AssertionError when a good client is not answered."""
    with tempfile.TemporaryDirectory() as folder:
        async with FakeBackend(Script(users=1)) as backend:
            return await _with_backend(Path(folder), backend, inputs, seed)


async def _with_backend(folder: Path, backend: Any, inputs: int, seed: int) -> Told:
    authority = trustme.CA()
    capture = structlog.testing.LogCapture()
    config = _config(authority, folder, backend.address)
    node = Node(config, rng=random.Random(seed), log=structlog.wrap_logger(None, processors=[capture]))
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(node.run, open_sockets(config))
        fuzz = _Fuzz(random.Random(seed), {key: value[0] for key, value in addresses.items()}, authority)
        await fuzz.wait_until_ready()
        await fuzz.put(inputs // 2)
        growth = Growth()
        await fuzz.put(inputs - inputs // 2)
        objects, rss, said = growth.objects, growth.rss_bytes, str(growth)
        with trio.fail_after(_PATIENCE_S):
            while node.entrances.connections > len(fuzz.good):  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.01)
        bad = [each for each in capture.entries if each["log_level"] in ("error", "critical") or "exc_info" in each]
        await fuzz.leave()
        node.stop()
        await node.finished.wait()
        nursery.cancel_scope.cancel()
    return Told(inputs, fuzz.answered, said, objects, rss, bad)


def _config(authority: trustme.CA, folder: Path, backend: Address) -> Config:
    files = write_papers(folder, authority, authority.issue_cert("localhost"))
    return Config(
        MasterPolicy(listen=_HERE, trusted_proxies=(ip_network(f"{_BALANCER}/32"),)),
        probe=ProbePolicy(interval_s=0.5, timeout_s=0.4, stale_after_s=60.0),
        limits=PortLimits(message_s=1.0, send_s=1.0),
        tls=TlsConfig(listen=_HERE, certificate=files["certificate"], key=files["key"], handshakes=64),
        gateway=GatewayConfig(listen=_HERE, trusted_proxies=(ip_network("127.0.0.0/8"),)),
        backends=(BackendConfig("b", *backend),),
    )


class _Fuzz:
    """Bad peers, and a good one at each port."""

    def __init__(self, rng: random.Random, addresses: dict[Entrance, Address], authority: trustme.CA) -> None:
        self._rng = rng
        self._addresses = addresses
        self._context = ssl.create_default_context()
        authority.configure_trust(self._context)
        self.good: list[tuple[trio.abc.Stream, bytes, bytes]] = []
        self.answered = 0
        self._visits: dict[str, Callable[[], Awaitable[None]]] = {
            "clients": self._visit_clients,
            "proxy": self._visit_proxy,
            "gateway": self._visit_gateway,
            "tls": self._visit_tls,
            "records": self._visit_records,
        }

    async def wait_until_ready(self) -> None:
        plain = await self._connect(Entrance.CLIENTS)
        tls = trio.SSLStream(
            await self._connect(Entrance.TLS), self._context, server_hostname="localhost", https_compatible=True
        )
        web = await self._connect(Entrance.GATEWAY)
        self.good = [(plain, _ASK, b"\xa2OK"), (tls, _ASK, b"\xa2OK"), (web, _GET, b'"OK"')]
        with trio.fail_after(_PATIENCE_S):
            while b"OK" not in await self._ask(web, _GET):  # noqa: ASYNC110 - only an answer tells of it
                await trio.sleep(0.05)

    async def put(self, inputs: int) -> None:
        limiter = trio.Semaphore(_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for number in range(inputs):
                await limiter.acquire()
                nursery.start_soon(self._visit, DOORS[number % len(DOORS)], limiter)
                if number % _GOOD_EVERY == 0:
                    await self._ask_good()
        await self._ask_good()

    async def leave(self) -> None:
        for stream, _, _ in self.good:
            await stream.aclose()

    async def _ask_good(self) -> None:
        for stream, ask, wanted in self.good:
            assert wanted in await self._ask(stream, ask), "a good client was not answered well"
            self.answered += 1

    async def _ask(self, stream: trio.abc.Stream, ask: bytes) -> bytes:
        with trio.fail_after(_PATIENCE_S):
            await stream.send_all(ask)
            return bytes(await stream.receive_some(65536))

    async def _visit(self, door: str, limiter: trio.Semaphore) -> None:
        try:
            with suppress(OSError, trio.BrokenResourceError, ssl.SSLError):
                await self._visits[door]()
        finally:
            limiter.release()

    async def _connect(self, entrance: Entrance, host: str = "127.0.0.1") -> trio.SocketStream:
        address = self._addresses[entrance]
        return await trio.open_tcp_stream(address.host, address.port, local_address=host)

    async def _visit_clients(self) -> None:
        await self._say(await self._connect(Entrance.CLIENTS), mutate(self._rng, SEEDS["clients"]))

    async def _visit_proxy(self) -> None:
        words = mutate(self._rng, SEEDS["proxy"]) + mutate(self._rng, SEEDS["clients"])
        await self._say(await self._connect(Entrance.CLIENTS, _BALANCER), words)

    async def _visit_gateway(self) -> None:
        await self._say(await self._connect(Entrance.GATEWAY), mutate(self._rng, SEEDS["gateway"]))

    async def _visit_tls(self) -> None:
        host = self._rng.choice(("127.0.0.1", _BALANCER))
        told = mutate(self._rng, [header()]) if host == _BALANCER else b""
        hello = mutate(self._rng, [_Shaking(self._context).said])
        await self._say(await self._connect(Entrance.TLS, host), told + hello)

    async def _visit_records(self) -> None:
        """Shake hands as one should up to a point, and from there on say what chance makes of it."""
        async with await self._connect(Entrance.TLS) as stream:
            await self._spoil(stream, _Shaking(self._context), spoilt=self._rng.randrange(1, 4))

    async def _spoil(self, stream: trio.SocketStream, shaking: _Shaking, spoilt: int) -> None:
        for step in range(4):
            data = shaking.said if step != spoilt else mutate(self._rng, [shaking.said or b"\x17\x03\x03\0\x20" * 9])
            if step == spoilt:
                await self._say(stream, data)
                return
            await stream.send_all(data)
            if not shaking.done:
                shaking.hear(await stream.receive_some(65536))
            else:
                shaking.ask(_ASK)

    async def _say(self, stream: trio.SocketStream, data: bytes) -> None:
        """Say it in one piece or several, and leave in one way or another."""
        async with stream:
            await self._say_and_leave(stream, data)

    async def _say_and_leave(self, stream: trio.SocketStream, data: bytes) -> None:
        cut = self._rng.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            if piece:
                await stream.send_all(piece)
        way = self._rng.randrange(8)
        if way == 0:
            reset(stream.socket)
            return
        if way < 6:
            await stream.send_eof()
            with trio.move_on_after(2.0):
                while await stream.receive_some(65536):
                    pass


class _Shaking:
    """A client of TLS without a socket. `said` is what it has to say now."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.done = False
        self._go_on()

    def hear(self, data: bytes) -> None:
        self._in.write(data)
        self._go_on()

    def ask(self, data: bytes) -> None:
        self._tls.write(data)
        self.said = self._out.read()

    def _go_on(self) -> None:
        try:
            self._tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
        self.said = self._out.read()
