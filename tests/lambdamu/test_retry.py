"""How soon to try again, and how often."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lambdamu.retry import Backoff, BudgetPolicy, RetryBudget


def test_the_longest_wait_doubles_up_to_a_bound() -> None:
    backoff = Backoff(first_s=1.0, most_s=5.0)
    assert [backoff.longest_s(i) for i in (0, 1, 2, 3, 10**9)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_wait_is_any_part_of_the_longest_one() -> None:
    rng = random.Random(0)
    waits = [Backoff(first_s=1.0).wait_s(0, rng) for _ in range(1000)]
    assert 0.0 <= min(waits) < 0.05
    assert 0.95 < max(waits) <= 1.0
    assert 0.45 < sum(waits) / len(waits) < 0.55


def test_a_budget_is_full_at_first_and_then_grows_with_calls_and_time() -> None:
    budget = RetryBudget(BudgetPolicy(share=0.2, per_s=0.5, most=3.0))
    assert [budget.withdraw(0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    for _ in range(6):
        budget.deposit(0.0)
    assert [budget.withdraw(0.0) for _ in range(2)] == [True, False]
    assert [budget.withdraw(4.0) for _ in range(3)] == [True, True, False]
    assert [budget.withdraw(1e6) for _ in range(4)] == [True] * 3 + [False]


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 5.0)), max_size=200))
def test_retries_are_no_more_than_calls_and_time_have_paid_for(steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(BudgetPolicy(share=0.2, per_s=0.5, most=3.0))
    now, calls, retries = 0.0, 0, 0
    for retry, dt in steps:
        now += dt
        if retry:
            retries += budget.withdraw(now)
        else:
            budget.deposit(now)
            calls += 1
        assert retries <= 3.0 + 0.2 * calls + 0.5 * now + 1e-6
