"""The broker at work, in virtual time.

The file is long because each promise to who asks has its test here, over one kind of fetch.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lambdamu.testing import run_virtual
from master.cache.broker import Broker
from master.cache.broker_core import BrokerPolicy, Refusal

FULL, EXPIRED, STOPPING = Refusal.FULL, Refusal.EXPIRED, Refusal.STOPPING


class Answers(list[tuple[Any, Any, float]]):
    """Who was answered what, and when."""

    def of(self, who: Any) -> Callable[[Any], None]:
        return lambda result: self.append((who, result, trio.current_time()))

    @property
    def results(self) -> list[tuple[Any, Any]]:
        return [(who, result) for who, result, _ in self]


def after(delay_s: float, result: Any = "done") -> Callable[[], Awaitable[Any]]:
    async def work() -> Any:
        await trio.sleep(delay_s)
        return result

    return work


def stubborn(delay_s: float, result: Any = "done") -> Callable[[], Awaitable[Any]]:
    """Return work that cannot be cut off."""

    async def work() -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(delay_s)
        return result

    return work


@asynccontextmanager
async def running(**policy: Any) -> AsyncIterator[Broker]:
    broker = Broker(BrokerPolicy(**policy))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        broker.stop()


async def test_work_is_done_by_so_many_at_a_time_and_in_order(autojump_clock: object) -> None:
    answers = Answers()
    async with running(workers=2) as broker:
        for number in range(5):
            broker.submit("k", 0, 60.0, after(1.0, number), answers.of(number))
        await trio.sleep(10)
    assert sorted(answers) == [(0, 0, 1.0), (1, 1, 1.0), (2, 2, 2.0), (3, 3, 2.0), (4, 4, 3.0)]


async def test_an_error_that_is_expected_is_a_result(autojump_clock: object) -> None:
    answers = Answers()
    error = OSError("the upstream is down")
    async with running() as broker:
        broker.submit("k", 0, 60.0, after(1.0, error), answers.of("a"))
        await trio.sleep(2)
    assert answers.results == [("a", error)]


async def test_what_is_submitted_before_the_start_is_done_after_it(autojump_clock: object) -> None:
    answers = Answers()
    broker = Broker(BrokerPolicy(workers=1))
    for who in "ab":
        broker.submit("k", 0, 60.0, after(1.0), answers.of(who))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.run)
        await trio.sleep(5)
        broker.stop()
    assert [(who, at) for who, _, at in answers] == [("a", 1.0), ("b", 2.0)]


async def test_who_finds_no_place_is_told_at_once_and_who_loses_one_too(autojump_clock: object) -> None:
    answers = Answers()
    async with running(length=1, workers=1) as broker:
        for who, priority in [("busy", 5), ("low", 5), ("none", 5), ("high", 1)]:
            broker.submit("k", priority, 60.0, after(1.0), answers.of(who))
        assert answers.results == [("none", FULL), ("low", FULL)]
        await trio.sleep(5)
    assert answers.results[2:] == [("busy", "done"), ("high", "done")]


@pytest.mark.parametrize("lifetime_s", [0.0, -1.0, float("nan")])
async def test_without_a_lifetime_there_is_no_work(lifetime_s: float, autojump_clock: object) -> None:
    answers = Answers()
    async with running() as broker:
        broker.submit("k", 0, lifetime_s, after(0.0), answers.of("a"))
        broker.park(lifetime_s, answers.of("b"))
        assert answers.results == [("a", EXPIRED), ("b", EXPIRED)]


async def test_each_is_told_when_its_own_lifetime_ends_in_the_queue_or_with_a_worker(autojump_clock: object) -> None:
    answers = Answers()
    async with running(workers=1) as broker:
        broker.submit("k", 0, 7.0, trio.sleep_forever, answers.of("worker"))
        for who, lifetime_s in [("last", 5.0), ("middle", 2.0), ("first", 1.0)]:
            broker.submit("k", 0, lifetime_s, after(0.0), answers.of(who))
        await trio.sleep(1.5)
        broker.submit("k", 0, 0.1, after(0.0), answers.of("later"))
        await trio.sleep(10)
        assert (broker.core.expired, broker.cut, broker.dropped) == (5, 1, 0)
    assert answers == [
        ("first", EXPIRED, 1.0), ("later", EXPIRED, 1.6), ("middle", EXPIRED, 2.0), ("last", EXPIRED, 5.0),
        ("worker", EXPIRED, 7.0),
    ]  # fmt: skip


async def test_a_worker_is_free_again_when_the_lifetime_of_its_request_ends(autojump_clock: object) -> None:
    answers = Answers()
    async with running(workers=1) as broker:
        broker.submit("k", 0, 2.0, trio.sleep_forever, answers.of("silent"))
        broker.submit("k", 0, 60.0, after(1.0), answers.of("next"))
        await trio.sleep(5)
    assert answers == [("silent", EXPIRED, 2.0), ("next", "done", 3.0)]


async def test_a_request_that_expired_before_its_worker_had_its_turn_is_not_begun(autojump_clock: object) -> None:
    answers = Answers()
    begun = []

    async def work() -> None:
        begun.append(trio.current_time())

    async with running(workers=2) as broker:
        gone = broker.submit("k", 0, 60.0, work, answers.of("gone"))
        assert broker.withdraw(gone)
        broker.submit("k", 0, 60.0, after(0.0), answers.of("here"))
        await trio.sleep(5)
        assert (begun, broker.cut, broker.core.working) == ([], 0, 0)
    assert answers.results == [("here", "done")]


@pytest.mark.parametrize("after_s", [0.0, 1.0, 2.0, 9.0])
async def test_who_withdraws_hears_nothing_ever(after_s: float, autojump_clock: object) -> None:
    answers = Answers()
    async with running(workers=1) as broker:
        asks = [
            broker.submit("k", 0, 2.0, stubborn(4.0), answers.of("worker")),
            broker.submit("k", 0, 2.0, after(0.0), answers.of("queue")),
            broker.park(2.0, answers.of("parked")),
        ]
        await trio.sleep(after_s)
        heard = len(answers)
        open_ = [broker.withdraw(ask) for ask in asks]
        assert open_ == [after_s < 2.0] * 3 or after_s == 2.0
        await trio.sleep(20)
        assert not broker.settle(asks[2], "late")
    assert len(answers) == heard


async def test_who_withdraws_hears_nothing_of_an_end_that_was_not_told_yet(autojump_clock: MockClock) -> None:
    async with running() as broker:
        ask = broker.park(1.0, pytest.fail)
        autojump_clock.jump(2)
        broker.submit("k", 0, 60.0, after(0.0), str)
        assert not broker.withdraw(ask)
        await trio.sleep(5)


async def test_the_work_of_one_who_withdrew_goes_on_and_its_result_is_dropped(autojump_clock: object) -> None:
    ended = []

    async def work() -> None:
        await trio.sleep(1)
        ended.append(trio.current_time())

    async with running() as broker:
        ask = broker.submit("k", 0, 60.0, work, pytest.fail)
        await trio.sleep(0.5)
        broker.withdraw(ask)
        await trio.sleep(2)
        assert (ended, broker.dropped) == ([1.0], 1)


async def test_work_that_would_not_be_ready_in_time_is_not_begun(autojump_clock: object) -> None:
    """More is asked than workers can do: without `needs_s` each begins what it cannot end, and nobody gets anything."""
    good = {}
    for needs_s in (0.0, 0.5):
        answers = Answers()
        async with running(workers=10) as broker:
            for number in range(900):  # 30 a second, where 20 can be done
                broker.submit("k", 0, 5.0, after(0.5), answers.of(number), needs_s=needs_s)
                await trio.sleep(1 / 30)
            await trio.sleep(6)
        assert len(answers) == 900
        good[needs_s] = sum(result == "done" for _, result in answers.results)
    assert good[0.5] >= 590, "all that can be done"
    assert good[0.0] < 500


async def test_a_parked_request_is_settled_once_or_expires(autojump_clock: object) -> None:
    answers = Answers()
    async with running(most_parked=2) as broker:
        first, second = broker.park(5.0, answers.of("first")), broker.park(1.0, answers.of("second"))
        broker.park(5.0, answers.of("third"))
        await trio.sleep(2)
        assert broker.settle(first, "data")
        assert not broker.settle(first, "data")
        assert not broker.settle(second, "data")
    assert answers == [("third", FULL, 0.0), ("second", EXPIRED, 1.0), ("first", "data", 2.0)]


async def test_a_stop_finishes_what_has_begun_and_refuses_the_rest(autojump_clock: object) -> None:
    answers = Answers()
    broker = Broker(BrokerPolicy(workers=2))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        for number in range(4):
            broker.submit("k", 0, 60.0, after(1.0 + number), answers.of(number))
        shared = broker.park(60.0, answers.of("shared"))
        broker.park(60.0, answers.of("other"))
        await trio.sleep(0.5)
        broker.stop()
        broker.stop()
        assert answers.results == [(2, STOPPING), (3, STOPPING)]
        broker.submit("k", 0, 60.0, after(0.0), answers.of("new"))
        broker.park(60.0, answers.of("new"))
        await trio.sleep(0.6)
        assert broker.settle(shared, "data"), "what is fetched still goes to all who wait for it"
    assert trio.current_time() == 2.0
    assert answers.results[2:] == [
        ("new", STOPPING), ("new", STOPPING), (0, "done"), ("shared", "data"), (1, "done"), ("other", STOPPING),
    ]  # fmt: skip


async def test_a_stop_waits_no_longer_than_the_lifetime_of_what_has_begun(autojump_clock: object) -> None:
    answers = Answers()
    async with running() as broker:
        broker.submit("k", 0, 3.0, trio.sleep_forever, answers.of("silent"))
        await trio.sleep(1)
    assert trio.current_time() == 3.0
    assert answers.results == [("silent", EXPIRED)]


async def test_a_stop_of_an_idle_broker_is_immediate(autojump_clock: object) -> None:
    async with running():
        await trio.sleep(1)
    assert trio.current_time() == 1.0


async def test_who_is_cancelled_answers_all_that_is_open(autojump_clock: object) -> None:
    answers = Answers()
    broker = Broker(BrokerPolicy(workers=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        for who in "ab":
            broker.submit("k", 0, 60.0, trio.sleep_forever, answers.of(who))
        broker.park(60.0, answers.of("c"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert answers.results == [("a", STOPPING), ("b", STOPPING), ("c", STOPPING)]


def test_a_bug_in_work_ends_the_broker() -> None:
    answers = Answers()

    async def bug() -> None:
        await trio.sleep(1)
        raise ZeroDivisionError

    async def main() -> None:
        async with running() as broker:
            broker.submit("k", 0, 60.0, bug, answers.of("bug"))
            broker.submit("k", 0, 60.0, after(5.0), answers.of("other"))
            await trio.sleep_forever()

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        run_virtual(main)
    assert sorted(answers.results, key=str) == [("bug", STOPPING), ("other", STOPPING)]


async def test_an_answer_may_ask_again(autojump_clock: object) -> None:
    answers = Answers()
    async with running(length=1, workers=1) as broker:

        def again(result: Any) -> None:
            answers.of("first")(result)
            broker.submit("k", 0, 60.0, after(1.0), answers.of("again"))

        broker.submit("k", 0, 60.0, after(1.0), again)
        broker.submit("k", 0, 60.0, after(1.0), answers.of("second"))
        await trio.sleep(10)
    assert [(who, at) for who, _, at in answers] == [("first", 1.0), ("second", 2.0), ("again", 3.0)]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_each_has_one_answer_and_in_time(seed: int, autojump_clock: object) -> None:
    rng = random.Random(seed)
    until: dict[int, float] = {}
    answers = Answers()
    withdrawn = set()
    async with running(length=10, workers=4, per_kind={"a": 2}, most_parked=10) as broker:
        for number in range(600):
            lifetime_s = rng.choice([0.1, 1.0, 3.0])
            until[number] = trio.current_time() + lifetime_s
            answer = answers.of(number)
            if rng.random() < 0.05:
                ask = broker.park(lifetime_s, answer)
            else:
                work = rng.choice([after, stubborn])(rng.choice([0.0, 0.1, 0.5, 2.0]))
                needs_s = rng.choice([0.0, 0.05])
                ask = broker.submit(rng.choice("ab"), rng.randrange(3), lifetime_s, work, answer, needs_s=needs_s)
            if rng.random() < 0.05 and broker.withdraw(ask):
                withdrawn.add(number)
            await trio.sleep(rng.choice([0.0, 0.0, 0.0, 0.05, 0.2]))
            assert broker.core.length <= 10
            assert broker.core.busy.get("a", 0) <= 2
        await wait_all_tasks_blocked()
    heard = [who for who, _, _ in answers]
    assert sorted(heard) == sorted(set(until) - withdrawn)
    assert all(at <= until[who] + 1e-9 for who, _, at in answers)
    assert {result for _, result, _ in answers} >= {"done", FULL, EXPIRED}
    assert broker.core.working == broker.core.length == broker.core.parked == 0
