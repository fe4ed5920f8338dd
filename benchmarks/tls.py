"""`tls`: what handshakes cost the server, full and resumed, and what asks cost on connections that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.asks import COLUMNS, WARM_S, figures_of
from benchmarks.clients import Load, ask, start_fleet
from benchmarks.doors import KeyKind, OursByTls, make_certificate
from benchmarks.figures import Samples
from benchmarks.peers import HAProxy, Nginx, Ours, Peer
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_BACKENDS: Final = 100
_CASES: Final[Mapping[str, tuple[KeyKind, Load]]] = {
    "ECDSA P-256, full handshakes": ("ECDSA P-256", Load("short")),
    "ECDSA P-256, resumed": ("ECDSA P-256", Load("short", resume=True)),
    "RSA-2048, full handshakes": ("RSA-2048", Load("short")),
    "64 kept connections": ("ECDSA P-256", Load("kept")),
    "64 kept, 16 asks a write": ("ECDSA P-256", Load("kept", pipeline=16)),
}


def _measure(stage: Stage, seconds: float) -> Samples:
    ours = Ours(start_fleet(stage, _BACKENDS))
    for case, (kind, load) in _CASES.items():
        for peer in _everybody(stage, ours, kind):
            if peer.missing() is None:
                mine = isinstance(peer, OursByTls)
                yield attempt(case, peer.name, mine, partial(_measure_one, stage, peer, load, seconds))


def _everybody(stage: Stage, ours: Ours, kind: KeyKind) -> Iterator[Peer]:
    certificate = make_certificate(stage.folder, kind)
    yield OursByTls(ours, certificate)
    yield Nginx(certificate=certificate)
    yield HAProxy(certificate=certificate)


def _measure_one(stage: Stage, peer: Peer, load: Load, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        server = peer.start(act)
        ask(act, server, load, WARM_S)
        asked = ask(act, server, load, seconds)
    handshakes = asked.handshakes / asked.seconds
    return figures_of(asked) | {
        "handshakes_per_s": handshakes,
        "resumed": 100 * asked.resumed / max(1, asked.handshakes),
    }


TLS: Final = Benchmark(
    "tls",
    "asks under TLS: connect, handshake, ask, answer, leave; and kept connections",
    (*COLUMNS, Column("handshakes_per_s", "handshakes/s"), Column("resumed", "resumed %")),
    _measure,
    compared="cpu_s_per_1000",
    peers=("nginx", "haproxy"),
    notes=(
        "a client takes as long for a handshake as a server: with the load core full, the rate is the client's",
        "all take what their OpenSSL offers first: TLS 1.3 with X25519 and AES-256-GCM; ours is asked in MessagePack",
    ),
)
