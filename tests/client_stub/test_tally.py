"""Counts, quantiles and exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_stub.tally import Tally, quantiles
from lambdamu.address import Address
from lambdamu.answers import Failure

B1, B2 = Address("192.0.2.1", 9001), Address("2001:db8::7", 9001)


def tally(*, connected: int = 0, ask_only: int = 0, no_server: int = 0, failed_asks: int = 0, failed: int = 0) -> Tally:
    counts = Tally(asked=connected + ask_only + no_server + failed_asks + failed)
    for _ in range(connected):
        counts.sent_to(B1).connected += 1
    for _ in range(ask_only):
        counts.sent_to(B1)
    for _ in range(no_server):
        counts.turned_away("nobody is there")
    for _ in range(failed_asks):
        counts.ask_failed(Failure("silent"))
    for _ in range(failed):
        counts.login_failed(counts.sent_to(B2), Failure("refused"))
    return counts


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ({"connected": 3}, 0),
        ({"ask_only": 3}, 0),
        ({"no_server": 3}, 3),
        ({"failed_asks": 3}, 1),
        ({"failed": 3}, 1),
        ({"connected": 2, "failed": 1}, 1),
        ({"connected": 2, "no_server": 1}, 1),
        ({"no_server": 2, "failed_asks": 1}, 1),
        ({"no_server": 2, "failed": 1}, 1),
    ],
)
def test_an_exit_code_says_how_it_went(counts: dict[str, int], code: int) -> None:
    assert tally(**counts).exit_code() == code


def test_as_json_the_counts_stand_under_their_names() -> None:
    counts = tally(connected=2, no_server=3, failed_asks=4, failed=5)
    counts.answer_s = [0.5]
    assert counts.to_json() == {
        "backends": {
            "192.0.2.1:9001": {"sent": 2, "connected": 2, "failed": 0},
            "[2001:db8::7]:9001": {"sent": 5, "connected": 0, "failed": 5},
        },
        "answer_s": {"p50": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5},
        "asked": 14,
        "no_server": 3,
        "failed": 9,
    }


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], [None, None, None, None]),
        ([7.0], [7.0, 7.0, 7.0, 7.0]),
        ([2.0, 1.0], [1.0, 2.0, 2.0, 2.0]),
        ([float(i) for i in range(100, 0, -1)], [50.0, 90.0, 99.0, 100.0]),
        ([float(i) for i in range(1, 1001)], [500.0, 900.0, 990.0, 1000.0]),
    ],
)
def test_quantiles_are_of_the_nearest_rank(times: list[float], expected: list[Any]) -> None:
    assert list(quantiles(times).values()) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_quantiles_are_times_that_were_and_rise(times: list[float]) -> None:
    values = [value for value in quantiles(times).values() if value is not None]
    assert set(values) <= set(times)
    assert values == sorted(values)
    assert values[-1] == max(times)


def test_reasons_are_bounded_and_none_is_lost() -> None:
    counts = Tally()
    for i in range(1000):
        counts.turned_away(f"reason {i % 500}")
    assert len(counts.reasons) <= 101
    assert counts.reasons.total() == 1000
