"""The C clients and backends, and what they report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from benchmarks.machine import busy_s
from benchmarks.peers import Endpoint, Server, pack
from benchmarks.report import Column
from benchmarks.stage import Running, Stage, free_port

SPARE_S: Final = 30.0
"""What a generator may take beyond its time: its last answers, and a busy machine."""
_HOLD_S: Final = 300
"""The most that clients are held, whatever happens to who started them."""
ASKED_COLUMNS: Final = (
    Column("asks_per_s", "good asks/s"),
    Column("p50_ms", "p50 ms", 1),
    Column("p99_ms", "p99 ms", 1),
    Column("max_ms", "max ms", 1),
    Column("errors", "errors"),
)
CORE_COLUMNS: Final = (Column("server_core", "server core %", 1), Column("others_core", "others on it %", 1))
FAKES_IN_A_ROW: Final = 250
"""Backend i of the C fakes stands at 127.1.(i / 250).(1 + i % 250)."""


@attrs.frozen
class Load:
    """What clients do: `conns` at once, `pipeline` asks in a write, `rate` asks a second, 0: as fast as they go."""

    mode: Literal["short", "kept"]
    conns: int = 64
    pipeline: int = 1
    rate: float = 0
    resume: bool = False
    """Under TLS, with the session that the server gave last."""


@attrs.frozen
class Watched:
    """What the server took while something went on, in seconds of its core.

    `others_cpu_s` is what everybody else took of that core: where it is much, rates and latencies are not the server's.
    """

    seconds: float
    server_cpu_s: float
    others_cpu_s: float

    @property
    def server_core(self) -> float:
        """In per cent of the core, as `others_core` too."""
        return 100 * self.server_cpu_s / self.seconds

    @property
    def others_core(self) -> float:
        return 100 * self.others_cpu_s / self.seconds

    def figures(self) -> dict[str, float]:
        """Return the figures of CORE_COLUMNS."""
        return {"server_core": self.server_core, "others_core": self.others_core}


class Watch:
    """Begins when it is made; `stop` tells what the server took since."""

    def __init__(self, stage: Stage, server: Server) -> None:
        self._core, self._running = stage.cores.server, server.running
        self._began, self._used, self._busy = time.monotonic(), self._running.cpu_s(), busy_s(self._core)

    def stop(self) -> Watched:
        used = self._running.cpu_s() - self._used
        others = busy_s(self._core) - self._busy - used
        return Watched(time.monotonic() - self._began, used, max(0.0, others))


def watch(stage: Stage, server: Server, seconds: float) -> Watched:
    """Watch the server for `seconds`, doing nothing."""
    begun = Watch(stage, server)
    time.sleep(seconds)
    return begun.stop()


@attrs.frozen
class Asked:
    """What came of a load. Times of an answer in microseconds; `load_cpu_s` in seconds of a core."""

    asks: int
    errors: int
    seconds: float
    p50_us: int
    p99_us: int
    max_us: int
    load_cpu_s: float
    meanwhile: Watched
    handshakes: int = 0
    resumed: int = 0
    """Of them, those of a session that went on."""

    def figures(self) -> dict[str, float]:
        """Return the figures of ASKED_COLUMNS and CORE_COLUMNS."""
        return {
            "asks_per_s": self.asks / self.seconds,
            "p50_ms": self.p50_us / 1000,
            "p99_ms": self.p99_us / 1000,
            "max_ms": self.max_us / 1000,
            "errors": self.errors,
            **self.meanwhile.figures(),
        }

    @property
    def cpu_s_per_1000(self) -> float:
        """The figure that is compared."""
        return 1000 * self.meanwhile.server_cpu_s / max(1, self.asks)


def ask(stage: Stage, server: Server, load: Load, seconds: float) -> Asked:
    """Have clients ask for `seconds`, and measure the server meanwhile."""
    with stage.act() as act:
        begun = Watch(stage, server)
        asking = start_asking(act, server, load, seconds)
        said = asking.line(seconds + SPARE_S)
        return asked_of(said, begun.stop())


def start_asking(stage: Stage, server: Server, load: Load, seconds: float) -> Running:
    """Have clients ask for `seconds`; the one line that they say at their end is for `asked_of`."""
    command: list[str | Path] = [
        stage.tools.load_of(tls=server.tls),
        load.mode,
        f"port={server.port}",
        f"wire={server.wire}",
        f"request={server.request.hex()}",
        f"conns={load.conns}",
        f"pipeline={load.pipeline}",
        f"rate={load.rate}",
        f"seconds={seconds}",
        f"tls={server.tls:d}",
        f"resume={load.resume:d}",
    ]
    return stage.start("load", command, stage.cores.load)


def asked_of(said: dict[str, Any], meanwhile: Watched) -> Asked:
    """Return what came of a load by what its clients said."""
    keys = ("asks", "errors", "seconds", "p50_us", "p99_us", "max_us", "handshakes", "resumed")
    return Asked(**{key: said[key] for key in keys}, load_cpu_s=said["cpu_s"], meanwhile=meanwhile)


@contextmanager
def idle_clients(stage: Stage, server: Server, count: int) -> Iterator[Running]:
    """Hold `count` connections that have asked once; they are open when the body begins."""
    command: list[str | Path] = [
        stage.tools.load,
        "idle",
        f"port={server.port}",
        f"wire={server.wire}",
        f"request={server.request.hex()}",
        f"conns={count}",
        f"seconds={_HOLD_S}",
    ]
    with stage.act() as act:
        clients = act.start("idle", command, stage.cores.load)
        clients.line(60.0)
        yield clients


@contextmanager
def slow_clients(stage: Stage, server: Server, mode: Literal["drip", "deaf"], count: int) -> Iterator[Running]:
    """Have `count` clients drip, or ask and never read."""
    request = f"request={server.request.hex()}"
    command: list[str | Path] = [
        stage.tools.slow,
        mode,
        f"port={server.port}",
        request,
        f"conns={count}",
        f"seconds={_HOLD_S}",
    ]
    with stage.act() as act:
        clients = act.start(mode, command, stage.cores.load)
        clients.line(30.0)
        yield clients


@attrs.frozen
class Fakes:
    """The C backends, on one port for all addresses, with agents of HAProxy on another."""

    running: Running
    port: int
    agent_port: int

    def endpoints(self, count: int) -> list[Endpoint]:
        return [(f"127.1.{i // FAKES_IN_A_ROW}.{1 + i % FAKES_IN_A_ROW}", self.port) for i in range(count)]

    def since(self) -> dict[str, Any]:
        """Return what they saw since the last call."""
        self.running.tell("tell\n")
        return self.running.line(10.0)


def start_fakes(stage: Stage) -> Fakes:
    port, agent_port = free_port(), free_port()
    task = pack({"Object": "Auth", "Command": "Value", "Name": "TaskObject", "Data": "Task"})
    count = pack({"Object": "System", "Command": "Value", "Name": "UserCount", "Data": 10})
    command: list[str | Path] = [
        stage.tools.fakes,
        f"port={port}",
        f"agent={agent_port}",
        f"task={task.hex()}",
        f"count={count.hex()}",
    ]
    running = stage.start("fakes", command, stage.cores.load)
    running.line(10.0)
    return Fakes(running, port, agent_port)


def start_fleet(stage: Stage, count: int) -> list[Endpoint]:
    """Start `count` backends of `lambdamu.testing` in a process; return where they are."""
    fleet = stage.start("fleet", [stage.tools.python, "-m", "benchmarks.fleet", str(count)], stage.cores.load)
    ports: list[int] = fleet.line(30.0)["ports"]
    return [("127.0.0.1", port) for port in ports]
