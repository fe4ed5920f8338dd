"""The timer in virtual time. Times are in seconds from its first tick."""

from __future__ import annotations

import itertools
import random

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lambdamu.testing import run_virtual
from lambdamu.timer import Ticks, Timer

SLACK_S = 1e-6
"""Sums of floats differ in their last digits."""


async def ticks(work_s: list[float], period_s: float = 1.0, jitter: float = 0.0, seed: int = 0) -> list[list[float]]:
    """Return, for a tick and one more after each piece of work, when it was due and when it came."""
    start = trio.current_time()
    timer = Timer(period_s, rng=random.Random(seed), jitter=jitter)
    seen = []
    for work in [0.0, *work_s]:
        await trio.sleep(work)
        due = await timer.wait()
        seen.append([due - start, trio.current_time() - start])
    return seen


@pytest.mark.parametrize(
    ("work_s", "expected"),
    [
        pytest.param([0.0] * 3, [[0, 0], [1, 1], [2, 2], [3, 3]], id="no work"),
        pytest.param([0.75] * 3, [[0, 0], [1, 1], [2, 2], [3, 3]], id="work of most of a period"),
        pytest.param([1.0] * 3, [[0, 0], [1, 1], [2, 2], [3, 3]], id="work of a whole period"),
        pytest.param([1.25, 0.0], [[0, 0], [1, 1.25], [2, 2]], id="one tick late"),
        pytest.param([3.5, 0.0, 0.0], [[0, 0], [1, 3.5], [4, 4], [5, 5]], id="two ticks missed"),
        pytest.param([3.5, 1.0, 0.0], [[0, 0], [1, 3.5], [4, 4.5], [5, 5]], id="late again"),
    ],
)
def test_work_never_moves_the_ticks_and_missed_ones_are_not_made_up_for(
    work_s: list[float], expected: list[list[float]]
) -> None:
    assert run_virtual(ticks, work_s) == expected


def test_the_first_tick_comes_when_it_was_asked_for() -> None:
    async def first_two() -> list[float]:
        start = trio.current_time()
        timer = Timer(2.0, rng=random.Random(0), first_s=0.5, jitter=0.0)
        assert timer.next_tick == start + 0.5
        return [await timer.wait() - start, await timer.wait() - start]

    assert run_virtual(first_two) == [0.5, 2.5]


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 0.4), st.floats(0.01, 3600.0))
def test_jitter_has_a_bound_and_does_not_add_up(seed: int, jitter: float, period_s: float) -> None:
    seen = run_virtual(ticks, [0.0] * 100, period_s, jitter, seed)
    offsets = [(due / period_s) - k for k, (due, _) in enumerate(seen)]
    assert offsets[0] == 0
    assert all(abs(offset) <= jitter + SLACK_S for offset in offsets)


def test_timers_of_one_period_do_not_stay_in_step() -> None:
    seen = [run_virtual(ticks, [0.0] * 5, 1.0, 0.05, seed) for seed in range(20)]
    assert len({ticks_of_one[-1][0] for ticks_of_one in seen}) == 20


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 5.0), max_size=30), st.integers(0, 1000), st.floats(0.0, 0.4))
def test_ticks_are_on_time_or_come_as_soon_as_the_work_is_done(work_s: list[float], seed: int, jitter: float) -> None:
    seen = run_virtual(ticks, work_s, 1.0, jitter, seed)
    free_at = 0.0
    for (due, came), work in zip(seen, [*work_s, 0.0], strict=True):
        assert abs(came - max(due, free_at)) < SLACK_S
        free_at = came + work


@example(work_s=[0.0, 2.0, 0.0], seed=467, jitter=0.25)
@settings(deadline=None)
@given(st.lists(st.floats(0.0, 5.0) | st.just(0.0), max_size=30), st.integers(0, 1000), st.floats(0.0, 0.4))
def test_two_ticks_never_come_at_once(work_s: list[float], seed: int, jitter: float) -> None:
    came = [came for _, came in run_virtual(ticks, work_s, 1.0, jitter, seed)]
    assert all(earlier < later for earlier, later in itertools.pairwise(came))
    # No more than one for each period and the one at the start, whatever was missed.
    assert all(number <= at + jitter + SLACK_S for number, at in enumerate(came))


def on_grid(
    seed: int, jitter: float, grid_s: float, late_s: list[float], first: float = 0.0
) -> tuple[Ticks, list[float]]:
    """Return ticks of a period of 1 s, and when they were due; each is taken `late_s` after that."""
    ticks = Ticks(first, 1.0, rng=random.Random(seed), jitter=jitter, grid_s=grid_s)
    due = []
    for late in late_s:
        due.append(ticks.next)
        ticks.take(ticks.next + late)
    return ticks, due


seeds = st.integers(0, 1000)
jitters = st.floats(0.0, 0.3)
grids = st.sampled_from([0.001, 0.02, 0.1, 1 / 7, 1 / 3])


@given(seeds, jitters, grids, st.floats(0.0, 1e6))
def test_on_a_grid_a_tick_comes_up_to_a_grid_sooner_and_never_later(
    seed: int, jitter: float, grid_s: float, first: float
) -> None:
    _, anywhere = on_grid(seed, jitter, 0.0, [0.0] * 50, first)
    _, due = on_grid(seed, jitter, grid_s, [0.0] * 50, first)
    for tick, free in zip(due, anywhere, strict=True):
        assert tick == pytest.approx(round(tick / grid_s) * grid_s, abs=SLACK_S)
        assert -SLACK_S <= free - tick < grid_s + SLACK_S


@given(seeds, jitters, grids)
def test_on_a_grid_two_ticks_are_a_grid_further_apart_than_the_jitter_says_at_most(
    seed: int, jitter: float, grid_s: float
) -> None:
    _, due = on_grid(seed, jitter, grid_s, [0.0] * 100)
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    assert all(1 - 2 * jitter - grid_s - SLACK_S < gap < 1 + 2 * jitter + grid_s + SLACK_S for gap in gaps)


def test_on_a_grid_two_ticks_may_be_further_apart_than_the_jitter_alone_says() -> None:
    gaps = [
        later - earlier
        for seed in range(20)
        for earlier, later in itertools.pairwise(on_grid(seed, 0.01, 0.1, [0.0] * 100)[1])
    ]
    assert max(gaps) > 1 + 2 * 0.01


@given(seeds, jitters, grids, st.lists(st.floats(0.0, 5.0), max_size=30))
def test_on_a_grid_the_next_tick_is_still_to_come_whatever_was_missed(
    seed: int, jitter: float, grid_s: float, late_s: list[float]
) -> None:
    ticks, due = on_grid(seed, jitter, grid_s, late_s)
    taken = [tick + late for tick, late in zip(due, late_s, strict=True)]
    assert all(now < tick for now, tick in zip(taken, [*due, ticks.next][1:], strict=True))
