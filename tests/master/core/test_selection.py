"""The two heaps of a group, and the levels."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.selection import Candidate, Group, Level


class Item(Candidate):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.turn = name, 0.0

    def __repr__(self) -> str:
        return self.name


STAMPS = iter(range(1, 10**9))


def put(group: Group[Item], item: Item, key: float, turn: float = 0.0) -> None:
    item.key, item.turn, item.tie, item.stamp = key, turn, random.random(), next(STAMPS)
    group.park((turn, item.tie, item.stamp, item))


def test_nothing_to_choose_from_is_an_answer() -> None:
    group = Group[Item](0)
    assert group.best(1e9) is None
    assert group.first_parked() is None


def test_who_is_parked_is_chosen_only_from_its_turn_on() -> None:
    group, a, b = Group[Item](2), Item("a"), Item("b")
    put(group, a, key=1.0, turn=5.0)
    put(group, b, key=2.0, turn=0.0)
    assert group.best(4.9) is b
    assert group.best(5.0) is a


def test_the_last_entry_counts_and_who_has_left_is_passed_over() -> None:
    group, a, b = Group[Item](2), Item("a"), Item("b")
    put(group, a, key=1.0)
    put(group, b, key=2.0)
    put(group, a, key=3.0)
    assert group.best(0.0) is b
    b.stamp = 0
    assert group.best(0.0) is a
    a.stamp = 0
    assert group.best(0.0) is group.first_parked() is None


def test_outdated_entries_do_not_pile_up() -> None:
    group, items = Group[Item](10), [Item(str(i)) for i in range(10)]
    for i in range(10_000):
        put(group, items[i % 10], key=float(i), turn=float(i))
        if i % 3 == 0:
            group.best(float(i))
        assert len(group) <= 2 * 10 + 64


@pytest.mark.parametrize("take_in", [Group.add, Group.park])
def test_outdated_entries_behind_the_first_do_not_pile_up_where_nobody_asks(take_in: Any) -> None:
    group, items = Group[Item](10), [Item(str(i)) for i in range(10)]
    for i in range(1000):
        item = items[0 if i == 0 else 1 + i % 9]
        item.key, item.stamp = float(i), next(STAMPS)
        take_in(group, (item.key, 0.0, item.stamp, item))
        assert len(group) <= 2 * 10 + 64
    assert group.best(0.0) is items[0]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 5)), max_size=100),
    st.sets(st.integers(0, 9)),
    st.integers(0, 5),
)
def test_the_best_is_the_lowest_key_of_the_open_and_the_earliest_the_lowest_turn_of_the_others(
    puts: list[tuple[int, int, int]], out: set[int], expected: int
) -> None:
    group, items = Group[Item](10), [Item(str(i)) for i in range(10)]
    for index, key, turn in puts:
        put(group, items[index], float(key), float(turn))
    for index in out:
        items[index].stamp = 0
    listed = [item for item in items if item.stamp]
    ready = sorted(item.key for item in listed if item.turn <= expected)
    parked = sorted(item.turn for item in listed if item.turn > expected)
    best, first = group.best(expected), group.first_parked()
    assert (best.key if best else None) == (ready[0] if ready else None)
    assert (first[3].turn if first else None) == (parked[0] if parked else None)
    order = group.front(100)
    assert [item.key for item in order[: len(ready)]] == ready
    assert [item.turn for item in order[len(ready) :]] == parked
    assert group.front(2) == order[:2]
    if len(ready) > 1:
        second = group.second()
        assert second is not None
        assert second.key == ready[1]
    assert group.best(expected) is best


def test_a_level_of_one_zone_needs_no_group_for_it() -> None:
    level = Level[Item].of(["a", "a"])
    assert level.zones == {}
    assert len(level.groups("a")) == 1
    level = Level[Item].of(["a", "b", "a"])
    assert level.groups("a") == (level.every, level.zones["a"])
    assert (level.every.size, level.zones["a"].size) == (3, 2)


def test_no_zone_is_not_a_zone() -> None:
    level = Level[Item].of(["", "a"])
    assert level.zones.keys() == {"a"}
    assert level.groups("") == (level.every,)


def test_a_level_without_candidates_weighs_nothing() -> None:
    level = Level[Item].of(["", "", ""])
    for weight in (0.1, 0.2, 0.3):
        level.enlisted(weight)
    assert level.weights == pytest.approx(0.6)
    for weight in (0.1, 0.2, 0.3):
        level.left(weight)
    assert level.weights == 0.0


def test_who_comes_after_a_crowd_was_let_through_does_not_come_before_all_others() -> None:
    level = Level[Item].of(["", ""])
    assert level.first_turn(7.0) == 7.0
    item = Item("a")
    put(level.every, item, key=0.0, turn=500.0)
    assert level.first_turn(7.0) == 500.0
    put(level.every, item, key=0.0, turn=3.0)
    assert level.first_turn(7.0) == 7.0
