"""The log: nothing floods it, and no text from outside writes a line of its own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from master.log import Sink, Throttle, make_logger


def test_an_event_is_let_through_once_in_its_period_and_tells_what_was_held_back() -> None:
    throttle = Throttle(10.0)
    assert [throttle.let_through(now) for now in (0.0, 1.0, 9.9, 10.0, 10.1, 30.0)] == [0, None, None, 2, None, 1]


def test_a_burst_is_let_through_before_the_period_counts() -> None:
    throttle = Throttle(10.0, burst=3)
    assert [throttle.let_through(0.0) for _ in range(5)] == [0, 0, 0, None, None]
    assert throttle.let_through(10.0) == 2
    assert throttle.let_through(10.1) is None


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "a\u2028b", "tab\there"])
@pytest.mark.parametrize("as_json", [True, False])
def test_texts_from_outside_stay_in_their_line(text: str, as_json: bool, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        make_logger(Sink(file.fileno()), json=as_json).warning("event", backend=text)
    output = (tmp_path / "log").read_text()
    assert output.count("\n") == 1
    assert output.rstrip("\n").isprintable() or not as_json
    assert text not in output
    if as_json:
        assert json.loads(output)["event"] == {"action": "event"}


def test_a_line_is_cut_where_a_pipe_would_not_take_it_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        Sink(file.fileno()).msg("x" * 10_000)
    assert 1000 < len((tmp_path / "log").read_text()) <= 4096


def test_without_a_place_to_write_lines_are_dropped_and_counted() -> None:
    sink = Sink(None)
    make_logger(sink, json=True).info("event")
    assert sink.dropped == 1


def test_a_full_disk_is_no_reason_to_stop() -> None:
    with Path("/dev/full").open("wb") as full:
        sink = Sink(full.fileno())
        make_logger(sink, json=True).info("event")
    assert sink.dropped == 1


def test_a_reader_that_has_gone_or_stalled_holds_nobody_up() -> None:
    reader, writer = os.pipe()
    sink = Sink(writer)
    log = make_logger(sink, json=True)
    for i in range(2000):
        log.info("event", text="x" * 100, number=i)
    assert 0 < sink.dropped < 2000
    os.close(reader)
    before = sink.dropped
    log.info("event")
    assert sink.dropped == before + 1
    os.close(writer)


ECS = {"@timestamp", "log.level", "message", "ecs.version", "event.action", "error.message", "service.name"}
EVENTS: list[tuple[str, str, dict[str, object], str]] = [
    ("info", "stopped", {}, "stopped"),
    ("warning", "backend_down", {"backend": "b1", "text": "it refused", "left_out": 2}, "backend down: b1: it refused"),
    ("warning", "backend_down", {"backend": "h:1", "text": "h:1: it refused"}, "backend down: h:1: it refused"),
    ("warning", "backend_down", {"backend": "h:1", "text": "h:10 is away"}, "backend down: h:1: h:10 is away"),
    ("warning", "backend_stale", {"backend": "no", "text": "no report"}, "backend stale: no: no report"),
    ("error", "cannot_listen", {"address": "h:1", "error": "in use"}, "cannot listen: h:1: in use"),
    ("info", "listening", {"address": "h:1"}, "listening"),
    ("error", "reload_refused", {"fault": "x: y", "other_faults": 0}, "reload refused: x: y"),
    ("error", "state_not_written", {"error": "disk full"}, "state not written: disk full"),
    ("warning", "config", {"message": "odd", "error": "no"}, "config: odd"),
    ("debug", "ask", {"client": None, "loads": ["b1 1.5"], "until_s": 1.5}, "ask"),
]


def flat(value: object, name: str = "") -> dict[str, object]:
    """Return the fields by their full names, as Elasticsearch sees them."""
    if not isinstance(value, dict):
        return {name: value}
    inner = [flat(each, f"{name}.{key}".lstrip(".")) for key, each in value.items()]
    return {full: leaf for fields in inner for full, leaf in fields.items()}


def written(tmp_path: Path, level: str, action: str, fields: dict[str, object], least: str = "debug") -> str:
    with (tmp_path / "log").open("wb") as file:
        getattr(make_logger(Sink(file.fileno()), json=True, level=least), level)(action, **fields)
    return (tmp_path / "log").read_text()


@pytest.mark.parametrize(("level", "action", "fields", "message"), EVENTS)
def test_for_machines_every_field_is_one_of_ecs_or_under_our_own_name(
    level: str, action: str, fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    line = json.loads(written(tmp_path, level, action, fields))
    assert list(line)[:3] == ["@timestamp", "log.level", "message"]  # ECS logging wants these first, and not nested
    assert "ecs.version" in line
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["@timestamp"])
    got = flat(line)
    assert got.keys() - {name for name in got if name.startswith("lambdamu.")} <= ECS
    assert all(re.fullmatch(r"@?[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*", name) for name in got)
    assert (got["log.level"], got["event.action"], got["message"]) == (level, action, message)
    assert got["service.name"] == "lambdamu"
    assert got.get("error.message") == next((fields[key] for key in ("error", "fault", "text") if key in fields), None)
    ours = {key for key, value in fields.items() if value is not None} - {"error", "fault", "text", "message"}
    assert {name.removeprefix("lambdamu.") for name in got if name.startswith("lambdamu.")} == ours


@pytest.mark.parametrize("least", ["debug", "info", "warning", "error"])
def test_what_is_less_than_the_level_is_not_written(least: str, tmp_path: Path) -> None:
    levels = ["debug", "info", "warning", "error"]
    told = [level for level in levels if written(tmp_path, level, "event", {}, least)]
    assert told == levels[levels.index(least) :]
