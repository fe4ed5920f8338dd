"""`mixed`: idle, dripping and deaf clients, a storm of asks and probes at once: what those who behave notice of it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from benchmarks.clients import (
    ASKED_COLUMNS,
    CORE_COLUMNS,
    Fakes,
    Load,
    ask,
    idle_clients,
    slow_clients,
    start_fakes,
    watch,
)
from benchmarks.figures import Samples
from benchmarks.peers import ASK, Ours, Server
from benchmarks.probes import GAP_COLUMNS, GAP_NOTE, gaps
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_BACKENDS: Final = 1000
_IDLE: Final = 5000
_DRIPPING: Final = 2000
_DEAF: Final = 500
_FILL_S: Final = 4.0
"""The deaf have filled their buffers by then, and neither they nor the dripping have been cut for long."""
_MOST_S: Final = 40.0
"""Idle clients are cut after 60 s of silence, as they should be; the measurement ends before."""


def _measure(stage: Stage, seconds: float) -> Samples:
    seconds = min(seconds, _MOST_S)
    fakes = start_fakes(stage)
    server = Ours(fakes.endpoints(_BACKENDS)).start(stage)
    time.sleep(2.0)
    yield attempt("no clients", "ours", True, partial(_quiet, stage, fakes, server, seconds))
    yield attempt("storm alone", "ours", True, partial(_storm, stage, fakes, server, seconds))
    yield attempt("all at once", "ours", True, partial(_crowded_storm, stage, fakes, server, seconds))


def _quiet(stage: Stage, fakes: Fakes, server: Server, seconds: float) -> dict[str, float]:
    down = server.running.events("backend_down")
    fakes.since()
    watched = watch(stage, server, seconds)
    return _probes(fakes, server, down) | watched.figures()


def _storm(stage: Stage, fakes: Fakes, server: Server, seconds: float) -> dict[str, float]:
    down = server.running.events("backend_down")
    fakes.since()
    asked = ask(stage, server, Load("short"), seconds)
    return asked.figures() | _probes(fakes, server, down)


def _crowded_storm(stage: Stage, fakes: Fakes, server: Server, seconds: float) -> dict[str, float]:
    with (
        idle_clients(stage, server, _IDLE) as idle,
        slow_clients(stage, server, "drip", _DRIPPING) as dripping,
        slow_clients(stage, server, "deaf", _DEAF) as deaf,
    ):
        time.sleep(_FILL_S)
        figures = _storm(stage, fakes, server, seconds)
        told = {"idle": idle.finish(10.0), "drip": dripping.finish(10.0), "deaf": deaf.finish(10.0)}
    return figures | _crowd(told)


def _probes(fakes: Fakes, server: Server, down: int) -> dict[str, float]:
    return gaps(fakes.since()) | {"down": server.running.events("backend_down") - down}


def _crowd(told: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {
        "idle_lost": told["idle"]["dropped"] + told["idle"]["errors"],
        "drip_open": told["drip"]["open"],
        "drip_cut": told["drip"]["cut"],
        "deaf_cut": told["deaf"]["cut"],
        "deaf_open": told["deaf"]["open"],
        "deaf_blocked": told["deaf"]["blocked"],
        "deaf_asks": told["deaf"]["sent_bytes"] / len(ASK),
    }


MIXED: Final = Benchmark(
    "mixed",
    f"{_IDLE:,} idle, {_DRIPPING:,} dripping, {_DEAF} deaf, a storm of short asks, {_BACKENDS:,} backends",
    (
        *ASKED_COLUMNS,
        *GAP_COLUMNS,
        *CORE_COLUMNS,
        Column("idle_lost", "idle lost"),
        Column("drip_cut", "drip cut"),
        Column("deaf_cut", "deaf cut"),
    ),
    _measure,
    notes=(
        GAP_NOTE,
        "dripping and deaf clients are cut at the message and the send deadline, 5 s, and come again: that is meant",
        "idle lost, errors and backends that went down are what must be 0",
    ),
)
