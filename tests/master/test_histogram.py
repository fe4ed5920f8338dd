"""Histograms: each value is counted once, in the first bound that is not below it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.histogram import Histogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)


@given(st.lists(st.tuples(st.sampled_from((0.0, *BOUNDS, 0.0005, 0.05, 7.0)), st.integers(0, 5))))
def test_a_bucket_has_all_values_up_to_its_bound(noted: list[tuple[float, int]]) -> None:
    histogram = Histogram(BOUNDS)
    for value, times in noted:
        histogram.note(value, times)
    values = [value for value, times in noted for _ in range(times)]
    buckets, total = histogram.buckets()
    expected = [(str(bound), float(sum(value <= bound for value in values))) for bound in BOUNDS]
    assert buckets == [*expected, ("+Inf", float(len(values)))]
    assert abs(total - sum(values)) < 1e-6
