"""N-1: whether the users fit when the biggest backend falls."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.backend import Backend
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool, Spare


def spare(*members: tuple[int | None, int]) -> Spare:
    """Return the spare of a pool of backends with a capacity and users each."""
    pool = Pool([Backend(f"b{i}", capacity=capacity) for i, (capacity, _) in enumerate(members)], *POLICIES)
    for i, (_, users) in enumerate(members):
        pool.record_report(0.0, random.Random(1), f"b{i}", users, 0.0, ("10.0.0.1", 1))
    return pool.spare(0.0)


POLICIES = HealthPolicy(), LoadPolicy()


@pytest.mark.parametrize(
    ("members", "expected", "fits"),
    [
        ([], Spare(None, 0, 0), False),
        ([(10, 3)], Spare("b0", 3, 0), False),
        ([(10, 0)], Spare("b0", 0, 0), True),
        ([(10, 5), (10, 5)], Spare("b0", 5, 5), True),
        ([(10, 6), (10, 5)], Spare("b0", 6, 5), False),
        ([(10, 5), (20, 6), (5, 0)], Spare("b1", 6, 10), True),
        ([(10, 5), (None, 9)], Spare("b1", 9, 5), False),
        ([(None, 5), (None, 9)], Spare("b1", 9, None), True),
        ([(10, 25), (20, 1)], Spare("b0", 25, 19), False),
    ],
)
def test_the_biggest_is_the_hardest_to_lose(members: list[tuple[int | None, int]], expected: Spare, fits: bool) -> None:
    assert spare(*members) == expected
    assert spare(*members).fits == fits


def test_what_does_not_work_is_neither_lost_nor_room() -> None:
    pool = Pool([Backend("a", capacity=10), Backend("b", capacity=100), Backend("c", weight=0)], *POLICIES)
    for name in "abc":
        pool.record_report(0.0, random.Random(1), name, 5, 0.0, ("10.0.0.1", 1))
    pool.record_lost(0.0, "b")
    assert pool.spare(0.0) == Spare("a", 5, 0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_the_users_fit_when_those_of_any_one_would(members: list[tuple[int, int]]) -> None:
    room = [max(0, capacity - users) for capacity, users in members]
    any_one = all(users <= sum(room) - room[i] for i, (_, users) in enumerate(members))
    assert spare(*members).fits == any_one
