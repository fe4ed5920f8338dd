"""Sessions and real processes: what dies is a backend, the node of the cache, or both at once."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import msgpack
import pytest

from tests.end_to_end.conftest import Client, Process, Stage, free_port, wait_for_port, wait_until_up


def entries(client: Process, count: int, seconds: float = 30.0) -> list[dict[str, Any]]:
    """Wait until a client has logged in so often; return what it says of each."""
    end = time.monotonic() + seconds
    while len(lines := client.stdout.splitlines()) < count:
        assert time.monotonic() < end, client.stderr
        time.sleep(0.05)
    return [json.loads(line) for line in lines]


def start_cache(stage: Stage, port: int) -> Process:
    config = stage.folder / "cache.toml"
    config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\nfile = "{stage.folder}/cache.db"\n')
    process = stage.start("master", "--config", str(config))
    wait_for_port(port, process)
    return process


def resume(port: int, session: str) -> list[dict[str, Any]]:
    """Return what a backend says to somebody who resumes, up to the end of the connection."""
    said = [("Session", session), ("UserName", "ann"), ("UserMail", "")]
    with Client(port) as raw:
        raw.send(
            msgpack.packb([{"Object": "Auth", "Command": "Set", "Name": name, "Data": text} for name, text in said])
        )
        answer = raw.receive()
        assert raw.receive() is None, "the connection has to end"
        return list(answer)


def test_a_client_keeps_its_session_when_its_backend_and_the_cache_are_killed(stage: Stage) -> None:
    cache_port = free_port()
    cache = start_cache(stage, cache_port)
    backends = dict(reversed(stage.server("--cache", f"127.0.0.1:{cache_port}")) for _ in range(2))
    master, port = stage.master(*backends, text="[probe]\ninterval_s = 0.3\ntimeout_s = 0.3\n")
    wait_until_up(master, 2)
    client = stage.start(
        *("client", "--master", f"127.0.0.1:{port}", "--session", "--device", "phone", "--user", "ann"),
        *("--hold", "60", "--json"),
    )
    [first] = entries(client, 1)
    assert (first["how"], first["screen"]["count"]) == ("new", 1)
    [other] = set(backends) - {first["port"]}
    time.sleep(1.0)  # a commit is made ten times a second

    cache.signal(signal.SIGKILL)
    cache.wait()
    backends[first["port"]].signal(signal.SIGKILL)
    [error] = resume(other, first["session"])
    assert (error["Command"], error["Data"]["Code"]) == ("Error", "NoStore")
    assert len(entries(client, 1)) == 1

    start_cache(stage, cache_port)
    _, second = entries(client, 2)
    assert (second["how"], second["port"], second["screen"]["count"]) == ("resumed", other, 2)
    assert second["session"] == first["session"]


# Six processes start for it, which takes most of its time.
def test_the_demonstration_of_sessions_loses_none(stage: Stage) -> None:
    done = stage.run("demo", "--sessions", "--seconds", "10", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 0 lost\n" in done.stdout
    assert done.stdout.endswith("all is well\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--sessions", "--rush"], "without --rush"),
        (["demo", "--sessions", "--seconds", "9"], "10 seconds"),
        (["demo", "--sessions", "--backends", "3"], "three backends"),
        (["server", "--listen", "127.0.0.1:0", "--cache-secret-file", "x"], "goes with --cache"),
        (["server", "--listen", "127.0.0.1:0", "--cache", "nowhere"], "--cache"),
        (
            ["server", "--listen", "127.0.0.1:0", "--cache", "127.0.0.1:1", "--cache-secret-file", "/not/there"],
            "/not/there",
        ),
        (["server", "--listen", "127.0.0.1:0", "--screen-types", "1,x"], "whole numbers"),
        (["server", "--listen", "127.0.0.1:0", "--screen-types", "1"], "--screen-types goes with --cache"),
        (["client", "--master", "127.0.0.1:1", "--device", "phone"], "go with --session"),
        (["client", "--master", "127.0.0.1:1", "--session", "--plain"], "for one client"),
        (["client", "--master", "127.0.0.1:1", "--user", ""], "user_name"),
    ],
)
def test_options_that_do_not_fit_are_told(command_line: Any, arguments: list[str], says: str) -> None:
    code, _, err = command_line(*arguments)
    assert code == 2
    assert says in err
