"""A node with the cache alone, as a process: sessions outlive kill -9, and there is no clients' port."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

from master.cache.rows import Changes
from master.store import SqliteCache, SqliteStore
from tests.end_to_end.conftest import START_S, Process, Stage, free_port, wait_for_port
from tests.end_to_end.test_http import get, http
from tests.master.cache.making import session
from tests.small_disk import SmallDisk, small_disk


class Front:
    """A front server that keeps its sessions there."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._unpacker = msgpack.Unpacker(raw=False)
        self._count = 0

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, secret: str) -> dict[str, Any]:
        """Say the secret; return the last message of the answer."""
        said = [{"Object": "Auth", "Command": "Set", "Name": name, "Data": secret} for name in ("UserName", "UserMail")]
        self._socket.sendall(msgpack.packb(said))
        while True:
            for batch in self._unpacker:
                return dict(batch[-1])
            self._unpacker.feed(self._socket.recv(65536))

    def ask(self, thing: str, name: str, **data: Any) -> dict[str, Any]:
        """Return the whole message of the one answer."""
        self._count += 1
        question = {"Object": thing, "Command": "Event", "Name": name, "Data": data}
        self._socket.sendall(msgpack.packb([question | {"Header": {"Request": f"r{self._count}"}}]))
        while True:
            for [answer] in self._unpacker:
                assert answer["Header"]["Request"] == f"r{self._count}"
                return dict(answer)
            data_in = self._socket.recv(65536)
            assert data_in, "the connection was closed"
            self._unpacker.feed(data_in)


def test_sessions_are_there_after_kill_9_also_for_another_front_server(stage: Stage) -> None:
    port = free_port()
    config = stage.folder / "cache.toml"
    config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\nfile = "{stage.folder}/cache.db"\n')
    process = stage.start("master", "--config", str(config))
    wait_for_port(port, process)
    with Front(port) as front:
        made = fill(front)
    time.sleep(1.0)  # a commit is made ten times a second
    process.signal(signal.SIGKILL)
    process.wait()

    process = stage.start("master", "--config", str(config))
    wait_for_port(port, process)
    with Front(port) as other:
        look(other, made)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_second_node_over_the_same_file_does_not_start_and_nothing_is_lost(stage: Stage) -> None:
    ports, file = [free_port(), free_port()], stage.folder / "cache.db"
    configs = [stage.folder / f"node{at}.toml" for at in range(2)]
    for port, config in zip(ports, configs, strict=True):
        config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\nfile = "{file}"\n')
    first = stage.start("master", "--config", str(configs[0]))
    wait_for_port(ports[0], first)
    with Front(ports[0]) as front:
        made = fill(front)
    second = stage.start("master", "--config", str(configs[1]))
    assert second.wait(30.0) == 1
    assert [told["error"] for told in second.events("file_held")] == [
        f"{file}: another process has it, and each node needs its own"
    ]
    assert second.events("listening_too") == []
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    second = stage.start("master", "--config", str(configs[1]))
    wait_for_port(ports[1], second)
    with Front(ports[1]) as other:
        look(other, made)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0


def make_cache(file: str) -> None:
    cache = SqliteCache(file)
    cache.write([Changes([session(ttl_s=1e6)], [], 1, anew=True)], 0.0)
    cache.close()


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("[cache]\n", make_cache),
        ("[state]\n[queue]\n[master]\n", lambda file: SqliteStore(file).take_block("turn", 5)),
    ],
)
def test_told_to_stop_while_it_reads_what_was_kept_it_stops_and_leaves_it_as_it_is(
    text: str, make: Callable[[str], object], stage: Stage
) -> None:
    port, file = free_port(), stage.folder / "kept.db"
    make(str(file))
    before = file.read_bytes()
    config = stage.folder / "kept.toml"
    config.write_text(text.replace("]\n", f']\nfile = "{file}"\n', 1) + f'listen = "127.0.0.1:{port}"\n')
    with closing(sqlite3.connect(file)) as other:  # it is waited for as a slow disk would be
        other.execute("BEGIN EXCLUSIVE")
        process = stage.start("master", "--config", str(config))
        wait_for_port(port, process)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    [told] = process.events("stopping")
    assert told["message"] == f"stopping: before what was kept in {file} is back: it stays as it is"
    assert not process.events("listening_too") + process.events("listening")
    assert file.read_bytes() == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


class Node:
    """A node whose cache is kept on a disk that is full or read-only at times."""

    def __init__(self, stage: Stage, disk: SmallDisk) -> None:
        self._stage = stage
        self.port, self._http = free_port(), free_port()
        self._config = stage.folder / "cache.toml"
        self._config.write_text(
            f'[cache]\nlisten = "127.0.0.1:{self.port}"\nfile = "{disk.path}/cache.db"\n{http(self._http)}'
        )
        self.process = self.start()

    def start(self) -> Process:
        self.process = self._stage.start("master", "--config", str(self._config))
        wait_for_port(self.port, self.process)
        return self.process

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.wait()

    def wait_until(self, *, failing: int) -> None:
        """Wait until the metric says so; and that all is written, where it can be."""
        end = time.monotonic() + START_S
        while True:
            shown = get(self._http, "/metrics")[1]
            values = dict(
                re.findall(r"^lambdamu_cache_(store_failing|unwritten)(?:\{.*\})? (.*)$", shown, re.MULTILINE)
            )
            if float(values["store_failing"]) == failing and (failing or not float(values["unwritten"])):
                return
            assert time.monotonic() < end, self.process.stderr
            time.sleep(0.05)


def test_a_disk_that_is_full_or_read_only_stops_nobody_and_is_written_when_it_can_be(
    disk: SmallDisk, stage: Stage
) -> None:
    disk.fill()
    node = Node(stage, disk)
    with Front(node.port) as front:
        first = front.ask("Session", "Create", Client="ann", Value=b"first")["Data"]["Session"]
        node.wait_until(failing=1)
        disk.empty()
        node.wait_until(failing=0)
        assert "(the disk is full)" in node.process.events("cache_not_read")[0]["error"]
        assert node.process.events("cache_written")
        disk.fill()
        front.ask("Session", "Create", Client="large", Value=bytes(200_000))
        node.wait_until(failing=1)
        disk.empty()
        assert front.ask("Session", "Get", Session=first)["Data"]["Value"] == b"first"
    node.kill()

    disk.remount("ro")
    node.start()
    with Front(node.port) as front:
        assert front.ask("Session", "Get", Session=first)["Data"]["Value"] == b"first"
        second = front.ask("Session", "Create", Client="bob", Value=b"second")["Data"]["Session"]
        node.wait_until(failing=1)
        assert "(the disk is read-only)" in node.process.events("cache_not_written")[0]["error"]
        disk.remount("rw")
        node.wait_until(failing=0)
    node.kill()

    node.start()
    with Front(node.port) as front:
        for session_id, value in ((first, b"first"), (second, b"second")):
            assert front.ask("Session", "Get", Session=session_id)["Data"]["Value"] == value
    node.process.signal(signal.SIGTERM)
    assert node.process.wait() == 0


def fill(front: Front) -> list[dict[str, Any]]:
    made = [front.ask("Session", "Create", Client=f"client {number}", Value=b"first")["Data"] for number in range(200)]
    last = front.ask("Session", "Set", Session=made[0]["Session"], Value=b"second")
    assert not last["Header"].get("DataError")
    return made


def look(other: Front, made: list[dict[str, Any]]) -> None:
    for number, each in enumerate(made):
        found = other.ask("Session", "Get", Session=each["Session"])["Data"]
        assert found["Client"] == f"client {number}"
        assert found["Value"] == (b"first" if number else b"second")
    other.ask("Session", "Drop", Session=made[1]["Session"])
    gone = other.ask("Session", "Get", Session=made[1]["Session"])
    assert gone["Header"]["DataError"]
    assert gone["Data"]["Code"] == "SessionGone"


def test_six_variables_are_enough_to_run_a_node_in_a_container(stage: Stage) -> None:
    port = free_port()
    (stage.folder / "secret").write_text("open sesame 1234\n")
    six = {
        "LAMBDAMU_CACHE__LISTEN": f"0.0.0.0:{port}",
        "LAMBDAMU_CACHE__SECRET_FILE": str(stage.folder / "secret"),
        "LAMBDAMU_CACHE__UPSTREAM": f"127.0.0.1:{free_port()}",
        "LAMBDAMU_CACHE__WARM__0__TYPE": "1",
        "LAMBDAMU_CACHE__WARM__0__OBJECT": "Products",
        "LAMBDAMU_CACHE__WARM__0__NAME": "Cards",
    }
    process = stage.start("master", env={"PATH": os.environ["PATH"], **six})
    wait_for_port(port, process)
    with Front(port) as front:
        assert front.say("wrong")["Data"]["Code"] == "NotYours"
    with Front(port) as front:
        assert front.say("open sesame 1234")["Data"] == "Cache"
        session = front.ask("Session", "Create", Client="ann")["Data"]["Session"]
        assert front.ask("Warm", "Get", Session=session, Type=1)["Data"]["Code"] == "Upstream"
        assert front.ask("Warm", "Get", Session=session, Type=2)["Data"]["Code"] == "NotFound"
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_an_operator_looks_at_a_node_for_the_cache_alone_and_ends_a_session(stage: Stage) -> None:
    port, http = free_port(), free_port()
    config = stage.folder / "cache.toml"
    config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\n[http]\nlisten = "127.0.0.1:{http}"\n')
    process = stage.start("master", "--config", str(config))
    wait_for_port(http, process)

    def run(*command: str) -> tuple[int, str]:
        done = stage.run(*command, "--url", f"http://127.0.0.1:{http}")
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    with Front(port) as front:
        session = front.ask("Session", "Create", Client="ann/1", Value=b"data")["Data"]["Session"]
        front.ask("Device", "Bind", Session=session, Device="a phone")
        assert run("status") == (0, "the cache has 1 session\n")
        assert run("explain") == (3, "no pool here: this node has the cache alone\n")
        assert json.loads(run("cache", "--json")[1])["sessions"] == 1
        assert "ann/1" in run("cache", "device", "a phone")[1]
        assert session not in run("cache", "client", "ann/1")[1]
        assert session in run("cache", "client", "ann/1", "--values")[1]
        code, said = run("cache", "session", session, "--end", "--why", "stolen")
        assert (code, said.endswith(" has ended\n")) == (0, True)
        assert front.ask("Session", "Get", Session=session)["Data"]["Code"] == "SessionGone"
        gone = "Error: refused (404): there is no such session, any more or ever\n"
        assert run("cache", "session", session) == (1, gone)
    assert len(process.events("cache_look_up")) == 4
    assert session not in process.stderr
