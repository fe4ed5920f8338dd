"""Three ways in which a broker fails its askers, each beside a design that has the hole: there the test is red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from lambdamu.testing import run_virtual
from master.cache.broker import Broker
from master.cache.broker_core import BrokerCore, BrokerPolicy, Entry, Refusal
from tests.master.cache.seed_design import HeadCore, TwiceBroker

POLICY = BrokerPolicy(length=5, workers=2)

red = pytest.raises(AssertionError)
"""The property does not hold there."""


def busy_and_full(make: Callable[[BrokerPolicy], BrokerCore[Entry]]) -> tuple[BrokerCore[Entry], list[Entry]]:
    """Return a core with all workers busy, and a full queue: of low priority with 1 s to live, behind one with 60 s."""
    core = make(POLICY)
    for _ in range(2):
        core.offer(0.0, Entry("k", 0, 60.0, "busy"))
        core.next(0.0)
    core.offer(0.0, Entry("k", 0, 60.0, "head"))
    doomed = [Entry("k", 5, 1.0, number) for number in range(4)]
    for entry in doomed:
        assert core.offer(0.0, entry).refused is None
    return core, doomed


def the_dead_are_told_at_once(make: Callable[[BrokerPolicy], BrokerCore[Entry]]) -> None:
    core, doomed = busy_and_full(make)
    assert core.next(1.0) is None
    assert set(core.due(1.0)) == set(doomed)


def the_dead_hold_no_places(make: Callable[[BrokerPolicy], BrokerCore[Entry]]) -> None:
    core, _ = busy_and_full(make)
    for _ in range(4):
        assert core.offer(1.0, Entry("k", 5, 60.0, "new")).refused is None
    assert core.offer(1.0, Entry("k", 5, 60.0, "new")).refused is Refusal.FULL


@pytest.mark.parametrize("holds", [the_dead_are_told_at_once, the_dead_hold_no_places])
def test_what_has_expired_behind_a_head_that_waits_is_told_and_holds_no_place(
    holds: Callable[[Callable[[BrokerPolicy], BrokerCore[Entry]]], None],
) -> None:
    holds(BrokerCore)
    with red:
        holds(HeadCore)


WORKERS = 100


class Screens:
    """A hundred ask for data that are being fetched, and the fetch is behind them in the queue.

    `wait` makes one request wait for the data; each is answered with what comes of it.
    """

    def __init__(self, wait: Callable[[Screens, Callable[[Any], object]], None]) -> None:
        self.broker = Broker(BrokerPolicy(workers=WORKERS))
        self.answered: list[tuple[Any, float]] = []
        self.there = trio.Event()
        self.on_data: list[Callable[[], object]] = []
        self._wait = wait

    async def ask(self) -> list[tuple[Any, float]]:
        """Return each answer, and when it came."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.broker.run)
            for _ in range(WORKERS):
                self._wait(self, lambda result: self.answered.append((result, trio.current_time())))
            self.broker.submit("fetch", 9, 60.0, self._fetch, self._fetched)
            await trio.sleep(60)
            self.broker.stop()
        return self.answered

    async def _fetch(self) -> str:
        await trio.sleep(0.2)
        return "data"

    def _fetched(self, result: object) -> None:
        self.there.set()
        for heard in self.on_data:
            heard()


def in_a_worker(screens: Screens, answer: Callable[[Any], object]) -> None:
    """Wait as the design with the hole does."""

    async def work() -> str:
        await screens.there.wait()
        return "data"

    screens.broker.submit("ask", 1, 30.0, work, answer)


def parked(screens: Screens, answer: Callable[[Any], object]) -> None:
    ask = screens.broker.park(30.0, answer)
    screens.on_data.append(lambda: screens.broker.settle(ask, "data"))


def nobody_waits_longer_than_the_fetch(wait: Callable[[Screens, Callable[[Any], object]], None]) -> None:
    answered = run_virtual(Screens(wait).ask)
    assert answered == [("data", 0.2)] * WORKERS


def test_those_who_wait_for_a_fetch_do_not_keep_it_from_its_worker() -> None:
    nobody_waits_longer_than_the_fetch(parked)
    with red:
        nobody_waits_longer_than_the_fetch(in_a_worker)


def one_answer_each(make: Callable[[], Any]) -> None:
    answers: list[Any] = []

    async def late() -> str:
        with trio.CancelScope(shield=True):  # such as a call in a thread
            await trio.sleep(3)
        return "late"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            broker = make()
            await nursery.start(broker.run)
            broker.submit("k", 0, 1.0, late, answers.append)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    run_virtual(main)
    assert answers == [Refusal.EXPIRED]


def test_a_result_that_comes_after_the_lifetime_is_no_second_answer() -> None:
    one_answer_each(lambda: Broker(POLICY))
    with red:
        one_answer_each(TwiceBroker)


def test_a_late_result_is_counted() -> None:
    broker = Broker(POLICY)
    one_answer_each(lambda: broker)
    assert (broker.dropped, broker.core.expired, broker.core.working) == (1, 1, 0)
