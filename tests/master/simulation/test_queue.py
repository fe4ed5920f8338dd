"""The queues: what theory knows, and that age of reports costs less by our rule."""

from __future__ import annotations

import pytest

from master.core.choice import Policy
from master.simulation.brooker import BrookerSetting, run_brooker
from master.simulation.masters import Setting, textbook
from master.simulation.queue import QueueSetting, run_queue


def mean_time(policy: Policy, **queue: float) -> float:
    setting = QueueSetting(**queue)  # type: ignore[arg-type]
    return run_queue(setting, Setting(textbook(policy)))["mean_time_in_system"]


def test_by_chance_the_mean_is_that_of_single_queues() -> None:
    assert mean_time(Policy.RANDOM, utilisation=0.7, length_s=1500.0) == pytest.approx(1 / (1 - 0.7), rel=0.05)


def test_two_choices_on_fresh_counts_have_the_mean_of_the_closed_form() -> None:
    closed_form = sum(0.8 ** (2**i - 2) for i in range(1, 12))
    measured = mean_time(Policy.TWO_CHOICES, utilisation=0.8, period_s=0.0, length_s=300.0)
    assert measured == pytest.approx(closed_form, rel=0.04)


def test_on_fresh_counts_the_least_loaded_is_nearly_always_idle() -> None:
    assert mean_time(Policy.LEAST_LOAD, period_s=0.0, length_s=200.0, utilisation=0.8) < 1.2


def test_on_old_counts_ours_beats_two_choices_by_far() -> None:
    ours = mean_time(Policy.LEAST_LOAD, period_s=20.0, length_s=1000.0)
    assert ours < 3.9
    assert mean_time(Policy.TWO_CHOICES, period_s=20.0, length_s=1000.0) > 1.5 * ours


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    short = QueueSetting(length_s=30.0)
    first, again, other = (run_queue(short, Setting(seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("refresh", "better"), [(20, Policy.TWO_CHOICES), (100, Policy.RANDOM)])
def test_two_choices_lose_to_chance_when_counts_are_old(refresh: int, better: Policy) -> None:
    times = {
        policy: run_brooker(BrookerSetting(refresh, 40_000), Setting(textbook(policy)))["mean_time"]
        for policy in (Policy.TWO_CHOICES, Policy.RANDOM)
    }
    assert min(times, key=lambda policy: times[policy]) is better
