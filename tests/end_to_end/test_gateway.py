"""TLS, gateway and balancers as their operator and a client meet them, by real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import settings

from master.gateway_document import DOCUMENT
from tests.end_to_end.conftest import ASK, START_S, Client, Process, Stage, free_port, wait_for_port, wait_until_up
from tests.lambdamu.test_proxy_protocol import header

if os.environ.get("CI"):
    import schemathesis
else:
    schemathesis = pytest.importorskip("schemathesis")

Y2040 = datetime(2040, 1, 1, tzinfo=UTC)
FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"
DOC = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


class TlsClient(Client):
    """A client under TLS."""

    def __init__(self, port: int, authority: trustme.CA) -> None:
        super().__init__(port)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


def write_certificate(folder: Path) -> trustme.CA:
    """Write a certificate and its key by a new authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (folder / "master.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (folder / "master.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "master.key").chmod(0o600)
    return authority


def tls(port: int) -> str:
    return f'[tls]\nlisten = "127.0.0.1:{port}"\ncertificate = "master.pem"\nkey = "master.key"\n'


def gateway(port: int, more: str = "") -> str:
    return f'[gateway]\nlisten = "127.0.0.1:{port}"\n{more}\n'


def get(url: str, data: Any = None, authority: trustme.CA | None = None, **headers: str) -> tuple[int, Any]:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    context = ssl.create_default_context()
    if authority is not None:
        authority.configure_trust(context)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def wait_for(master: Process, event: str, number: int = 1) -> list[dict[str, Any]]:
    end = time.monotonic() + START_S
    while len(found := master.events(event)) < number:
        assert time.monotonic() < end, master.stderr
        time.sleep(0.02)
    return found


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A master with a gateway and one backend that lives; the port of the gateway."""
    stage = Stage(tmp_path_factory.mktemp("site"))
    try:
        _, alive = stage.server()
        port = free_port()
        master, _ = stage.master(alive, text=FAST + gateway(port, 'origins = ["https://game.example"]'))
        wait_for_port(port, master)
        wait_until_up(master, 1)
        yield port
    finally:
        stage.end()


def test_people_wait_on_a_page_where_the_configuration_says_so(stage: Stage) -> None:
    _, alive = stage.server()
    port = free_port()
    (stage.folder / "texts").mkdir()
    (stage.folder / "texts" / "de.json").write_text('{"ready": "Los geht\u2019s"}', encoding="utf-8")
    master, _ = stage.master(alive, text=FAST + gateway(port, 'wait_page = true\nwait_texts = "texts"'))
    wait_for_port(port, master)
    wait_until_up(master, 1)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/wait/default", headers={"Accept-Language": "de"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        page = answer.read().decode()
    assert "Los geht\u2019s" in page
    assert f">127.0.0.1:{alive}<" in page


schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT))
PROMISES = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]


@schema.parametrize()
@settings(max_examples=60, deadline=None)
def test_every_answer_is_one_that_the_document_promises(case: Any, site: int) -> None:
    case.call_and_validate(base_url=f"http://127.0.0.1:{site}", checks=PROMISES)


@pytest.mark.parametrize("command", re.findall(r"^(curl .*)$", DOC, re.MULTILINE))
def test_the_commands_of_the_document_work_as_they_stand_there(command: str, site: int) -> None:
    command = command.replace("127.0.0.1:7081", f"127.0.0.1:{site}")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert '"Result":"OK"' in done.stdout or "openapi" in done.stdout or "HTTP/1.1 204" in done.stdout


def test_every_entrance_answers_and_a_reload_brings_a_new_certificate_whole_or_not_at_all(stage: Stage) -> None:
    old = write_certificate(stage.folder)
    _, backend = stage.server()
    secure, plain, page = free_port(), free_port(), free_port()
    text = f'{FAST}{tls(secure)}{gateway(plain, "tls = true")}[http]\nlisten = "127.0.0.1:{page}"\n'
    master, port = stage.master(backend, text=text)
    wait_until_up(master, 1)
    told = {"Result": "OK", "Data": {"IP": "127.0.0.1", "Port": backend}}
    url = f"https://127.0.0.1:{plain}/v1/server"
    assert {(each["entrance"], each["address"]) for each in master.events("listening_too")} == {
        ("tls", f"127.0.0.1:{secure}"),
        ("gateway", f"127.0.0.1:{plain}"),
    }
    with TlsClient(secure, old) as before, Client(port) as without:
        assert before.ask() == without.ask() == told
        assert get(url, authority=old) == (200, told)
        expiry = 'lambdamu_certificate_expiry_timestamp_seconds{entrance="tls"}'
        ends = metric(page, expiry)

        (stage.folder / "master.key").write_text("rubbish")
        master.signal(signal.SIGHUP)
        [refused] = wait_for(master, "reload_refused")
        assert "[tls]: key: " in refused["error"]
        assert refused["other_faults"] == 0
        assert metric(page, expiry) == ends
        assert get(url, authority=old) == (200, told)

        new = trustme.CA()
        issued = new.issue_cert("localhost", "127.0.0.1", not_after=Y2040)
        (stage.folder / "master.pem").write_bytes(issued.cert_chain_pems[0].bytes())
        (stage.folder / "master.key").write_bytes(issued.private_key_pem.bytes())
        master.signal(signal.SIGHUP)
        wait_for(master, "reloaded")
        assert get(url, authority=new) == (200, told)
        with TlsClient(secure, new) as after:
            assert after.ask() == before.ask() == told
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsClient(secure, old)
        assert metric(page, expiry) == Y2040.timestamp()
    assert "Traceback" not in master.stderr


def test_a_client_without_a_screen_asks_under_tls_and_says_whom_it_does_not_trust(
    stage: Stage, command_line: Any
) -> None:
    ca, strangers = stage.folder / "ca.pem", stage.folder / "strangers.pem"
    write_certificate(stage.folder).cert_pem.write_to_path(ca)
    trustme.CA().cert_pem.write_to_path(strangers)
    _, backend = stage.server()
    secure = free_port()
    master, _ = stage.master(backend, text=FAST + tls(secure))
    wait_until_up(master, 1)
    client = ("client", "--master", f"127.0.0.1:{secure}", "--tls", "--ca")
    went = stage.run(*client, str(ca))
    assert (went.returncode, went.stderr) == (0, "")
    assert went.stdout.startswith(f"127.0.0.1:{backend} Task-")
    code, shown, complaint = command_line(*client, str(strangers), "--clients", "2", "--json")
    assert (code, json.loads(shown)["failed"]) == (1, 2)
    why = f"lambdamu client: 2 x master 127.0.0.1:{secure}: its certificate is not good: "
    assert complaint.startswith(why)
    assert complaint.count("\n") == 1


def test_authorities_that_are_not_there_are_named(command_line: Any, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    code, _, complaint = command_line("client", "--master", "127.0.0.1:7443", "--tls", "--ca", str(ca))
    assert (code, complaint) == (2, f"lambdamu client: {ca} cannot be read: No such file or directory\n")


@pytest.mark.parametrize("options", [["--ca", "ca.pem"], ["--tls", "--key", "a.key"], ["--tls", "--tls-name", "a b"]])
def test_options_of_tls_that_do_not_fit_are_bad_usage(command_line: Any, options: list[str]) -> None:
    code, _, complaint = command_line("client", "--master", "127.0.0.1:7443", *options)
    assert code == 2
    assert "go with --tls" in complaint or "go together" in complaint or "nor a host name" in complaint


def test_check_names_a_key_that_is_not_there(stage: Stage) -> None:
    write_certificate(stage.folder)
    (stage.folder / "pool.toml").write_text(tls(7443))
    (stage.folder / "master.key").unlink()
    done = stage.run("check", str(stage.folder / "pool.toml"))
    key = stage.folder / "master.key"
    assert done.returncode == 2
    assert f"[tls]: key: {key} cannot be read: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_balancer_says_whose_connection_it_is_and_nobody_else_may(stage: Stage) -> None:
    _, backend = stage.server()
    page, plain = free_port(), free_port()
    proxies = 'trusted_proxies = ["127.0.0.1"]\n'
    text = f'[master]\n{proxies}{FAST}{gateway(plain, proxies)}[http]\nlisten = "127.0.0.1:{page}"\n'
    master, port = stage.master(backend, text=text)
    wait_until_up(master, 1)
    with Client(port) as client:
        client.send(header("203.0.113.7") + ASK)
        assert client.receive()[0]["Data"]["Result"] == "OK"
    with Client(port) as client:
        client.send(ASK)
        assert client.receive()[0]["Data"]["Code"] == "BadMessage"
        assert client.receive() is None
    assert (
        get(f"http://127.0.0.1:{plain}/v1/server", {"Client": "ann"}, **{"X-Forwarded-For": "198.51.100.9"})[0] == 200
    )
    told = stage.run("why", "ann", "--url", f"http://127.0.0.1:{page}")
    assert "198.51.100.0/24" in told.stdout, told.stderr


def test_a_stop_answers_what_was_asked_at_each_entrance_and_ends(stage: Stage) -> None:
    authority = write_certificate(stage.folder)
    _, backend = stage.server()
    secure, plain = free_port(), free_port()
    master, port = stage.master(backend, text=f"[master]\ngrace_s = 3.0\n{FAST}{tls(secure)}{gateway(plain)}")
    wait_until_up(master, 1)
    half_a_body = b"POST /v1/server HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{"
    silent = socket.create_connection(("127.0.0.1", secure))
    silent.sendall(b"\x16\x03\x01")
    with Client(port) as one, TlsClient(secure, authority) as two, Client(plain) as three:
        assert one.ask() == two.ask()
        three.send(half_a_body)
        for client in (one, two):
            client.send(ASK)
        master.signal(signal.SIGTERM)
        assert [client.receive()[0]["Data"]["Result"] for client in (one, two)] == ["OK", "OK"]
        assert one.receive() is two.receive() is None
    silent.close()
    assert master.wait(5) == 0
    assert "Traceback" not in master.stderr
