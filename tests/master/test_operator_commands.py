"""What `lambdamu status` says to people."""

from __future__ import annotations

from typing import Any

import pytest

from master.operator_commands import answer_lines, moment, notices

REFUSED = {"ok": False, "at": 1e9, "who": "ann", "faults": ["pool.toml: line 3: is not TOML"]}
REFUSAL = f"the last reload was refused at {moment(1e9)} by ann: pool.toml: line 3: is not TOML"


@pytest.mark.parametrize(
    ("pool", "lines"),
    [
        ({}, []),
        ({"reload": None}, []),
        ({"reload": REFUSED | {"ok": True, "faults": []}}, []),
        ({"reload": REFUSED}, [REFUSAL]),
        ({"reload": REFUSED | {"faults": [*REFUSED["faults"], "b", "c"]}}, [REFUSAL + " (and 2 more)"]),
        ({"reload": REFUSED | {"faults": []}}, [REFUSAL.partition(" by ann")[0] + " by ann: it is not said why"]),
        ({"cache_node": {"address": "h:1", "connected": True, "trouble": ""}}, []),
        (
            {"cache_node": {"address": "h:1", "connected": False, "trouble": "the cache h:1: refused"}},
            ["cache node h:1: no data are warmed: the cache h:1: refused"],
        ),
        ({"ready": False, "unready": "stopping"}, ["this master is not ready: stopping"]),
    ],
)
def test_what_is_not_as_it_should_be_is_said(pool: dict[str, Any], lines: list[str]) -> None:
    assert list(notices({"ready": True, "unready": ""} | pool)) == lines


@pytest.mark.parametrize(("limit", "first"), [(1, "2 more before these: --limit 3"), (3, None), (20, None)])
def test_of_the_answers_the_latest_are_shown_in_the_order_of_time(limit: int, first: str | None) -> None:
    row = {"client": None, "network": "n", "backend": None, "zone": "", "reason": "full", "loads": []}
    lines = list(answer_lines([row | {"at": 1e9 - number, "result": f"r{number}"} for number in range(3)], limit))
    assert first is None or lines.pop(0) == first
    assert [line.split("  ")[2] for line in lines] == [f"r{number}" for number in reversed(range(min(limit, 3)))]
