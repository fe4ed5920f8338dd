"""Some of the asks in the log: few, and with no client's id."""

from __future__ import annotations

from typing import Any

import structlog

from master.answer_log import Answer, hash_of
from master.ask_samples import SampledAnswers


def test_at_most_ten_asks_a_second_are_logged_and_all_are_noted() -> None:
    capture = structlog.testing.LogCapture()
    log: Any = structlog.wrap_logger(None, processors=[capture])
    answers = SampledAnswers(log)
    for i in range(10_000):
        answer = Answer(
            i / 1000, hash_of("hush"), "203.0.113.0/24", "a", "OK", "best", "b1", (("b1", 1.5), ("b2", 2.0))
        )
        (answers.note if i % 2 else answers.note_plain)(answer)
    assert 95 <= len(capture.entries) <= 101
    assert len(capture.entries) + sum(entry["left_out"] for entry in capture.entries) >= 9_900
    assert len(answers) == answers.limit
    assert capture.entries[-1] | {"left_out": 0} == {
        "event": "ask",
        "log_level": "debug",
        "client": hash_of("hush"),
        "network": "203.0.113.0/24",
        "zone": "a",
        "result": "OK",
        "reason": "best",
        "backend": "b1",
        "loads": ["b1 1.5", "b2 2"],
        "left_out": 0,
    }
