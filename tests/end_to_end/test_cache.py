"""A node with the cache alone, as a process: sessions outlive kill -9, and there is no clients' port."""

from __future__ import annotations

import signal
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgpack
import pytest

from master.cache.rows import Changes
from master.store import SqliteCache, SqliteStore
from tests.end_to_end.conftest import Stage, free_port, wait_for_port
from tests.master.cache.making import session


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
    assert told["message"] == "stopping: before what was kept is back: it stays as it is"
    assert not process.events("listening_too") + process.events("listening")
    assert file.read_bytes() == before


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
