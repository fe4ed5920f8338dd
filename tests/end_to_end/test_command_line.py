"""The command line as a user meets it: one clear line for each mistake, and an exit code to go by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Stage, free_port, wait_until_up


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["master"],
        ["check"],
        ["server"],
        ["client"],
        ["demo"],
        ["simulate"],
        ["drain"],
        ["maint"],
        ["reload"],
        ["why"],
        ["top"],
        ["completion"],
        ["pass", "key"],
        ["pass", "make"],
        ["pass", "show"],
    ],
)
def test_help_has_an_example(stage: Stage, command: list[str]) -> None:
    done = stage.run(*command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout


def test_the_version_is_that_of_the_package(stage: Stage) -> None:
    assert stage.run("--version").stdout.startswith("lambdamu, version 0.")


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nonsense"], "nonsense"),
        (["master"], "--config"),
        (["master", "--config", "/nowhere/pool.toml"], "/nowhere/pool.toml"),
        (["check", "/"], "directory"),
        (["server", "--listen", "localhost"], "localhost"),
        (["server", "--listen", "127.0.0.1:70000"], "70000"),
        (["server", "--listen", "127.0.0.1:0", "--users", "-1"], "--users"),
        (["server", "--listen", "127.0.0.1:0", "--fault", "magic"], "magic"),
        (["server", "--listen", "127.0.0.1:0", "--fault", "slow:x"], "slow"),
        (["client", "--master", "::1:7000"], "::1:7000"),
        (["client", "--master", "127.0.0.1:1,"], "--master"),
        (["client", "--master", "127.0.0.1:1", "--clients", "0"], "--clients"),
        (["client", "--master", "127.0.0.1:1", "--rate", "0"], "--rate"),
        (["client", "--master", "127.0.0.1:1", "--pass", "x" * 513], "512"),
        (["client", "--master", "127.0.0.1:1", "--rate", "nan"], "nan"),
        (["client", "--master", "127.0.0.1:1", "--hold", "inf"], "inf"),
        (["demo", "--seconds", "nan"], "nan"),
        (["top", "--interval", "nan"], "nan"),
        (["top", "--interval", "0.1"], "--interval"),
        (["top", "--count", "-1"], "--count"),
        (["top", "--sort", "worst"], "--sort"),
        (["check", "pool.toml", "--json"], "--diff"),
        (["demo", "--backends", "1"], "--backends"),
    ],
)
def test_bad_usage_ends_with_two_and_names_the_culprit(stage: Stage, arguments: list[str], culprit: str) -> None:
    done = stage.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert culprit in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [["check"], ["master", "--config"]])
def test_every_fault_of_a_configuration_is_named_at_once_and_nothing_starts(stage: Stage, command: list[str]) -> None:
    path = stage.folder / "pool.toml"
    path.write_text('[master]\nlistn = 5\n[[backend]]\nname = "b1"\nhost = "a"\nport = 70000\n[extra]\n')
    done = stage.run(*command, str(path))
    assert done.returncode == 2
    for culprit in ("listn", '"b1"', "port", "70000", "extra"):
        assert culprit in done.stderr
    assert all(line.startswith(str(path)) for line in done.stderr.splitlines())


def test_a_good_configuration_is_described(stage: Stage) -> None:
    path = stage.folder / "pool.toml"
    path.write_text('[[backend]]\nname = "b1"\nhost = "10.0.0.1"\nport = 7000\ncapacity = 5\n')
    done = stage.run("check", str(path))
    assert done.returncode == 0, done.stderr
    assert "1 backend" in done.stdout


def test_a_port_that_cannot_be_had_is_one_line(stage: Stage) -> None:
    _, port = stage.server()
    for arguments in (["server", "--listen", f"127.0.0.1:{port}"], ["server", "--listen", "192.0.2.1:9"]):
        done = stage.run(*arguments)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_client_without_a_master_says_who_was_asked(stage: Stage) -> None:
    port = free_port()
    done = stage.run("client", "--master", f"127.0.0.1:{port}", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"result": "Failed", "ip": None, "port": None, "task": None}
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_tries_the_other_masters(stage: Stage) -> None:
    _, backend = stage.server()
    master, port = stage.master(backend)
    wait_until_up(master, 1)
    masters = ",".join(f"127.0.0.1:{at}" for at in (free_port(), port, free_port()))
    for _ in range(3):
        done = stage.run("client", "--master", masters, "--ask-only", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["port"] == backend


def test_a_load_of_clients_is_spread_and_summed_up(stage: Stage) -> None:
    backends = [stage.server()[1] for _ in range(3)]
    master, port = stage.master(*backends)
    wait_until_up(master, 3)
    arguments = ("client", "--master", f"127.0.0.1:{port}", "--clients", "300", "--rate", "300", "--hold", "0.2")
    done = stage.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["backends"].keys() == {f"127.0.0.1:{at}" for at in backends}
    assert sum(counts["sent"] for counts in figures["backends"].values()) == 300
    assert sum(counts["connected"] for counts in figures["backends"].values()) == 300
    assert all(80 <= counts["sent"] <= 120 for counts in figures["backends"].values()), figures
    times = figures["answer_s"]
    assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["max"]
    shown = stage.run(*arguments)
    assert all(str(at) in shown.stdout for at in backends)


def test_an_unused_port_is_chosen_and_logged(stage: Stage) -> None:
    path = stage.folder / "pool.toml"
    path.write_text('[master]\nlisten = "[::1]:0"\n')
    master = stage.start("master", "--config", str(path))
    end = time.monotonic() + 20
    while not master.events("listening"):
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)
    address = master.events("listening")[0]["address"]
    done = stage.run("client", "--master", address, "--json")
    assert json.loads(done.stdout)["result"] == "NoServer"
    master.signal(signal.SIGTERM)
    assert master.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_demonstration_that_is_ended_leaves_nothing_behind(stage: Stage, number: signal.Signals) -> None:
    folder = stage.folder / "tmp"
    folder.mkdir()
    demo = stage.start("demo", "--seconds", "60", env={**os.environ, "TMPDIR": str(folder)})
    end = time.monotonic() + 30
    while "asked" not in demo.stdout:
        assert time.monotonic() < end
        time.sleep(0.05)
    tasks = Path(f"/proc/{demo.pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    assert len(children) >= 4
    demo.signal(number)
    assert demo.wait() == 1
    assert demo.stderr == f"lambdamu demo: ended by {number.name}\n"
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["demo --seconds 6", "check {config}", "server --listen 127.0.0.1:0"])
@pytest.mark.parametrize("output", ["| true", "> /dev/full"])
def test_an_output_that_cannot_be_written_gives_no_traceback(stage: Stage, command: str, output: str) -> None:
    config = stage.folder / "pool.toml"
    config.write_text('[[backend]]\nhost = "10.0.0.1"\nport = 7000\n')
    line = f"timeout 20 {sys.executable} -m master {command.format(config=config)} {output}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr


def test_the_demonstration_shows_a_death_and_a_return(stage: Stage, tmp_path: Path) -> None:
    done = stage.run("demo", "--seconds", "6", "--backends", "2", timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "b1 is killed" in done.stdout
    assert "after its death: 0" in done.stdout
    assert "all is well" in done.stdout
    assert done.stderr == ""
