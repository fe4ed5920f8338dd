"""Most of those who join go without a word: the others lose nothing by it, and who comes back finds his place."""

from __future__ import annotations

import pytest

from master.simulation.abandon import AbandonSetting, run_abandon


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_those_who_stay_get_in_at_the_whole_rate(seed: int) -> None:
    turns = run_abandon(AbandonSetting(people=4000), seed)
    assert 57 <= turns.per_minute <= 62
    assert turns.most_over <= 0
    assert turns.out_of_order == 0
    assert turns.estimates_kept is not None
    assert turns.estimates_kept >= 0.85


@pytest.mark.parametrize("seed", [1, 2])
def test_who_is_back_in_time_keeps_his_place(seed: int) -> None:
    turns = run_abandon(AbandonSetting(people=1500, back=0.5), seed)
    assert turns.in_time > 250
    assert turns.lost_place == 0
    assert 57 <= turns.per_minute <= 62
    assert turns.most_over <= 0
    assert turns.estimates_kept is not None
    assert turns.estimates_kept >= 0.85
