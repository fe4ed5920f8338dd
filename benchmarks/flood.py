"""`flood`: thousands of bad handshakes a second at the port of TLS, and what good clients notice of them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.clients import CORE_COLUMNS, SPARE_S, Load, Watch, Watched, asked_of, start_asking, start_fakes
from benchmarks.doors import make_certificate, start_door
from benchmarks.figures import Samples
from benchmarks.peers import Ours, Server
from benchmarks.report import Benchmark, Column, attempt
from benchmarks.stage import Running, Stage

_BACKENDS: Final = 1000
_RATE: Final = 2000
_KINDS: Final = ("noise", "plain HTTP", "hello and silence", "hello and reset")
_CASES: Final[Mapping[str, tuple[float, int | None]]] = {
    "no rubbish": (0, None),
    **{f"{_RATE:,}/s {kind}": (_RATE, number) for number, kind in enumerate(_KINDS)},
    f"{_RATE:,}/s of all kinds": (_RATE, None),
    f"{4 * _RATE:,}/s of all kinds": (4 * _RATE, None),
}
_LEAD_S: Final = 1.0
_FILL_S: Final = 6.0
"""Those who say nothing have met their deadline by then, and as many go as come."""


@attrs.frozen
class _Doors:
    """The clients' port of one master, plain and under TLS."""

    plain: Server
    tls: Server


def _measure(stage: Stage, seconds: float) -> Samples:
    certificate = make_certificate(stage.folder, "ECDSA P-256")
    for case, (rate, kind) in _CASES.items():
        with stage.act() as act:
            ours = Ours(start_fakes(act).endpoints(_BACKENDS))
            tls = start_door(act, ours, "tls", "msgpack", certificate)
            doors = _Doors(attrs.evolve(tls, port=tls.plain_port, tls=False), tls)
            time.sleep(2.0)
            yield attempt(case, "ours", True, partial(_beside, act, doors, rate, kind, seconds))


def _beside(stage: Stage, doors: _Doors, rate: float, kind: int | None, seconds: float) -> dict[str, float]:
    before = doors.tls.running.memory().rss
    with stage.act() as act:
        # Those who are in are in before the flood begins; those who are new come when it is there.
        last = _LEAD_S + (1.0 + _FILL_S if rate else 0.0) + seconds
        inside = {
            "plain": start_asking(act, doors.plain, Load("kept", rate=1000), last),
            "kept": start_asking(act, doors.tls, Load("kept", rate=1000), last),
        }
        time.sleep(_LEAD_S)
        rubbish = _start_rubbish(act, doors.tls, rate, kind, seconds) if rate else None
        if rubbish is not None:
            rubbish.line(SPARE_S)
            time.sleep(_FILL_S)
        filled = doors.tls.running.memory().rss
        figures = _ask(act, doors, inside, seconds)
        told = rubbish.finish(SPARE_S) if rubbish is not None else {}
    memory = doors.tls.running.memory().rss
    return figures | _of_rubbish(told) | {"grown_mb": (filled - before) / 1e6, "more_mb": (memory - filled) / 1e6}


def _ask(stage: Stage, doors: _Doors, inside: Mapping[str, Running], seconds: float) -> dict[str, float]:
    """Ask on new connections under TLS beside those who are in, and return what all of them tell."""
    begun = Watch(stage, doors.plain)
    asking = {**inside, "new": start_asking(stage, doors.tls, Load("short", rate=50), seconds)}
    said = {name: clients.line(seconds + SPARE_S) for name, clients in asking.items()}
    watched = begun.stop()
    figures = watched.figures()
    for name, what in said.items():
        figures |= _times(name, what, watched)
    return figures


def _times(name: str, said: dict[str, Any], watched: Watched) -> dict[str, float]:
    asked = asked_of(said, watched)
    return {
        f"{name}_p50_ms": asked.p50_us / 1000,
        f"{name}_p99_ms": asked.p99_us / 1000,
        f"{name}_errors": asked.errors,
    }


def _of_rubbish(told: dict[str, Any]) -> dict[str, float]:
    if not told:
        return {}
    return {"rubbish_per_s": told["begun"] / told["seconds"], "unheard": told["unheard"], "failed": told["failed"]}


def _start_rubbish(stage: Stage, server: Server, rate: float, kind: int | None, seconds: float) -> Running:
    command: list[str | Path] = [
        stage.tools.rubbish,
        f"port={server.port}",
        f"hello={_hello().hex()}",
        f"rate={rate}",
        f"kind={-1 if kind is None else kind}",
        f"seconds={seconds + _FILL_S + SPARE_S}",
    ]
    return stage.start("rubbish", command, stage.cores.load)


def _hello() -> bytes:
    """Return what a genuine client says first."""
    context = ssl.create_default_context()
    said = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return said.read()
    raise AssertionError("a handshake without an answer")


FLOOD: Final = Benchmark(
    "flood",
    f"bad handshakes beside 1,000 asks/s plain, 1,000/s on kept TLS, 50/s on new TLS; {_BACKENDS:,} backends",
    (
        Column("rubbish_per_s", "rubbish/s"),
        Column("plain_p50_ms", "plain p50 ms", 1),
        Column("plain_p99_ms", "p99 ms", 1),
        Column("kept_p50_ms", "kept TLS p50 ms", 1),
        Column("kept_p99_ms", "p99 ms", 1),
        Column("new_p50_ms", "new TLS p50 ms", 1),
        Column("new_p99_ms", "p99 ms", 1),
        Column("plain_errors", "plain errors"),
        Column("kept_errors", "kept"),
        Column("new_errors", "new"),
        *CORE_COLUMNS,
        Column("grown_mb", "grown MB", 1),
        Column("more_mb", "then MB", 1),
        Column("unheard", "closed unheard"),
    ),
    _measure,
    notes=(
        "kept connections are there before the flood; a first answer under TLS, with its handshake, is not counted",
        "rubbish and good clients share the other core, so a part of what is later is theirs",
        "grown: the memory of the server from before the flood to when as many go as come; then: what is added later",
        "closed unheard: bad ones that the server closed without a word: no handshake at all, or one that gave way",
    ),
)
