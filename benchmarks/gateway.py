"""`gateway`: what an ask costs by HTTP and JSON, beside those who answer the same request with a fixed text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import attrs

from benchmarks.asks import COLUMNS, measure_one
from benchmarks.clients import Load, start_fleet
from benchmarks.doors import OursByGateway
from benchmarks.figures import Samples
from benchmarks.peers import HAProxy, Nginx, Ours, Peer, Server
from benchmarks.report import Benchmark, attempt
from benchmarks.stage import Stage

_BACKENDS: Final = 100
_GET: Final = b"GET /v1/server HTTP/1.1\r\nHost: master.example\r\nUser-Agent: phone/1.0\r\nAccept: */*\r\n\r\n"
_BODY: Final = b'{"Client":"6f1d7e52c0a94f7b","Want":["Alternates"]}'
_POST: Final = (
    b"POST /v1/server HTTP/1.1\r\nHost: master.example\r\nUser-Agent: phone/1.0\r\nAccept: */*\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
_ANSWER: Final = '{"Result":"OK","Data":{"IP":"127.0.0.1","Port":40001}}'

_CASES: Final[Mapping[str, tuple[Load, bytes]]] = {
    "GET, 64 at once": (Load("short"), _GET),
    "GET, 64 kept": (Load("kept"), _GET),
    "GET, 2,000 a second": (Load("short", rate=2000), _GET),
    "POST, 64 at once": (Load("short"), _POST),
    "POST, 64 kept": (Load("kept"), _POST),
}


@attrs.frozen
class _Asked:
    """A peer that is asked by the same bytes as ours."""

    peer: HAProxy | Nginx
    request: bytes

    @property
    def name(self) -> str:
        return self.peer.name

    def missing(self) -> str | None:
        return self.peer.missing()

    def start(self, stage: Stage) -> Server:
        return attrs.evolve(self.peer.start(stage), own_request=self.request)


def _measure(stage: Stage, seconds: float) -> Samples:
    ours = Ours(start_fleet(stage, _BACKENDS))
    for case, (load, request) in _CASES.items():
        mine = OursByGateway(ours, request)
        others = [_Asked(peer, request) for peer in (HAProxy(text=_ANSWER), Nginx(text=_ANSWER))]
        everybody: tuple[Peer, ...] = (mine, *others)
        for peer in everybody:
            if peer.missing() is None:
                yield attempt(case, peer.name, peer is mine, partial(measure_one, stage, peer, load, seconds))


GATEWAY: Final = Benchmark(
    "gateway",
    "the question by HTTP and JSON",
    COLUMNS,
    _measure,
    compared="cpu_s_per_1000",
    peers=("haproxy", "nginx"),
    notes=(
        f"ours is a whole master: {_BACKENDS} backends probed each second, and it chooses one of them each time",
        "the others get the same request, read nothing of it, and return a fixed text of the same length",
    ),
)
