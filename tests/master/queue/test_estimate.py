"""The estimate: what is known of a drain, and the waits that follow from it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.estimate import Drain, DrainMeter, EstimatePolicy, Forecast, ShowRate, Wait


def measured(per_s: list[int], planned: float | None = None, waiting: bool = True) -> Forecast:
    """Return one that has seen so many claims in each second, by people who had polled."""
    forecast = Forecast()
    forecast.look(0.0, waiting=waiting, planned_per_s=planned)
    for second, claims in enumerate(per_s):
        for _ in range(claims):
            forecast.call_ended(claimed=True, polled=True)
        forecast.look(second + 1.0, waiting=waiting, planned_per_s=planned)
    return forecast


def wait(forecast: Forecast, ahead: int) -> Wait:
    found = forecast.wait(ahead)
    assert found is not None
    return found


def test_it_is_those_ahead_and_oneself_over_the_drain_and_the_next_poll() -> None:
    assert wait(measured([5] * 60), 99).mean_s == pytest.approx(100 / 5 + 1, rel=0.01)


@pytest.mark.parametrize(
    "forecast",
    [
        pytest.param(Forecast(), id="nobody has looked"),
        pytest.param(measured([]), id="nothing has been seen"),
        pytest.param(measured([0] * 600), id="nobody gets in"),
        pytest.param(measured([1, 0, 1]), id="too few have got in to tell"),
        pytest.param(measured([5] * 60, waiting=False), id="an empty line says nothing of what could go through"),
        pytest.param(measured([5] * 60, planned=0.0), id="nobody is to get in"),
    ],
)
def test_what_is_not_known_is_none(forecast: Forecast) -> None:
    assert forecast.wait(10) is None


def test_a_wait_of_months_is_not_known() -> None:
    assert measured([1] * 60).wait(10**8) is None


@pytest.mark.parametrize(
    ("planned", "mean_s"),
    [
        pytest.param(2.0, 50 + 1, id="a plan that is lower is the most that will be"),
        pytest.param(50.0, 20 + 1, id="one that is higher has still to show"),
        pytest.param(math.nan, 20 + 1, id="one that is no number is none"),
        pytest.param(math.inf, 20 + 1, id="nor one without an end"),
    ],
)
def test_a_plan_bounds_what_is_measured(planned: float, mean_s: float) -> None:
    assert wait(measured([5] * 60, planned), 99).mean_s == pytest.approx(mean_s, rel=0.01)


def test_before_anything_is_measured_the_plan_counts() -> None:
    assert wait(measured([], 10.0), 99).mean_s == pytest.approx(10 + 1)


def test_who_does_not_come_shortens_the_wait_and_the_margin_is_kept_for_it() -> None:
    forecast = measured([5] * 60, 5.0)
    for _ in range(1000):
        forecast.call_ended(claimed=False, polled=True)
        forecast.call_ended(claimed=True, polled=True)
    forecast.look(62.0, waiting=True, planned_per_s=5.0)
    assert forecast.show.value == pytest.approx(0.5, abs=0.01)
    assert wait(forecast, 1000).mean_s == pytest.approx(101, rel=0.05)


def test_who_was_never_seen_again_says_nothing_of_those_who_stay() -> None:
    forecast = measured([5] * 60)
    for _ in range(1000):
        forecast.call_ended(claimed=False, polled=False)
    assert forecast.show.value == 1.0


def test_the_show_rate_is_unknown_at_first_and_fades() -> None:
    show = ShowRate(50)
    assert show.value is None
    assert show.assumed == show.highest == 1.0
    for _ in range(20):
        show.ended(claimed=False)
    assert show.value == 0.0
    assert 0.0 < show.assumed < show.highest < 1.0
    for _ in range(500):
        show.ended(claimed=True)
    assert show.value == pytest.approx(1.0, abs=0.001)


def test_the_margin_is_wider_where_the_drain_varies_is_hardly_known_or_moves() -> None:
    def margin(forecast: Forecast) -> float:
        found = wait(forecast, 99)
        return found.point90_s / found.mean_s

    even = margin(measured([5] * 600))
    assert margin(measured([0, 0, 0, 0, 0, 30] * 100)) > even
    assert margin(measured([5] * 6)) > even
    assert margin(measured([50] * 600 + [5] * 60)) > even


def test_a_drain_that_falls_is_seen_within_a_minute_or_two() -> None:
    assert wait(measured([10] * 300 + [2] * 120), 99).mean_s == pytest.approx(50, rel=0.4)


def test_nine_in_ten_waits_at_a_poisson_drain_are_over_in_time() -> None:
    rng = random.Random(1)
    kept = total = 0
    for _ in range(300):
        forecast = measured([sum(rng.random() < 0.2 for _ in range(10)) for _ in range(120)])
        for ahead in (3, 30, 200):
            needed = sum(rng.expovariate(2.0) for _ in range(ahead + 1))
            kept += needed <= wait(forecast, ahead).point90_s
            total += 1
    assert kept / total > 0.88


CLAIMS = st.lists(st.integers(0, 1000), max_size=60)
PLANS = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(CLAIMS, PLANS, st.lists(st.booleans(), max_size=50), st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_wait_is_a_number_over_0_and_grows_with_those_ahead(
    per_s: list[int], planned: float | None, shows: list[bool], fewer: int, more: int
) -> None:
    forecast = measured(per_s, planned)
    for shown in shows:
        forecast.call_ended(claimed=shown, polled=True)
    fewer, more = sorted((fewer, more))
    first, second = forecast.wait(fewer), forecast.wait(more)
    for found in (first, second):
        if found is not None:
            assert 0.0 < found.mean_s <= found.point90_s < math.inf
    if second is not None:  # what is known of many is known of few
        assert first is not None
        assert first.mean_s <= second.mean_s
        assert first.point90_s <= second.point90_s


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans(), st.integers(0, 100)), max_size=60))
def test_a_meter_that_is_looked_at_at_any_time_gives_a_drain_over_0(looks: list[tuple[float, bool, int]]) -> None:
    meter, now = DrainMeter(EstimatePolicy()), 0.0
    for seconds, waiting, claims in looks:
        for _ in range(claims):
            meter.claimed()
        now += seconds
        meter.look(now, waiting=waiting)
        drain = meter.measured()
        assert drain is None or 0.0 < drain.per_s < math.inf
        assert drain is None or math.isfinite(drain.cv2(1.0, 0.1))


def test_the_square_of_the_variation_is_the_sum_of_its_parts() -> None:
    assert Drain(1.0).cv2(4.0, 0.1) == pytest.approx(1 / 4 + 0.01)
    assert Drain(1.0, 10.0, 2.0, 0.5).cv2(4.0, 0.1) == pytest.approx(2 / 4 + 2 / 10 + 0.25 + 0.01)
