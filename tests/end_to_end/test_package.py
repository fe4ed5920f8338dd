"""The package as a user installs it: a wheel, in an environment of its own, run from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import tomllib
import urllib.request
import venv
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.conftest import free_port

PROJECT = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the project with plain pip; return the folder of the environment's commands."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    # From a copy, so that a build leaves nothing behind, and so that only what git would carry is built.
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (PROJECT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, source / name)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", source, folder=folder)
    run(python, "-m", "pip", "check", folder=folder)
    return python.parent


def test_the_command_runs_from_anywhere_and_knows_its_version(installed: Path, tmp_path: Path) -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert run(installed / "lambdamu", "--version", folder=tmp_path) == f"lambdamu, version {version}\n"
    config = tmp_path / "pool.toml"
    config.write_text('[[backend]]\nhost = "127.0.0.1"\nport = 9001\n')
    assert "1 backend" in run(installed / "lambdamu", "check", config, folder=tmp_path)


def test_the_package_brings_its_types_and_all_its_rooms(installed: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.resources as r, lambdamu.testing, master.demo, server_stub.backend, client_stub.client\n"
        "for name in ('lambdamu', 'master', 'server_stub', 'client_stub'):\n"
        "    assert (r.files(name) / 'py.typed').is_file(), name\n"
        "for name in ('page.html', 'page.js', 'page.css'):\n"
        "    assert (r.files('master.web') / 'static' / name).read_bytes(), name\n"
        "print(lambdamu.testing.__file__)"
    )
    where = run(installed / "python", "-c", script, folder=tmp_path)
    assert str(installed.parent) in where


def test_it_asks_for_the_distributions_that_it_imports_from(installed: Path, tmp_path: Path) -> None:
    script = "import importlib.metadata as m; print(*m.requires('lambdamu'), sep='\\n')"
    required = run(installed / "python", "-c", script, folder=tmp_path).splitlines()
    # msgpack-python, an older distribution of the same module, has no such options.
    assert [line for line in required if line.startswith("msgpack")] == ["msgpack>=1.0.5"]


def test_the_status_page_is_there_as_installed(installed: Path, tmp_path: Path) -> None:
    http = free_port()
    variables = {
        "LAMBDAMU_MASTER__LISTEN": f"127.0.0.1:{free_port()}",
        "LAMBDAMU_HTTP__LISTEN": f"127.0.0.1:{http}",
        "LAMBDAMU_BACKEND__0__HOST": "127.0.0.1",
        "LAMBDAMU_BACKEND__0__PORT": "9001",
    }
    environment = {**os.environ, **variables}
    with (tmp_path / "log").open("wb") as log:
        master = subprocess.Popen([installed / "lambdamu", "master"], cwd=tmp_path, env=environment, stderr=log)
    try:
        end = time.monotonic() + 20
        health = partial(subprocess.run, [installed / "lambdamu-health"], env=environment, stderr=subprocess.DEVNULL)
        while health(check=False).returncode:
            assert master.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        for name in ("", "page.js", "page.css"):
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/{name}", timeout=10) as answer:
                assert (answer.status, len(answer.read()) > 0) == (200, True)
    finally:
        master.terminate()
        assert master.wait(20) == 0


def test_the_demonstration_runs_as_installed(installed: Path, tmp_path: Path) -> None:
    assert "all is well" in run(installed / "lambdamu", "demo", "--seconds", "6", folder=tmp_path)
