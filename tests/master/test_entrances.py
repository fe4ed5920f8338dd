"""Where clients come in, over real sockets: no entrance answers or learns a thing without the right.

The file is long because each entrance is opened by each right, and its limits are tried with each kind of address.
"""

from __future__ import annotations

import json
import random
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import attrs
import pytest
import trio
import trustme

from lambdamu.address import Address
from lambdamu.datapack import Decoder, encode
from lambdamu.keys import Signer
from lambdamu.machine import LogicalMachine
from lambdamu.messages import DO_SEND_SERVER, MASTER, Message, Reason
from lambdamu.passes import Pass, make_pass
from lambdamu.port import PortObserver
from lambdamu.tcp_server import PortLimits
from master.config import Config, GatewayConfig, MasterPolicy, TlsConfig
from master.core.fair import FairPolicy, NetworkRates
from master.doors import Doors
from master.entrances import Entrance, EntranceError, Entrances, open_sockets
from tests.lambdamu.test_proxy_protocol import header
from tests.master.test_doors import CLIENT, FAILED, NOW, TOKEN, House, doors_of, text
from tests.papers import write_papers

if sys.platform != "linux":
    pytest.skip("these entrances are Linux's", allow_module_level=True)

HERE = Address("127.0.0.1", 0)
CLIENTS_OWN = "203.0.113.7"
PATIENCE_S = 20.0
BALANCERS = (ip_network("127.0.0.0/8"),)


@attrs.frozen
class Papers:
    """Certificates: files of the master, and what clients trust and show."""

    files: TlsConfig
    trusted: trustme.CA
    shown: dict[str, trustme.LeafCert]

    def context(self, shown: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.trusted.configure_trust(context)
        if shown:
            self.shown[shown].configure_cert(context)
        return context


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder, authority = tmp_path_factory.mktemp("papers"), trustme.CA()
    files = write_papers(folder, authority, authority.issue_cert("localhost"))
    shown = {
        "ann": authority.issue_cert("ann@example.org", common_name="ann"),
        "revoked": authority.issue_cert("eve@example.org", common_name="CN=eve"),
        "foreign": trustme.CA().issue_cert("ann@example.org", common_name="ann"),
    }
    return Papers(TlsConfig(**files), authority, shown)


class Counted(PortObserver):
    def __init__(self) -> None:
        self.open = self.turned_away = 0

    def opened(self) -> None:
        self.open += 1

    def ended(self, how: Any) -> None:
        self.open -= 1

    def refused(self) -> None:
        self.turned_away += 1


@attrs.frozen
class Scene:
    """A master with all its entrances open."""

    house: House
    papers: Papers
    entrances: Entrances
    at: dict[Entrance, Address]
    counted: Counted
    streams: list[trio.SocketStream] = attrs.Factory(list)
    """Of clients; they are closed at the end."""

    async def connect(self, entrance: Entrance, first: bytes = b"", tls: ssl.SSLContext | None = None) -> Any:
        """Connect to an entrance; `first`: what is sent before a handshake."""
        stream: Any = await trio.open_tcp_stream(self.at[entrance].host, self.at[entrance].port)
        self.streams.append(stream)
        if first:
            await stream.send_all(first)
        if tls is None:
            return stream
        return trio.SSLStream(stream, tls, server_hostname="localhost", https_compatible=True)


@asynccontextmanager
async def opened(papers: Papers, doors: Doors | None, *, behind: bool = False, **limits: Any) -> AsyncIterator[Scene]:
    """Open all entrances; `behind`: whoever comes from this machine is a balancer."""
    proxies = BALANCERS if behind else ()
    config = Config(
        master=MasterPolicy(listen=HERE, trusted_proxies=proxies),
        limits=PortLimits(**limits),
        tls=attrs.evolve(papers.files, listen=HERE),
        gateway=GatewayConfig(listen=HERE, tls=True, trusted_proxies=proxies),
    )
    house, machine, counted = House(doors), LogicalMachine("master"), Counted()
    machine.add(house.master)
    entrances = Entrances(config, machine, house.master, counted)
    async with trio.open_nursery() as nursery:
        house.report(trio.current_time())
        at = await nursery.start(entrances.serve, open_sockets(config))
        with trio.fail_after(PATIENCE_S):
            scene = Scene(house, papers, entrances, {entrance: place for entrance, [place] in at.items()}, counted)
            try:
                yield scene
            finally:
                for stream in scene.streams:
                    stream.socket.close()
        entrances.stop()
        nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
    assert entrances.connections == counted.open == 0


async def read(stream: Any, whole: Callable[[bytes], Any]) -> Any:
    """Return what `whole` makes of the bytes that come; None when they end before it makes something of them."""
    data = b""
    while (made := whole(data)) is None:
        try:
            more = await stream.receive_some(65536)
        except trio.BrokenResourceError:
            return None
        if not more:
            return None
        data += more
    return made


def message_in(data: bytes) -> Any:
    batches = list(Decoder().feed(data))
    return batches[0][0].data if batches else None


def body_in(data: bytes) -> Any:
    head, _, body = data.partition(b"\r\n\r\n")
    return json.loads(body) if body.endswith(b"}") else head.decode() if body else None


async def by_messages(stream: Any, data: Any) -> Any:
    try:
        await stream.send_all(encode([Message(MASTER, "Event", DO_SEND_SERVER, data)]))
    except trio.BrokenResourceError:
        return None
    return await read(stream, message_in)


async def by_http(stream: Any, data: Any, more: str = "") -> Any:
    body = b"" if data is None else json.dumps(data).encode()
    method = "GET" if data is None else "POST"
    head = f"{method} /v1/server HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    try:
        await stream.send_all(head.encode() + body)
    except trio.BrokenResourceError:
        return None
    return await read(stream, body_in)


Ask = Callable[[Scene, Any, str], Awaitable[Any]]


@attrs.frozen
class Door:
    """A way to ask: with some Data, and the certificate of that name where it is a way that can show one."""

    ask: Ask
    says: bool = True
    """Whether it carries Data."""
    shows: bool = False
    """Whether a certificate that one has is shown."""
    behind: bool = False


async def ask_plainly(scene: Scene, data: Any, _: str) -> Any:
    return await by_messages(await scene.connect(Entrance.CLIENTS), data)


async def ask_under_tls(scene: Scene, data: Any, shown: str) -> Any:
    stream = await scene.connect(Entrance.TLS, tls=scene.papers.context(shown))
    return await by_messages(stream, data)


async def ask_behind(scene: Scene, data: Any, _: str) -> Any:
    return await by_messages(await scene.connect(Entrance.CLIENTS, header(CLIENTS_OWN)), data)


async def ask_behind_under_tls(scene: Scene, data: Any, shown: str) -> Any:
    stream = await scene.connect(Entrance.TLS, header(CLIENTS_OWN), scene.papers.context(shown))
    return await by_messages(stream, data)


async def ask_gateway(scene: Scene, data: Any, shown: str) -> Any:
    stream = await scene.connect(Entrance.GATEWAY, tls=scene.papers.context(shown))
    return await by_http(stream, data)


async def ask_gateway_behind(scene: Scene, data: Any, _: str) -> Any:
    """Ask by a balancer, whose certificate is one that would be let in."""
    stream = await scene.connect(Entrance.GATEWAY, tls=scene.papers.context("ann"))
    return await by_http(stream, data, f"X-Forwarded-For: {CLIENTS_OWN}\r\n")


DOORS = {
    "clients' port": Door(ask_plainly),
    "clients' port, a plain ask": Door(ask_plainly, says=False),
    "behind a balancer": Door(ask_behind, behind=True),
    "TLS": Door(ask_under_tls, shows=True),
    "TLS, a plain ask": Door(ask_under_tls, says=False, shows=True),
    "TLS behind a balancer": Door(ask_behind_under_tls, shows=True, behind=True),
    "gateway, GET": Door(ask_gateway, says=False, shows=True),
    "gateway, POST": Door(ask_gateway, shows=True),
    "gateway behind a balancer": Door(ask_gateway_behind, behind=True),
}


@attrs.frozen
class Right:
    """What one has, and why it is not enough; None: it is."""

    denied: Reason | None = None
    data: dict[str, Any] = attrs.Factory(dict)
    shown: str = ""


FOREIGN = make_pass(Signer.generate("k1"), Pass("p1", "ann", ("access",), NOW))
RIGHTS = {
    "nothing": Right(Reason.PASS_MISSING),
    "pass": Right(None, {"Pass": text()}),
    "token": Right(None, {"Pass": TOKEN}),
    "expired pass": Right(Reason.PASS_EXPIRED, {"Pass": text(expires=NOW - 60)}),
    "revoked pass": Right(Reason.PASS_REVOKED, {"Pass": text(id="p9")}),
    "foreign pass": Right(Reason.PASS_FOREIGN, {"Pass": FOREIGN}),
    "pass without the right": Right(Reason.PASS_TOO_LITTLE, {"Pass": text(rights=("vip",))}),
    "certificate": Right(None, shown="ann"),
    "revoked certificate": Right(Reason.PASS_REVOKED, shown="revoked"),
    "foreign certificate": Right(None, shown="foreign"),
}


@pytest.mark.parametrize("right", RIGHTS.values(), ids=RIGHTS)
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
async def test_nothing_is_answered_written_or_learned_without_the_right(
    papers: Papers, door: Door, right: Right
) -> None:
    doors = doors_of(keys_file="k", tokens_file="t", client_certificates=True)
    rates = doors.rates = NetworkRates(FairPolicy(1.0, 100))
    async with opened(papers, doors, behind=door.behind) as scene:
        house, data = scene.house, {"Client": CLIENT, "Failed": FAILED, **right.data}
        house.ask({"Client": CLIENT, "Pass": TOKEN}, now=trio.current_time())  # so that Failed has something to tell of
        before, heard = house.learned(), len(house.heard.results)
        answer = await door.ask(scene, data if door.says else None, right.shown)
        if door.shows and right.shown == "foreign":
            assert answer is None  # it was not let in
            assert (house.learned(), len(house.heard.results), len(rates)) == (before, heard, 1)
            return
        assert len(house.heard.results) == heard + 1
        assert len(rates) == 2  # it counts for his own network, and for no other
        denied = expected(door, right)
        if denied is None:
            assert answer["Result"] == "OK"
            assert house.learned() != before
            assert bool(house.heard.accused_of) is door.says
            return
        assert answer == {"Result": "Denied", "Data": {"Reason": denied, "RetryAfter": None}}
        assert house.learned() == before


def expected(door: Door, right: Right) -> Reason | None:
    """Return why one is denied at a door; None where he is not."""
    if right.shown:
        return right.denied if door.shows else Reason.PASS_MISSING
    return right.denied if door.says else Reason.PASS_MISSING


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
async def test_where_no_right_is_asked_for_every_door_is_open(papers: Papers, door: Door) -> None:
    async with opened(papers, None, behind=door.behind) as scene:
        answer = await door.ask(scene, {"Client": CLIENT} if door.says else None, "")
        assert answer == {"Result": "OK", "Data": {"IP": "10.0.0.1", "Port": 9001}}


# One network, by every door

SAME = ["198.51.100.7", "::ffff:198.51.100.7", "198.51.100.7"]
"""One client, as addresses may come."""


async def forwarded(scene: Scene, host: str) -> Any:
    stream = await scene.connect(Entrance.GATEWAY, tls=scene.papers.context())
    return await by_http(stream, None, f"X-Forwarded-For: {host}\r\n")


async def proxied(scene: Scene, host: str) -> Any:
    return await by_messages(await scene.connect(Entrance.CLIENTS, header(host)), None)


async def proxied_under_tls(scene: Scene, host: str) -> Any:
    return await by_messages(await scene.connect(Entrance.TLS, header(host), scene.papers.context()), None)


BEHIND = [proxied, proxied_under_tls, forwarded]


@pytest.mark.parametrize("ask", BEHIND)
@pytest.mark.parametrize("exempt", [False, True])
async def test_the_rate_is_that_of_a_network_however_its_address_is_written(
    papers: Papers, ask: Any, exempt: bool
) -> None:
    limits = PortLimits(exempt=(ip_network("198.51.100.0/24"),) * exempt)
    doors = Doors(random.Random(1), rates=NetworkRates(FairPolicy(0.001, 1)), networks=limits.networks())
    async with opened(papers, doors, behind=True) as scene:
        answers = [await ask(scene, host) for host in SAME]
        assert [answer["Result"] for answer in answers] == ["OK"] + ["OK" if exempt else "Denied"] * 2
        if not exempt:
            assert {answer["Data"]["Reason"] for answer in answers[1:]} == {"TooFast"}
        assert (await ask(scene, "198.51.101.7"))["Result"] == "OK"


async def test_who_comes_by_several_doors_is_one_network(papers: Papers) -> None:
    doors = Doors(random.Random(1), rates=NetworkRates(FairPolicy(0.001, len(BEHIND))))
    async with opened(papers, doors, behind=True) as scene:
        answers = [await ask(scene, host) for ask in BEHIND for host in SAME[:2]]
        assert [answer["Result"] for answer in answers] == ["OK"] * 3 + ["Denied"] * 3


@pytest.mark.parametrize(("entrance", "tls"), [(Entrance.CLIENTS, False), (Entrance.TLS, True)])
@pytest.mark.parametrize("exempt", [False, True])
async def test_connections_are_limited_by_network_however_its_address_is_written(
    papers: Papers, entrance: Entrance, tls: bool, exempt: bool
) -> None:
    networks = (ip_network("198.51.100.0/24"),) * exempt
    async with opened(papers, None, behind=True, connections_per_address=1, exempt=networks) as scene:

        async def come(host: str) -> Any:
            stream = await scene.connect(entrance, header(host), papers.context() if tls else None)
            await stream.send_all(encode([Message(MASTER, "Event", DO_SEND_SERVER)]))
            return message_in(await stream.receive_some(65536))

        assert (await come(SAME[0]))["Result"] == "OK"
        if exempt:
            assert (await come(SAME[1]))["Result"] == "OK"
        elif tls:
            with pytest.raises(trio.BrokenResourceError):
                await come(SAME[1])  # there is nobody yet to say it to
        else:
            assert (await come(SAME[1]))["Text"] == "too many connections are open from this network"


@pytest.mark.parametrize("exempt", [False, True])
async def test_a_gateway_that_is_full_for_a_network_says_so(papers: Papers, exempt: bool) -> None:
    networks = (ip_network("127.0.0.0/8"),) * exempt
    async with opened(papers, None, connections_per_address=1, exempt=networks) as scene:
        first = await scene.connect(Entrance.GATEWAY, tls=papers.context())
        await first.do_handshake()
        second = await scene.connect(Entrance.GATEWAY, tls=papers.context())
        if exempt:
            assert (await by_http(second, None))["Result"] == "OK"
        else:
            with pytest.raises(trio.BrokenResourceError):
                await second.do_handshake()
            assert scene.counted.turned_away == 1


# What it shows of itself


async def test_each_entrance_counts_its_own_connections_and_shows_when_its_certificate_ends(papers: Papers) -> None:
    async with opened(papers, None) as scene:
        entrances = scene.entrances
        streams = [await scene.connect(Entrance.TLS, tls=papers.context()) for _ in range(2)]
        for stream in streams:
            await stream.do_handshake()
        assert [entrances.connections_at(each) for each in entrances.ports] == [0, 2, 0]
        assert entrances.used(Entrance.TLS) == 2 / 10000
        while entrances.shaking(Entrance.TLS):  # to a client a handshake is over a little earlier
            await trio.lowlevel.checkpoint()
        await scene.connect(Entrance.TLS, b"\x16")
        while not entrances.shaking(Entrance.TLS):
            await trio.lowlevel.checkpoint()
        assert entrances.shaking(Entrance.TLS) == 1 / 1000
        assert entrances.expiry(Entrance.TLS) == entrances.expiry(Entrance.GATEWAY) > 0
        assert list(entrances.tls) == [Entrance.TLS, Entrance.GATEWAY]


def test_an_entrance_that_cannot_be_opened_leaves_no_other_open() -> None:
    [taken] = open_sockets(Config(master=MasterPolicy(listen=HERE)))[Entrance.CLIENTS]
    place = Address("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(EntranceError, match=str(place)):
        open_sockets(Config(master=MasterPolicy(listen=HERE), gateway=GatewayConfig(listen=place)))
    taken.close()  # what else was open would be warned of when it is collected
