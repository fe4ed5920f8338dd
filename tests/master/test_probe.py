"""What makes a backend one that works: both answers, and nothing less."""

from __future__ import annotations

from typing import Any

import pytest

from lambdamu.errors import LinkError
from lambdamu.messages import Message
from master.probe import Probe, Questions

TASK = Message("Auth", "Value", "TaskObject", "Task-1")
COUNT = Message("System", "Value", "UserCount", 7)


def count_of(data: Any) -> Message:
    return Message("System", "Value", "UserCount", data)


@pytest.mark.parametrize(
    "batches",
    [
        [[TASK], [COUNT]],
        [[COUNT], [TASK]],
        [[TASK, COUNT]],
        [[COUNT, TASK]],
        [[], [Message("Chat", "Value", "News", "hello"), TASK], [COUNT]],
        [[Message("Auth", "Value", "TaskObject", b"Task-1"), COUNT]],
        [[Message("Auth", "Event", "Hello"), TASK, COUNT]],
    ],
)
def test_both_answers_in_any_order_and_any_batches_complete_a_probe(batches: list[list[Message]]) -> None:
    probe = Probe(needs_task=True)
    for batch in batches:
        assert not probe.complete
        probe.take(batch)
    assert probe.complete
    assert probe.count == 7


@pytest.mark.parametrize("batch", [[], [TASK], [COUNT], [Message("Auth", "Value", "Session", "s")]])
def test_one_answer_is_not_enough(batch: list[Message]) -> None:
    probe = Probe(needs_task=True)
    probe.take(batch)
    assert not probe.complete


def test_the_count_alone_is_enough_on_a_connection_that_is_authenticated() -> None:
    probe = Probe(needs_task=False)
    probe.take([COUNT])
    assert probe.complete


@pytest.mark.parametrize("count", [0, 1, 2**53 - 1])
def test_a_count_is_any_number_of_users(count: int) -> None:
    probe = Probe(needs_task=False)
    probe.take([count_of(count)])
    assert probe.count == count


@pytest.mark.parametrize(
    "value",
    [-1, -2, float("nan"), float("inf"), 1e308, 3.5, 3.0, "12", b"12", True, False, [], {}, None, 2**53, 2**63],
)
def test_no_other_value_is_a_count(value: Any) -> None:
    probe = Probe(needs_task=False)
    with pytest.raises(LinkError) as caught:
        probe.take([count_of(value)])
    assert caught.value.why == "bad_count"
    assert not probe.complete


@pytest.mark.parametrize("value", ["", None, b"", b"\xff", 5, True, [], {}])
def test_no_other_value_names_a_task(value: Any) -> None:
    probe = Probe(needs_task=True)
    with pytest.raises(LinkError) as caught:
        probe.take([Message("Auth", "Value", "TaskObject", value), COUNT])
    assert caught.value.why == "bad_auth"


@pytest.mark.parametrize(
    ("lm_object", "name", "why"),
    [
        ("Auth", "UserName", "bad_auth"),
        ("System", "UserCount", "bad_count"),
        ("Master", "Error", "not_the_protocol"),
    ],
)
def test_an_error_is_an_answer_that_fails_the_probe(lm_object: str, name: str, why: str) -> None:
    with pytest.raises(LinkError) as caught:
        Probe(needs_task=True).take([Message(lm_object, "Error", name, {"Code": "Full", "Text": "\x1b[31m"})])
    assert caught.value.why == why
    assert str(caught.value).isprintable()


def test_the_questions_are_two_batches() -> None:
    questions = Questions.of("lambdamu-master", "master@localhost")
    assert questions.auth[0] == 0x92
    assert questions.count[0] == 0x91
