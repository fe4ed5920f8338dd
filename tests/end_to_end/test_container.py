"""A master as a container runs it: by environment alone, as process 1, with the health check of the image."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Process, Stage, free_port, wait_for_port

PROJECT = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n\s*", "", (PROJECT / "deploy" / "Containerfile").read_text())
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if line and not line.startswith("#")]
STOP_S = 2.0
"""What an idle master may take to end."""
WAIT_S = 20.0


def works(*command: str, seconds: float = 20.0) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=seconds, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


ROOTLESS = ("--map-root-user",) if os.getuid() else ()
FIRST = ("unshare", *ROOTLESS, "--pid", "--fork", "--mount-proc", "--kill-child", "--")
OTHER_FILES = ("unshare", *ROOTLESS, "--mount", "--")
needs_processes = pytest.mark.skipif(
    not works(*FIRST, "true"), reason="no namespace of processes may be made here (unshare --pid --mount-proc)"
)
needs_files = pytest.mark.skipif(
    not works(*OTHER_FILES, "sh", "-c", "mount --bind /dev/null /etc/hosts"),
    reason="no namespace of files may be made here (unshare --mount)",
)
ENGINE = next((name for name in ("podman", "docker") if works(name, "info")), None)


def argument(step: str) -> str:
    """Return what stands behind the last step of that name."""
    return [rest for name, rest in STEPS if name == step][-1]


def image_command() -> list[str]:
    """Return the arguments with which the image starts `lambdamu`."""
    program, *arguments = [*json.loads(argument("ENTRYPOINT")), *json.loads(argument("CMD"))]
    assert program == "lambdamu"
    return arguments


def health_command() -> list[str]:
    program, *arguments = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    return [str(Path(sys.executable).parent / program), *arguments]


def inner(process: Process) -> int:
    """Return the pid, out here, of what is process 1 in there."""
    end = time.monotonic() + WAIT_S
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text().split():
        assert time.monotonic() < end, process.stderr
        time.sleep(0.01)
    return int(children.read_text().split()[0])


def variables(port: int, backend: int, **more: str) -> dict[str, str]:
    own = {
        "LAMBDAMU_MASTER__LISTEN": f"127.0.0.1:{port}",
        "LAMBDAMU_BACKEND__0__HOST": "127.0.0.1",
        "LAMBDAMU_BACKEND__0__PORT": str(backend),
        "LAMBDAMU_CHOICE__FIRST_ROUND_S": "0",
    }
    return {**os.environ, **own, **more}


@needs_processes
def test_as_process_1_it_ends_by_sigterm_in_time_and_buries_the_children_of_others(stage: Stage) -> None:
    port = free_port()
    master = stage.start(*image_command(), prefix=FIRST, env=variables(port, free_port()))
    wait_for_port(port, master)
    pid = inner(master)
    assert (Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split()[1]) == "1"
    orphan = ["nsenter", "--target", str(pid), "--pid", "--", "sh", "-c", "sleep 0.5 & exit 0"]
    if ROOTLESS:
        orphan[1:1] = ["--user", "--preserve-credentials"]
    subprocess.run(orphan, check=True, timeout=20)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert children.read_text().split()
    end = time.monotonic() + WAIT_S
    while children.read_text().split():
        assert time.monotonic() < end, "a zombie stays"
        time.sleep(0.02)
    os.kill(pid, signal.SIGHUP)
    assert until_event(master, "reloaded")["difference"] == []
    os.kill(pid, signal.SIGTERM)
    assert master.wait(STOP_S) == 0


@needs_processes
def test_as_process_1_what_does_not_serve_ends_by_sigterm_too(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        status = stage.start("status", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}", prefix=FIRST)
        with silent.accept()[0]:
            os.kill(inner(status), signal.SIGTERM)
            assert status.wait(STOP_S) == 128 + signal.SIGTERM


@needs_files
def test_the_health_check_works_where_localhost_is_first_of_ipv6(stage: Stage) -> None:
    hosts = stage.folder / "hosts"
    hosts.write_text("::1 localhost\n127.0.0.1 localhost\n")
    port, http = free_port(), free_port()
    environment = variables(port, free_port(), LAMBDAMU_HTTP__LISTEN=f"127.0.0.1:{http}")
    inside = (*OTHER_FILES, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts))

    def check(**more: str) -> subprocess.CompletedProcess[str]:
        command, own = [*inside, *health_command()], {**environment, **more}
        return subprocess.run(command, env=own, capture_output=True, text=True, timeout=20, check=False)

    sick = check()
    assert (sick.returncode, len(sick.stderr.splitlines())) == (1, 1)
    master = stage.start(*image_command(), env=environment)
    wait_for_port(http, master)
    assert check().returncode == 0
    assert check(LAMBDAMU_URL=f"http://localhost:{http}").returncode == 0


def until_event(master: Process, name: str) -> dict[str, Any]:
    end = time.monotonic() + WAIT_S
    while not master.events(name):
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)
    return master.events(name)[-1]


def test_the_environment_still_beats_the_file_after_a_reload(stage: Stage) -> None:
    port = free_port()
    config = stage.folder / "pool.toml"
    config.write_text('[master]\nlisten = "127.0.0.1:1"\n')
    master = stage.start("master", "--config", str(config), env=variables(port, free_port()))
    wait_for_port(port, master)
    assert "LAMBDAMU_MASTER__LISTEN" in until_event(master, "environment")["beats_file"]
    config.write_text('[master]\nlisten = "127.0.0.1:2"\nretry_after_s = 9\n[[backend]]\nport = 2\n')
    master.signal(signal.SIGHUP)
    assert until_event(master, "reloaded")["difference"] == ["~ [master]: retry_after_s: 2 -> 9"]
    assert master.events("needs_restart") == []


def test_the_image_runs_without_a_shell_and_as_nobody_of_weight() -> None:
    for step in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(argument(step)), list)
    user = re.fullmatch(r"(\d+):(\d+)", argument("USER"))
    assert user is not None
    assert all(int(number) >= 1000 for number in user.groups())
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {Path(health_command()[0]).name, "lambdamu"} <= scripts.keys()


def test_the_image_has_all_that_the_package_is_made_of_and_names_no_registry() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], "pyproject.toml"}
    wanted |= {project["project"]["readme"], *project["project"]["license-files"]}
    copied = {name for step, rest in STEPS if step == "COPY" for name in rest.split()[:-1]}
    assert copied == wanted
    assert all((PROJECT / name).exists() for name in copied)
    images = [rest.split()[0] for step, rest in STEPS if step == "FROM"]
    assert images == ["${PYTHON}"] * 2
    assert re.fullmatch(r"PYTHON=python:[\w.-]+", argument("ARG"))


@pytest.mark.skipif(
    ENGINE is None, reason="no engine that builds images runs here (podman, docker), nor can one be installed"
)
def test_the_image_is_built_and_runs() -> None:
    assert ENGINE is not None
    base = argument("ARG").partition("=")[2]
    if not works(ENGINE, "pull", base, seconds=300):
        pytest.skip(f"{ENGINE} cannot get {base}")
    build = [
        ENGINE,
        "build",
        "--tag",
        "lambdamu-test",
        "--file",
        str(PROJECT / "deploy" / "Containerfile"),
        str(PROJECT),
    ]
    subprocess.run(build, check=True, timeout=600)
    command = [ENGINE, "run", "--rm", "lambdamu-test", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("lambdamu, version 0.")
