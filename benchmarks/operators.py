"""`operators`: what clients notice of those who look on: readers of events, one of them stalled, and scrapes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.clients import ASKED_COLUMNS, CORE_COLUMNS, Load, ask, start_fakes
from benchmarks.figures import Samples
from benchmarks.onlookers import READERS
from benchmarks.peers import Ours, Server
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Running, Stage, free_port, wait_for_port

_BACKENDS: Final = 1000
_LOADS: Final = {"2,000 asks/s": Load("kept", rate=2000), "a storm": Load("kept")}


def _measure(stage: Stage, seconds: float) -> Samples:
    http = free_port()
    text = f'[http]\nlisten = "127.0.0.1:{http}"\n'
    server = Ours(start_fakes(stage).endpoints(_BACKENDS), text=text).start(stage)
    wait_for_port(http, server.running)
    time.sleep(2.0)
    for case, load in _LOADS.items():
        yield attempt(f"{case}, nobody looks", "ours", True, partial(_asked, stage, server, load, seconds))
        yield attempt(f"{case}, watched", "ours", True, partial(_watched, stage, server, load, seconds, http))


def _asked(stage: Stage, server: Server, load: Load, seconds: float) -> dict[str, float]:
    return ask(stage, server, load, seconds).figures()


def _watched(stage: Stage, server: Server, load: Load, seconds: float, http: int) -> dict[str, float]:
    with _onlookers(stage, http) as onlookers:
        figures = _asked(stage, server, load, seconds)
        told = onlookers.finish(10.0)
    return figures | {"scrapes": told["scrapes"], "events": told["events"], "slowest_ms": 1000 * told["slowest_s"]}


@contextmanager
def _onlookers(stage: Stage, http: int) -> Iterator[Running]:
    with stage.act() as act:
        command: list[str | Path] = [stage.tools.python, "-m", "benchmarks.onlookers", str(http)]
        onlookers = act.start("onlookers", command, stage.cores.load)
        onlookers.line(30.0)
        yield onlookers


OPERATORS: Final = Benchmark(
    "operators",
    f"{READERS} readers of the events, one of them stalled, and a scrape a second of {_BACKENDS:,} backends",
    (
        *ASKED_COLUMNS,
        *CORE_COLUMNS,
        Column("scrapes", "scrapes"),
        Column("slowest_ms", "slowest ms"),
        Column("events", "events read"),
    ),
    _measure,
    notes=("clients, backends and those who look on share the other core, so a part of what is later is theirs",),
)
