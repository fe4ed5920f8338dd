"""What is told of the virtual queue: once, and only when it has held."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.address import Address
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import virtual_clock
from master.config import BackendConfig, Config, MasterPolicy
from master.config_queue import QueueConfig
from master.entrances import Entrance
from master.event_log import Event, EventLog
from master.node import Node
from master.queue.numbers import Numbers
from master.queue.policy import TemplatePolicy
from master.queue_watch import (
    LOOP_FROZEN,
    LOOP_THAWED,
    NOBODY_WAITS,
    PEOPLE_WAIT,
    QUEUE_FULL,
    QUEUE_HAS_ROOM,
    QueueLook,
    QueueWatch,
    take_look,
    watch_queue,
)
from tests.master.waiting.house import House

LOCAL = Address("127.0.0.1", 0)
QUIET = QueueLook(0, "", frozen=False)


def watch(looks: list[QueueLook]) -> list[tuple[int, str, str]]:
    queue = QueueWatch()
    return [(at, kind, text) for at, look in enumerate(looks) for kind, text in queue.look(at, look)]


def test_a_quiet_queue_says_nothing() -> None:
    assert watch([QUIET] * 100) == []


def test_each_is_told_when_it_has_held_and_when_it_is_over() -> None:
    bad = QueueLook(7, "as many people wait as may", frozen=True)
    assert watch([QUIET] * 10 + [bad] * 50 + [QUIET] * 50) == [
        (10, QUEUE_FULL, "as many people wait as may"),
        (13, PEOPLE_WAIT, "7 wait now"),
        (13, LOOP_FROZEN, "the news of the backends is too old to steer by: the rate stays as it is"),
        (63, LOOP_THAWED, "the backends tell how they stand again"),
        (90, NOBODY_WAITS, "nobody waits any more"),
        (90, QUEUE_HAS_ROOM, "the queue has places again"),
    ]


def test_a_queue_that_runs_empty_and_full_all_the_time_is_told_of_once() -> None:
    looks = [QueueLook(i % 9, "full" * (i % 7 == 0), frozen=i % 3 == 0) for i in range(1000)]
    assert [kind for _, kind, _ in watch(looks)] == [QUEUE_FULL, PEOPLE_WAIT]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 40)), max_size=30))
def test_the_two_of_a_pair_take_turns(runs: list[tuple[bool, bool, int]]) -> None:
    looks = [QueueLook(int(one), "full" * one, frozen=other) for one, other, times in runs for _ in range(times)]
    kinds = [kind for _, kind, _ in watch(looks)]
    for pair in ((PEOPLE_WAIT, NOBODY_WAITS), (QUEUE_FULL, QUEUE_HAS_ROOM), (LOOP_FROZEN, LOOP_THAWED)):
        told = [kind for kind in kinds if kind in pair]
        assert told == [pair[i % 2] for i in range(len(told))]


@pytest.mark.parametrize(
    ("settings", "queues", "text"),
    [
        ({"max_tickets": 2}, ["a", "b"], "as many people wait as may wait in all, 2"),
        ({"max_queues": 3}, ["a", "b"], "as many queues are open as may be, 3"),
        ({"templates": (TemplatePolicy("*", max_waiting=2),)}, ["a", "a"], "as many people wait in a as may, 2"),
        ({"max_tickets": 3, "max_queues": 4}, ["a", "b"], ""),
    ],
)
def test_a_full_queue_says_which_bound_it_has_met(settings: Any, queues: list[str], text: str) -> None:
    house = House(1, target_load=1.0, **{"templates": (TemplatePolicy("*"),), **settings})
    house.arrive(house.ask("ann"))
    for i, queue in enumerate(queues):
        assert house.ask(f"c{i}", Queue=queue)["Result"] == "Wait"
    assert take_look(house.room) == QueueLook(2, text, frozen=False)
    last = house.ask("zoe", Queue="a" if "people" in text else "z")
    assert (last["Data"].get("Reason") == "Full") == bool(text)


def test_without_numbers_nobody_gets_a_place() -> None:
    house = House(1)
    house.room.queues.numbers = Numbers()
    assert take_look(house.room).full == "there are no more numbers for tickets"


async def test_a_master_with_a_queue_watches_it() -> None:
    backends = (BackendConfig("b1", "127.0.0.1", 1),)
    config = Config(MasterPolicy(LOCAL), backends=backends, queue=QueueConfig())
    log: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    node = Node(config, rng=random.Random(1), log=log)
    full = trio.Event()

    def hear(event: Event) -> None:
        if event.kind == QUEUE_FULL:
            full.set()

    node.events.listen(hear)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, {Entrance.CLIENTS: open_listeners(LOCAL)})
        with trio.fail_after(60.0):
            await full.wait()  # nobody has given it numbers
        nursery.cancel_scope.cancel()


def test_the_id_of_a_queue_that_a_client_has_made_up_is_made_fit_to_be_read() -> None:
    house = House(1, target_load=1.0, templates=(TemplatePolicy("*", max_waiting=1),))
    house.arrive(house.ask("ann"))
    house.ask("bob", Queue="a\n\x1b[2J" + "x" * 100)
    full = take_look(house.room).full
    assert full.isprintable()
    assert len(full) < 130


def test_a_loop_is_frozen_by_old_news_but_not_for_want_of_backends() -> None:
    house = House(10)
    house.tick(2.0)
    house.dead.add("b0")
    house.tick(11.0)
    house.room.survey.serving = 1
    assert take_look(house.room).frozen
    house.room.survey.serving = 0
    assert not take_look(house.room).frozen


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return virtual_clock()


async def test_what_turns_stands_in_the_log_and_the_events(autojump_clock: object) -> None:
    capture = structlog.testing.LogCapture()
    log: Any = structlog.wrap_logger(None, processors=[capture])
    house, events = House(1, target_load=1.0, max_tickets=1), EventLog()
    house.arrive(house.ask("ann"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_queue, house.room, log, events, random.Random(1))
        await trio.sleep(10.0)
        house.ask("bob")
        await trio.sleep(10.0)
        house.ask("bob", Leave=True)
        await trio.sleep(40.0)
        nursery.cancel_scope.cancel()
    kinds = [QUEUE_FULL, PEOPLE_WAIT, NOBODY_WAITS, QUEUE_HAS_ROOM]
    assert sorted(event.kind for event in events.last(9)) == sorted(kinds)
    assert [entry["event"] for entry in capture.entries] == [event.kind for event in events.last(9)]
    levels = {entry["event"]: entry["log_level"] for entry in capture.entries}
    assert levels == {kind: "warning" if kind == QUEUE_FULL else "info" for kind in kinds}
