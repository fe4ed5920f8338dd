"""What has to be made before anything is measured: the C programs, and a venv of the distribution's python3.

Both are kept in a cache folder and made anew when what they are made from changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.machine import find_program, output_of

ROOT: Final = Path(__file__).resolve().parent.parent
"""The checkout: the code under test."""

_SOURCES: Final = Path(__file__).resolve().parent
_PROGRAMS: Final = ("load", "slow", "fakes", "bare", "rubbish", "crowd")
_NEEDED: Final = ("taskset", "setpriv")
_COMPILE_S: Final = 120.0
_INSTALL_S: Final = 600.0


class CannotMeasureError(Exception):
    """Something that every measurement needs is missing, or has failed; the text says what."""


@attrs.frozen
class Tools:
    """Where everything is. `python` has the project's dependencies, and not the project."""

    load: Path
    slow: Path
    fakes: Path
    bare: Path
    rubbish: Path
    crowd: Path
    python: Path
    packages: str
    """The versions of what ours stands on."""
    cache: Path

    def load_of(self, *, tls: bool) -> Path:
        """Return the load generator, which needs OpenSSL for `tls` alone. Raise CannotMeasureError without it."""
        return _compile(self.cache, "load", "-DTLS", "-lssl", "-lcrypto") if tls else self.load

    def redis_py(self) -> Path:
        """Return a folder with redis-py, with its parser in C. Raise CannotMeasureError where that cannot be had."""
        return _install(self.cache, self.python, "redis[hiredis]==8.1.0")


def make_tools(python: str) -> Tools:
    """Compile and install what is not in the cache yet. Raise CannotMeasureError when that is not possible."""
    for name in _NEEDED:
        if find_program(name) is None:
            raise CannotMeasureError(f"there is no {name}, which comes with util-linux")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lambdamu-bench"
    cache.mkdir(parents=True, exist_ok=True)
    interpreter = _make_venv(cache, python)
    return Tools(
        **{name: _compile(cache, name) for name in _PROGRAMS},
        python=interpreter,
        packages=output_of(str(interpreter), "-c", _LIST_PACKAGES),
        cache=cache,
    )


_LIST_PACKAGES: Final = """
import ssl
from importlib.metadata import version
names = ("trio", "msgpack", "attrs", "prometheus-client", "httptools")
print(", ".join([*(f"{name} {version(name)}" for name in names), ssl.OPENSSL_VERSION]))
"""


def _compile(cache: Path, name: str, *options: str) -> Path:
    compiler = find_program("cc")
    if compiler is None:
        raise CannotMeasureError("there is no C compiler: the load generator is compiled at run time, by `cc`")
    source = _SOURCES / f"{name}.c"
    key = _digest(source.read_text(), (_SOURCES / "net.h").read_text(), output_of(compiler, "--version"), *options)
    target = cache / f"{name}-{key}"
    if not target.exists():
        fresh = target.with_suffix(f".{os.getpid()}")
        _run(_COMPILE_S, compiler, "-O2", "-Wall", "-Wextra", "-o", str(fresh), str(source), *options)
        fresh.rename(target)
    return target


def _make_venv(cache: Path, python: str) -> Path:
    if find_program(python) is None:
        raise CannotMeasureError(f"there is no {python}; --python names another, and the table names it too")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = sorted(project["project"]["dependencies"])
    constraints = sorted(_constraints(project))
    folder = cache / f"venv-{_digest(output_of(python, '-VV'), python, *wanted, '', *constraints)}"
    interpreter = folder / "bin" / "python"
    if (folder / "complete").exists():
        _name_project(folder, project)
        return interpreter
    shutil.rmtree(folder, ignore_errors=True)
    _run(_INSTALL_S, python, "-m", "venv", str(folder))
    (folder / "constraints.txt").write_text("\n".join(constraints))
    pip = (str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(_INSTALL_S, *pip, "-c", str(folder / "constraints.txt"), *wanted)
    (folder / "complete").touch()
    _name_project(folder, project)
    return interpreter


def _install(cache: Path, python: Path, what: str) -> Path:
    folder = cache / f"lib-{_digest(output_of(str(python), '-VV'), what)}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(_INSTALL_S, *pip, "--target", str(folder), what)
        (folder / "complete").touch()
    return folder


def _name_project(folder: Path, project: dict[str, Any]) -> None:
    """Say in a venv which version of the project the code of the checkout is: a master tells it."""
    [packages] = folder.glob("lib/python*/site-packages")
    told = packages / "lambdamu-0.dist-info"
    told.mkdir(exist_ok=True)
    name, version = project["project"]["name"], project["project"]["version"]
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _constraints(project: dict[str, Any]) -> list[str]:
    constraints: list[str] = project.get("tool", {}).get("uv", {}).get("constraint-dependencies", [])
    return constraints


def _run(within_s: float, *command: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler, the interpreter and its pip
            command, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise CannotMeasureError(f"{' '.join(command)} has not ended within {within_s:g} s") from exc
    if done.returncode != 0:
        raise CannotMeasureError(f"{' '.join(command)} has failed:\n{done.stdout}{done.stderr}")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
