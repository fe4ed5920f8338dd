"""Doors without sockets: bytes in, and only the errors that each of them promises out."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable
from typing import Any, Final

import structlog

from lambdamu.address import Address
from lambdamu.base64url import to_base64url
from lambdamu.errors import RemoteProtocolError
from lambdamu.forwarded import ClientHeader, client_of
from lambdamu.http_wire import HttpWire
from lambdamu.networks import Networks
from lambdamu.objects import Later, Peer
from lambdamu.passes import PassVerifier
from lambdamu.port import PortLimits
from lambdamu.proxy_protocol import missing, told_address
from lambdamu.wire import MessagePackWire, Wire
from master.access import Access, Credentials, Denied, Granted
from master.config import AccessPolicy, BackendConfig, Config, MasterPolicy
from master.config_file import ConfigError, parse
from master.gateway import Gateway, GatewayRules
from master.node import Node
from master.wait_page.page import WaitRules
from master.wait_page.redirect import Redirect
from master.wait_page.texts import load_texts
from tests.fuzz.inputs import NOW_UNIX, SIGNER

Door = Callable[[bytes], None]
_PIECE: Final = 37
_LIMITS: Final = PortLimits()
_NETWORKS: Final = (ipaddress.ip_network("10.0.0.0/8"),)
_TRUSTED: Final = Networks(exempt=_NETWORKS)


def make_doors() -> dict[str, Door]:
    """Return each door by its name, with real objects behind it."""
    node = _make_node()
    wait = WaitRules(load_texts(), Redirect.parse("game://{ip}:{port}/{queue}?{turn}&{name}"))
    gateway = Gateway(node.master, GatewayRules(("https://game.example",), _NETWORKS, wait=wait))
    return {
        "clients": _Spoken(MessagePackWire(), node),
        "gateway": _Spoken(HttpWire(), gateway),
        "proxy": _proxy,
        "forwarded": _forwarded,
        "pass": _Passes(),
        "config": _config,
    }


def _make_node() -> Node:
    config = Config(MasterPolicy(listen=Address("127.0.0.1", 0)), backends=(BackendConfig("b", "127.0.0.1", 9),))
    node = Node(config, rng=random.Random(1), log=structlog.wrap_logger(None, processors=[]))
    node.pool.record_report(0.0, random.Random(1), "b", 1, 0.0, ("127.0.0.1", 9))
    return node


class _Spoken:
    """A wire, and who answers on it. The time goes on by a millisecond with each input."""

    def __init__(self, wire: Wire, handler: Any) -> None:
        self._wire = wire
        self._handler = handler
        self._now = 0.0

    def __call__(self, data: bytes) -> None:
        self._now += 0.001
        peer = Peer("10.0.0.1", 1)
        whole, cut = self._converse(peer, [data]), self._converse(peer, _pieces(data))
        assert len(whole) == len(cut), "another number of answers when it comes in pieces"
        self._handler.disconnected(peer)

    def _converse(self, peer: Peer, pieces: list[bytes]) -> list[bytes]:
        reader, said = self._wire.reader(_LIMITS), []
        try:
            for piece in pieces:
                reader.feed(piece)
                while not reader.last and (batch := reader.next_batch()) is not None:
                    said.append(self._answer(batch, peer))
                assert reader.buffered <= 2 * _LIMITS.batch_bytes
        except RemoteProtocolError as fault:
            said.append(self._wire.last_word(fault))
            assert b"Traceback" not in said[-1]
        return said

    def _answer(self, batch: Any, peer: Peer) -> bytes:
        answers: list[Any] = []
        self._handler.prepare(batch)
        for message in batch:
            reply = self._handler.handle(message, self._now, peer)
            if isinstance(reply, Later):
                reply.cancel()
            else:
                answers += reply
        return self._wire.pack(answers)


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]


def _proxy(data: bytes) -> None:
    header = b""
    try:
        while wanted := missing(header):
            if len(header) + wanted > len(data):
                return
            header = data[: len(header) + wanted]
        told = told_address(header)
    except RemoteProtocolError:
        return
    if told is not None:
        ipaddress.ip_address(told[0])
        assert 0 <= told[1] < 2**16


def _forwarded(data: bytes) -> None:
    for name in ClientHeader:
        ipaddress.ip_address(client_of({name: data.decode("latin-1")}, "10.0.0.1", _TRUSTED, name))


class _Passes:
    """Credentials as they come in an ask; nobody gets in but by a text that was signed."""

    def __init__(self) -> None:
        self.passes = PassVerifier({"k1": SIGNER.verifier()})
        self._access = Access(AccessPolicy(keys_file="k"), Credentials(self.passes))

    def __call__(self, data: bytes) -> None:
        for text in (data.decode("latin-1"), data.decode(errors="replace"), to_base64url(data)):
            judged = self._access.judge(NOW_UNIX, text)
            assert isinstance(judged, Denied) or judged.subject in ("ann", "é" * 60)
            assert not isinstance(judged, Granted) or len(text) <= 512
        assert self.passes.cached <= 2 / 8192, "something is kept that was not verified"


def _config(data: bytes) -> None:
    try:
        parse(data.decode(errors="replace"))
    except ConfigError as exc:
        for fault in exc.faults:
            assert str(fault).isprintable(), "a line that could do something to a terminal"
