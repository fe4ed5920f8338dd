"""The accident, in virtual time: what is asked of the upstream stays without an answer for half a minute.

200 asks a second, a hundred workers, 3,000 places. What the broker holds stays within its bounds, everybody is answered
in time, and when the upstream is back, so is the broker.
"""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pytest
import trio

from lambdamu.testing import run_virtual
from master.cache.broker import Broker
from master.cache.broker_core import BrokerPolicy, Refusal

BEGINS_S: Final = 10.0
ENDS_S: Final = 40.0
FETCH_S: Final = 0.02
"""What the upstream takes for an answer when all is well: 4 of 100 workers are busy at 200 a second."""


@attrs.define(eq=False)
class Asked:
    kind: str
    at: float
    answers: list[tuple[Any, float]] = attrs.Factory(list)

    @property
    def result(self) -> Any:
        return self.answers[0][0]

    @property
    def took_s(self) -> float:
        return self.answers[0][1] - self.at


@attrs.frozen
class Sample:
    at: float
    length: int
    working: int
    watched: int
    held: int
    """So many requests are still in memory by their work."""


class Accident:
    """`lost`: what was asked in the silence never gets an answer; otherwise it gets it when that is over."""

    def __init__(
        self,
        *,
        per_s: float = 200.0,
        lifetime_s: float,
        lost: bool = True,
        end_s: float,
        kinds: tuple[str, ...] = ("silent",),
        per_kind: Mapping[str, int] | None = None,
    ) -> None:
        self.broker = Broker(BrokerPolicy(per_kind=per_kind or {}))
        self.asked: list[Asked] = []
        self.samples: list[Sample] = []
        self.lifetime_s = lifetime_s
        self._per_s = per_s
        self._lost = lost
        self._end_s = end_s
        self._kinds = kinds
        self._rng = random.Random(1)
        self._held: weakref.WeakSet[Any] = weakref.WeakSet()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.broker.run)
            nursery.start_soon(self._ask_always)
            while trio.current_time() < self._end_s:
                core = self.broker.core
                held = len(self._held)
                self.samples.append(Sample(trio.current_time(), core.length, core.working, core.watched, held))
                await trio.sleep(0.1)
            self.broker.stop()

    async def _ask_always(self) -> None:
        at = 0.0
        while True:
            at += self._rng.expovariate(self._per_s)
            if at > self._end_s:
                return
            await trio.sleep_until(at)
            self._ask(self._kinds[len(self.asked) % len(self._kinds)])

    def _ask(self, kind: str) -> None:
        asked = Asked(kind, trio.current_time())
        self.asked.append(asked)

        async def work() -> str:
            if kind == "silent" and BEGINS_S <= trio.current_time() < ENDS_S:
                await trio.sleep_until(math.inf if self._lost else ENDS_S)
            await trio.sleep(FETCH_S)
            return "data"

        self._held.add(work)
        self.broker.submit(
            kind, 1, self.lifetime_s, work, lambda result: asked.answers.append((result, trio.current_time()))
        )

    def between(self, begin_s: float, end_s: float) -> list[Asked]:
        return [asked for asked in self.asked if begin_s <= asked.at < end_s]


@pytest.fixture(scope="module", params=[(5.0, True), (5.0, False), (20.0, True), (20.0, False)], ids=str)
def accident(request: pytest.FixtureRequest) -> Accident:
    lifetime_s, lost = request.param
    made = Accident(lifetime_s=lifetime_s, lost=lost, end_s=ENDS_S + lifetime_s + 3)
    run_virtual(made.run)
    return made


def test_each_asker_has_one_answer_within_its_lifetime(accident: Accident) -> None:
    assert len(accident.asked) > 9_000
    assert all(len(asked.answers) == 1 for asked in accident.asked)
    assert max(asked.took_s for asked in accident.asked) <= accident.lifetime_s + 1e-6


def test_what_is_held_stays_within_its_bounds(accident: Accident) -> None:
    in_accident = [sample for sample in accident.samples if sample.at > BEGINS_S + 1]
    assert max(sample.working for sample in in_accident) == 100
    assert max(sample.length for sample in in_accident) <= min(3000, 200 * accident.lifetime_s * 1.2)
    assert max(sample.held for sample in in_accident) <= 3100
    assert max(sample.watched for sample in in_accident) <= 2 * 3100 + 1024


def test_where_people_wait_long_the_queue_is_full_and_says_so_at_once(accident: Accident) -> None:
    refused = [asked for asked in accident.asked if asked.result is Refusal.FULL]
    assert all(asked.took_s == 0 for asked in refused)
    assert bool(refused) is (accident.lifetime_s > 3000 / 200)


def test_it_recovers_by_itself_within_a_lifetime(accident: Accident) -> None:
    assert all(
        asked.result == "data"
        for asked in accident.between(ENDS_S + accident.lifetime_s, ENDS_S + accident.lifetime_s + 2)
    )
    back = [
        asked
        for asked in accident.between(ENDS_S, ENDS_S + 5)
        if asked.result == "data" and asked.took_s <= 2 * FETCH_S
    ]
    assert back[0].at - ENDS_S <= 2.0, "of which a queue of 3,000 takes a second at the rate of the upstream"
    rest = [sample for sample in accident.samples if sample.at > ENDS_S + 2]
    assert max(sample.length for sample in rest) == 0
    assert max(sample.working for sample in rest) < 20
    assert max(sample.held for sample in rest) < 20


def test_before_it_four_workers_are_busy_and_nobody_waits(accident: Accident) -> None:
    before = [sample for sample in accident.samples if 1 < sample.at < BEGINS_S]
    assert 3 <= sum(sample.working for sample in before) / len(before) <= 5
    assert max(sample.length for sample in before) == 0
    assert all(asked.result == "data" for asked in accident.between(0, BEGINS_S - 1))


def test_ten_times_the_peak_is_no_accident() -> None:
    peak = Accident(per_s=2000.0, lifetime_s=5.0, end_s=4.0)
    run_virtual(peak.run)
    assert len(peak.asked) > 7_500
    answered = peak.between(0, 3)
    assert all(asked.result == "data" for asked in answered)
    assert max(asked.took_s for asked in answered) <= FETCH_S + 1e-6
    assert max(sample.length for sample in peak.samples) == 0


@pytest.mark.parametrize(("limit", "unharmed", "end_s"), [({"silent": 60}, True, 29.0), ({}, False, 15.0)])
def test_a_silent_kind_with_a_limit_takes_nothing_from_the_others(
    limit: Mapping[str, int], unharmed: bool, end_s: float
) -> None:
    """Also while the queue is full of it."""
    run = Accident(per_s=400.0, lifetime_s=20.0, end_s=end_s, kinds=("silent", "well"), per_kind=limit)
    run_virtual(run.run)
    well = [asked for asked in run.between(0, end_s - 1) if asked.kind == "well"]
    harmed = [asked for asked in well if asked.result != "data" or asked.took_s > 2 * FETCH_S]
    assert (not harmed) is unharmed
    assert (run.samples[-1].length == 3000) is unharmed, "or the longer run shows nothing of a full queue"
