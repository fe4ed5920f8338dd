"""Who keeps sessions: the cache service, and a Redis or Valkey that keeps what it has as well; and their clients."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.clients import SPARE_S, Watch, Watched
from benchmarks.machine import find_program
from benchmarks.peers import Server
from benchmarks.stage import Running, Stage, free_port, wait_for_port
from benchmarks.workshop import CannotMeasureError

_READY_S: Final = 60.0
TYPES: Final = ("Accounts", "Cards", "Deposits", "Loans", "Packages")


@attrs.frozen
class Asked:
    """What a client says of its questions, and what the server took meanwhile."""

    said: Mapping[str, Any]
    meanwhile: Watched

    def figures(self) -> dict[str, float]:
        said, asks, seconds = self.said, max(1, self.said["asks"]), self.said["seconds"]
        return {
            "asks_per_s": said["asks"] / seconds,
            "cpu_s_per_1000": 1000 * self.meanwhile.server_cpu_s / asks,
            **{key: said[key] for key in ("p50_us", "p99_us") if key in said},
            **self.meanwhile.figures(),
            "load_core": 100 * said["load_cpu_s"] / seconds,
            "errors": said["errors"],
        }


def start_cache(stage: Stage, text: str = "", more: str = "") -> Server:
    """Start a node for the cache alone, with a file; `text`: more of `[cache]`, `more`: what follows it."""
    port = free_port()
    config = stage.folder / f"cache-{port}.toml"
    config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\nfile = "{stage.folder}/cache-{port}.db"\n{text}\n{more}')
    running = stage.start(
        "cache", (stage.tools.python, "-m", "master", "master", "--config", config), stage.cores.server
    )
    wait_for_port(port, running)
    return Server(running, port, "msgpack")


def start_upstream(stage: Stage, delay_s: float) -> Server:
    """Start a backend with data of clients, on the core of the clients."""
    port = free_port()
    command = ("-m", "master", "server", "--listen", f"127.0.0.1:{port}", "--products", str(delay_s))
    running = stage.start("upstream", (stage.tools.python, *command), stage.cores.load)
    wait_for_port(port, running)
    return Server(running, port, "msgpack")


def warm_types(**keys: float) -> str:
    """Return `[[cache.warm]]` of all types that the upstream has, each with these keys."""
    more = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return "".join(
        f'[[cache.warm]]\ntype = {number}\nobject = "Products"\nname = "{name}"\n{more}'
        for number, name in enumerate(TYPES, 1)
    )


def start_client(stage: Stage, server: Server, job: str, **given: float) -> Running:
    """Start a client of the cache service; it is ready, and begins at a word."""
    told = json.dumps({"job": job, "port": server.port, **given})
    client = stage.start("client", (stage.tools.python, "-m", "benchmarks.cache_client", told), stage.cores.load)
    client.line(_READY_S)
    return client


def ask_cache(stage: Stage, server: Server, job: str, **given: float) -> Asked:
    """Have a client do its job, and watch the server meanwhile."""
    return _have_done(stage, server, start_client(stage, server, job, **given))


def _have_done(stage: Stage, server: Server, client: Running) -> Asked:
    begun = Watch(stage, server)
    client.tell("go\n")
    said = client.line(4 * SPARE_S)
    return Asked(said, begun.stop())


class Redis:
    """Redis, or Valkey where that alone is here: append-only, to the disk each second."""

    def __init__(self) -> None:
        found = [(name, path) for name in ("redis", "valkey") if (path := find_program(f"{name}-server"))]
        self._kind, self._program = found[0] if found else ("redis", "")

    @property
    def name(self) -> str:
        return self._kind.capitalize()

    def missing(self) -> str | None:
        if self._program:
            return None
        return "there is no redis-server; `apt-get install redis-server` brings it"

    def start(self, stage: Stage) -> Server:
        port = free_port()
        folder = stage.folder / f"redis-{port}"
        folder.mkdir()
        keeps = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(folder))
        command = (self._program, "--port", str(port), "--bind", "127.0.0.1", "--daemonize", "no", *keeps)
        running = stage.start(self._kind, command, stage.cores.server)
        wait_for_port(port, running)
        return Server(running, port, "msgpack")  # a wire of its own, which its clients know

    def by_library(self, stage: Stage, server: Server, job: str, **given: float) -> Asked:
        """Have a client of redis-py ask."""
        told = json.dumps({"job": job, "port": server.port, "library": str(stage.tools.redis_py()), **given})
        client = stage.start("redis-py", (stage.tools.python, "-m", "benchmarks.redis_client", told), stage.cores.load)
        client.line(_READY_S)
        return _have_done(stage, server, client)

    def by_its_own(self, stage: Stage, server: Server, connections: int, pipeline: int, asks: int) -> Asked:
        """Have its own benchmark SET and then GET 100 bytes, half of `asks` each."""
        program = find_program(f"{self._kind}-benchmark")
        if program is None:
            raise CannotMeasureError(f"there is no {self._kind}-benchmark, which comes with {self._kind}-tools")
        size = ("-n", str(asks // 2), "-d", "100", "-r", "10000", "-c", str(connections), "-P", str(pipeline))
        command: list[str | Path] = [program, "-p", str(server.port), "-t", "set,get", *size, "--csv"]
        begun = Watch(stage, server)
        running = stage.start("redis-benchmark", command, stage.cores.load)
        try:
            out, _ = running.popen.communicate(timeout=4 * SPARE_S)
        except subprocess.TimeoutExpired:
            raise CannotMeasureError(f"{program} has not ended within {4 * SPARE_S:g} s") from None
        watched = begun.stop()
        rows = list(csv.DictReader(io.StringIO(out.decode())))
        if len(rows) != 2:
            raise CannotMeasureError(f"{program} did not tell of SET and GET: {running.last_words()}")
        seconds = sum(asks / 2 / float(row["rps"]) for row in rows)
        said = {
            "asks": asks,
            "seconds": seconds,
            **{f"{key}_us": max(1000 * float(row[f"{key}_latency_ms"]) for row in rows) for key in ("p50", "p99")},
            "load_cpu_s": 0.0,
            "errors": 0,
        }
        return Asked(said, watched)
