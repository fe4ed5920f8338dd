"""A day of a bank: how often the upstream is called, and what a first screen takes."""

from __future__ import annotations

import attrs
import pytest

from master.simulation.day import DaySetting, run_day

SMALL = DaySetting(people=150)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_upstream_is_called_for_a_quarter_of_the_asks_and_warm_screens_wait_for_nothing(seed: int) -> None:
    figures = run_day(SMALL, seed).figures()
    assert (figures["upstream_calls_over_asks"] or 1) <= 0.25
    assert figures["first_screen_warm_p50_s"] == 0
    assert figures["first_screen_warm_p95_s"] == 0
    assert (figures["first_screen_cold_p50_s"] or 0) > 0.2
    assert (figures["asks_not_served"] or 0) < 0.001 * (figures["asks"] or 0)


def test_without_a_warm_up_every_first_screen_waits() -> None:
    figures = run_day(attrs.evolve(SMALL, warm_up=False), 1).figures()
    assert (figures["first_screen_warm_p50_s"] or 0) > 0.2


def test_where_nobody_comes_there_are_no_figures_to_show() -> None:
    figures = run_day(attrs.evolve(SMALL, people=1, starts=0.1), 1).figures()
    assert figures["upstream_calls_over_asks"] is None
    assert figures["first_screen_warm_p50_s"] is None
