"""How much room there is, by how the backends stand together."""

from __future__ import annotations

import random

import pytest

from master.core.backend import Backend
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.waiting.survey import Survey


def survey_of(backends: list[Backend], users: int = 0, target_load: float = 0.5) -> Survey:
    """Return how they stand when each has said that it has so many users."""
    pool, rng = Pool(backends, HealthPolicy(), LoadPolicy()), random.Random(1)
    for number, backend in enumerate(backends):
        pool.record_report(1.0, rng, backend.name, users, 1.0, ("10.0.0.1", 9000 + number))
    survey = Survey(target_load)
    for member in pool:
        survey.add(member, 1.0)
    return survey


@pytest.mark.parametrize(
    ("capacities", "target_load", "n_minus_1", "users", "free"),
    [
        pytest.param([10, 20], 0.5, False, 0, 15, id="the target of each"),
        pytest.param([10, 20], 0.5, True, 0, 5, id="less the biggest"),
        pytest.param([10], 0.5, True, 0, 5, id="the only one is used"),
        pytest.param([10, 20], 0.5, False, 9, -3, id="too many are there"),
        pytest.param([10, None], 0.5, True, 9, None, id="one without a limit"),
        pytest.param([0, 10], 1.0, False, 0, 10, id="no capacity is none"),
        pytest.param([0], 1.0, False, 0, 0, id="nothing else"),
        pytest.param([1, 3], 0.001, False, 0, 2, id="at least one each"),
    ],
)
def test_free_places(
    capacities: list[int | None], target_load: float, n_minus_1: bool, users: int, free: int | None
) -> None:
    backends = [Backend(f"b{number}", capacity=each) for number, each in enumerate(capacities)]
    room = survey_of(backends, users, target_load).room(open_=True, n_minus_1=n_minus_1)
    assert (room.free_places, room.why) == (free, "NoPlace")


def test_one_without_weight_is_as_if_it_were_not_there() -> None:
    survey = survey_of([Backend("a", capacity=10), Backend("b", capacity=10, weight=0)], users=2)
    room = survey.room(open_=True, n_minus_1=False)
    assert (room.free_places, room.why) == (3, "NoPlace")
    room = survey_of([Backend("b", capacity=10, weight=0)]).room(open_=True, n_minus_1=False)
    assert (room.free_places, room.why) == (0, "NoBackend")
