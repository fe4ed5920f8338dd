"""The verdict on a backend from its probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.health import Health, HealthPolicy, Report


def after(results: str, **policy: int) -> Health:
    """Return the health after probes: S succeeded, F failed, L the kept connection was lost."""
    health = Health(HealthPolicy(**policy))
    for result in results:
        {"S": health.succeeded, "F": health.failed, "L": health.lose}[result]()
    return health


@pytest.mark.parametrize(
    ("results", "policy", "up"),
    [
        ("", {}, False),
        ("S", {}, True),
        ("SF", {}, True),
        ("SFF", {}, False),
        ("SFSFSFSFSF", {"fall": 3}, True),
        ("SFFSFFSFF", {"fall": 3}, True),
        ("SFFF", {"fall": 3}, False),
        ("S", {"rise": 2}, False),
        ("SFS", {"rise": 2}, False),
        ("SFSFSFSF", {"rise": 2}, False),
        ("FFFSS", {"rise": 2}, True),
        ("FFFS", {"rise": 2}, False),
        ("F" * 1000 + "SS", {"rise": 2}, True),
        ("SSFFS", {"rise": 2, "fall": 2}, False),
        ("SSFFSS", {"rise": 2, "fall": 2}, True),
        ("SSS" + "F", {"rise": 3, "fall": 1}, False),
    ],
)
def test_only_consecutive_results_change_the_verdict(results: str, policy: dict[str, int], up: bool) -> None:
    assert after(results, **policy).up is up


def test_a_lost_connection_is_no_result_and_is_forgotten_with_the_next_answer() -> None:
    health = after("SL")
    assert health.up
    assert health.lost
    health.succeeded()
    assert health.up
    assert not health.lost


def test_a_failure_does_not_give_a_lost_connection_back() -> None:
    assert after("SLF", fall=3).lost


@given(
    results=st.lists(st.sampled_from("SF"), max_size=60),
    rise=st.integers(1, 5),
    fall=st.integers(1, 5),
)
def test_the_verdict_is_what_the_last_run_of_equal_results_says(results: list[str], rise: int, fall: int) -> None:
    up, run, last = False, 0, ""
    for result in results:
        run, last = (run + 1 if result == last else 1), result
        if result == "S" and run >= rise:
            up = True
        if result == "F" and run >= fall:
            up = False
    assert after("".join(results), rise=rise, fall=fall).up is up


@pytest.mark.parametrize(("now", "age"), [(5.0, 0.0), (7.5, 2.5), (4.0, 0.0)])
def test_the_age_of_a_report_counts_from_the_question_and_is_never_negative(now: float, age: float) -> None:
    assert Report(3, asked_at=5.0).age(now) == age
