"""Clients and a backend in other languages, as real processes, with a real master.

The file is long because every foreign peer goes through the same exchanges.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgpack
import pytest

from lambdamu.datapack import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOC = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
MSGPACK_JAR = Path("/usr/share/java/msgpack-core.jar")

READY_S = 60.0
"""A process must listen, and a backend must be chosen, within this; a busy machine may take a while."""
CLIENT_S = 120.0
STOP_S = 10.0


@attrs.frozen
class Foreign:
    """How a program in another language is run, and how to see that its interpreter and its modules are here."""

    command: tuple[str, ...]
    check: tuple[str, ...]
    required: bool = True
    """Whether the lack of it fails the tests in CI; elsewhere it is skipped."""


def lua(file: str) -> Foreign:
    return Foreign(("lua5.3", file), ("lua5.3", "-e", 'require "socket"; require "MessagePack"'))


LUA = lua("client.lua")
NODE = Foreign(("node", "client.mjs"), ("node", "--input-type=module", "-e", 'import "@msgpack/msgpack"'))
JAVA = Foreign(
    ("java", "-cp", str(MSGPACK_JAR), "Client.java"),
    ("sh", "-c", f"command -v java && command -v javac && test -e {MSGPACK_JAR}"),
    required=False,
)
CLIENTS = {"lua": LUA, "node": NODE, "java": JAVA}
LUA_BACKEND = lua("backend.lua")


def blocks(kind: str) -> list[str]:
    """Return what stands in the document in fences of one kind."""
    return re.findall(rf"^```{kind}\n([^`]*)^```", DOC, re.MULTILINE)


def need(program: Foreign) -> None:
    """Skip the test, or fail it in CI, when the program cannot run here."""
    missing = shutil.which(program.check[0]) is None
    if not missing:
        checked = subprocess.run(program.check, cwd=HERE, capture_output=True, timeout=CLIENT_S, check=False)
        missing = checked.returncode != 0
    if missing:
        reason = f"cannot run here: {' '.join(program.check)}"
        if program.required and os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Processes:
    """Starts processes that listen, and ends each of them."""

    def __init__(self, stack: ExitStack, logs: Path) -> None:
        self._stack = stack
        self._logs = logs

    def start(self, *command: str, port: int) -> None:
        """Start a process and return when it listens on `port`."""
        log = self._logs / f"{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=HERE, env=environment(), stdout=output, stderr=output)
        self._stack.callback(end, process)
        deadline = time.monotonic() + READY_S
        while not listens(port):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.02)

    def lua_backend(self) -> int:
        port = free_port()
        self.start(*LUA_BACKEND.command, str(port), port=port)
        return port

    def stub_backend(self) -> int:
        port = free_port()
        self.start(sys.executable, "-m", "master", "server", "--listen", f"127.0.0.1:{port}", port=port)
        return port

    def master(self, *backends: int, mode: str = "hold") -> int:
        port = free_port()
        config = self._logs / "master.toml"
        lines = [
            "[master]",
            f'listen = "127.0.0.1:{port}"',
            "retry_after_s = 0.05",
            "[probe]",
            "interval_s = 0.5",
            "timeout_s = 0.5",
            f'mode = "{mode}"',
        ]
        for backend in backends:
            lines += ["[[backend]]", 'host = "127.0.0.1"', f"port = {backend}"]
        config.write_text("\n".join(lines), encoding="utf-8")
        self.start(sys.executable, "-m", "master", "master", "--config", str(config), port=port)
        return port


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=READY_S).close()
    except ConnectionRefusedError:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack, tmp_path)


def wait_until_chosen(master: int) -> None:
    """Ask until the master names a backend."""
    deadline = time.monotonic() + READY_S
    while ask(master)["Result"] != "OK":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask(master: int, data: Any = None) -> dict[str, Any]:
    [answer] = tell(master, [{"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": data}])
    result: dict[str, Any] = answer["Data"]
    return result


def tell(master: int, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send one batch, half-close, and return the batch that comes back."""
    with socket.create_connection(("127.0.0.1", master), timeout=READY_S) as sock:
        sock.sendall(msgpack.packb(batch))
        sock.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    [answer] = Decoder().feed(received)
    return [message.to_wire() for message in answer]


def run(client: Foreign, master: int, *arguments: str) -> tuple[int, list[str]]:
    """Run a client to its end; return its exit code, and the fields of the last line that it prints."""
    command = (*client.command, "127.0.0.1", str(master), *arguments)
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    assert ran.stdout, ran.stderr
    return ran.returncode, ran.stdout.splitlines()[-1].split("\t")


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_client_is_sent_to_a_backend_and_gets_its_task(client: Foreign, processes: Processes) -> None:
    need(client)
    backend = processes.stub_backend()
    master = processes.master(backend)
    wait_until_chosen(master)

    code, (result, ip, port, task) = run(client, master, "berta", "berta@example.org")

    assert (code, result, ip, port) == (0, "OK", "127.0.0.1", str(backend))
    assert task


@pytest.mark.parametrize("mode", ["hold", "reconnect"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_backend_in_lua_is_probed_and_chosen(client: Foreign, mode: str, processes: Processes) -> None:
    need(client)
    need(LUA_BACKEND)
    backend = processes.lua_backend()
    master = processes.master(backend, mode=mode)
    wait_until_chosen(master)

    assert run(client, master, "berta", "berta@example.org") == (
        0,
        ["OK", "127.0.0.1", str(backend), "Task.berta"],
    )


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_client_that_is_sent_nowhere_comes_again_and_gives_up_at_last(client: Foreign, processes: Processes) -> None:
    need(client)
    master = processes.master(free_port())

    assert run(client, master) == (1, ["NoServer"])


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_client_comes_again_until_a_backend_is_there(client: Foreign, processes: Processes) -> None:
    need(client)
    need(LUA_BACKEND)
    backend = processes.lua_backend()
    master = processes.master(backend)

    code, (result, *_) = run(client, master)

    assert (code, result) == (0, "OK")


def test_lua_decodes_what_is_written_without_newer_types() -> None:
    """Its decoder is made older first: whatever came to MessagePack after 2013 is taken out of it."""
    need(LUA)
    written = blocks("hex")
    lines = "\n".join("".join(block.split()) for block in written)
    command = ("lua5.3", "old_decoder.lua")
    ran = subprocess.run(command, cwd=HERE, input=lines, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    repacked = [msgpack.unpackb(bytes.fromhex(line)) for line in ran.stdout.split()]
    assert repacked == [without_nil(msgpack.unpackb(bytes.fromhex(block))) for block in written]


def without_nil(value: Any) -> Any:
    """Return a value as a Lua table holds it: a key whose value is nil is not there."""
    if isinstance(value, dict):
        return {key: without_nil(item) for key, item in value.items() if item is not None}
    return [without_nil(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("newer", ["d901 78", "c401 78", "d4 01 78", "c7 01 01 78"])
def test_the_old_decoder_refuses_newer_types(newer: str) -> None:
    need(LUA)
    command = ("lua5.3", "old_decoder.lua")
    line = "".join(newer.split())
    ran = subprocess.run(command, cwd=HERE, input=line, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    assert "not known" in ran.stderr


SERVED = {
    "unknown object": ({"Object": "Nobody", "Command": "Event", "Name": "DoSendServer"}, '"UnknownObject"'),
    "unknown name": ({"Object": "Master", "Command": "Event", "Name": "Nothing"}, '"UnknownName"'),
    "other command": ({"Object": "Master", "Command": "Get", "Name": "DoSendServer"}, '"UnknownCommand"'),
    "bad data": ({"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": "a"}, '"BadData"'),
    "leave": ({"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": {"Leave": True}}, '"Closed"'),
}


def test_a_master_answers_word_for_word_as_the_document_shows(processes: Processes) -> None:
    master = processes.master()
    answers = tell(master, [message for message, _ in SERVED.values()])
    assert answers == [shown(word) for _, word in SERVED.values()]


def test_an_answer_holds_the_keys_that_the_document_shows(processes: Processes) -> None:
    master = processes.master(processes.stub_backend(), processes.stub_backend())
    wait_until_chosen(master)
    assert ask(master)["Data"].keys() == shown('"OK"')["Data"]["Data"].keys()
    assert ask(master, shown('"Want"')["Data"])["Data"].keys() == shown('"TTL": ')["Data"]["Data"].keys()


def test_a_client_without_a_backend_is_told_the_keys_that_the_document_shows(processes: Processes) -> None:
    assert ask(processes.master())["Data"].keys() == shown('"NoServer"')["Data"]["Data"].keys()


def shown(word: str) -> dict[str, Any]:
    """Return the first message of the document in whose JSON `word` stands."""
    message: dict[str, Any] = next(json.loads(block)[0] for block in blocks("json") if word in block)
    return message


@pytest.mark.parametrize("name", ["client.lua", "backend.lua", "client.mjs", "Client.java"])
def test_the_document_shows_the_samples_that_run_here(name: str) -> None:
    language = {"lua": "lua", "mjs": "js", "java": "java"}[name.rpartition(".")[2]]
    assert f"```{language}\n{(HERE / name).read_text(encoding='utf-8')}```" in DOC
