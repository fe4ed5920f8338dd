"""The circuit breaker: what trips it, what does not, how long it stays open, and whom it lets through.

The file is long because each rule of the one breaker has its table here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.breaker import (
    MOVES,
    Breaker,
    BreakerObserver,
    BreakerPolicy,
    Counts,
    Event,
    Fault,
    Permit,
    Refused,
    State,
    Why,
)
from lambdamu.breaker_policy import wilson_lower

RNG = random.Random(0)
QUICK_S = 0.001


class Heard(BreakerObserver):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def moved(self, now: float, state: State, event: Event) -> None:
        self.events.append((state, event))

    def crowded(self, now: float, in_flight: int) -> None:
        self.events.append(("crowded", in_flight))

    def refused(self, now: float, why: Why) -> None:
        self.events.append(why)


def make(observer: BreakerObserver | None = None, **policy: Any) -> Breaker:
    return Breaker(BreakerPolicy(**{"jitter": 0.0, **policy}), observer)


def take(breaker: Breaker, now: float) -> Permit:
    permit = breaker.acquire(now, RNG)
    assert isinstance(permit, Permit)
    return permit


def call(breaker: Breaker, now: float, result: str, takes_s: float = QUICK_S) -> float:
    """Make one call and return when it ended: Success, Failure, Logic error, Ignored."""
    permit, now = take(breaker, now), now + takes_s
    match result:
        case "S":
            permit.succeeded(now)
        case "F":
            permit.failed(now)
        case "L":
            permit.failed(now, Fault.LOGIC)
        case "I":
            permit.ignored(now)
    return now


def calls(breaker: Breaker, results: str, now: float = 0.0, takes_s: float = QUICK_S) -> float:
    for result in results:
        now = call(breaker, now, result, takes_s)
    return now


def tripped(now: float = 0.0, **policy: Any) -> Breaker:
    breaker = make(**policy)
    breaker.trip(now, RNG)
    return breaker


@pytest.mark.parametrize(
    ("results", "policy", "state"),
    [
        ("", {}, State.CLOSED),
        ("FFF", {}, State.CLOSED),
        ("FFFF", {}, State.OPEN),  # 4 of 4 are surely more than half
        ("S" * 50 + "FFFF", {}, State.CLOSED),
        ("S" * 50 + "FFFFF", {}, State.OPEN),  # five in a row, however good it was
        ("S" * 50 + "FFFFSFFFF", {}, State.CLOSED),
        ("S" * 50 + "FFFFIF", {}, State.OPEN),  # who is cancelled says nothing, neither good nor bad
        ("S" * 50 + "FFFFLF", {}, State.CLOSED),  # who says no is there
        ("L" * 500, {}, State.CLOSED),
        ("I" * 500, {}, State.CLOSED),
        ("SF" * 100, {}, State.CLOSED),  # half is not more than half
        ("SFF" * 40, {"consecutive": 99}, State.OPEN),
        ("SFF" * 5, {"consecutive": 99}, State.CLOSED),  # 10 of 15 may be chance
        ("SFF" * 5, {"consecutive": 99, "confidence_z": 0.0}, State.OPEN),
        ("F", {"consecutive": 1}, State.OPEN),
    ],
)
def test_what_trips_it(results: str, policy: dict[str, Any], state: State) -> None:
    breaker = make(**policy)
    now = 0.0
    for result in results:
        if breaker.state(now) is State.CLOSED:
            now = call(breaker, now, result)
    assert breaker.state(now) is state


@pytest.mark.parametrize(("takes_s", "state"), [(1.0, State.CLOSED), (1.1, State.OPEN)])
def test_slow_calls_trip_it_though_they_succeed(takes_s: float, state: State) -> None:
    breaker = make(slow_s=1.0, slow_share=0.5, window_s=100.0)
    now = calls(breaker, "SSSS", takes_s=takes_s)
    assert breaker.state(now) is state


def test_failures_that_the_window_has_left_behind_are_forgotten() -> None:
    breaker = make(consecutive=99)
    now = calls(breaker, "FFF")
    assert breaker.counts(now) == Counts(3, 3)
    assert breaker.counts(now + 8.9) == Counts(3, 3)
    assert breaker.counts(now + 10.0) == Counts()
    call(breaker, now + 10.0, "F")
    assert breaker.state(now + 10.1) is State.CLOSED
    assert breaker.counts(now + 10.1) == Counts(1, 1)


def test_logic_and_system_errors_are_counted_apart() -> None:
    breaker = make()
    now = calls(breaker, "SFLLISF")
    assert breaker.counts(now) == Counts(calls=6, system=2, logic=2)


def test_calls_that_fell_to_one_event_are_one_failure() -> None:
    breaker = make()
    permits = [take(breaker, 0.0) for _ in range(50)]
    for permit in permits[:40]:
        permit.failed(1.0)
    assert (breaker.state(1.0), breaker.counts(1.0)) == (State.CLOSED, Counts(1, 1))
    later = 1.0
    for permit in permits[40:43]:
        later += 0.2
        permit.failed(later)
    assert breaker.state(later) is State.OPEN  # a silence that goes on is many


def test_each_call_that_set_out_after_a_failure_fails_by_itself() -> None:
    breaker = make()
    calls(breaker, "FFFF", takes_s=0.0)
    assert breaker.state(0.0) is State.OPEN


def test_while_open_it_refuses_at_once_and_says_how_long() -> None:
    breaker = tripped(open_s=5.0)
    assert breaker.acquire(0.0, RNG) == Refused(Why.OPEN, 5.0)
    assert breaker.acquire(3.0, RNG) == Refused(Why.OPEN, 2.0)
    assert isinstance(breaker.acquire(5.0, RNG), Permit)


def test_whoever_looks_puts_the_end_of_the_open_time_off_for_nobody() -> None:
    breaker = tripped(open_s=5.0)
    for tenth in range(50):
        assert breaker.state(tenth / 10) is State.OPEN
        assert isinstance(breaker.acquire(tenth / 10, RNG), Refused)
    assert isinstance(breaker.acquire(5.0, RNG), Permit)


def test_half_open_one_call_at_a_time_is_let_through() -> None:
    breaker = tripped(open_s=5.0, lease_s=30.0)
    trial = take(breaker, 5.0)
    assert [breaker.acquire(6.0, RNG) for _ in range(99)] == [Refused(Why.TRIAL_OUT, 29.0)] * 99
    trial.succeeded(7.0)
    assert breaker.state(7.0) is State.CLOSED


def test_as_many_good_trials_as_the_policy_says_close_it() -> None:
    breaker = tripped(trials=3)
    now = calls(breaker, "SISL", 5.0)
    assert breaker.state(now) is State.CLOSED
    breaker = tripped(trials=3)
    now = calls(breaker, "SSF", 5.0)
    assert breaker.state(now) is State.OPEN
    now = calls(breaker, "SS", now + 10.0)
    assert breaker.state(now) is State.HALF_OPEN


def test_what_was_counted_before_it_opened_is_forgotten_when_it_closes() -> None:
    breaker = make(open_s=1.0)
    now = calls(breaker, "FFFF")
    now = calls(breaker, "S", now + 1.0)
    assert (breaker.state(now), breaker.counts(now)) == (State.CLOSED, Counts())


@pytest.mark.parametrize("result", ["F", "slow"])
def test_a_bad_trial_opens_it_for_twice_as_long(result: str) -> None:
    breaker = tripped(open_s=5.0)
    now = call(breaker, 5.0, "S" if result == "slow" else "F", 4.0 if result == "slow" else QUICK_S)
    assert breaker.acquire(now, RNG) == Refused(Why.OPEN, 10.0)


def test_a_trial_that_was_cancelled_or_got_lost_makes_room_for_the_next() -> None:
    breaker = tripped(open_s=5.0, lease_s=30.0)
    take(breaker, 5.0).ignored(6.0)
    lost = take(breaker, 6.0)
    assert isinstance(breaker.acquire(35.9, RNG), Refused)
    trial = take(breaker, 36.0)
    lost.failed(36.5)
    assert breaker.acquire(36.5, RNG) == Refused(Why.TRIAL_OUT, 29.5)
    trial.succeeded(37.0)
    assert breaker.state(37.0) is State.CLOSED


def test_results_of_an_older_generation_count_nowhere() -> None:
    breaker = make(open_s=5.0)
    before = [take(breaker, 0.0) for _ in range(20)]
    breaker.trip(0.0, RNG)
    trial = take(breaker, 5.0)
    before[0].succeeded(5.1)
    assert breaker.acquire(5.1, RNG).why is Why.TRIAL_OUT  # type: ignore[union-attr]
    before[1].failed(5.2)
    assert breaker.state(5.2) is State.HALF_OPEN
    trial.succeeded(5.3)
    for permit in before[2:]:
        permit.failed(5.4)
    assert (breaker.state(5.4), breaker.counts(5.4)) == (State.CLOSED, Counts())


def test_a_permit_is_given_back_once() -> None:
    breaker = make(consecutive=99)
    permit = take(breaker, 0.0)
    permit.succeeded(0.1)
    for _ in range(9):
        permit.failed(0.2)
        permit.ignored(0.3)
    assert (breaker.counts(0.3), breaker.in_flight(0.3)) == (Counts(calls=1), 0)


def test_the_open_time_doubles_up_to_its_cap_and_decays_while_it_is_closed() -> None:
    breaker = make(open_s=5.0, max_open_s=30.0, decay_s=60.0)
    waits, now = [], 0.0
    breaker.trip(now, RNG)
    for _ in range(5):
        refused = breaker.acquire(now, RNG)
        assert isinstance(refused, Refused)
        waits.append(refused.retry_after_s)
        now = call(breaker, now + refused.retry_after_s, "F", 0.0)
    assert waits == [5.0, 10.0, 20.0, 30.0, 30.0]
    now = call(breaker, now + 30.0, "S", 0.0)
    assert breaker.policy.doublings == 3
    breaker.trip(now + 119.0, RNG)
    assert breaker.acquire(now + 119.0, RNG) == Refused(Why.OPEN, 20.0)  # one minute was whole: one doubling less


def test_a_lucky_success_does_not_give_the_short_open_time_back() -> None:
    breaker = tripped(open_s=5.0)
    now = call(breaker, 5.0, "F", 0.0)
    now = call(breaker, now + 10.0, "S", 0.0)
    breaker.trip(now, RNG)
    assert breaker.acquire(now, RNG) == Refused(Why.OPEN, 20.0)


@given(seed=st.integers(), doubled=st.integers(0, 60), jitter=st.floats(0.0, 0.99))
def test_an_open_time_keeps_its_bounds(seed: int, doubled: int, jitter: float) -> None:
    policy = BreakerPolicy(open_s=2.0, max_open_s=50.0, jitter=jitter)
    wait_s = policy.open_time_s(doubled, random.Random(seed).random())
    assert 2.0 * (1.0 - jitter) <= wait_s <= 50.0


def test_those_who_broke_off_together_do_not_return_together() -> None:
    rng = random.Random(0)
    waits = []
    for _ in range(100):
        breaker = Breaker(BreakerPolicy(open_s=4.0, jitter=0.5))
        breaker.trip(0.0, rng)
        refused = breaker.acquire(0.0, rng)
        assert isinstance(refused, Refused)
        waits.append(refused.retry_after_s)
    assert (min(waits) < 2.1, max(waits) > 3.9) == (True, True)


def test_many_calls_in_flight_are_told_and_too_many_are_refused() -> None:
    heard = Heard()
    breaker = make(heard, workers=10, crowded_share=0.5, full_share=0.8, slow_s=3.0)
    permits = [take(breaker, 0.0) for _ in range(8)]
    assert heard.events == [("crowded", 5)]
    assert breaker.acquire(0.0, RNG) == Refused(Why.FULL, 3.0)
    permits.pop().succeeded(0.1)
    permits.append(take(breaker, 0.1))
    assert heard.events == [("crowded", 5), Why.FULL]
    for permit in permits[:7]:
        permit.ignored(0.2)
    for _ in range(4):
        take(breaker, 0.2)
    assert heard.events == [("crowded", 5), Why.FULL, ("crowded", 5)]


def test_refusals_of_its_own_are_no_failures() -> None:
    breaker = make(workers=1, consecutive=3)
    permit = take(breaker, 0.0)
    for _ in range(1000):
        assert isinstance(breaker.acquire(0.0, RNG), Refused)
    permit.succeeded(0.1)
    assert (breaker.state(0.1), breaker.counts(0.1)) == (State.CLOSED, Counts(calls=1))


def test_a_full_house_keeps_no_trial_back() -> None:
    breaker = make(workers=2, full_share=1.0, open_s=5.0)
    for _ in range(2):
        take(breaker, 0.0)
    breaker.trip(0.0, RNG)
    assert breaker.in_flight(5.0) == 2
    assert isinstance(breaker.acquire(5.0, RNG), Permit)


def test_permits_that_nobody_gives_back_are_forgotten() -> None:
    breaker = make(workers=5, full_share=1.0, lease_s=10.0)
    for _ in range(100):
        breaker.acquire(0.0, RNG)
    assert (breaker.in_flight(9.9), breaker.in_flight(10.0)) == (5, 0)


def test_each_move_is_told() -> None:
    heard = Heard()
    breaker = make(heard, open_s=5.0)
    breaker.trip(0.0, RNG)
    breaker.trip(1.0, RNG)
    calls(breaker, "F", 5.0)
    calls(breaker, "S", 20.0)
    assert heard.events == [
        (State.OPEN, Event.TRIPPED),
        (State.HALF_OPEN, Event.WAITED),
        (State.OPEN, Event.TRIAL_FAILED),
        (State.HALF_OPEN, Event.WAITED),
        (State.CLOSED, Event.TRIALS_SUCCEEDED),
    ]


def test_every_state_can_be_left_and_none_is_final() -> None:
    assert {state for state, _ in MOVES} == set(MOVES.values()) == set(State)


async def test_of_200_tasks_at_half_open_one_gets_through_and_cancelling_opens_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    breaker = make(open_s=5.0, consecutive=3)
    breaker.trip(trio.current_time(), RNG)
    through = []

    async def one(number: int) -> None:
        permit = breaker.acquire(trio.current_time(), RNG)
        if isinstance(permit, Refused):
            return
        through.append(number)
        try:
            await trio.sleep(1.0)
            permit.succeeded(trio.current_time())
        finally:
            permit.ignored(trio.current_time())

    async def crowd() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)

    await trio.sleep(5.0)
    for _ in range(20):
        with trio.move_on_after(0.5):
            await crowd()
    assert len(through) == 20  # one each time, and cancelled each time
    assert breaker.state(trio.current_time()) is State.HALF_OPEN
    await crowd()
    assert len(through) == 21
    assert breaker.state(trio.current_time()) is State.CLOSED
    for _ in range(20):
        with trio.move_on_after(0.5):
            await crowd()
    assert breaker.state(trio.current_time()) is State.CLOSED
    assert breaker.in_flight(trio.current_time()) == 0


@pytest.mark.parametrize(
    ("hits", "trials", "lower"),
    [(0, 0, 0.0), (0, 9, 0.0), (1, 1, 0.2065), (3, 3, 0.4385), (4, 4, 0.5101), (50, 100, 0.4038), (81, 263, 0.2553)],
)
def test_the_lower_bound_is_the_one_of_the_tables(hits: int, trials: int, lower: float) -> None:
    """81 of 263 is the example of Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    assert wilson_lower(hits, trials, 1.959964) == pytest.approx(lower, abs=5e-5)


@given(trials=st.integers(1, 10**6), data=st.data(), z=st.floats(0.0, 5.0))
def test_the_lower_bound_lies_between_nothing_and_what_was_seen(trials: int, data: st.DataObject, z: float) -> None:
    hits = data.draw(st.integers(0, trials))
    assert -1e-12 <= wilson_lower(hits, trials, z) <= hits / trials + 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        {"consecutive": 0},
        {"failure_share": 0.0},
        {"slow_share": 1.1},
        {"window_s": 0.0},
        {"buckets": 0},
        {"open_s": 0.0},
        {"open_s": 61.0},
        {"jitter": 1.0},
        {"trials": 0},
        {"workers": 0},
        {"crowded_share": 0.9, "full_share": 0.5},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'"):
        BreakerPolicy(**wrong)
