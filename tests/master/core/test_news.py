"""What the pool tells of what has changed by time alone, once."""

from __future__ import annotations

import math
import random

import pytest

from master.core.admin import Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool

PROBED = ("10.0.0.1", 9001)


def make_pool(*names: str) -> Pool:
    pool = Pool(map(Backend, names), HealthPolicy(stale_after_s=3.0), LoadPolicy(), ChoicePolicy(first_round_s=0.0))
    for name in names:
        pool.record_report(0.0, random.Random(1), name, 5, 0.0, PROBED)
    assert pool.news.take_turned(99) == list(names)
    return pool


@pytest.mark.parametrize("wish", [Wish.DRAIN, Wish.MAINT])
def test_what_an_operator_wanted_for_a_time_ends_once(wish: Wish) -> None:
    pool = make_pool("a", "b")
    admin = Admin(wish, "ann", "a new disk", 60.0)
    pool.set_admin(1.0, "a", admin)
    pool.works(59.9)
    assert pool.news.take_ended() == {}
    pool.works(60.0)
    assert pool.news.take_ended() == {"a": admin}
    pool.works(99.0)
    assert pool.news.take_ended() == {}


def test_what_the_operator_ends_himself_or_wants_for_good_does_not_end_by_itself() -> None:
    pool = make_pool("a", "b", "c", "d")
    pool.set_admin(1.0, "a", Admin(Wish.DRAIN, "ann", "a new disk", 60.0))
    pool.set_admin(2.0, "a", Admin(Wish.READY, "ann", "it is in", math.inf))
    pool.set_admin(1.0, "b", Admin(Wish.DRAIN, "ann", "it goes"))
    pool.set_admin(1.0, "c", Admin(Wish.READY, "ann", "as it was", 60.0))
    pool.set_admin(1.0, "d", Admin(Wish.DRAIN, "ann", "for a time", 60.0))
    pool.set_admin(2.0, "d", Admin(Wish.DRAIN, "ann", "for longer", 90.0))
    pool.works(61.0)
    assert pool.news.take_ended() == {}


def test_one_whose_report_is_too_old_turns_by_time_and_turns_back_by_a_report() -> None:
    pool = make_pool("a", "b")
    pool.record_report(2.0, random.Random(1), "b", 5, 2.0, PROBED)
    pool.works(3.1)
    assert pool.news.take_turned(99) == ["a"]
    pool.record_report(3.2, random.Random(1), "a", 5, 3.2, PROBED)
    pool.works(3.3)
    assert pool.news.take_turned(99) == ["a"]
    assert pool.news.take_turned(99) == []


def test_news_are_taken_in_parts_and_those_of_the_gone_not_at_all() -> None:
    pool = make_pool("a", "b", "c", "d")
    for name in "abcd":
        pool.set_admin(1.0, name, Admin(Wish.DRAIN, "ann", "a new disk", 60.0))
    pool.works(60.0)
    assert pool.news.take_turned(1) == ["a"]
    pool.change(61.0, [Backend("b"), Backend("d")])
    assert pool.news.take_turned(1) == ["b"]
    assert pool.news.take_turned(9) == ["d"]
    assert pool.news.take_ended().keys() == {"b", "d"}
