"""What `lambdamu queue`, `why` and `status` say of the queue to people."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from master import operator_commands, operator_completion, operator_queue
from master.operator_client import Json
from master.operator_commands import moment, notices, why
from master.operator_completion import complete_queue
from master.operator_queue import queue

LINE = {
    "queue": "default",
    "waiting": 1234,
    "lanes": {"resume": 1, "vip": 3, "plain": 1230},
    "template": "default",
    "per_minute": 300.0,
    "drain_per_s": 2.0,
    "planned_per_s": 1.5,
    "show_rate": 0.9,
    "at_once": False,
    "eta_s": 740.0,
    "eta90_s": 900.0,
}
EMPTY = LINE | {"queue": "match-1", "waiting": 0, "lanes": {"resume": 0, "vip": 0, "plain": 0}, "per_minute": None}
EMPTY |= {"drain_per_s": None, "planned_per_s": None, "at_once": True, "eta_s": None, "eta90_s": None}
ORDER = {"queue": "", "who": "ann", "reason": "a fire", "at": 1.7e9, "mode": "hold", "text": None, "per_minute": "none"}
WHOLE: Json = {
    "mode": "hold",
    "waiting": 1234,
    "called": 12,
    "held": 4,
    "limit": "places",
    "reason": "FewerBackends",
    "limits": {"free_places": 0, "max_calls": 10000, "per_minute": 300.0},
    "load": {"target_load": 0.9, "users": 540, "places": 540, "serving": 2, "wanted": 3, "cpu": 0.64},
    "loop": {"control": "on", "by": "loop", "planned_per_s": 3.0, "per_s": 3.0},
    "promises": {"kept": 93, "broken": 7, "share": 0.93},
    "gone": {"left": 3, "lapsed": 20, "missed": 4, "returned": 2, "share": 0.25},
    "counts": {"claimed": 75},
    "store": {"failing": False, "unwritten": 12, "written_s_ago": 0.1},
    "orders": [ORDER | {"target_load": None}],
    "count": 3,
    "queues": [LINE, EMPTY],
}
SAID = f"""\
1234 wait, 12 called, 4 held on their connections; mode hold
nobody more is called: no place is free (FewerBackends)
mode hold, per_minute none by ann at {moment(1.7e9)}: a fire
load: 540 users, 540 places at a target load of 0.9, CPU 64 %; 2 of 3 backends serve
pace: 180.0/min by the control loop; the loop, on, plans 180.0/min
limits: 0 free places, 12 of 10000 calls, 300/min
promises: 93 % of 100 came true
gone: 25 % (left 3, lapsed 20, missed their call 4, came back 2); let in 75
store: is written, 12 changes are not in it
QUEUE    WAIT  RESUME  VIP  PLAIN  LET IN     PLANNED   WHO JOINS WAITS  9 IN 10  LIMIT
default  1234  1       3    1230   120.0/min  90.0/min  12 min           15 min   300/min
match-1  0     0       0    0      -          -         not at all       -        -
1 more, in which fewer wait
"""


class FakeMaster:
    def __init__(self, got: Json) -> None:
        self.got = got
        self.asked: list[tuple[str, str, Any]] = []

    def get(self, _url: str, path: str, **_query: str) -> Json:
        self.asked.append(("GET", path, None))
        return self.got

    def post(self, _url: str, path: str, body: Json) -> Json:
        self.asked.append(("POST", path, body))
        return {"queue": "x", "wanted": "per_minute 3", "who": "ann"}


def run(monkeypatch: pytest.MonkeyPatch, master: FakeMaster, command: click.Command, *arguments: str) -> Any:
    for module in (operator_queue, operator_commands):
        monkeypatch.setattr(module, "get", master.get)
    monkeypatch.setattr(operator_queue, "post", master.post)
    return CliRunner().invoke(command, arguments)


def test_the_whole_queue_is_said_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, FakeMaster(WHOLE), queue).stdout == SAID


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"loop": WHOLE["loop"] | {"by": "manual", "per_s": 0.5}}, "pace: 30.0/min by hand; the loop, on, plans 180.0"),
        ({"loop": WHOLE["loop"] | {"per_s": None}}, "pace: only the places set it; the loop, on, plans 180.0/min"),
        ({"loop": WHOLE["loop"] | {"by": "frozen"}}, "plans 180.0/min; it is frozen, the news of the backends is too"),
        ({"loop": WHOLE["loop"] | {"by": "no_news", "planned_per_s": None}}, "the loop, on, plans -"),
        ({"load": WHOLE["load"] | {"places": None, "cpu": None}}, "load: 540 users, no limit at a target load of 0.9;"),
        ({"promises": {"kept": 0, "broken": 0, "share": None}}, "promises: - of 0 came true"),
        (
            {"store": {"failing": True, "unwritten": 7, "written_s_ago": 61.0}},
            "store: cannot be written for 61 s, 7",
        ),
        ({"limit": "something new"}, "nobody more is called: something new (FewerBackends)"),
    ],
)
def test_what_differs_is_said(monkeypatch: pytest.MonkeyPatch, more: Json, line: str) -> None:
    assert line in run(monkeypatch, FakeMaster(WHOLE | more), queue).stdout


def test_one_queue_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    master = FakeMaster(LINE)
    done = run(monkeypatch, master, queue, "a/b c")
    assert done.stdout.splitlines() == SAID.splitlines()[-4:-2]
    assert master.asked == [("GET", "/api/v1/queue/a%2Fb%20c", None)]


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("--mode", "closed", "--text", ""), {"mode": "closed", "text": ""}),
        (("--per-minute", "none"), {"per_minute": "none"}),
        (("--per-minute", "0", "--load", "0.8"), {"per_minute": 0.0, "target_load": 0.8}),
        (("--reset",), {"reset": True}),
    ],
)
def test_a_change_is_sent_with_its_reason_and_what_came_of_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], body: Json
) -> None:
    master = FakeMaster(WHOLE)
    assert run(monkeypatch, master, queue, *arguments, "--why", "x").stdout == SAID
    path = "/api/v1/queue"
    assert master.asked == [("POST", path, body | {"reason": "x"}), ("GET", path, None)]


def test_a_change_of_one_queue_says_what_is_wanted_as_it_need_not_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    master = FakeMaster({})
    done = run(monkeypatch, master, queue, "x", "--per-minute", "3", "--reason", "small")
    assert done.stdout == "queue x: per_minute 3\n"
    assert master.asked == [("POST", "/api/v1/queue/x", {"per_minute": 3.0, "reason": "small"})]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mode", "hold"), "a change needs --why"),
        (("--why", "x"), "--why goes with a change"),
        (("--per-minute", "many", "--why", "x"), "'many' is neither a number nor none"),
        (("", "--per-minute", "3", "--why", "x"), "a queue has a name"),
    ],
)
def test_a_wrong_command_asks_nobody(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str) -> None:
    master = FakeMaster(WHOLE)
    done = run(monkeypatch, master, queue, *arguments)
    assert (done.exit_code, master.asked) == (2, [])
    assert said in done.stderr


def test_why_says_where_a_client_stands_also_when_no_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"queue": "default", "lane": "vip", "stage": "waiting", "ahead": 7, "joined_at": 1.7e9, "ends_in_s": 29.7}
    got = {"answers": [], "place": place | {"away": False, "held": False}}
    done = run(monkeypatch, FakeMaster(got), why, "ann")
    assert done.stdout == (
        f"its place in queue default: waiting in the vip lane, 7 before it; joined at {moment(1.7e9)}, "
        "ends in 30 s if it does not ask again\n"
    )


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (None, []),
        ({"waiting": 0, "called": 0, "mode": "auto", "reason": "InLine"}, []),
        (
            {"waiting": 9, "called": 1, "mode": "auto", "reason": "NoPlace"},
            ["queue: 9 wait, 1 called, mode auto (NoPlace)"],
        ),
        (
            {"waiting": 0, "called": 0, "mode": "hold", "reason": "Held"},
            ["queue: 0 wait, 0 called, mode hold (Held)"],
        ),
    ],
)
def test_the_status_has_a_line_for_a_queue_in_which_something_is_up(told: Any, lines: list[str]) -> None:
    assert list(notices({"ready": True, "unready": "", "queue": told})) == lines


def test_queues_that_a_master_tells_of_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_completion, "get", FakeMaster(WHOLE).get)
    context = click.Context(queue)
    assert [item.value for item in complete_queue(context, queue.params[0], "ma")] == ["match-1"]
    monkeypatch.setattr(operator_completion, "get", FakeMaster({"error": "there is no queue"}).get)
    assert complete_queue(context, queue.params[0], "") == []
