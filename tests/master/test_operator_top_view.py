"""What `lambdamu top` shows: as lines, and drawn on a screen of a fixed size."""

from __future__ import annotations

import io
import time
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group

from master.operator_top_view import BAR, Look, Sort, bar, block, lines, read_look

NOON = time.mktime((*time.localtime()[:3], 12, 0, 0, 0, 0, -1))


def backend(name: str, **more: Any) -> dict[str, Any]:
    row = {
        "name": name,
        "state": "ready",
        "why": "",
        "users": 0,
        "capacity": None,
        "load": 0.0,
        "report_age_s": 0.4,
        "assignments_per_s": 1.0,
        "probe_failures": 0,
        "admin": None,
    }
    return row | more


def look(*rows: dict[str, Any], events: int = 0, **more: Any) -> Look:
    told: dict[str, Any] = {
        "verdict": "2 of 2 backends take clients",
        "ready": True,
        "unready": "",
        "connections": 3,
        "asks_per_s": {"OK": 120.25, "NoServer": 0.0},
        "backends": list(rows),
        "events": [
            {"number": i, "at": NOON, "kind": "backend_up", "backend": "b1", "text": f"event {i}"}
            for i in range(events)
        ],
    }
    return read_look("http://m:7080", NOON, told | more)


def names(shown: Look, sort: Sort, height: int) -> list[str]:
    """Return the first words of the lines below the heads."""
    found = [line.plain.split()[0] for line in lines(shown, sort, 100, height) if line.plain.strip()]
    return found[found.index("BACKEND") + 1 :]


def draw(shown: Look, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=width, height=height, color_system=None)
    console.print(Group(*lines(shown, Sort.NAME, width, height)))
    return console.export_text().splitlines()


def test_of_a_cache_alone_no_pool_is_shown() -> None:
    shown = look(alone=True, verdict="the cache has 1 session")
    assert block(shown, Sort.NAME) == ["http://m:7080  12:00:00", "the cache has 1 session", ""]


def test_a_look_is_told_in_plain_lines() -> None:
    drain = {"state": "drain", "who": "ann", "reason": "kernel", "until": NOON + 60}
    shown = look(
        backend("b1", users=40, capacity=100, probe_p50_s=0.0012, probe_p99_s=0.25),
        backend("b2", state="down", why="refused", report_age_s=None, probe_failures=5, failures={"timeout": 5}),
        backend("b3", state="drain", admin=drain),
        events=1,
    )
    assert block(shown, Sort.NAME) == [
        "http://m:7080  12:00:00",
        "2 of 2 backends take clients",
        "asks/s: OK 120.2  NoServer 0.0  connections: 3",
        "",
        "BACKEND  STATE  USERS                REPORT  ASKS/S     P50       P99  FAILED",
        "b1       ready  [####------] 40/100   0.4 s     1.0  1.2 ms  250.0 ms       0",
        "b2       down                0/-          -     1.0       -         -       5",
        "  refused; failed: timeout 5",
        "b3       drain               0/-      0.4 s     1.0       -         -       0",
        "  drain by ann: kernel, until 12:01:00",
        "",
        "12:00:00  backend_up  b1  event 0",
    ]


@pytest.mark.parametrize(
    ("users", "capacity", "shown"),
    [
        (0, 10, "[----------]"),
        (1, 1000, "[#---------]"),
        (5, 10, "[#####-----]"),
        (999, 1000, "[#########-]"),
        (10, 10, "[##########]"),
        (99, 10, "[##########]"),
        (0, 0, "[##########]"),
        (7, None, "            "),
    ],
)
def test_a_bar_is_read_without_colour(users: int, capacity: int | None, shown: str) -> None:
    assert bar(users, capacity) == shown


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_bar_is_full_when_the_backend_is_and_empty_when_it_is(users: int, capacity: int) -> None:
    full = bar(users, capacity).count("#")
    assert (full == BAR) == (users >= capacity)
    assert (full == 0) == (users == 0 < capacity)


@pytest.mark.parametrize(
    ("sort", "order"),
    [(Sort.NAME, "a b c d"), (Sort.USERS, "b c a d"), (Sort.LOAD, "c a b d"), (Sort.ASKS, "d a c b")],
)
def test_rows_go_by_what_was_asked_for(sort: Sort, order: str) -> None:
    rows = [
        backend("d", users=0, load=None, assignments_per_s=9.0),
        backend("c", users=3, load=5.0),
        backend("b", users=9, load=1.0, assignments_per_s=None),
        backend("a", users=3, load=1.0, assignments_per_s=1.0),
    ]
    rows[3]["users"], rows[1]["users"] = 2, 3
    assert names(look(*rows), sort, 50) == order.split()


def test_more_rows_than_there_is_room_for_are_counted() -> None:
    rows = [backend(f"b{i:02}", users=i, why="why" if i == 38 else "") for i in range(40)]
    for height in range(9, 70):
        shown = look(*rows, events=3)
        found = names(shown, Sort.USERS, height)
        kept = [name for name in found if name.startswith("b")]
        assert kept == [f"b{39 - i:02}" for i in range(len(kept))]
        assert len(lines(shown, Sort.USERS, 100, height)) <= height
        more = [word for word in found if word.isdigit()]
        assert more == ([str(40 - len(kept))] if len(kept) < 40 else [])
    assert len(kept) == 40
    assert len([line for line in block(look(*rows), Sort.NAME) if line.startswith("b")]) == 40


@pytest.mark.parametrize(("width", "height"), [(200, 24), (80, 24), (80, 8), (30, 12), (1, 1)])
def test_it_fits_any_screen(width: int, height: int) -> None:
    rows = [backend("a-name-" * 18, why="x" * 300), *(backend(f"b{i}", users=i, capacity=9) for i in range(50))]
    drawn = draw(look(*rows, events=5), width, height)
    assert len(drawn) <= height
    assert all(len(line) <= width for line in drawn)


def test_a_long_name_leaves_room_for_the_figures() -> None:
    drawn = draw(look(backend("n" * 128, users=5, capacity=10)), 80, 24)
    [row] = [line for line in drawn if line.startswith("nnn")]
    assert "~  ready  [#####-----] 5/10" in row
    assert row.rstrip().endswith("0")


def test_what_comes_from_outside_is_text_and_nothing_else() -> None:
    nasty = "[bold red]\x1b[2J\n\u202e[/]"
    admin = {"state": "drain", "who": nasty, "reason": nasty, "until": None}
    rows = [backend(nasty, state=nasty, why=nasty, admin=admin, failures={nasty: 1}), backend("蝸牛🐌")]
    shown = attrs.evolve(look(*rows, verdict=nasty, events=1), lost=nasty)
    for line in (*draw(shown, 400, 40), *block(shown, Sort.NAME)):
        assert line.rstrip().isprintable()
    assert "\n".join(draw(shown, 400, 40)).count("[bold red]\\x1b[2J\\n\\u202e[/]") >= 6


def test_a_master_that_is_lost_or_not_right_says_so() -> None:
    reload = {"ok": False, "at": NOON, "who": "ann", "faults": ["line 3"]}
    shown = attrs.evolve(look(ready=False, unready="stopping", panic=True, reload=reload), lost="cannot be reached")
    head = draw(shown, 120, 20)[1:6]
    assert head[0].startswith("LOST: cannot be reached")
    assert [line.split(":")[0].strip() for line in head[2:4]] == ["this master is not ready", "panic"]
    assert head[4].rstrip().endswith("by ann: line 3")


@pytest.mark.parametrize(
    "told", [{"asks_per_s": {"OK": "x"}}, {"backends": [{}]}, {"backends": [backend("b", users="x")]}]
)
def test_what_is_no_answer_of_a_master_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        look(**told)
