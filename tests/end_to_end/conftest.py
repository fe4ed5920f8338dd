"""Real processes of the command line, started for one test and ended by pid after it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from master.cli import main

START_S = 20.0

# What a shell runs in the background ignores Ctrl-C, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Process:
    """One process; what it says on standard error, line by line, is read in the order it comes."""

    def __init__(self, popen: subprocess.Popen[bytes], stderr: Path, stdout: Path) -> None:
        self.popen, self._stderr, self._stdout = popen, stderr, stdout

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name in the log, with the fields that are ours, `error` and `message`."""
        lines = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return [
            {**line.get("lambdamu", {}), "error": line.get("error", {}).get("message"), "message": line["message"]}
            for line in lines
            if line["event"]["action"] == name
        ]

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, seconds: float = START_S) -> int:
        return self.popen.wait(seconds)

    def cpu_s(self) -> float:
        """Return the seconds of processor time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


class Stage:
    """Starts processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Process] = []

    def run(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        command = [sys.executable, "-m", "master", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def start(self, *arguments: str, prefix: tuple[str, ...] = (), **options: Any) -> Process:
        number = len(self._running)
        stderr, stdout = self.folder / f"{number}.err", self.folder / f"{number}.out"
        with stderr.open("wb") as err, stdout.open("wb") as out:
            popen = subprocess.Popen(
                [*prefix, sys.executable, "-m", "master", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                **options,
            )
        process = Process(popen, stderr, stdout)
        self._running.append(process)
        return process

    def master(
        self,
        *ports: int,
        text: str = "",
        backend: str = "",
        port: int | None = None,
        prefix: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> tuple[Process, int]:
        """Start a master for backends at `ports` with more `text` in its configuration; return it and its port."""
        port = port or free_port()
        config = self.folder / f"pool-{port}.toml"
        entries = [f'[[backend]]\nhost = "127.0.0.1"\nport = {at}\n{backend}\n' for at in ports]
        if "[master]" not in text:
            text = "[master]\n" + text
        text = text.replace("[master]", f'[master]\nlisten = "127.0.0.1:{port}"', 1)
        config.write_text(text + "\n" + "".join(entries))
        process = self.start("master", "--config", str(config), *options, prefix=prefix, env=env)
        wait_for_port(port, process)
        wait_until_serving(process)
        return process, port

    def server(self, *arguments: str, port: int | None = None) -> tuple[Process, int]:
        """Start a backend; return it and its port."""
        port = port or free_port()
        process = self.start("server", "--listen", f"127.0.0.1:{port}", *arguments)
        wait_for_port(port, process)
        return process, port

    def end(self) -> None:
        for process in self._running:
            if process.popen.poll() is None:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.wait()


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what runs the command line in this process, where a second for each start would be too long.

    It returns the exit code, and what was said on standard output and on standard error.
    """

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        said = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, said.out, said.err

    return run


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.end()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, process: Process) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.popen.poll() is None, process.stderr
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"nothing listens on {port}: {process.stderr}")


def wait_until_serving(process: Process) -> None:
    """Wait for the line that says so: the port is open before, and who is told to stop by then just ends."""
    end = time.monotonic() + START_S
    while "listening" not in process.stderr and process.popen.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


ASK = msgpack.packb([{"Object": "Master", "Command": "Event", "Name": "DoSendServer"}])


class Client:
    """A client on a plain socket, that shares no code with what it tests."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._unpacker = msgpack.Unpacker()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Any:
        """Return the next batch, or None at the end of the stream."""
        while True:
            for batch in self._unpacker:
                return batch
            data = self.socket.recv(65536)
            if not data:
                return None
            self._unpacker.feed(data)

    def ask(self) -> dict[str, Any]:
        self.send(ASK)
        answer: dict[str, Any] = self.receive()[0]["Data"]
        return answer

    def readable(self, seconds: float) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])


def ask(port: int) -> dict[str, Any]:
    """Connect, ask, leave."""
    with Client(port) as client:
        return client.ask()


def named(port: int) -> int | None:
    """Return the port of the backend that a client is sent to now, or None when there is none."""
    answer = ask(port)
    return answer["Data"]["Port"] if answer["Result"] == "OK" else None


def wait_until_named(port: int, *backends: int, seconds: float = START_S) -> None:
    """Ask until each of `backends` has been named."""
    missing, end = set(backends), time.monotonic() + seconds
    while missing:
        assert time.monotonic() < end, f"never named: {missing}"
        missing.discard(named(port) or 0)
        time.sleep(0.01)


def wait_until_up(master: Process, backends: int, seconds: float = START_S) -> None:
    """Wait until the log tells of so many backends that came up; asking would put users there."""
    end = time.monotonic() + seconds
    while len(master.events("backend_up")) < backends:
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)


def set_of_named(port: int, seconds: float) -> set[int | None]:
    """Ask all the time for `seconds` and return who was named."""
    found, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        found.add(named(port))
    return found
