"""Asking masters in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from client_stub.caller import BACKOFF, ROUNDS, ask_any
from lambdamu.address import Address
from lambdamu.answers import Answer, Failure
from lambdamu.messages import Result

MASTERS = [Address("192.0.2.1", port) for port in (7001, 7002, 7003)]
NO_SERVER = Answer(Result.NO_SERVER, None, None, {})


class Masters:
    """Answers for masters without a wire: `good` ones answer, `hopeless` ones fail for good, others fail."""

    def __init__(self, good: Sequence[Address] = (), hopeless: Sequence[Address] = ()) -> None:
        self.good = good
        self.hopeless = hopeless
        self.asked: list[Address] = []
        self.asked_at: list[float] = []

    async def ask(self, master: Address) -> Answer | Failure:
        await trio.lowlevel.checkpoint()
        self.asked.append(master)
        self.asked_at.append(trio.current_time())
        if master in self.good:
            return NO_SERVER
        return Failure(f"{master} fails", final=master in self.hopeless)


class Longest(random.Random):
    """Has everyone wait as long as may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


async def test_a_master_that_fails_is_skipped() -> None:
    for seed in range(20):
        masters = Masters(good=MASTERS[2:])
        assert await ask_any(masters.ask, MASTERS, random.Random(seed)) == (MASTERS[2], NO_SERVER)
        assert len(masters.asked) == len(set(masters.asked))


async def test_the_first_answer_is_enough() -> None:
    masters = Masters(good=MASTERS)
    await ask_any(masters.ask, MASTERS, random.Random(0))
    assert len(masters.asked) == 1


async def test_the_order_is_left_to_chance() -> None:
    first = set()
    for seed in range(40):
        masters = Masters(good=MASTERS)
        await ask_any(masters.ask, MASTERS, random.Random(seed))
        first.add(masters.asked[0])
    assert first == set(MASTERS)


async def test_masters_that_all_fail_are_tried_in_a_few_rounds(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters()
    failure = await ask_any(masters.ask, [*MASTERS, MASTERS[0]], random.Random(0))
    assert isinstance(failure, Failure)
    assert all(f"{master} fails" in failure.text for master in MASTERS)
    rounds = [masters.asked[i : i + 3] for i in range(0, len(masters.asked), 3)]
    assert [set(each) for each in rounds] == [set(MASTERS)] * ROUNDS


async def test_one_that_fails_for_good_is_asked_once(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters(hopeless=MASTERS[:1])
    await ask_any(masters.ask, MASTERS, random.Random(0))
    assert [masters.asked.count(master) for master in MASTERS] == [1, ROUNDS, ROUNDS]


async def test_when_all_fail_for_good_nobody_waits(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters(hopeless=MASTERS)
    await ask_any(masters.ask, MASTERS, Longest())
    assert trio.current_time() == masters.asked_at[0]
    assert len(masters.asked) == len(MASTERS)


async def test_the_longest_wait_doubles_up_to_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters()
    await ask_any(masters.ask, MASTERS[:1], Longest())
    waits = [after - before for before, after in zip(masters.asked_at, masters.asked_at[1:], strict=False)]
    assert waits == pytest.approx([min(BACKOFF.most_s, BACKOFF.first_s * 2**i) for i in range(ROUNDS - 1)])


async def test_a_wait_is_any_part_of_the_longest_one(autojump_clock: trio.testing.MockClock) -> None:
    waits = []
    for seed in range(50):
        masters = Masters()
        await ask_any(masters.ask, MASTERS[:1], random.Random(seed))
        waits.append(masters.asked_at[1] - masters.asked_at[0])
    assert min(waits) < 0.2 * BACKOFF.first_s
    assert max(waits) > 0.8 * BACKOFF.first_s
    assert max(waits) <= BACKOFF.first_s


async def test_no_master_is_a_failure_too() -> None:
    assert await ask_any(Masters().ask, [], random.Random(0)) == Failure("there is no master to ask")
