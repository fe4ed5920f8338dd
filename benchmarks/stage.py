"""The stage of one measurement: processes that are pinned to their core, watched through /proc, and ended by pid.

Each is told by the kernel to end when this process dies, however it dies, so nothing is left running.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import attrs

from benchmarks.machine import Cores
from benchmarks.workshop import ROOT, CannotMeasureError, Tools

_END_S: Final = 15.0
_POLL_S: Final = 0.02
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PORTS: Final = range(10000, 32000)
"""Below those that connections go out from, so that no client sits on the port of a server to come."""


@attrs.frozen
class Memory:
    """Bytes of a server, all its processes: `rss` as each sees it, `pss` with shared pages shared out."""

    rss: int
    pss: int


@attrs.define(eq=False)
class Running:
    """A process that was started here. Its standard error goes to the file `log`."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    _unread: bytes = b""

    def cpu_s(self) -> float:
        """Return the processor time of it and its children, in seconds, from /proc: in steps of 10 ms."""
        return sum(_cpu_ticks(pid) for pid in family_of(self.popen.pid)) / _TICKS_A_SECOND

    def memory(self) -> Memory:
        """Return what it and its children hold now."""
        sums = {"Rss": 0, "Pss": 0}
        for pid in family_of(self.popen.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in sums:
                    sums[key] += int(value.split()[0]) * 1024
        return Memory(sums["Rss"], sums["Pss"])

    def events(self, name: str) -> int:
        """Return how many events of that name its log holds."""
        return len(re.findall(rf'"action": ?"{name}"', self.log.read_text(errors="replace")))

    def line(self, within_s: float) -> dict[str, Any]:
        """Return the next line of its output, a JSON object."""
        output = cast(IO[bytes], self.popen.stdout)
        end = time.monotonic() + within_s
        while b"\n" not in self._unread:
            if not self.speaks(max(0.0, end - time.monotonic())):
                raise CannotMeasureError(f"{self.name} said nothing for {within_s:g} s")
            data = os.read(output.fileno(), 65536)
            if not data:
                raise CannotMeasureError(f"{self.name} has ended: {self.last_words()}")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        return said

    def speaks(self, within_s: float) -> bool:
        """Wait until there is output to be read, or its end; return whether there is."""
        return bool(select.select([cast(IO[bytes], self.popen.stdout)], [], [], within_s)[0])

    def tell(self, text: str) -> None:
        """Write to its standard input."""
        orders = cast(IO[bytes], self.popen.stdin)
        orders.write(text.encode())
        orders.flush()

    def finish(self, within_s: float) -> dict[str, Any]:
        """End its input and return its last line."""
        cast(IO[bytes], self.popen.stdin).close()
        said = self.line(within_s)
        self.popen.wait(_END_S)
        return said

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-400:].strip()

    def end(self) -> None:
        """Have it end, by its id; again does nothing."""
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self.popen.poll() is None:
            self.popen.terminate()
        try:
            self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Stage:
    """Starts processes; the end of `with` ends them, the last first, and takes away their files."""

    def __init__(self, tools: Tools, cores: Cores) -> None:
        self.tools = tools
        self.cores = cores
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="lambdamu-bench-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def start(self, name: str, command: Sequence[str | Path], core: int) -> Running:
        """Start a process on `core`. Ours are Python, and take the code of the checkout."""
        log = self.folder / f"{name}-{random.getrandbits(32):08x}.log"
        # An order to end comes from the kernel when this process dies: TERM, on which a server ends its children too.
        prefix = ("setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(core))
        with log.open("wb") as errors:
            popen = subprocess.Popen(  # noqa: S603 - servers and generators with arguments made here
                [*prefix, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=_environment(),
            )
        running = Running(name, popen, log)
        self._exits.callback(running.end)
        return running

    @contextlib.contextmanager
    def act(self) -> Iterator[Stage]:
        """A part whose processes end with it, while those of the stage go on."""
        with Stage(self.tools, self.cores) as inner:
            yield inner


def _environment() -> dict[str, str]:
    left_out = ("MSGPACK_PUREPYTHON", "PYTHONHOME", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def family_of(pid: int) -> list[int]:
    """Return the process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += parents.get(member, [])
    return family


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; the second, a name, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12])


def free_port() -> int:
    """Return a port that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("0.0.0.0", port))
            return port
    raise CannotMeasureError("there is no free port")


def wait_for_port(port: int, server: Running, within_s: float = 10.0) -> None:
    """Wait until the server takes connections. Raise CannotMeasureError when it has ended, or too late."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if server.popen.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise CannotMeasureError(f"{server.name} does not listen on {port}: {server.last_words()}")


def wait_for_events(server: Running, name: str, count: int, within_s: float) -> None:
    """Wait until the log of a master holds so many events. Raise CannotMeasureError when it has ended, or too late."""
    end = time.monotonic() + within_s
    while (seen := server.events(name)) < count:
        if server.popen.poll() is not None:
            raise CannotMeasureError(f"{server.name} has ended: {server.last_words()}")
        if time.monotonic() > end:
            raise CannotMeasureError(f"{server.name}: {seen} of {count} {name} within {within_s:g} s")
        time.sleep(5 * _POLL_S)
