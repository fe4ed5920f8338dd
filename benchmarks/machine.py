"""What the figures were taken on: the machine, the interpreter, the versions of everybody."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

import attrs

_TELL_S: Final = 10.0
_PLACES: Final = "/usr/sbin:/usr/local/sbin"
"""Where Debian keeps servers; the path of a plain user leaves it out."""


@attrs.frozen
class Cores:
    """The core of the server, and that of the load generator and the fakes."""

    server: int
    load: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[-1])

    @property
    def shared(self) -> bool:
        return self.server == self.load


def find_program(name: str) -> str | None:
    """Return the path of a program, or None where it is missing."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_PLACES}")


def output_of(*command: str) -> str:
    """Return what a command says, on either output; raise CalledProcessError when it fails."""
    told = subprocess.run(  # noqa: S603 - fixed programs with fixed arguments
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TELL_S, check=True
    )
    return told.stdout.strip()


def describe(python: Path, packages: str, cores: Cores) -> dict[str, str]:
    """Return the names and versions to print, by what they are of."""
    facts = {
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores used": f"server on {cores.server}, load generator and fakes on {cores.load}",
        "load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "interpreter of ours": f"{python.resolve()}: {_python_version(python)}",
        "packages": packages,
        "C compiler": _first_line("cc", "--version"),
        "HAProxy": _first_line("haproxy", "-v"),
        "nginx": _first_line("nginx", "-v"),
        "Redis": _first_line("redis-server", "--version"),
    }
    if cores.shared:
        facts["cores used"] += " (one core for both: rates and latencies mean little)"
    return facts


def busy_s(core: int) -> float:
    """Return the seconds that a core has been busy since the start, whoever used it, in steps of 10 ms."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    raise LookupError(f"the kernel tells of no cpu{core}")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _python_version(python: Path) -> str:
    words = "import platform, sys; print(platform.python_implementation(), sys.version.replace(chr(10), ' '))"
    return output_of(str(python), "-c", words)


def _first_line(program: str, option: str) -> str:
    path = find_program(program)
    return output_of(path, option).splitlines()[0] if path else "missing here"
