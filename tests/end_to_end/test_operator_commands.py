"""`lambdamu status`, `why` and `explain` against a real master."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import msgpack
import pytest

from master.answer_log import PLAIN_EVERY_S, hash_of
from tests.end_to_end.conftest import START_S, Client, Stage, free_port, wait_for_port, wait_until_up

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n[choice]\nfirst_round_s = 0\n"
TOKEN = "a-token-of-many-letters"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("operators"))
    yield stage
    stage.end()


@pytest.fixture(scope="module")
def url(stage: Stage) -> str:
    """The URL of a master with tokens, a live backend and a dead one, of which "ann" asked once and others twice."""
    (stage.folder / "tokens").write_text(f"ann: {TOKEN}: read\n")
    _, alive = stage.server("--users", "7")
    port = free_port()
    http = f'[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "tokens"\n'
    master, clients = stage.master(alive, free_port(), text=FAST + http)
    wait_for_port(port, master)
    wait_until_up(master, 1)
    with Client(clients) as client:
        data = {"Client": "ann", "Zone": "a"}
        client.send(msgpack.packb([{"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": data}]))
        assert client.receive()[0]["Data"]["Result"] == "OK"
        for _ in range(2):  # the second one is known by its bytes
            client.send(msgpack.packb([{"Object": "Master", "Command": "Event", "Name": "DoSendServer"}]))
            client.receive()
            time.sleep(2 * PLAIN_EVERY_S)
    return f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMBDAMU_TOKEN", TOKEN)


def test_the_status_has_the_verdict_and_a_line_for_each_backend(stage: Stage, url: str) -> None:
    end = time.monotonic() + START_S
    done = stage.run("status", "--url", url)
    while "Connection refused" not in done.stdout and time.monotonic() < end:  # it is found dead in its own time
        done = stage.run("status", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    verdict, heads, first, second = done.stdout.splitlines()
    assert verdict.startswith("1 of 2 backends takes clients")
    assert heads.split()[:3] == ["BACKEND", "STATE", "USERS"]
    assert first.split()[1:3] == ["ready", "10/-"]  # 7 and those three
    assert "Connection refused" in second
    got = json.loads(stage.run("status", "--json", "--url", url).stdout)
    assert (got["takers"], len(got["backends"])) == (1, 2)


@pytest.mark.parametrize("who", ["ann", hash_of("ann")[:8], "127.0.0.1"])
def test_why_finds_the_answer_of_a_client(stage: Stage, url: str, who: str) -> None:
    done = stage.run("why", who, "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if "no id" not in line]
    for part in (hash_of("ann")[:12], "from 127.0.0.0/24", "zone a", "sent to 127.0.0.1:", "best", "loads: "):
        assert part in line


def test_why_finds_plain_asks_by_their_network(stage: Stage, url: str) -> None:
    lines = stage.run("why", "127.0.0.9", "--url", url).stdout.splitlines()
    plain = [line for line in lines if "no id from 127.0.0.0/24" in line]
    assert len(plain) == 2
    assert all("sent to 127.0.0.1:" in line and "loads: " in line for line in plain)


def test_why_of_a_stranger_says_that_nothing_is_kept(stage: Stage, url: str) -> None:
    done = stage.run("why", "bob", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no answer to such a client is kept\n")


def test_explain_says_what_would_be_answered_now(stage: Stage, url: str) -> None:
    done = stage.run("explain", "--url", url, "--zone", "a")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    chosen, reason = lines[0].rsplit(": ", 1)
    assert lines[2].split()[:2] == [chosen, reason]
    assert lines[3].split()[1] == "unprobed"
    for option in ("--device", "--client", "--zone"):
        odd = stage.run("explain", "--url", url, option, "\udcff")  # a byte that is no text
        assert (odd.returncode, odd.stderr) == (0, "")


@pytest.mark.parametrize(
    ("token", "said"),
    [("", "Error: refused (401): a token is needed: set LAMBDAMU_TOKEN\n"), ("wrong", "refused (401)")],
)
def test_without_the_token_it_is_refused(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    monkeypatch.setenv("LAMBDAMU_TOKEN", token)
    done = stage.run("status", "--url", url)
    assert done.returncode == 1
    assert said in done.stderr
    assert TOKEN not in done.stderr


def test_a_master_that_cannot_be_reached_is_one_line(stage: Stage) -> None:
    done = stage.run("status", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("cannot be reached: Connection refused\n")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://", "http://127.0.0.1:99999", "http://[::1", "http://h:x"]
)
def test_what_is_no_url_of_a_master_is_one_line(stage: Stage, url: str) -> None:
    done = stage.run("status", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {url} is not the URL of a master, such as http://127.0.0.1:7080\n"


@pytest.mark.parametrize("end", ["\r", "\n", "\udcff", "\u20ac"])
def test_a_token_with_what_no_token_has_is_not_shown(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("LAMBDAMU_TOKEN", TOKEN + end)
    done = stage.run("status", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: LAMBDAMU_TOKEN has what no token has, such as the end of a line\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[1]",
        b"HTTP/1.0 302 F\r\nLocation: http://127.0.0.1:9/\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_is_none_is_one_line(stage: Stage, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        done = stage.run("status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
