"""A crowd on small backends: order, waits, and what was promised, through the loss of a backend."""

from __future__ import annotations

import attrs
import pytest

from master.simulation.rush import RushSetting, run_rush


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_are_served_in_order_and_no_backend_is_overrun(seed: int) -> None:
    rushed = run_rush(RushSetting(people=1500, capacity=150), seed)
    assert rushed.served == 1500
    assert rushed.out_of_order == 0
    # Whoever was called when the backend died still gets in: over the target, and never over what two can carry.
    assert rushed.most_over < 2 * 15
    assert rushed.longest_wait_s < 400  # 1,365 beyond the first, by 270 places and then 4.5 a second, or less
    assert rushed.estimates_kept is not None
    assert rushed.estimates_kept >= 0.85
    assert 0.8 < rushed.mean_over_wait < 2.0


def test_nobody_waits_where_there_is_room() -> None:
    rushed = run_rush(RushSetting(people=200), 1)
    assert rushed.served == 200
    assert rushed.longest_wait_s == 0
    assert rushed.estimates_kept is None


def test_where_few_polls_may_be_all_are_served_as_soon_and_in_order() -> None:
    usual = RushSetting(people=1500, capacity=150)
    few = attrs.evolve(usual, policy=attrs.evolve(usual.policy, max_polls_per_s=60))
    rushed = run_rush(few, 1)
    assert rushed.served == 1500
    assert rushed.out_of_order == 0
    assert rushed.longest_wait_s < 1.1 * run_rush(usual, 1).longest_wait_s
    assert rushed.most_asks_per_s < 1.4 * 1500 / 15 + 60  # those who join are not told when
