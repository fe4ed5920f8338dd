"""`cache`: sessions of 100 bytes put and read, in the process and over the wire, beside a Redis that writes as well."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.asks import COLUMNS
from benchmarks.cache_peers import Asked, Redis, ask_cache, start_cache
from benchmarks.figures import Sample, Samples
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_SESSIONS: Final = 10_000
_WINDOW: Final = 100
_STORE_S: Final = 60.0
"""What the store takes beyond its time, to be filled and to be written."""
_ONE: Final = "one after the other"
_AT_ONCE: Final = f"{_WINDOW} at once"
_IN_A_WRITE: Final = f"{_WINDOW} in a write"
_OWN_PER_S: Final = {_ONE: 20_000, _AT_ONCE: 80_000, _IN_A_WRITE: 600_000}
"""So many its own benchmark asks in about a second."""
_LIBRARY: Final = {_ONE: "one_by_one", _AT_ONCE: "at_once", _IN_A_WRITE: "pipelined"}


def _measure(stage: Stage, seconds: float) -> Samples:
    yield attempt("put and get in the process", "ours", True, partial(_store, stage, seconds))
    redis = Redis()
    for case in (_ONE, _AT_ONCE, _IN_A_WRITE):
        yield from _ours(stage, case, seconds)
        if redis.missing() is None:
            library, own = f"{redis.name}, redis-py", f"{redis.name}, its benchmark"
            yield attempt(case, library, False, partial(_by_library, stage, redis, case, seconds))
            yield attempt(case, own, False, partial(_by_its_own, stage, redis, case, seconds))
    if (why := redis.missing()) is not None:
        yield Sample("all", "Redis or Valkey", {}, failed=why)


def _store(stage: Stage, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        file = act.folder / "store.db"
        command: list[str | Path] = [act.tools.python, "-m", "benchmarks.cache_store", file, "0", str(seconds)]
        told = act.start("store", command, act.cores.server).line(seconds + _STORE_S)
    return {key: told[key] for key in ("pairs_per_s", "slice_max_ms", "failures")}


def _ours(stage: Stage, case: str, seconds: float) -> Iterator[Sample]:
    ways = ((1, 1),) if case == _ONE else ((1, _WINDOW), (10, _WINDOW // 10)) if case == _AT_ONCE else ((1, _WINDOW),)
    for lines, window in ways:
        who = "ours" if lines == 1 else f"ours, {lines} connections"
        yield attempt(case, who, True, partial(_by_wire, stage, case, lines, window, seconds))


def _by_wire(stage: Stage, case: str, lines: int, window: int, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        given = {"lines": lines, "window": window, "whole": case == _IN_A_WRITE, "sessions": _SESSIONS}
        return ask_cache(act, start_cache(act), "storm", seconds=seconds, **given).figures()


def _by_library(stage: Stage, redis: Redis, case: str, seconds: float) -> dict[str, float]:
    given = {} if case == _ONE else {"window": _WINDOW}
    with stage.act() as act:
        return redis.by_library(act, redis.start(act), _LIBRARY[case], seconds=seconds, **given).figures()


def _by_its_own(stage: Stage, redis: Redis, case: str, seconds: float) -> dict[str, float]:
    connections, pipeline = {_ONE: (1, 1), _AT_ONCE: (_WINDOW, 1), _IN_A_WRITE: (1, _WINDOW)}[case]
    with stage.act() as act:
        asks = int(_OWN_PER_S[case] * seconds)
        asked: Asked = redis.by_its_own(act, redis.start(act), connections, pipeline, asks)
        figures = asked.figures()
        del figures["load_core"]  # it does not say
        return figures


CACHE: Final = Benchmark(
    "cache",
    "sessions of 100 bytes put and read, kept on the disk",
    (
        Column("pairs_per_s", "pairs/s"),
        Column("slice_max_ms", "longest slice ms", 1),
        *COLUMNS,
    ),
    _measure,
    compared="cpu_s_per_1000",
    notes=(
        "a pair is a put and a get: two asks, Session.Set and Session.Get of ours, SET and GET of Redis",
        "ours writes to SQLite every 0.1 s; Redis appends to its file, and has it on the disk each second",
        f"{_AT_ONCE}: of ours on one connection; of redis-py, which cannot do that, {_WINDOW} tasks with one each",
        f"{_IN_A_WRITE}: the next ones go out when all are answered",
    ),
)
