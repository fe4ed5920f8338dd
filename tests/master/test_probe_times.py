"""The last times of good probes, and their quantiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.probe_times import KEPT, ProbeTimes

TIMES = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=3 * KEPT)


@pytest.mark.parametrize(
    ("times", "median", "longest"),
    [
        ([0.25], 0.25, 0.25),
        ([0.1, 0.3], 0.1, 0.3),
        ([0.3, 0.1, 0.2], 0.2, 0.3),
        ([9.0, *[0.01] * KEPT], 0.01, 0.01),
        ([*[0.01] * KEPT, 9.0], 0.01, 9.0),
    ],
)
def test_quantiles_are_times_that_were_measured(times: list[float], median: float, longest: float) -> None:
    kept = ProbeTimes()
    for took_s in times:
        kept.add("b1", took_s)
    assert (kept.quantile("b1", 0.5), kept.quantile("b1", 0.99)) == (median, longest)


@given(TIMES, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_only_the_last_ones_count_in_whatever_order(times: list[float], share: float) -> None:
    kept = ProbeTimes()
    for took_s in times:
        kept.add("b1", took_s)
    last = sorted(times[-KEPT:])
    assert kept.quantile("b1", share) == pytest.approx(last[math.ceil(share * len(last)) - 1], abs=2e-6)


def test_backends_do_not_meet_and_leave_nothing() -> None:
    kept = ProbeTimes()
    assert kept.quantile("b1", 0.5) is None
    for _ in range(KEPT + 3):
        kept.add("b1", 1.0)
    kept.add("b2", 2.0)
    kept.keep(["b2", "b3"])
    assert [kept.quantile(name, 0.5) for name in ("b1", "b2", "b3")] == [None, 2.0, None]
    kept.add("b1", 3.0)
    assert kept.quantile("b1", 0.5) == 3.0
