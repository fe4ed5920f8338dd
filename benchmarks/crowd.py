"""`crowd`: a rush by real sockets: tens of thousands join the queue within a second, and are let in within a minute.

It is long because its table has a column a line.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.clients import SPARE_S, Watch, start_fakes
from benchmarks.figures import Samples
from benchmarks.peers import Ours, Server, pack
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Running, Stage, free_port, wait_for_port
from benchmarks.workshop import CannotMeasureError

_CROWD: Final = 50_000
_BY_GATEWAY: Final = 1_000
_CONNECTIONS: Final = 200
_GATEWAY_CONNECTIONS: Final = 20
_OVER_S: Final = 1.0
_SLOWLY_S: Final = 20.0
_PER_MINUTE: Final = 60_000
_FULL: Final = 10
"""Backends whose one place is taken ten times over: nobody is let in."""
_BACKENDS: Final = 100
_SETTLED_S: Final = 20.0
"""So long all wait and poll as they are told, before the doors open."""
_CLOSED: Final = 'mode = "hold"  # the doors are closed\n'
_OPEN_S: Final = 150.0
_STORED_S: Final = 30.0
_LOOK_S: Final = 0.05
_STEP: Final = 'lambdamu_queue_steps_total{step="%s"}'
_LAGS_S: Final = (0.05, 0.1, 0.25, 1.0)

_ID: Final = "C" * 32
_TICKET: Final = "T" * 88
_SAID: Final[Mapping[str, object]] = {"Client": _ID, "Want": ["Name", "Alternates", "TTL", "Turn"]}
"""What the library sends."""
_WATCH: Final = pack({"Object": "Watch", "Command": "Get", "Name": "Watch"})
"""Is answered at once, by nobody."""
_HTTP_WATCH: Final = b"GET /livez HTTP/1.1\r\nHost: master.example\r\n\r\n"

_QUEUE: Final = """\
[limits]
exempt = ["127.0.0.0/8"]
idle_s = 600
[state]
file = "{folder}/state.db"
[gateway]
listen = "127.0.0.1:{gateway}"
[http]
listen = "127.0.0.1:{http}"
[queue]
keys_file = "{folder}/turns.keys"
"""


@attrs.frozen
class _House:
    """A master with a queue."""

    server: Server
    gateway: int
    http: int
    config: Path
    state: Path

    def stored(self) -> int:
        """Return how many places are in its file."""
        with closing(sqlite3.connect(f"file:{self.state}?mode=ro", uri=True, timeout=10.0)) as store:
            count: int = store.execute("SELECT count(*) FROM ticket").fetchone()[0]
            return count

    def metrics(self) -> dict[str, float]:
        """Return all its series by their names and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=30.0) as told:
            text: str = told.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(lambdamu_\S+) (\S+)$", text, re.MULTILINE)}


def _measure(stage: Stage, _seconds: float) -> Samples:
    full = f"{_CROWD:,} join within {_OVER_S:g} s"
    for case, clients in ((full, _CROWD), ("a tenth of them", _CROWD // 10)):
        yield attempt(case, "ours", True, partial(_rush, stage, clients))
    for clients, over_s in ((_CROWD, _SLOWLY_S), (_CROWD * 3 // 2, _SLOWLY_S), (_CROWD, _OVER_S)):
        case = f"{clients:,} who came in {over_s:g} s, {_PER_MINUTE:,} turns a minute"
        yield attempt(case, "ours", True, partial(_turns, stage, clients, over_s))


def _rush(stage: Stage, clients: int) -> dict[str, float]:
    """All come at once, and nobody can be let in."""
    with stage.act() as act:
        house = _start(act, _FULL, capacity=1, queue='mode = "auto"\n')
        before, lag_before = house.server.running.memory().rss, house.metrics()
        crowd = _start_crowd(act, house, clients, _OVER_S)
        begun, began = Watch(act, house.server), time.monotonic()
        crowd.tell("join\n")
        said = crowd.line(_OVER_S + 2 * SPARE_S)
        watched = begun.stop()
        crowd.tell("wait 10\n")
        stored_s = _wait_until_stored(house, clients, began)
        after = house.server.running.memory().rss
        crowd.line(10 + SPARE_S)
        lags = _lags(lag_before, house.metrics())
    answered = said["waits"] + said["closed"] + said["no_server"]
    return {
        **_figures(said),
        **lags,
        **watched.figures(),
        "cpu_s": watched.server_cpu_s,
        "us_each": 1e6 * watched.server_cpu_s / max(1, answered),
        "stored_s": stored_s,
        "before_mb": before / 1e6,
        "bytes_each": (after - before) / clients,
    }


def _turns(stage: Stage, clients: int, over_s: float) -> dict[str, float]:
    """All wait, and then as many are let in as may be. Who comes in a rush is told to stay away for longer."""
    with stage.act() as act:
        house = _start(act, _BACKENDS, capacity=100_000, queue=_CLOSED)
        crowd = _start_crowd(act, house, clients, over_s)
        crowd.tell("join\n")
        crowd.line(over_s + 2 * SPARE_S)
        crowd.tell(f"wait {_SETTLED_S}\n")
        begun = Watch(act, house.server)
        waited = crowd.line(_SETTLED_S + SPARE_S)
        idle = begun.stop()
        before = house.metrics()
        text = house.config.read_text().replace(_CLOSED, f"per_minute = {_PER_MINUTE}\n")
        house.config.write_text(text)
        house.server.running.popen.send_signal(signal.SIGHUP)
        begun = Watch(act, house.server)
        crowd.tell(f"open {_OPEN_S}\n")
        said = crowd.line(_OPEN_S + SPARE_S)
        watched, told = begun.stop(), house.metrics()
    called, missed = (_grown(before, told, _STEP % step) for step in ("called", "missed"))
    return {
        **_figures(said),
        **_lags(before, told),
        **watched.figures(),
        "cpu_s": watched.server_cpu_s,
        "us_each": 1e6 * watched.server_cpu_s / max(1, said["answers"]),
        "turns": said["turns"],
        "best_minute": said["best_minute"],
        "asks_per_s": said["answers"] / max(0.001, said["seconds"]),
        "in_time": 100 * (1 - missed / max(1.0, called)),
        "hold_asks_per_s": waited["answers"] / _SETTLED_S,
        "hold_core": idle.server_core,
    }


def _figures(said: dict[str, Any]) -> dict[str, float]:
    """Return what the crowd tells."""
    refused = said["closed"] + said["no_server"] + said["other"]
    return {
        "asks": said["asks"],
        "places": said["waits"],
        "refused": refused,
        "errors": said["errors"],
        "unanswered": said["unanswered"],
        "sent_s": said["sent_s"],
        "seconds": said["seconds"],
        "p50_ms": said["p50_us"] / 1000,
        "p99_ms": said["p99_us"] / 1000,
        "max_ms": said["max_us"] / 1000,
        "gateway_answers": said["gateway_answers"],
        "gateway_max_ms": said["gateway_max_us"] / 1000,
        "watched_p50_ms": said["watched_p50_us"] / 1000,
        "watched_p99_ms": said["watched_p99_us"] / 1000,
        "watched_max_ms": said["watched_max_us"] / 1000,
        "load_cpu_s": said["cpu_s"],
        "load_longest_ms": said["own_longest_us"] / 1000,
    }


def _start(stage: Stage, backends: int, capacity: int, queue: str) -> _House:
    gateway, http = free_port(), free_port()
    _make_keys(stage)
    text = _QUEUE.format(folder=stage.folder, gateway=gateway, http=http) + queue
    ours = Ours(start_fakes(stage).endpoints(backends), text=text, backend=f"capacity = {capacity}\n")
    server = ours.start(stage)
    for port in (gateway, http):
        wait_for_port(port, server.running)
    time.sleep(2.0)  # the collector is spared what is there after the first round
    return _House(server, gateway, http, stage.folder / f"pool-{server.port}.toml", stage.folder / "state.db")


def _make_keys(stage: Stage) -> None:
    path = stage.folder / "turns.keys"
    path.touch(mode=0o600)
    making = stage.start("keys", [stage.tools.python, "-c", _MAKE_KEY], stage.cores.load)
    path.write_text(making.line(30.0)["line"] + "\n")


_MAKE_KEY: Final = """
import json
from lambdamu.keys import Signer
print(json.dumps({"line": Signer.generate().line()}), flush=True)
"""


def _start_crowd(stage: Stage, house: _House, clients: int, over_s: float) -> Running:
    command: list[str | Path] = [
        stage.tools.crowd,
        f"port={house.server.port}",
        f"gateway={house.gateway}",
        f"ask={_ask(_SAID).hex()}",
        f"again={_ask({**_SAID, 'Ticket': _TICKET}).hex()}",
        f"http_ask={_post(_SAID).hex()}",
        f"http_again={_post({**_SAID, 'Ticket': _TICKET}).hex()}",
        f"watch={_WATCH.hex()}",
        f"http_watch={_HTTP_WATCH.hex()}",
        f"clients={clients}",
        f"gateway_clients={clients * _BY_GATEWAY // _CROWD}",
        f"conns={_CONNECTIONS}",
        f"gateway_conns={_GATEWAY_CONNECTIONS}",
        f"over={over_s}",
    ]
    crowd = stage.start("crowd", command, stage.cores.load)
    crowd.line(10.0)
    return crowd


def _ask(data: Mapping[str, object]) -> bytes:
    return pack({"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": data})


def _post(data: Mapping[str, object]) -> bytes:
    body = json.dumps(data, separators=(",", ":")).encode()
    head = "POST /v1/server HTTP/1.1\r\nHost: master.example\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _wait_until_stored(house: _House, clients: int, began: float) -> float:
    """Return how many seconds after `began` the last place was in the file."""
    while (count := house.stored()) < clients:
        if time.monotonic() > began + _STORED_S:
            raise CannotMeasureError(f"{count} of {clients} places are in the file after {_STORED_S:g} s")
        time.sleep(_LOOK_S)
    return time.monotonic() - began


def _lags(before: dict[str, float], told: dict[str, float]) -> dict[str, float]:
    """Return how often the loop was late, by the bounds of the histogram."""
    total = _grown(before, told, "lambdamu_loop_lag_seconds_count")
    counts = {s: total - _grown(before, told, f'lambdamu_loop_lag_seconds_bucket{{le="{s}"}}') for s in _LAGS_S}
    return {f"late_{1000 * s:.0f}": count for s, count in counts.items()}


def _grown(before: dict[str, float], told: dict[str, float], name: str) -> float:
    if name not in told:
        raise CannotMeasureError(f"the master tells no {name}")
    return told[name] - before.get(name, 0.0)


CROWD: Final = Benchmark(
    "crowd",
    f"a virtual queue by {_CONNECTIONS} connections, {_BY_GATEWAY:,} of {_CROWD:,} people by the gateway",
    (
        Column("sent_s", "sent within s", 2),
        Column("seconds", "answered within s", 2),
        Column("places", "places"),
        Column("refused", "refused"),
        Column("errors", "errors"),
        Column("unanswered", "unanswered"),
        Column("best_minute", "in, best minute"),
        Column("turns", "with a Turn"),
        Column("in_time", "calls taken %", 2),
        Column("asks_per_s", "asks/s"),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        Column("gateway_max_ms", "gateway max ms", 1),
        Column("watched_p99_ms", "onlooker p99 ms", 1),
        Column("watched_max_ms", "max ms", 1),
        Column("late_50", "loop late 50 ms"),
        Column("late_250", "250 ms"),
        Column("cpu_s", "CPU s", 2),
        Column("us_each", "us an answer", 1),
        Column("server_core", "server core %", 1),
        Column("others_core", "others %", 1),
        Column("stored_s", "in the file after s", 2),
        Column("before_mb", "MB before", 1),
        Column("bytes_each", "bytes each"),
        Column("hold_core", "waiting: core %", 1),
        Column("hold_asks_per_s", "asks/s"),
        Column("load_cpu_s", "crowd CPU s", 2),
        Column("load_longest_ms", "its longest ms", 1),
    ),
    _measure,
    notes=(
        "all times count from the first byte that was sent, and an answer from when its ask was written",
        "an onlooker asks something else 200 times a second on its own connection: nothing held the loop for longer",
        "waiting: what those who wait take, polling as they are told, before the doors open",
    ),
)
