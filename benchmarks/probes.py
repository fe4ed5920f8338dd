"""`probes`: what it costs to know that backends live, beside HAProxy's agent-checks on the same fakes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from benchmarks.clients import Fakes, Watched, start_fakes, watch
from benchmarks.figures import Samples
from benchmarks.peers import HAProxy, Ours, Peer
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_SETTLE_S: Final = 3.0
"""After all backends are up; HAProxy has made its first round by then."""
_FEW: Final = 1000
_MANY: Final = 10000

GAP_COLUMNS: Final = (
    Column("off_p99_ms", "|gap - 1 s| p99 ms", 1),
    Column("late_p99_ms", "late p99 ms", 1),
    Column("longest_s", "longest gap s", 2),
    Column("down", "went down"),
)
GAP_NOTE: Final = "gaps are seen at the backends; late: beyond 1 s. Ours moves its ticks a little by chance"


def _measure(stage: Stage, seconds: float) -> Samples:
    for count, mode in ((_FEW, "hold"), (_FEW, "reconnect"), (_FEW, ""), (_MANY, "hold")):
        if mode or HAProxy().missing() is None:
            who = f"ours, {mode}" if mode else "HAProxy"
            take = partial(_measure_one, stage, count, mode, seconds)
            yield attempt(f"{count:,} backends", who, bool(mode), take)


def _measure_one(stage: Stage, count: int, mode: str, seconds: float) -> dict[str, float]:
    # The fakes are new each time: nobody inherits connections, or a place in the second.
    with stage.act() as act:
        fakes = start_fakes(act)
        server = _peer(fakes, count, mode).start(act)
        time.sleep(_SETTLE_S)
        down = server.running.events("backend_down")
        fakes.since()
        watched = watch(act, server, seconds)
        figures = _figures(fakes.since(), watched)
        return figures | ({"down": server.running.events("backend_down") - down} if mode else {})


def _peer(fakes: Fakes, count: int, mode: str) -> Peer:
    endpoints = fakes.endpoints(count)
    return Ours(endpoints, mode) if mode else HAProxy(endpoints, fakes.agent_port)


def _figures(saw: dict[str, Any], watched: Watched) -> dict[str, float]:
    probes = saw["probes"] + saw["agents"]
    return {
        "probes": probes,
        "cpu_s_per_1000": 1000 * watched.server_cpu_s / max(1, probes),
        "core": watched.server_core,
        "others_core": watched.others_core,
        "seen": saw["seen"],
        **gaps(saw),
    }


def gaps(saw: dict[str, Any]) -> dict[str, float]:
    """Return how far the probes of each backend were apart, as the fakes saw it: the figures of `GAP_COLUMNS`."""
    return {
        "off_p99_ms": saw["off_p99_us"] / 1000,
        "late_p99_ms": saw["late_p99_us"] / 1000,
        "longest_s": saw["longest_us"] / 1e6,
    }


PROBES: Final = Benchmark(
    "probes",
    "probes each second",
    (
        Column("probes", "probes"),
        Column("cpu_s_per_1000", "CPU s/1000 probes", 4),
        Column("core", "server core %", 1),
        Column("others_core", "others on it %", 1),
        Column("seen", "backends asked"),
        *GAP_COLUMNS,
    ),
    _measure,
    compared="cpu_s_per_1000",
    peers=("haproxy",),
    notes=(
        GAP_NOTE,
        "a report is fresh for 3 s: no gap that long and nobody who went down mean that every report was",
        "an agent-check: a connection, a line; hold: a question, an answer; reconnect: a connection and two of each",
    ),
)
