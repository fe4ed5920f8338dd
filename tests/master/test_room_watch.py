"""Room for a client, and for the users of the biggest: told once, and only when it has held."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.testing import virtual_clock
from master.config import BackendConfig, ChoiceConfig, Config
from master.core.answers import Spare
from master.core.pool import Ask
from master.node import Node
from master.pool_config import make_pool
from master.room_watch import PROBLEMS, Look, RoomWatch, take_look

ROOM = Spare("b1", 70, 100)
NO_ROOM = Spare("b1", 70, 20)


def watch(looks: list[Look], every_s: float = 1.0) -> list[tuple[float, str, str]]:
    room = RoomWatch()
    return [(i * every_s, kind, text) for i, look in enumerate(looks) for kind, text in room.look(i * every_s, look)]


def look(takes: bool = True, fits: bool | None = True) -> Look:
    return Look(takes, "the backends that work have no room", fits, NO_ROOM if fits is False else ROOM)


def test_a_pool_with_room_says_nothing() -> None:
    assert watch([look()] * 100) == []


def test_what_is_over_within_seconds_is_not_told() -> None:
    assert watch([look(takes=i % 3 == 0, fits=i % 9 == 0) for i in range(100)]) == []


def test_no_room_is_told_when_it_has_held_and_again_when_there_is_some() -> None:
    told = watch([look(takes=not 10 <= i < 50, fits=not 10 <= i < 50) for i in range(100)])
    assert [(at, kind) for at, kind, _ in told] == [
        (13.0, "no_takers"),
        (20.0, "spare_lost"),
        (60.0, "takers_again"),
        (60.0, "spare_regained"),
    ]
    assert told[1][2] == "if b1 falls, 70 users need a place and 20 are free"


@pytest.mark.parametrize(
    ("spare", "text"),
    [
        (Spare("b1", 1, 0), "if b1 falls, 1 user needs a place and 0 are free"),
        (Spare("b1", 2, 1), "if b1 falls, 2 users need a place and 1 is free"),
    ],
)
def test_one_is_told_as_one(spare: Spare, text: str) -> None:
    assert [told for _, _, told in watch([Look(True, "", False, spare)] * 20)] == [text]


def test_of_one_backend_alone_it_is_not_asked_who_could_stand_in() -> None:
    assert watch([look(fits=None)] * 100) == []


@given(st.lists(st.booleans(), max_size=200))
def test_no_two_of_a_kind_follow_each_other(seen: list[bool]) -> None:
    told = [kind in PROBLEMS for _, kind, _ in watch([look(takes=each) for each in seen])]
    assert told == [i % 2 == 0 for i in range(len(told))]


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return virtual_clock()


def test_a_pool_is_looked_at() -> None:
    rng = random.Random(1)
    backends = tuple(BackendConfig(name, "10.0.0.1", i + 1, capacity=2) for i, name in enumerate("ab"))
    pool = make_pool(Config(backends=backends, choice=ChoiceConfig(first_round_s=0.0)))
    for name in "ab":
        pool.record_report(0.0, rng, name, 0, 0.0, ("10.0.0.1", 1))
    assert take_look(pool, pool.spare(0.0)) == Look(True, "the backends that work have no room", True, Spare("a", 0, 2))
    for _ in range(4):
        pool.assign(0.0, rng, Ask())
    full = take_look(pool, pool.spare(0.0))
    assert (full.takes, full.fits) == (False, False)


async def test_a_full_pool_is_told_of_in_the_log_and_the_events(autojump_clock: object) -> None:
    capture = structlog.testing.LogCapture()
    log: Any = structlog.wrap_logger(None, processors=[capture])
    backends = tuple(BackendConfig(name, "10.0.0.1", i + 1, capacity=2) for i, name in enumerate("ab"))
    node, rng = Node(Config(backends=backends), rng=random.Random(1), log=log), random.Random(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watch._watch_room)
        for users in (0, 2, 0):
            for _ in range(30):
                now = trio.current_time()
                for name in "ab":
                    node.pool.record_report(now, rng, name, users, now, ("10.0.0.1", 1))
                await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    kinds = ["no_takers", "spare_lost", "takers_again", "spare_regained"]
    assert [entry["event"] for entry in capture.entries] == [event.kind for event in node.events.last(9)] == kinds
    assert [entry["log_level"] for entry in capture.entries] == ["warning", "warning", "info", "info"]
