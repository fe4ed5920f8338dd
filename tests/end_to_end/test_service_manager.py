"""A master as a service manager runs it: the unit, what it hears and when, and the limit on open files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Client, Process, Stage, ask, free_port, wait_for_port

UNIT = Path(__file__).parents[2] / "deploy" / "lambdamu.service"
ANALYZE = shutil.which("systemd-analyze")
WAIT_S = 20.0
if os.environ.get("CI"):
    assert ANALYZE is not None, "systemd-analyze is needed"
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


class Listener:
    """Hears what a process tells its service manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(WAIT_S)

    def hear(self) -> dict[str, str]:
        """Return the next message but those for the watchdog."""
        while True:
            message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))
            if message != {"WATCHDOG": "1"}:
                return message

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "NOTIFY_SOCKET": self.address, **more}


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(f"{'@' * (request.param == 'abstract')}{tmp_path}/notify")
    yield listener
    listener.socket.close()


def start_by_unit(stage: Stage, listener: Listener, text: str) -> Process:
    """Start what the unit starts, with the configuration here in place of that in /etc."""
    config = stage.folder / "pool.toml"
    config.write_text(text)
    [command] = re.findall(r"^ExecStart=\S+/lambdamu (.+)$", UNIT.read_text(), re.MULTILINE)
    arguments = command.replace("/etc/lambdamu/pool.toml", str(config)).split()
    return stage.start(*arguments, env=listener.environment(WATCHDOG_USEC="200000"))


def test_ready_is_said_when_it_listens_and_then_what_it_does(stage: Stage, listener: Listener) -> None:
    port, http = free_port(), free_port()
    master = start_by_unit(
        stage, listener, f'[master]\nlisten = "127.0.0.1:{port}"\n[http]\nlisten = "127.0.0.1:{http}"\n'
    )
    ready = listener.hear()
    assert ready.pop("READY") == "1"
    assert ready == {"STATUS": f"listens on 127.0.0.1:{port}, 0 backends"}
    assert ask(port)["Result"] == "NoServer"
    socket.create_connection(("127.0.0.1", http), 1).close()

    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    master.signal(signal.SIGHUP)
    reloading = listener.hear()
    assert reloading.keys() == {"RELOADING", "MONOTONIC_USEC"}
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert listener.hear() == {"READY": "1", **ready}

    (stage.folder / "pool.toml").write_text("[mastr]\n")
    master.signal(signal.SIGHUP)
    assert listener.hear()["RELOADING"] == "1"
    assert "reload refused: " in listener.hear()["STATUS"]

    assert dict([listener.socket.recv(4096).decode().split("=")]) == {"WATCHDOG": "1"}
    master.signal(signal.SIGTERM)
    assert listener.hear() == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "15000000"}
    assert master.wait() == 0
    listener.socket.settimeout(0.01)
    with pytest.raises(TimeoutError):
        listener.hear()


@pytest.mark.parametrize("listener", ["path"], indirect=True)
def test_who_cannot_listen_is_never_ready(stage: Stage, listener: Listener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        master = start_by_unit(stage, listener, f'[master]\nlisten = "127.0.0.1:{port}"\n')
        assert master.wait() == 1
    listener.socket.settimeout(0.01)
    with pytest.raises(TimeoutError):
        listener.socket.recv(4096)


@pytest.mark.parametrize("full", [False, True], ids=["gone", "full"])
def test_a_socket_that_takes_nothing_neither_holds_up_nor_stops_a_master(stage: Stage, full: bool) -> None:
    listener = Listener(str(stage.folder / "notify"))
    if not full:
        listener.socket.close()
    master, port = stage.master(env=listener.environment(WATCHDOG_USEC="1000"))
    end = time.monotonic() + WAIT_S
    while not master.events("cannot_notify"):
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)
    with Client(port, timeout=5) as client:
        assert {client.ask()["Result"] for _ in range(200)} == {"NoServer"}
    master.signal(signal.SIGTERM)
    assert master.wait() == 0
    assert len(master.events("cannot_notify")) == 1
    listener.socket.close()


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the command of this environment: systemd looks whether it is there."""
    path = tmp_path / UNIT.name
    command = Path(sys.executable).parent / "lambdamu"
    path.write_text(UNIT.read_text().replace("/opt/lambdamu/bin/lambdamu", str(command)))
    return path


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    command = [ANALYZE, "--no-pager", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)


@needs_analyze
def test_systemd_has_nothing_to_say_against_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    # Of other units that are installed it may have something to say.
    assert [line for line in done.stdout.splitlines() if unit.stem in line] == []
    assert done.returncode == 0, done.stdout


@needs_analyze
def test_the_unit_exposes_little(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout
    assert "exposure level" in done.stdout


def soft_limit(process: Process) -> int:
    [line] = re.findall(r"^Max open files +(\d+)", Path(f"/proc/{process.pid}/limits").read_text(), re.MULTILINE)
    return int(line)


def test_a_low_soft_limit_on_descriptors_is_raised_to_what_is_needed(stage: Stage) -> None:
    backends = [free_port() for _ in range(3)]
    low = ("prlimit", "--nofile=64:4096", "--")
    text = "[limits]\nconnections = 300\n[choice]\nfirst_round_s = 0\n"
    master, port = stage.master(*backends, text=text, prefix=low)
    assert 300 + 2 * 3 < soft_limit(master) < 400
    assert master.events("few_descriptors") == []
    held = [Client(port, timeout=5) for _ in range(200)]
    assert {client.ask()["Result"] for client in held} == {"NoServer"}
    for client in held:
        client.socket.close()


def test_a_hard_limit_that_is_too_low_is_one_clear_warning(stage: Stage) -> None:
    master, port = stage.master(text="[limits]\nconnections = 300\n", prefix=("prlimit", "--nofile=64:128", "--"))
    [warning] = master.events("few_descriptors")
    needed = int(re.search(r"raise the limit on open files to (\d+)", warning["message"])[1])
    assert 300 < needed < 400
    assert soft_limit(master) == warning["limit"] == 128
    assert warning["connections"] == 128 - (needed - 300)
    assert ask(port)["Result"] == "NoServer"
    wait_for_port(port, master)
