"""`lambdamu top` against a real master: on a terminal, in a pipe, and while the master is killed and comes back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from tests.end_to_end.conftest import Process, Stage, ask, free_port, wait_for_port, wait_until_up

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n[choice]\nfirst_round_s = 0\n"
ROWS, COLUMNS = 24, 100


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color"}
        argv = [sys.executable, "-m", "master", *command]
        self.popen = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.said = ""

    def read(self, seconds: float) -> bool:
        """Read what there is; False at the end."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return True
        try:
            self.said += os.read(self.ours, 65536).decode()
        except OSError:  # the other side is closed
            return False
        return True

    def screen(self) -> str:
        """Return what the last whole drawing shows."""
        drawings = self.said.split("\x1b[H")
        return re.sub(r"\x1b\[[0-9;]*m", "", drawings[-2]) if len(drawings) > 2 else ""

    def wait_for(self, right: Callable[[str], bool]) -> None:
        end = time.monotonic() + 20
        while not right(self.screen()):
            assert time.monotonic() < end, self.said[-3000:]
            assert self.read(0.1), self.said[-3000:]

    def interrupt(self) -> int:
        self.popen.send_signal(signal.SIGINT)
        end = time.monotonic() + 20
        while self.read(5):
            assert time.monotonic() < end, "it goes on"
        return self.popen.wait(10)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self.ours)


class Scene:
    """A master of two backends."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.http, self.port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        self.backends = [stage.server("--users", "7")[1], free_port()]
        self.master = self.start()

    def start(self) -> Process:
        text = f'{FAST}[http]\nlisten = "127.0.0.1:{self.http}"\n'
        master, _ = self.stage.master(*self.backends, text=text, backend="capacity = 10", port=self.port)
        wait_for_port(self.http, master)
        wait_until_up(master, 1)
        return master

    def kill(self) -> None:
        self.master.signal(signal.SIGKILL)
        self.master.wait()


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    yield Scene(stage)
    stage.end()


def test_on_a_terminal_it_is_live_says_when_the_master_is_lost_and_is_right_again(scene: Scene) -> None:
    with Terminal("top", "--url", scene.url, "--interval", "0.2") as terminal:
        terminal.wait_for(lambda screen: "1 of 2 backends takes clients" in screen)
        ask(scene.port)
        terminal.wait_for(lambda screen: "[########--] 8/10" in screen and not re.search(r"OK 0\.0", screen))
        assert "Connection refused" in terminal.screen()
        scene.kill()
        terminal.wait_for(lambda screen: "LOST: " in screen and "cannot be reached: Connection refused" in screen)
        assert "1 of 2 backends takes clients" in terminal.screen()
        scene.master = scene.start()
        terminal.wait_for(lambda screen: "LOST" not in screen and "[#######---] 7/10" in screen)
        assert len(terminal.screen().splitlines()) <= ROWS
        assert terminal.interrupt() == 0
    assert "Traceback" not in terminal.said
    assert terminal.said.startswith("\x1b[?1049h")
    assert terminal.said.endswith("\x1b[?1049l")
    assert terminal.said.rfind("\x1b[?25h") > terminal.said.rfind("\x1b[?25l")


def test_in_a_pipe_it_is_plain_text_or_json_and_a_lost_master_is_a_line(
    scene: Scene, command_line: Callable[..., tuple[int, str, str]]
) -> None:
    top = ("top", "--url", scene.url, "--interval", "0.2")
    code, said, complaint = command_line(*top, "--count", "2", "--sort", "users")
    assert (code, complaint) == (0, "")
    first, second = said.split(f"{scene.url}  ")[1:]
    for block in (first, second):
        assert [line.split()[0] for line in block.splitlines() if "/10 " in line] == [
            f"127.0.0.1:{port}" for port in scene.backends
        ]
    assert said.replace("\n", "").isprintable()
    code, said, _ = command_line(*top, "--count", "2", "--json")
    looks = [json.loads(line) for line in said.splitlines()]
    assert (code, [look["takers"] for look in looks]) == (0, [1, 1])
    assert {event["kind"] for event in looks[0]["events"]} >= {"backend_up"}

    command = [sys.executable, "-m", "master", *top, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            assert "takers" in json.loads(reader.stdout.readline())
            scene.kill()
            looks = [json.loads(reader.stdout.readline()) for _ in range(10)]
            assert looks[-1] == {"error": f"{scene.url} cannot be reached: Connection refused"}
            reader.send_signal(signal.SIGINT)
            assert reader.communicate(timeout=10)[1] == ""
            assert reader.returncode == 0
        finally:
            reader.kill()

    code, said, complaint = command_line(*top)
    assert (code, said) == (1, "")
    assert complaint == f"Error: {scene.url} cannot be reached: Connection refused\n"
