"""The sessions: evenness, peaks, the bound in a storm, and a backend that comes back or is new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.backend import Backend
from master.core.choice import Policy
from master.simulation.masters import Setting, make_backends, textbook
from master.simulation.sessions import SessionsSetting, run_sessions
from master.simulation.spread import spread
from master.simulation.watch import Watch


def crash_run(policy: Policy = Policy.LEAST_LOAD, seed: int = 1) -> Watch:
    """A small pool of short sessions: a run of minutes says as much as one of half an hour with long ones."""
    sessions = SessionsSetting(make_backends(10), 100.0, 100.0, 5.0, 400.0, 133.0)
    return run_sessions(sessions, Setting(textbook(policy), seed=seed))


@pytest.mark.parametrize("seed", [1, 2])
def test_through_crash_storm_and_return_no_backend_is_given_more_than_it_may(seed: int) -> None:
    watch = crash_run(seed=seed)
    assert watch.refused == 0
    assert watch.broken == 0
    assert watch.peak <= 3 * 10 + 3
    assert watch.seconds_to_share is not None
    assert watch.seconds_to_share < 150


def test_without_the_cap_the_returned_one_is_overrun() -> None:
    assert crash_run(Policy.TWO_CHOICES).broken > 0


def test_weights_are_kept() -> None:
    backends = [Backend(f"b{i}", weight=weight) for i, weight in enumerate((1, 2, 4))]
    watch = run_sessions(SessionsSetting(backends, 200.0, 100.0, 5.0, 200.0), Setting())
    assert watch.max_over_mean < 1.02


def test_the_users_of_several_masters_are_as_even() -> None:
    watch = run_sessions(SessionsSetting(make_backends(10), 200.0, 100.0, 5.0, 150.0), Setting(masters=4))
    assert watch.max_over_mean < 1.02


@given(
    st.integers(0, 1000),
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([None, 0, 7, 100]), st.integers(0, 1)), max_size=6
    ),
)
def test_users_are_spread_as_far_as_there_is_room(users: int, members: list[tuple[float, int | None, int]]) -> None:
    backends = [
        Backend(f"b{i}", weight=weight, capacity=capacity, priority=priority)
        for i, (weight, capacity, priority) in enumerate(members)
    ]
    counts, rest = spread(users, backends)
    assert sum(counts) + rest == pytest.approx(users, abs=len(members))
    for backend, count in zip(backends, counts, strict=True):
        assert count <= (backend.capacity if backend.capacity is not None else users + 1)
        assert not (count and backend.weight == 0)
    open_first = [b for b in backends if b.priority == 0 and b.weight and (b.capacity is None or b.capacity > users)]
    if open_first:
        assert rest == 0
        assert all(count == 0 for b, count in zip(backends, counts, strict=True) if b.priority)
