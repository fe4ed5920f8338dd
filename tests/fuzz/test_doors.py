"""A short run of the fuzzing of every door; `python -m tests.fuzz` makes a long one."""

from __future__ import annotations

import random
import sys

import pytest

from tests.fuzz.inputs import SEEDS, mutate
from tests.fuzz.memory import make_doors
from tests.fuzz.sockets import DOORS, fuzz_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these ports are Linux's")
INPUTS = 1000


@pytest.mark.parametrize("name", SEEDS)
async def test_whatever_comes_to_a_door_has_an_answer(name: str) -> None:
    door, rng = make_doors()[name], random.Random(name)
    for _ in range(INPUTS):
        data = mutate(rng, SEEDS[name])
        try:
            door(data)
        except Exception as exc:
            raise AssertionError(repr(data)) from exc


async def test_bad_peers_at_every_port_take_nothing_from_the_good_ones() -> None:
    told = await fuzz_sockets(100 * len(DOORS), seed=1)
    assert told.errors == []
    assert told.objects < 5_000
