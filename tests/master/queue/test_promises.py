"""Promises: which count as kept, and that what is kept of each is a fair sample."""

from __future__ import annotations

import random

import pytest

from master.queue.promises import Promise, Score


def promised(point90_s: float | None) -> Promise:
    promise = Promise()
    if point90_s is not None:
        promise.show(0.0, random.Random(1), point90_s)
    return promise


@pytest.mark.parametrize(
    ("point90_s", "ends_at", "claimed", "kept", "broken"),
    [
        pytest.param(10.0, 9.0, True, 1, 0, id="in time"),
        pytest.param(10.0, 10.0, True, 1, 0, id="on time"),
        pytest.param(10.0, 11.0, True, 0, 1, id="too late"),
        pytest.param(10.0, 5.0, False, 0, 0, id="who leaves before says nothing"),
        pytest.param(10.0, 11.0, False, 0, 1, id="who leaves when it is too late has been kept waiting"),
        pytest.param(None, 11.0, True, 0, 0, id="nothing was promised"),
    ],
)
def test_a_promise_is_kept_or_broken(
    point90_s: float | None, ends_at: float, claimed: bool, kept: int, broken: int
) -> None:
    score = Score()
    score.ended(ends_at, promised(point90_s), claimed=claimed)
    assert (score.kept, score.broken) == (kept, broken)


def test_the_share_is_unknown_before_the_first() -> None:
    score = Score()
    assert score.share is None
    for ends_at in (1.0, 2.0, 3.0, 99.0):
        score.ended(ends_at, promised(10.0), claimed=True)
    assert score.share == 0.75


def test_each_that_was_shown_is_as_likely_to_be_the_one_that_counts() -> None:
    rng, counts = random.Random(1), [0] * 5
    for _ in range(5000):
        promise = Promise()
        for number in range(5):
            promise.show(0.0, rng, float(number))
        counts[int(promise.due)] += 1
    assert all(900 < count < 1100 for count in counts)
