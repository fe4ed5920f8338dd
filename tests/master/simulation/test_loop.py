"""The control loop on a plant that reports late: load, time over the target, and places that stay free."""

from __future__ import annotations

import pytest

from master.queue.control import ControlPolicy
from master.simulation.loop import Plant, run_loop


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_load_stays_at_its_target_through_the_loss_of_a_node(seed: int) -> None:
    seen = run_loop(Plant(), seed)
    assert 0.69 < seen.peak < 0.72
    assert 100 < seen.over_s <= 150  # those of the dead node have to leave by themselves: 131 s in the mean
    assert seen.idle_s <= 5
    assert seen.last == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(Plant(weight=1.3), id="users weigh more than the capacity says, and only the CPU tells"),
        pytest.param(Plant(tells_cpu=False), id="no CPU is told"),
        pytest.param(Plant(believed_stay_s=200.0), id="the stay is three times what is believed"),
        pytest.param(Plant(believed_stay_s=900.0), id="the stay is two thirds of what is believed"),
        pytest.param(Plant(joins_per_s=12.0), id="hardly more come than leave"),
    ],
)
def test_what_the_loop_is_told_wrong_it_makes_up_for(plant: Plant) -> None:
    seen = run_loop(plant)
    assert seen.peak < 0.75
    assert seen.over_s <= 150
    assert seen.idle_s <= 5


def test_the_cpu_alone_is_too_late_to_leave_no_place_free() -> None:
    """The same law over the lag of the CPU: it is as safe, and slower by that lag."""
    slow = Plant(ControlPolicy(lag_s=15.0, tau_s=60.0), count_lag_s=15, bridges=False, tells_cpu=False)
    seen = run_loop(slow)
    assert seen.peak < 0.8
    assert seen.over_s <= 150
    assert seen.idle_s > 60


def test_a_fixed_rate_overruns_the_plant() -> None:
    assert run_loop(Plant(fixed_per_s=30.0)).peak > 1.7


def test_a_crowd_does_not_enter_before_the_cpu_has_told_of_the_first() -> None:
    crowd = Plant(joins_per_s=1000.0, length_s=600.0, weight=1.3)
    assert run_loop(crowd).peak < 0.75
    assert run_loop(Plant(joins_per_s=1000.0, length_s=60.0, weight=1.3, tells_cpu=False)).peak > 0.85
