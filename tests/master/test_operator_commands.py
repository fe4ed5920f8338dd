"""What `lambdamu status` says to people."""

from __future__ import annotations

from typing import Any

import pytest

from master.operator_commands import moment, notices

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
