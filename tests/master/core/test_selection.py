"""The choice of the least loaded."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from master.core.selection import LeastLoaded


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.usable = True

    def __repr__(self) -> str:
        return self.name


def choice() -> LeastLoaded[Item]:
    return LeastLoaded(lambda item, _now: item.usable)


def test_nothing_to_choose_from_is_an_answer() -> None:
    assert choice().best(0.0) is None


def test_the_least_loaded_is_chosen_by_its_last_rank() -> None:
    rng, chooser, a, b = random.Random(1), choice(), Item("a"), Item("b")
    chooser.rank(a, 1.0, rng)
    chooser.rank(b, 2.0, rng)
    assert chooser.best(0.0) is a
    chooser.rank(a, 3.0, rng)
    assert chooser.best(0.0) is b
    chooser.rank(b, 3.5, rng)
    assert chooser.best(0.0) is a


def test_what_cannot_be_used_is_out_until_it_is_ranked_again() -> None:
    rng, chooser, a, b = random.Random(1), choice(), Item("a"), Item("b")
    chooser.rank(a, 1.0, rng)
    chooser.rank(b, 2.0, rng)
    a.usable = False
    assert chooser.best(0.0) is b
    a.usable = True
    assert chooser.best(0.0) is b
    chooser.rank(a, 1.0, rng)
    assert chooser.best(0.0) is a


def test_equal_loads_are_shared_out_by_chance() -> None:
    first = Counter[str]()
    for seed in range(1000):
        rng, chooser = random.Random(seed), choice()
        for name in "abcde":
            chooser.rank(Item(name), 0.0, rng)
        best = chooser.best(0.0)
        assert best is not None
        first[best.name] += 1
    assert all(150 < count < 250 for count in first.values()), first


def test_the_next_best_come_in_order_and_stay() -> None:
    rng, chooser = random.Random(1), choice()
    items = [Item(name) for name in "abcd"]
    for load, item in enumerate(items):
        chooser.rank(item, load, rng)
    items[1].usable = False
    assert chooser.next_best(0.0, 5) == [items[2], items[3]]
    assert chooser.next_best(0.0, 1) == [items[2]]
    assert chooser.best(0.0) is items[0]


def test_outdated_entries_do_not_pile_up() -> None:
    rng, chooser = random.Random(1), choice()
    items = [Item(str(i)) for i in range(10)]
    for i in range(10_000):
        chooser.rank(items[i % 10], float(i), rng)
        assert len(chooser) <= 2 * 10 + 64
    assert chooser.best(0.0) is items[0]


@given(
    ranks=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=200),
    out=st.sets(st.integers(0, 9)),
    seed=st.integers(0, 2**32),
)
def test_the_best_is_a_minimum_of_what_can_be_used(ranks: list[tuple[int, int]], out: set[int], seed: int) -> None:
    rng, chooser = random.Random(seed), choice()
    items = [Item(str(i)) for i in range(10)]
    loads: dict[Item, int] = {}
    for index, load in ranks:
        chooser.rank(items[index], load, rng)
        loads[items[index]] = load
    for index in out:
        items[index].usable = False
    usable = {item: load for item, load in loads.items() if item.usable}
    best = chooser.best(0.0)
    assert (best is None) == (not usable)
    if best is not None:
        assert usable[best] == min(usable.values())
    order = [usable[item] for item in chooser.next_best(0.0, 20)]
    assert order == sorted(usable.values())[1:]
