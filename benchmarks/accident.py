"""`accident`: the upstream is silent for half a minute while 200 asks a second want what it has; real processes."""

from __future__ import annotations

import re
import time
import urllib.request
from functools import partial
from typing import Final

import attrs

from benchmarks.cache_peers import start_cache, start_client, start_upstream, warm_types
from benchmarks.clients import SPARE_S
from benchmarks.figures import Samples
from benchmarks.peers import Server
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Running, Stage, free_port, wait_for_port
from benchmarks.workshop import CannotMeasureError

_RATE: Final = 200
_UPSTREAM_S: Final = 0.02
_LIFETIME_S: Final = 10.0
_TTL_S: Final = 5.0
"""What was fetched does not stay for long, so that memory is that of the asks."""
_WELL_S: Final = 5.0
_LEAST_SILENT_S: Final = 6.0
_SILENT_S: Final = 30.0
"""With measurements of 5 s; in proportion with shorter ones."""
_AFTER_S: Final = 5.0
_LOOK_S: Final = 0.5
_SCRAPE_S: Final = 10.0
_QUEUE: Final = "workers = 100\nlength = 3000"


@attrs.frozen
class _Look:
    """What was seen of the service at a moment; `cpu_s` since its start."""

    at: float
    cpu_s: float
    rss: int
    scrape_s: float
    queue: float
    busy: float


def _measure(stage: Stage, seconds: float) -> Samples:
    silent_s = min(_SILENT_S, max(_LEAST_SILENT_S, seconds * 6))
    yield attempt(f"{_RATE} asks/s, silent for {silent_s:g} s", "ours", True, partial(_accident, stage, silent_s))


def _accident(stage: Stage, silent_s: float) -> dict[str, float]:
    with stage.act() as act:
        upstream, http = start_upstream(act, _UPSTREAM_S), free_port()
        text = f'upstream = ["127.0.0.1:{upstream.port}"]\n{_QUEUE}'
        server = start_cache(
            act, text, warm_types(lifetime_s=_LIFETIME_S, ttl_s=_TTL_S) + f'[http]\nlisten = "127.0.0.1:{http}"\n'
        )
        wait_for_port(http, server.running)
        times = {"well_s": _WELL_S, "silent_s": silent_s, "after_s": _AFTER_S, "lifetime_s": _LIFETIME_S}
        client = start_client(act, server, "accident", upstream=upstream.running.popen.pid, rate=_RATE, **times)
        began = time.perf_counter()
        client.tell("go\n")
        looks = _look_on(client, server, http, began, 2 * sum(times.values()) + SPARE_S)
        return {**_figures(looks, silent_s), **client.line(SPARE_S)}


def _look_on(client: Running, server: Server, http: int, began: float, within_s: float) -> list[_Look]:
    """Look at the service until the client has something to say."""
    looks = []
    while not client.speaks(_LOOK_S):
        at = time.perf_counter() - began
        if at > within_s:
            raise CannotMeasureError(f"the client has not ended within {within_s:g} s")
        running, told = server.running, _scrape(http)
        looks.append(_Look(at, running.cpu_s(), running.memory().rss, **told))
    return looks


def _scrape(http: int) -> dict[str, float]:
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=_SCRAPE_S) as told:
            text: str = told.read().decode()
    except OSError as exc:
        raise CannotMeasureError(f"the metrics cannot be read: {exc}") from exc
    scrape_s = time.perf_counter() - began
    queue = _sum(r"lambdamu_cache_queue_length", text)
    return {"scrape_s": scrape_s, "queue": queue, "busy": _sum(r"lambdamu_cache_workers_busy\{[^}]*\}", text)}


def _sum(series: str, text: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{series} (\S+)$", text, re.MULTILINE))


def _figures(looks: list[_Look], silent_s: float) -> dict[str, float]:
    well = [look for look in looks if 1 <= look.at < _WELL_S]
    silent = [look for look in looks if _WELL_S <= look.at < _WELL_S + silent_s]
    if len(well) < 2 or len(silent) < 2:
        raise CannotMeasureError("the machine is too busy to look at the service while the upstream is silent")
    return {
        "well_core": _core(well),
        "silent_core": _core(silent),
        "well_mb": well[-1].rss / 1e6,
        "silent_mb": max(look.rss for look in silent) / 1e6,
        "end_mb": looks[-1].rss / 1e6,
        "queue": max(look.queue for look in silent),
        "busy": max(look.busy for look in silent),
        "scrapes": len(silent),
        "scrape_ms": 1000 * max(look.scrape_s for look in silent),
    }


def _core(looks: list[_Look]) -> float:
    return 100 * (looks[-1].cpu_s - looks[0].cpu_s) / (looks[-1].at - looks[0].at)


_WORDS: Final = ("data", "Upstream", "Expired", "Full")

ACCIDENT: Final = Benchmark(
    "accident",
    f"100 workers, a queue of 3,000, a lifetime of {_LIFETIME_S:g} s; the upstream is stopped (SIGSTOP) and goes on",
    (
        Column("asks", "asks"),
        Column("unanswered", "unanswered"),
        Column("longest_s", "longest answer s", 2),
        *(Column(f"silent_{word.lower()}", f"silent: {word}") for word in _WORDS),
        Column("silent_other", "others"),
        Column("recovered_s", "recovered after s", 1),
        Column("not_data_after", "no data a lifetime later"),
        Column("queue", "queue, most"),
        Column("busy", "workers busy, most"),
        Column("well_core", "core % before", 1),
        Column("silent_core", "while silent", 1),
        Column("well_mb", "MB before", 1),
        Column("silent_mb", "while silent, most", 1),
        Column("end_mb", "at the end", 1),
        Column("scrapes", "scrapes"),
        Column("scrape_ms", "slowest ms", 1),
    ),
    _measure,
    notes=(
        "each ask is for data that nobody has asked for; silent: what came of those that were asked meanwhile",
        "recovered: when the last question was asked that got no data, from when the upstream went on",
    ),
)
