"""`short` and `kept`: what an ask costs the server, on a connection of its own or on one that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from benchmarks.clients import Asked, Load, ask, start_fleet, watch
from benchmarks.figures import Samples
from benchmarks.peers import Bare, HAProxy, Nginx, Ours, Peer
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_BACKENDS: Final = 100
WARM_S: Final = 0.5
"""Before each measurement: caches are warm, and what is made once is made."""
_NO_ASKS: Final = "no asks, probes alone"

COLUMNS: Final = (
    Column("asks_per_s", "asks/s"),
    Column("cpu_s_per_1000", "server CPU s/1000", 4),
    Column("p50_us", "p50 us"),
    Column("p99_us", "p99 us"),
    Column("server_core", "server core %", 1),
    Column("others_core", "others on it %", 1),
    Column("load_core", "load core %", 1),
    Column("errors", "errors"),
)
_NOTES: Final = (
    f"ours is a whole master: {_BACKENDS} backends probed each second in hold mode, metrics and deadlines on",
    f"the row '{_NO_ASKS}' is that master without clients; the other rows of ours contain it",
    "'others on it' is what other processes took of the server's core: with much of it only the CPU figures hold",
    "where the load generator's core is full, the rate is the generator's; the CPU of the server is still its own",
)

SHORT_CASES: Final[Mapping[str, Load]] = {
    "64 at once": Load("short"),
    "2,000 a second": Load("short", rate=2000),
}
KEPT_CASES: Final[Mapping[str, Load]] = {
    "64 connections": Load("kept"),
    "64, 16 asks a write": Load("kept", pipeline=16),
    "64, 10,000 asks a second": Load("kept", rate=10000),
}


def _measure_short(stage: Stage, seconds: float) -> Samples:
    return _measure(stage, seconds, SHORT_CASES)


def _measure_kept(stage: Stage, seconds: float) -> Samples:
    return _measure(stage, seconds, KEPT_CASES)


def _measure(stage: Stage, seconds: float, cases: Mapping[str, Load]) -> Samples:
    ours = Ours(start_fleet(stage, _BACKENDS))
    yield attempt(_NO_ASKS, ours.name, True, partial(_watch_alone, stage, ours, seconds))
    everybody: tuple[Peer, ...] = (ours, HAProxy(), Nginx(), Bare())
    for case, load in cases.items():
        for peer in everybody:
            if peer.missing() is None:
                yield attempt(case, peer.name, peer is ours, partial(measure_one, stage, peer, load, seconds))


def _watch_alone(stage: Stage, ours: Ours, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        watched = watch(act, ours.start(act), seconds)
    return {"server_core": watched.server_core, "others_core": watched.others_core}


def measure_one(stage: Stage, peer: Peer, load: Load, seconds: float) -> dict[str, float]:
    """Start a peer, warm it, and measure it."""
    with stage.act() as act:
        server = peer.start(act)
        ask(act, server, load, WARM_S)
        return figures_of(ask(act, server, load, seconds))


def figures_of(asked: Asked) -> dict[str, float]:
    """Return what stands in the columns."""
    return {
        "asks_per_s": asked.asks / asked.seconds,
        "cpu_s_per_1000": asked.cpu_s_per_1000,
        "p50_us": asked.p50_us,
        "p99_us": asked.p99_us,
        "server_core": asked.meanwhile.server_core,
        "others_core": asked.meanwhile.others_core,
        "load_core": 100 * asked.load_cpu_s / asked.seconds,
        "errors": asked.errors,
    }


SHORT: Final = Benchmark(
    "short",
    "connect, ask, answer, leave",
    COLUMNS,
    _measure_short,
    compared="cpu_s_per_1000",
    peers=("haproxy", "nginx"),
    notes=_NOTES,
)
KEPT: Final = Benchmark(
    "kept",
    "asks on kept connections",
    COLUMNS,
    _measure_kept,
    compared="cpu_s_per_1000",
    peers=("haproxy", "nginx"),
    notes=(*_NOTES, "latencies of 16 asks in a write count for each ask from the write"),
)
