"""What is asked for most: counts against plain ones, bounded memory, and names that do not say whose a key is."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.cache.hot_keys import Hot, HotKeys, name_of


@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=200))
def test_counts_are_never_too_low_and_too_high_by_no_more_than_is_said(size: int, asks: list[int]) -> None:
    hot, plain = HotKeys(size), Counter(("cache", str(ask)) for ask in asks)
    for ask in asks:
        hot.note(1.0, ("cache", str(ask)))
    top = hot.top(1.0, 100)
    assert len(top) == min(size, len(plain))
    assert sum(each.asks for each in top) == len(asks)
    assert all(each.asks - each.over <= plain[each.name] <= each.asks for each in top)
    assert {each.name for each in top} >= {name for name, count in plain.items() if count > len(asks) / size}


def test_what_was_asked_for_lately_counts_and_is_forgotten() -> None:
    hot = HotKeys(4, turn_s=300.0)
    for now in (0.0, 299.0, 300.0, 301.0):
        hot.note(now, ("cache", "cart"))
    hot.note(301.0, ("warm", "1"))
    assert hot.top(301.0, 9) == [Hot(("cache", "cart"), 4, 0), Hot(("warm", "1"), 1, 0)]
    assert hot.top(301.0, 1) == [Hot(("cache", "cart"), 4, 0)]
    hot.note(600.0, ("warm", "1"))
    assert [(each.name[1], each.asks) for each in hot.top(600.0, 9)] == [("1", 2), ("cart", 2)]
    assert hot.top(1201.0, 9) == []


def test_a_key_of_one_turn_may_have_been_asked_for_in_the_other() -> None:
    hot = HotKeys(1, turn_s=10.0)
    for now, name in ((0.0, "a"), (0.0, "b"), (10.0, "a")):
        hot.note(now, ("cache", name))
    assert hot.top(10.0, 9) == [Hot(("cache", "b"), 3, 2), Hot(("cache", "a"), 3, 2)]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("cart", "cart"),
        ("ann", "*"),
        ("of:ann:cart", "of:*:cart"),
        ("annual", "annual"),
        ("joann:ann_ann", "joann:*_*"),
        ("x/s_-1/y", "x/*/y"),
        ("cart:7781", "cart:#"),
        ("v2.cart", "v2.cart"),
        ("550e8400-e29b-41d4-a716-446655440000", "#-#-#-#-#"),
        ("a1b2c3d4_profile", "#_profile"),
        ("x" * 256, "x" * 63 + "…"),
    ],
)
def test_a_name_does_not_say_whose_it_is(key: str, name: str) -> None:
    assert name_of(key, "s_-1", "ann", "") == name


@given(key=st.text("ab_.", max_size=9), whose=st.text("ab_.", min_size=1, max_size=3))
def test_whose_it_is_goes_where_it_is_no_part_of_a_longer_word(key: str, whose: str) -> None:
    assert name_of(key, whose) == re.sub(rf"(?<![^\W_]){re.escape(whose)}(?![^\W_])", "*", key)


def test_no_expression_is_compiled_for_each_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("master.cache.hot_keys.re", None)
    assert name_of("cart:q7x8w9-zz", "", "q7x8w9-zz") == "cart:*"
