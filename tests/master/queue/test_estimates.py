"""The estimates of all queues, as the queue and the shell use them."""

from __future__ import annotations

import random

import pytest

from master.queue.estimates import Estimates, Outlook
from master.queue.polls import PollPolicy
from master.queue.ticket import Lane, Ticket

RNG = random.Random(1)


def make() -> Estimates:
    return Estimates(random.Random(1), PollPolicy())


def ticket(queue: str = "a", held: bool = False) -> Ticket:
    return Ticket(1, queue, b"c", None, Lane.PLAIN, 1, joined_at=0.0, lease_until=30.0, held=held)


def looked(queues: dict[str, Outlook], at: float = 0.0) -> Estimates:
    estimates = make()
    estimates.look(at, queues)
    return estimates


def test_each_queue_has_its_own_drain() -> None:
    estimates = looked({"a": Outlook(10, 1.0), "b": Outlook(10, 2.0), "c": Outlook(10)})
    assert estimates.eta(0.0, ticket("a"), 9)[0] == pytest.approx(11)
    assert estimates.eta(0.0, ticket("b"), 9)[0] == pytest.approx(6)
    assert estimates.eta(0.0, ticket("c"), 9) == (None, None)
    assert estimates.eta(0.0, ticket("unknown"), 9) == (None, None)


def test_a_queue_that_is_named_no_more_is_forgotten() -> None:
    estimates = looked({"a": Outlook(10, 1.0), "b": Outlook(10, 2.0)})
    estimates.look(1.0, {"b": Outlook(10, 2.0)})
    assert estimates.forecast("a") is None
    assert estimates.forecast("b") is not None
    estimates.claimed(1.0, ticket("a"))  # and what is still said of it does no harm


@pytest.mark.parametrize(("polls", "held", "known"), [(1, False, False), (2, False, True), (0, True, True)])
def test_only_who_has_polled_since_he_joined_or_is_there_says_whether_people_come(
    polls: int, held: bool, known: bool
) -> None:
    estimates, who = looked({"a": Outlook(10, 1.0)}), ticket(held=held)
    for _ in range(polls):
        estimates.retry_after(0.0, RNG, who, 5)
    estimates.called(1.0, who)
    estimates.no_show(21.0, who)
    forecast = estimates.forecast("a")
    assert forecast is not None
    assert (forecast.show.value == 0.0) is known


@pytest.mark.parametrize(
    ("called_at", "ended_at", "claimed", "score"),
    [
        pytest.param(5.0, 6.0, True, (1, 0), id="in time"),
        pytest.param(5.0, 1000.0, True, (0, 1), id="he is in too late"),
        pytest.param(5.0, 1000.0, False, (0, 0), id="called in time, and he did not come"),
        pytest.param(900.0, 1000.0, False, (0, 1), id="called too late"),
    ],
)
def test_what_was_promised_is_scored(called_at: float, ended_at: float, claimed: bool, score: tuple[int, int]) -> None:
    estimates, who = looked({"a": Outlook(10, 1.0)}), ticket()
    assert estimates.eta(0.0, who, 9) != (None, None)
    estimates.called(called_at, who)
    (estimates.claimed if claimed else estimates.no_show)(ended_at, who)
    assert (estimates.score.kept, estimates.score.broken) == score
    assert who.promise is None


def test_who_leaves_while_he_waits_is_scored_only_when_he_has_waited_too_long() -> None:
    estimates = looked({"a": Outlook(10, 1.0)})
    for left_at in (5.0, 1000.0):
        who = ticket()
        estimates.eta(0.0, who, 9)
        estimates.left(left_at, who)
    assert (estimates.score.kept, estimates.score.broken) == (0, 1)


def test_a_busy_master_is_asked_less_often() -> None:
    def last(busy: float) -> float:
        estimates = Estimates(random.Random(1), PollPolicy(max_polls_per_s=100))
        estimates.look(0.0, {}, busy)
        return max(estimates.retry_after(0.0, RNG, ticket(), 10**6) for _ in range(5000))

    assert last(0.9) > 3 * last(0.0)


def test_who_polls_before_his_time_is_told_what_is_left_of_it() -> None:
    estimates = Estimates(RNG, PollPolicy(max_polls_per_s=1))
    for _ in range(100):
        estimates.retry_after(0.0, RNG, ticket(), 10**6)
    who = ticket()
    who.retry_after_s = estimates.retry_after(0.0, RNG, who, 10**6)
    assert who.retry_after_s > 100
    assert estimates.retry_after(50.0, RNG, who, 10**6) == pytest.approx(who.retry_after_s - 50.0)


def test_who_leaves_leaves_his_place_in_the_calendar_to_others() -> None:
    estimates = Estimates(RNG, PollPolicy(max_polls_per_s=1))
    for _ in range(1000):
        who = ticket()
        who.retry_after_s = estimates.retry_after(0.0, RNG, who, 10**6)
        estimates.left(0.0, who)
    assert max(estimates.retry_after(0.0, RNG, ticket(), 10**6) for _ in range(10)) < 45.0
