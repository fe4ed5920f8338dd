"""The demonstration of sessions: what is said of it, and when it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from master.demo_phones import Act
from master.demo_sessions import Outcome, verdict


def outcome(**changes: Any) -> Outcome:
    cold = Act(screen_s=[0.21, 0.2, 0.3], ready_s=[0.6])
    warm = Act(screen_s=[0.01, 0.01, 0.02], ready_s=[0.3], resumed=3, back=2)
    return Outcome(**{"cold": cold, "warm": warm, "moved": Act(screen_s=[0.01], resumed=1), "hit": 1, **changes})


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({}, 0, "first screen, p50: cold 210.0 ms, warm 10.0 ms, 21 times as fast"),
        ({}, 0, "4 sessions resumed without a login, 1 of them at another backend since theirs was killed; 0 lost"),
        ({}, 0, "sent back to the backend of before at the second start: 67%"),
        ({"lost": ["device-3: it had to log in again"]}, 1, "lost: device-3: it had to log in again"),
        ({"hit": 2}, 1, "this is not as it should be"),
        ({"hit": 0, "moved": Act()}, 0, "all is well"),
        ({"warm": Act(screen_s=[0.01], incomplete=2)}, 0, "screens that lacked data: 2"),
        ({"cold": Act(), "lost": ["device-1: no backend"]}, 1, "lost: device-1: no backend"),
    ],
)
def test_all_is_well_only_where_no_session_was_lost(changes: dict[str, Any], code: int, says: str) -> None:
    came_to, lines = verdict(outcome(**changes))
    assert came_to == code
    assert says in lines
    assert lines[-1] == ("this is not as it should be" if code else "all is well")
