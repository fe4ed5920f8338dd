"""What all commands have in common that ask a running master: where it is, with which token, and JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

from master.cli import cli

COMMANDS = {
    "status": ["status"],
    "top": ["top", "--count", "1"],
    "why": ["why", "ann"],
    "explain": ["explain"],
    "drain": ["drain", "b1", "--reason", "x"],
    "ready": ["ready", "b1", "--reason", "x"],
    "maint": ["maint", "b1", "--reason", "x"],
    "reload": ["reload"],
    "check": ["check", "FILE"],
}
TOKEN = "a-token-of-many-letters"
CommandLine = Callable[..., tuple[int, str, str]]


class Refuser(BaseHTTPRequestHandler):
    """Refuses everybody, and notes who came."""

    seen: list[tuple[str | None, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.headers["Authorization"], self.headers["Accept"]))
        self.send_error(401)

    do_POST = do_GET  # noqa: N815 - what it is called there

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture(scope="module")
def refuser() -> Iterator[str]:
    Refuser.seen = []
    with HTTPServer(("127.0.0.1", 0), Refuser) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("by", ["option", "variable"])
def test_each_goes_to_the_url_with_the_token_and_says_in_one_line_that_it_was_refused(
    refuser: str, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, by: str
) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[[backend]]\nhost = "10.0.0.1"\nport = 1\n')
    monkeypatch.setenv("LAMBDAMU_TOKEN", TOKEN)
    command = [str(file) if word == "FILE" else word for word in COMMANDS[name]]
    if name == "check":
        command += ["--diff", refuser]
    elif by == "option":
        command += ["--url", refuser]
    else:
        monkeypatch.setenv("LAMBDAMU_URL", refuser)
    Refuser.seen.clear()
    code, said, complaint = command_line(*command, "--json")
    assert (code, said, len(complaint.splitlines())) == (1, "", 1)
    assert complaint.startswith("Error: refused (401)")
    assert Refuser.seen == [(f"Bearer {TOKEN}", "application/json")]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_says_in_its_help_where_url_and_token_come_from(name: str) -> None:
    command = cli.commands[name]
    text = " ".join(command.get_help(click.Context(command)).split())
    for word in ("LAMBDAMU_TOKEN", "--json", "--diff" if name == "check" else "env var: LAMBDAMU_URL"):
        assert word in text
