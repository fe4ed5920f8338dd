"""How many clients ask, and the clock that counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.ask_rate import AskRate


def ask(rate: AskRate, now: float, times: int = 1) -> float:
    if now >= rate.due:
        rate.bring_up(now)
    rate.count += times
    return rate.expect(now)


def steady(rate: AskRate, start: float, seconds: float, per_s: float) -> float:
    steps = int(seconds * 20)
    for step in range(steps):
        now = start + step / 20
        ask(rate, now, round(per_s * (step + 1) / 20) - round(per_s * step / 20))
    return start + seconds


def test_a_steady_rate_is_known_from_the_first_tenth_of_a_second_on() -> None:
    rate = AskRate()
    steady(rate, 1000.0, 0.5, 200)
    assert rate.per_s == pytest.approx(200, rel=0.02)


def test_the_clock_counts_as_many_as_ask() -> None:
    rate = AskRate()
    end = steady(rate, 1000.0, 100.0, 200)
    assert ask(rate, end) == pytest.approx(20_000, rel=0.01)


def test_a_storm_raises_the_rate_by_no_more_than_the_long_average() -> None:
    rate = AskRate()
    now = steady(rate, 0.0, 300.0, 100)
    steady(rate, now, 5.0, 1300)
    assert 100 < rate.per_s < 100 + 1200 * 5 / 300 * 1.7


def test_a_lull_is_noticed_within_the_short_average() -> None:
    rate = AskRate()
    now = steady(rate, 0.0, 300.0, 100)
    steady(rate, now, 20.0, 10)
    assert rate.per_s < 25


@given(st.lists(st.tuples(st.floats(0.0, 400.0), st.integers(0, 1000)), max_size=50))
def test_the_clock_never_runs_backwards_and_nothing_is_counted_twice(steps: list[tuple[float, int]]) -> None:
    rate, now, last, total = AskRate(), 0.0, 0.0, 0
    for passed, times in steps:
        now += passed
        total += times
        expected = ask(rate, now, times)
        assert expected >= last
        assert rate.per_s >= 0
        last = expected
    assert rate.total + rate.count == total
