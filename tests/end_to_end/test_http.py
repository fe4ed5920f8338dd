"""The operators' side of a real master: all that its document promises, and a stop that nobody holds up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import client as http_client
from typing import Any

import pytest
from hypothesis import settings

from master.web.openapi import DOCUMENT
from tests.end_to_end.conftest import Stage, ask, free_port, wait_for_port, wait_until_up

if os.environ.get("CI"):
    import schemathesis
else:
    schemathesis = pytest.importorskip("schemathesis")

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"

QUEUE = '[queue]\n[[queue.template]]\npattern = "*"\n'
CACHE = '[cache]\nlisten = "127.0.0.1:0"\n'


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def http(port: int) -> str:
    return f'[http]\nlisten = "127.0.0.1:{port}"\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A master with one backend that lives and one that does not, a queue and a cache; its HTTP port."""
    stage = Stage(tmp_path_factory.mktemp("site"))
    try:
        _, alive = stage.server()
        port = free_port()
        master, clients = stage.master(alive, free_port(), text=FAST + http(port) + QUEUE + CACHE)
        wait_for_port(port, master)
        wait_until_up(master, 1)
        ask(clients)
        yield port
    finally:
        stage.end()


PROMISES = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]
schema = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/api/v1/events")


@schema.parametrize()
@settings(max_examples=20, deadline=None)
def test_every_answer_is_one_that_the_document_promises(case: Any, site: int) -> None:
    case.call_and_validate(base_url=f"http://127.0.0.1:{site}", checks=PROMISES)


def test_the_first_signal_makes_it_unready_and_five_readers_hold_up_no_stop(stage: Stage) -> None:
    _, alive = stage.server()
    port = free_port()
    master, clients = stage.master(alive, text=f"[master]\nlinger_s = 1.0\ngrace_s = 2.0\n{FAST}{http(port)}")
    wait_for_port(port, master)
    wait_until_up(master, 1)
    ask(clients)
    assert get(port, "/readyz") == (200, "ok\n")
    readers = []
    for _ in range(5):
        reader = socket.create_connection(("127.0.0.1", port))
        reader.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        readers.append(reader)  # and never read
    master.signal(signal.SIGTERM)
    end = time.monotonic() + 1.0
    while get(port, "/readyz") != (503, "stopping\n"):
        assert time.monotonic() < end
    assert get(port, "/livez") == (200, "ok\n")
    assert master.wait(5) == 0
    assert master.stderr.count("grace_over") == 0
    for reader in readers:
        reader.close()


def test_while_it_lingers_it_is_unready_alive_and_serves(stage: Stage) -> None:
    _, alive = stage.server()
    port = free_port()
    master, clients = stage.master(alive, text=f"[master]\nlinger_s = 2.0\n{FAST}{http(port)}")
    wait_for_port(port, master)
    wait_until_up(master, 1)
    master.signal(signal.SIGTERM)
    end = time.monotonic() + 2.0
    while not master.events("stopping"):
        assert time.monotonic() < end
        time.sleep(0.005)
    rounds, end = 0, time.monotonic() + 1.5
    while time.monotonic() < end:
        assert get(port, "/readyz") == (503, "stopping\n")
        assert get(port, "/livez") == (200, "ok\n")
        assert ask(clients)["Result"] == "OK"
        rounds += 1
    assert rounds >= 3
    while master.popen.poll() is None:  # until the very end it lives, or is not there
        with contextlib.suppress(OSError, http_client.HTTPException):
            assert get(port, "/livez") == (200, "ok\n")
    assert master.wait() == 0


@pytest.fixture
def silent_ports() -> Iterator[list[int]]:
    """Backends whose systems let everybody connect, and who never say a word."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(200)]
        yield [sock.getsockname()[1] for sock in sockets]


def test_two_hundred_backends_that_say_nothing_slow_no_look_at_the_master(
    stage: Stage, silent_ports: list[int]
) -> None:
    port = free_port()
    # Not measured for coverage: how fast it is then is of no interest.
    plain = ("env", "-u", "COVERAGE_PROCESS_START", "-u", "COVERAGE_PROCESS_CONFIG")
    master, _ = stage.master(*silent_ports, text=http(port), prefix=plain)
    wait_for_port(port, master)
    end = time.monotonic() + 20
    while not master.events("no_live_backend"):
        assert time.monotonic() < end
        time.sleep(0.05)
    for path in ("/livez", "/readyz", "/metrics"):
        used, slowest = master.cpu_s(), min(slowest_of_fifty(port, path) for _ in range(5))
        # All fifty within 0.2 s of the master's processor, whoever else uses it; and nobody waits for a backend.
        assert (master.cpu_s() - used) / 5 < 0.2
        assert slowest < 0.9


def slowest_of_fifty(port: int, path: str) -> float:
    """Return the seconds that the slowest of fifty takes that ask at once."""
    asked = []
    for _ in range(50):
        sock = socket.create_connection(("127.0.0.1", port), 10)
        asked.append(sock)
    began = time.monotonic()
    for sock in asked:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    for sock in asked:
        assert sock.recv(1 << 20).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
    took = time.monotonic() - began
    for sock in asked:
        while sock.recv(1 << 20):
            pass
        sock.close()
    return took


def test_whoever_may_not_listen_is_told_in_one_line(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = stage.folder / "pool.toml"
        config.write_text(f'[master]\nlisten = "127.0.0.1:0"\n{http(taken.getsockname()[1])}')
        done = stage.run("master", "--config", str(config))
    assert done.returncode == 1
    assert "cannot_listen" in done.stderr
    config.write_text('[http]\nlisten = "0.0.0.0:7080"\n')
    done = stage.run("check", str(config))
    assert done.returncode == 2
    assert "tokens_file: is missing" in done.stderr
