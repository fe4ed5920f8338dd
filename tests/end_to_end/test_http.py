"""The operators' side of a real master: all that its document promises, and a stop that nobody holds up."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
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
    """A master with one backend that lives and one that does not; its HTTP port."""
    stage = Stage(tmp_path_factory.mktemp("site"))
    try:
        _, alive = stage.server()
        port = free_port()
        master, clients = stage.master(alive, free_port(), text=FAST + http(port))
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
