"""The stages of a flight, its places in the queue, and how long data rest after a failure."""

from __future__ import annotations

import random
from itertools import product

import pytest

from lambdamu.retry import Backoff
from master.cache.flights import MOVES, Flight, Flights, Stage, Step
from master.cache.warm_types import WarmType

KIND = WarmType(1, "Accounts", "Products")
KEY = ("ann", 1, 1)


@pytest.mark.parametrize(("stage", "step"), list(product(Stage, Step)))
def test_a_flight_goes_only_where_the_table_lets_it(stage: Stage, step: Step) -> None:
    flight = Flight(KEY, KIND, None, stage)
    if (stage, step) in MOVES:
        flight.move(step)
        assert flight.stage is MOVES[stage, step]
    else:
        with pytest.raises(KeyError):
            flight.move(step)


def test_a_flight_stands_again_in_the_queue_only_where_that_brings_it_forward() -> None:
    flight = Flight(KEY, KIND, None)
    assert [flight.queue(priority) for priority in (9, 9, 10, 5, 9)] == [True, False, False, True, False]
    flight.queued.remove(5)
    assert flight.queue(5)
    flight.move(Step.STARTED)
    assert not flight.queue(1)


def test_there_are_no_more_flights_than_may_be_and_one_that_lands_makes_room() -> None:
    flights = Flights(2, Backoff())
    first = flights.begin(("a", 1, 1), KIND, None)
    assert first is not None
    assert flights.begin(("b", 1, 1), KIND, None) is not None
    assert flights.begin(("c", 1, 1), KIND, None) is None
    first.waiters["somebody"] = None
    assert flights.land(first) == ["somebody"]
    assert flights.get(("a", 1, 1)) is None
    assert flights.begin(("c", 1, 1), KIND, None) is not None


def test_data_rest_longer_with_each_failure_and_not_at_all_after_a_success() -> None:
    flights, rng, now = Flights(10, Backoff(0.5, 10.0)), random.Random(1), 100.0
    rests = [flights.failed(now, KEY, rng) for _ in range(8)]
    assert all(0.25 * 2**n <= rest <= 0.5 * 2**n for n, rest in enumerate(rests[:4]))
    assert 5.0 <= rests[-1] <= 10.0
    assert flights.rest_s(now, KEY) == pytest.approx(rests[-1])
    assert flights.rest_s(now + 10.0, KEY) == 0.0
    flights.succeeded(KEY)
    assert flights.rest_s(now, KEY) == 0.0
    assert flights.failed(now, KEY, rng) <= 0.5


def test_so_many_failures_are_remembered_and_the_oldest_is_forgotten() -> None:
    flights, rng = Flights(3, Backoff()), random.Random(1)
    keys = [(f"client {number}", 1, 1) for number in range(4)]
    for key in keys:
        flights.failed(0.0, key, rng)
    assert [flights.rest_s(0.0, key) > 0 for key in keys] == [False, True, True, True]
