"""`warm`: cold and warm first screens, and 2,000 asks a second, by processes."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.cache_peers import TYPES, ask_cache, start_cache, start_upstream, warm_types
from benchmarks.clients import CORE_COLUMNS
from benchmarks.figures import Samples
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Stage

_UPSTREAM_S: Final = 0.2
_PEOPLE_PER_S: Final = 6
"""A cold screen takes what the upstream takes."""
_RATE: Final = 2000
_SESSIONS: Final = 600
_FETCHED: Final = (0.0, 0.05, 0.2)
_WORKERS: Final = 400
"""A fifth of the asks, each for as long as the upstream takes, need 80 workers, and more where they come in a bunch."""


def _measure(stage: Stage, seconds: float) -> Samples:
    yield attempt(f"first screen of {len(TYPES)} types", "ours", True, partial(_screens, stage, seconds))
    for share in _FETCHED:
        case = f"{_RATE:,} asks/s, {100 * share:g} % of them fetched"
        yield attempt(case, "ours", True, partial(_steady, stage, share, seconds))


def _screens(stage: Stage, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        upstream = start_upstream(act, _UPSTREAM_S)
        server = start_cache(act, f'upstream = ["127.0.0.1:{upstream.port}"]', warm_types())
        asked = ask_cache(act, server, "screens", people=max(5, round(_PEOPLE_PER_S * seconds)))
        return dict(asked.said)


def _steady(stage: Stage, share: float, seconds: float) -> dict[str, float]:
    with stage.act() as act:
        upstream = start_upstream(act, _UPSTREAM_S)
        text = f'upstream = ["127.0.0.1:{upstream.port}"]\nworkers = {_WORKERS}'
        server = start_cache(act, text, warm_types(workers=_WORKERS))
        asked = ask_cache(act, server, "steady", rate=_RATE, fetched=share, sessions=_SESSIONS, seconds=seconds)
        figures = asked.figures()
        figures |= {f"{key}_ms": asked.said[f"{key}_us"] / 1000 for key in ("p50", "p99", "max")}
        return figures | {"rss_mb": server.running.memory().rss / 1e6}


WARM: Final = Benchmark(
    "warm",
    f"warm data, from an upstream that takes {1000 * _UPSTREAM_S:g} ms",
    (
        Column("cold_p50_ms", "cold p50 ms", 1),
        Column("cold_p99_ms", "p99", 1),
        Column("warm_p50_ms", "warm p50 ms", 1),
        Column("warm_p99_ms", "p99", 1),
        Column("faster", "times faster", 1),
        Column("asks_per_s", "asks/s"),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        Column("max_ms", "max ms", 1),
        Column("errors", "errors"),
        *CORE_COLUMNS,
        Column("rss_mb", "MB"),
    ),
    _measure,
    notes=(
        "a first screen asks for all types at once; warm: the app was started a second before, on a known device",
        "of the asks that are not fetched, half read warm data, a fourth read their session, a fourth write it",
        "the upstream is a process of ours on the core of the clients, whose times are in those of the answers",
    ),
)
