"""The log: nothing floods it, and no text from outside writes a line of its own."""

from __future__ import annotations

import json

import pytest

from master.log import Throttle, make_logger


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
def test_texts_from_outside_stay_in_their_line(text: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    make_logger(json=as_json).warning("event", backend=text)
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert output.rstrip("\n").isprintable() or not as_json
    assert text not in output
    if as_json:
        assert json.loads(output)["event"] == "event"
