"""What `lambdamu cache` and `status` say of the cache to people."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from master import operator_cache, operator_commands
from master.operator_cache import cache
from master.operator_client import Json
from master.operator_commands import moment, notices, status

TABLE = {"table": "session", "rows": 12, "bytes": 3000, "evicted": 0, "expired": 4, "refused": 1}
MINUTE = {"seconds": 60.0, "asks_per_s": 300.0, "hit_rate": 0.925, "saved_per_s": 250.04, "calls_per_s": 20.0}
MINUTE |= {"failed_per_s": 1.5}
WARM = {"asks": 900, "hit_rate": 0.5, "saved": 700, "calls": 200, "failures": 3, "app_starts": 40, "warmed": 60}
QUEUE = {"length": 3, "max_length": 3000, "oldest_s": 0.25, "waiting": 7, "max_waiting": 10000, "refused": 1}
WHOLE: Json = {
    "sessions": 12,
    "trouble": [],
    "bytes": 3 * 2**20,
    "max_bytes": 2**28,
    "tables": [TABLE],
    "last_minute": MINUTE | {"refused_per_s": 0.0},
    "warm": WARM,
    "queue": QUEUE | {"put_out": 2, "expired": 3, "cut": 4, "dropped": 5},
    "workers": {"busy": 5, "max": 100, "kinds": [{"kind": "Products.Cards", "busy": 5, "max": 50}]},
    "upstream": [{"peer": "10.0.0.1:9001", "breaker": "closed"}, {"peer": "10.0.0.2:9001", "breaker": "open"}],
    "store": {"failing": False, "unwritten": 12, "written_s_ago": 0.1},
    "connections": {"open": 3, "max": 1000, "refused": 9},
    "keys": [
        {"table": "cache", "name": "cart", "asks": 812, "over": 0},
        {"table": "warm", "name": "Products.Cards", "asks": 90, "over": 4},
    ],
}
SAID = """\
12 sessions; 3.0 MiB of 256.0 MiB
the last minute: 300.0/s asks, 92 % hits, 250.0/s calls saved, 20.0/s calls made, 1.5/s failed, 0.0/s refused
warm data since the start: 900 asks, 50 % hits, 700 calls saved, 200 made, 3 failed; 40 AppStarts began 60 of them
workers: 5 of 100 are busy (Products.Cards 5 of 50)
queue: 3 of 3000 fetches wait, the first for 0.2 s; 7 of 10000 asks wait for one
since the start: 1 refused, 2 put out, 3 expired, 4 cut off, 5 dropped
upstream: 10.0.0.1:9001 closed, 10.0.0.2:9001 open
store: is written, 12 changes are not in it
connections: 3 of 1000, 9 refused
TABLE    ROWS  BYTES  EVICTED  EXPIRED  REFUSED
session  12    3000   0        4        1
ASKED FOR MOST  TABLE  LATELY
cart            cache  812
Products.Cards  warm   86 to 90
"""
VALUE = {"bytes": 6, "looks": "text", "text": None, "base64": None}
ROW = {"type": 1, "version": 2, "renewed_at": 1.7e9, "ends_in_s": 99.0, "ttl_s": 1800.0, "value": VALUE}
SESSION = {
    "session": "abcdef",
    "hash": "0123456789ab",
    "client": "ann",
    **ROW,
    "more": True,
    "entries": [ROW | {"key": "cart"}],
}


class FakeNode:
    def __init__(self, got: Json) -> None:
        self.got = got
        self.asked: list[tuple[str, str, Any]] = []

    def get(self, _url: str, path: str, **query: str) -> Json:
        self.asked.append(("GET", path, query.get("values", "")))
        return self.got

    def delete(self, _url: str, path: str, body: Json) -> Json:
        self.asked.append(("DELETE", path, body))
        return {"session": "0123456789ab", "ended": True, "who": "ann"}


def run(monkeypatch: pytest.MonkeyPatch, node: FakeNode, command: click.Command, *words: str, said: str = "") -> Any:
    for module in (operator_cache, operator_commands):
        monkeypatch.setattr(module, "get", node.get)
    monkeypatch.setattr(operator_cache, "delete", node.delete)
    return CliRunner().invoke(command, words, input=said)


def test_the_whole_cache_is_said_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, FakeNode(WHOLE), cache).stdout == SAID


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"trouble": ["it is not written"]}, "! it is not written\n"),
        ({"last_minute": dict.fromkeys(WHOLE["last_minute"])}, "the last minute: not known yet\n"),
        ({"last_minute": WHOLE["last_minute"] | {"hit_rate": None}}, "asks, - hits"),
        ({"store": None}, "store: none, all of it ends with the process\n"),
        ({"store": {"failing": True, "unwritten": 7, "written_s_ago": 61.0}}, "store: cannot be written for 61 s, 7"),
        ({"warm": None, "upstream": [], "keys": []}, "refused\nworkers: 5 of 100"),
        ({"sessions": 1}, "1 session; 3.0 MiB"),
    ],
)
def test_what_differs_is_said(monkeypatch: pytest.MonkeyPatch, more: Json, line: str) -> None:
    assert line in run(monkeypatch, FakeNode(WHOLE | more), cache).stdout


def test_a_session_is_shown_with_what_is_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode(SESSION)
    done = run(monkeypatch, node, cache, "session", "a/b c")
    assert done.stdout == (
        f"a session of client ann, 0123456789ab by its hash; used last at {moment(1.7e9)}\n"
        "ends in 99 s, or 30 min after it is used\n"
        "type 1, version 2, 6 bytes, text\n"
        "KEY   TYPE  VERSION  WRITTEN OR USED      ENDS IN  VALUE\n"
        f"cart  1     2        {moment(1.7e9)}  99 s     6 bytes, text\n"
        "there are more, which are not shown\n"
    )
    assert node.asked == [("GET", "/api/v1/cache/session/a%2Fb%20c", "")]


def test_values_are_shown_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode(SESSION | {"value": VALUE | {"text": "secret\x1b[2J"}, "entries": []})
    done = run(monkeypatch, node, cache, "session", "-", "--values", said="from a file\n")
    assert "6 bytes, text: secret\\x1b[2J\n" in done.stdout
    assert node.asked == [("GET", "/api/v1/cache/session/from%20a%20file", "1")]


def test_who_uses_a_device_and_what_a_client_has(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"renewed_at": 1.7e9, "ends_in_s": 86400.0}
    device = FakeNode({"device": "phone", "clients": [{"client": "ann"} | times], "more": False})
    at = moment(1.7e9)
    said = f"CLIENT  BOUND                ENDS IN\nann     {at}  24 h\n"
    assert run(monkeypatch, device, cache, "device", "phone").stdout == said
    rows = {"sessions": [ROW | {"session": "abcd…", "hash": "0123"}], "devices": [{"device": "phone"} | times]}
    client = FakeNode({"client": "ann", **rows, "warm": [ROW], "more": False})
    lines = run(monkeypatch, client, cache, "client", "ann").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["SESSION", "abcd…", "DEVICE", "phone", "WARM", "1"]


def test_a_session_is_ended_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode({})
    done = run(monkeypatch, node, cache, "session", "x", "--end", "--why", "stolen")
    assert done.stdout == "session 0123456789ab has ended\n"
    assert node.asked == [("DELETE", "/api/v1/cache/session/x", {"reason": "stolen"})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("session",), "which session? It has an id"),
        (("session", ""), "which session? It has an id"),
        (("client", "ann", "--end", "--why", "x"), "--end is for a session"),
        (("session", "x", "--end"), "an end needs --why"),
        (("--why", "x"), "--why goes with --end"),
        (("client", "ann", "--watch"), "each look-up is noted"),
        (("sessions", "x"), "'sessions' is not one of"),
    ],
)
def test_a_wrong_command_asks_nobody(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    node = FakeNode(WHOLE)
    done = run(monkeypatch, node, cache, *words)
    assert (done.exit_code, node.asked) == (2, [])
    assert said in done.stderr


def test_the_status_of_a_node_for_the_cache_alone_is_that_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"verdict": "the cache has 3 sessions", "ready": True, "unready": "", "takers": 0, "backends": []}
    alone = told | {"alone": True, "cache": {"sessions": 3, "trouble": ["x"]}}
    done = run(monkeypatch, FakeNode(alone), status)
    assert (done.exit_code, done.stdout) == (0, "the cache has 3 sessions\ncache: x\n")
    assert list(notices(alone | {"alone": False})) == ["cache: x"]


def test_the_help_of_a_command_has_all_its_paragraphs_at_one_margin() -> None:
    told = CliRunner().invoke(cache, ["--help"]).stdout
    assert "\n  A look-up needs" in told
    assert "\n  A token, where one is needed" in told
