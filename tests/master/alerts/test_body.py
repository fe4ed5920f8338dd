"""The body of a post: the form that is documented, and nothing from outside does more than stand in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
from hypothesis import given
from hypothesis import strategies as st

from master.alerts.body import About, make_body
from master.alerts.matters import RULES, Change, change_of
from master.alerts.outbox import MOST_CHANGES, Post
from master.event_log import Event

DOC = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
ABOUT = About("10.0.0.1:7000", "0.1.0")
WALL = 1796005800.0  # 2026-11-30 02:30 UTC


def change(at: float, kind: str, backend: str, text: str) -> Change:
    return change_of(Event(1, at, kind, backend, text), RULES[kind], aside=False)


def test_the_example_of_the_document_is_what_is_posted() -> None:
    down = change(0.113, "backend_down", "b1", "it refused the connection")
    up = attrs.evolve(change(0.87, "backend_up", "b2", "ready"), times=7)
    body = make_body(Post(1.25, (down, up), 0), ABOUT, lambda at: WALL + at)
    examples = re.findall(r"^```json\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
    assert json.loads(body) in [json.loads(example) for example in examples]


def test_every_kind_that_is_told_is_documented_and_no_other() -> None:
    section = DOC.split("\n## The webhook\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [" ".join(row.split("|")[1:3]) for row in rows]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(RULES)


@given(st.text(), st.text(max_size=1000))
def test_whatever_a_backend_says_it_is_one_line_that_calls_nobody(name: str, said: str) -> None:
    down = change(0.0, "backend_down", name, f"<!channel> @all\n{said}")
    body = make_body(Post(1.0, (down,) * MOST_CHANGES, 3), ABOUT, lambda at: WALL + at)
    got = json.loads(body)
    assert body.count(b"\n") == 0
    assert not set("<>@\n") & set(got["text"])
    assert got["text"].endswith("; and 48 more")
    assert len(got["changes"]) == MOST_CHANGES
