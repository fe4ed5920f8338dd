"""When to poll: by the estimate, jittered, and never more in a second than may be."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.polls import Calendar, PollPolicy, desired_s


def told(calendar: Calendar, now: float, count: int, ahead: int = 10**6, mean_s: float | None = None) -> list[float]:
    rng = random.Random(1)
    return [calendar.retry_after_s(now, rng, ahead, mean_s) for _ in range(count)]


@pytest.mark.parametrize(
    ("ahead", "mean_s", "least", "most"),
    [
        pytest.param(0, 3.0, 1.0, 2.0, id="next"),
        pytest.param(500, 8.0, 1.0, 2.0, id="soon, though many are ahead"),
        pytest.param(500, 60.0, 7.5, 15.0, id="a quarter of the wait"),
        pytest.param(500, 9000.0, 15.0, 30.0, id="a long wait"),
        pytest.param(0, None, 1.0, 2.0, id="next, and nobody knows when"),
        pytest.param(40, None, 3.0, 6.0, id="near, and nobody knows when"),
        pytest.param(10**6, None, 15.0, 30.0, id="far, and nobody knows when"),
    ],
)
def test_it_grows_with_the_wait_and_is_jittered(ahead: int, mean_s: float | None, least: float, most: float) -> None:
    rng = random.Random(1)
    found = [desired_s(rng, ahead, mean_s, PollPolicy()) for _ in range(500)]
    assert least <= min(found) < least * 1.05
    assert most * 0.95 < max(found) <= most
    assert [desired_s(random.Random(2), ahead, mean_s, PollPolicy())] == told_alone(ahead, mean_s)


def told_alone(ahead: int, mean_s: float | None) -> list[float]:
    """Return the same from a calendar that is empty."""
    return [Calendar(PollPolicy()).retry_after_s(0.0, random.Random(2), ahead, mean_s)]


def test_many_who_join_at_once_are_spread_over_as_long_as_it_takes() -> None:
    calendar = Calendar(PollPolicy(max_polls_per_s=100))
    seconds = Counter(int(retry) for retry in told(calendar, 0.0, 20_000))
    assert max(seconds.values()) == 75
    assert max(seconds) < 15 + 20_000 / 75 + 1


def test_who_is_near_the_head_finds_places_that_others_left() -> None:
    calendar = Calendar(PollPolicy(max_polls_per_s=100))
    told(calendar, 0.0, 20_000)
    assert max(told(calendar, 20.0, 25, ahead=0, mean_s=1.0)) < 3.0
    assert min(told(calendar, 20.0, 1)) > 200.0


def test_a_busy_master_gives_away_less() -> None:
    def last(busy: float) -> float:
        calendar, rng = Calendar(PollPolicy(max_polls_per_s=100)), random.Random(1)
        return max(calendar.retry_after_s(0.0, rng, 10**6, None, busy) for _ in range(5000))

    assert last(0.0) < last(0.5) < last(0.9) <= last(1.0) == last(7.0)


@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(st.floats(0, 40), st.integers(0, 10**6), st.none() | st.floats(0.1, 1e6), st.floats(-1, 2)),
        max_size=300,
    ),
)
def test_in_no_second_come_more_than_may_be_and_none_within_one(
    most: int, asks: list[tuple[float, int, float | None, float]]
) -> None:
    calendar, rng, now = Calendar(PollPolicy(max_polls_per_s=most)), random.Random(1), 0.0
    due: Counter[int] = Counter()
    for seconds, ahead, mean_s, busy in asks:
        now += seconds if seconds > 30 else 0.0
        retry = calendar.retry_after_s(now, rng, ahead, mean_s, busy)
        assert retry >= 1.0 - 1e-9
        due[int(now + retry)] += 1
        assert due[int(now + retry)] <= most
    assert len(calendar) <= len(asks)


def test_it_forgets_what_has_passed() -> None:
    calendar = Calendar(PollPolicy(max_polls_per_s=10))
    for second in range(2000):
        told(calendar, float(second), 5)
    assert len(calendar) < 60
    told(calendar, 1e9, 1)
    assert len(calendar) == 1


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_queue_in_which_nobody_may_poll_is_none(bad: float) -> None:
    with pytest.raises(ValueError, match="max_polls_per_s"):
        PollPolicy(max_polls_per_s=bad)


def test_a_client_that_polls_and_polls_takes_hardly_a_place_from_the_others() -> None:
    calendar, rng, kept_s = Calendar(PollPolicy(max_polls_per_s=100)), random.Random(1), 0.0
    for poll in range(5_000):
        kept_s = calendar.retry_after_s(poll / 1000, rng, 10**6, kept_s=kept_s - 0.001)
        assert kept_s > 0
    assert max(told(calendar, 5.0, 100)) <= 31.0
    assert sum(calendar.retry_after_s(5.0, rng, 10**6, kept_s=1000.0) < 60 for _ in range(10)) == 10, "if it is sooner"
