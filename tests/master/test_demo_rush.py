"""The rush of the demonstration: what is said of it, and when it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from master.demo_rush import Rush, describe, verdict

FIGURES: dict[str, Any] = {
    "clients": 3000,
    "let_in": 3000,
    "in_order": True,
    "overtaken": 0,
    "wait_s": {"p50": 10.0, "p99": 20.0, "max": 21.0},
    "promises": 100,
    "promises_kept": 95,
    "lost": 40,
    "errors": {},
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"let_in": 2999}, 1),
        ({"in_order": False, "overtaken": 2}, 1),
        ({"errors": {"timeout": 3}}, 0),
        ({"wait_s": {"p50": None, "p99": None, "max": None}, "let_in": 0}, 1),
    ],
)
def test_all_is_well_only_where_everybody_was_let_in_in_order(change: dict[str, Any], code: int) -> None:
    came_to, lines = verdict({**FIGURES, **change})
    assert came_to == code
    assert lines[-1] == ("all is well" if code == 0 else "this is not as it should be")


def test_the_killed_backend_is_named_where_its_connections_went_wrong() -> None:
    _, lines = verdict({**FIGURES, "errors": {"refused": 47, "Closed": 1}})
    assert lines[-4:-1] == [
        "what went wrong on the way, and was tried again:",
        "  47 x refused: logins at the killed backend, before the master knew of its end",
        "  1 x Closed",
    ]


def test_a_line_says_how_the_queue_stands() -> None:
    queue = {
        "waiting": 120,
        "reason": "NoPlace",
        "called": 5,
        "load": {"users": 80, "places": 90, "serving": 2},
        "counts": {"claimed": 300},
        "queues": [{"eta_s": 12.4, "drain_per_s": 9.6}],
    }
    load = "5 called, 80 users of 90 on 2 backends, 300 let in"
    assert describe(queue) == f"  120 wait (NoPlace), {load}, 10 a second, who joins now waits 12 s"
    assert describe({**queue, "waiting": 0, "queues": []}) == f"nobody waits, {load}"


def test_the_crowd_fits_the_time_that_is_given() -> None:
    assert Rush(60).join_s == 15.0
    assert Rush(20).join_s == 5.0
    assert Rush(20).capacity > Rush(120).capacity
