"""`idle`: the memory of the server for each connection that says nothing."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from benchmarks.clients import Load, ask, idle_clients, start_fleet
from benchmarks.figures import Samples
from benchmarks.peers import HAProxy, Nginx, Ours, Peer
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_CONNECTIONS: Final = 9000
_BACKENDS: Final = 100
_SETTLE_S: Final = 1.0


def _measure(stage: Stage, _seconds: float) -> Samples:
    ours = Ours(start_fleet(stage, _BACKENDS))
    everybody: tuple[Peer, ...] = (ours, Nginx(), HAProxy())
    for peer in everybody:
        if peer.missing() is None:
            case = f"{_CONNECTIONS:,} connections"
            yield attempt(case, peer.name, peer is ours, partial(_measure_one, stage, peer))


def _measure_one(stage: Stage, peer: Peer) -> dict[str, float]:
    with stage.act() as act:
        server = peer.start(act)
        # What a server sets aside with its first clients is not for each of them.
        ask(act, server, Load("short"), 0.5)
        time.sleep(_SETTLE_S)
        before = server.running.memory()
        with idle_clients(act, server, _CONNECTIONS) as clients:
            time.sleep(_SETTLE_S)
            after = server.running.memory()
            said = clients.finish(10.0)
    held = max(1, said["open"])
    return {
        "rss": (after.rss - before.rss) / held,
        "pss": (after.pss - before.pss) / held,
        "rss_before": before.rss / 2**20,
        "open": said["open"],
        "dropped": said["dropped"] + said["errors"],
    }


IDLE: Final = Benchmark(
    "idle",
    "memory of the server per idle connection",
    (
        Column("rss", "RSS, bytes each"),
        Column("pss", "PSS, bytes each"),
        Column("rss_before", "RSS before, MiB", 1),
        Column("open", "open"),
        Column("dropped", "dropped"),
    ),
    _measure,
    compared="rss",
    peers=("haproxy", "nginx"),
    notes=(
        "what a server sets aside at its start for connections to come (nginx: worker_connections) is not counted",
        "the kernel's memory for sockets is not counted",
    ),
)
