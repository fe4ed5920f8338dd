"""`loop`: the control loop of the queue on a plant that reports late, of which a node dies.

Four nodes carry 10,000 users together. People come at 30 a second, stay 600 s on the average, and wait where they are
not let in. The nodes tell their users every second, and their CPU, users / capacity, 15 s late. At 3,600 s a node
dies, and its users are on the others at once: their load is over the target until enough of them have left by
themselves.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Final

import attrs

from master.queue.control import Control, ControlPolicy, LoadNews
from master.simulation.masters import Progress, Setting, no_progress

_OVER: Final = 0.05
"""Over the target means by more than this part of the capacity."""
_FREE: Final = 0.005
"""Somebody has to have waited while more than this part of the target was free, to have waited for nothing."""


@attrs.frozen
class Plant:
    """`weight`: what a user costs beside what the capacity says. `count_lag_s`: how late the users are told.
    `fixed_per_s`: a rate in place of the loop.
    """

    policy: ControlPolicy = ControlPolicy()  # noqa: RUF009 - a frozen value
    fixed_per_s: float | None = None
    capacity: int = 10_000
    nodes: int = 4
    joins_per_s: float = 30.0
    stay_s: float = 600.0
    believed_stay_s: float = 600.0
    cpu_lag_s: int = 15
    count_lag_s: int = 1
    weight: float = 1.0
    dies_at_s: float = 3600.0
    length_s: float = 7200.0
    tells_cpu: bool = True
    bridges: bool = True
    """Whether who was let in counts before a count tells of him, as it is in the pool."""

    def live_capacity(self, now: float) -> float:
        return self.capacity * (self.nodes - (now >= self.dies_at_s)) / self.nodes


@attrs.define
class Seen:
    """`peak`: the most users, by the whole capacity. `over_s`: how long the live nodes were over the target.
    `idle_s`: how long somebody waited while a place was free.
    """

    peak: float = 0.0
    over_s: int = 0
    idle_s: int = 0
    last: float = 0.0
    """The load of the live nodes at the end."""


def run_loop(plant: Plant, seed: int = 1, progress: Progress = no_progress) -> Seen:
    """Return what was seen in a run."""
    world, control = _World(plant, seed), Control(plant.policy)
    control.override(plant.fixed_per_s)
    seen = Seen()
    for second in range(int(plant.length_s)):
        now = float(second)
        waited = world.waiting
        world.pass_second(now)
        control.learn(world.news(now), waiting=world.waiting > 0)
        world.admit(now, control.plan(now).per_s)
        _watch(seen, world, now, min(waited, world.waiting))
        progress(now / plant.length_s)
    return seen


def _watch(seen: Seen, world: _World, now: float, waited: int) -> None:
    plant, target = world.plant, world.plant.policy.target_load
    load, goal = world.users * plant.weight / plant.live_capacity(now), target * (1 - _FREE)
    seen.peak = max(seen.peak, world.users * plant.weight / plant.capacity)
    seen.over_s += load > target + _OVER
    seen.idle_s += waited > 0 and load < goal
    seen.last = load


class _World:
    """Who is there and who waits, a second at a time; users are told of once they are in."""

    def __init__(self, plant: Plant, seed: int) -> None:
        self.plant = plant
        self.waiting = 0
        self._rng = Setting(seed=seed).rng("people")
        self._next_join = self._rng.expovariate(plant.joins_per_s)
        self._leavings: list[float] = []
        self._credit = 0.0
        self._told: deque[int] = deque(maxlen=max(plant.cpu_lag_s, plant.count_lag_s) + 1)
        """The users of the last seconds, as they were told."""
        self._let_in: deque[int] = deque(maxlen=plant.count_lag_s)
        """Who was let in since the count that is told last: the pool holds a place for each."""

    @property
    def users(self) -> int:
        return len(self._leavings)

    def pass_second(self, now: float) -> None:
        """Let those leave whose time has come, and those come who come."""
        while self._leavings and self._leavings[0] <= now:
            heapq.heappop(self._leavings)
        while self._next_join <= now:
            self.waiting += 1
            self._next_join += self._rng.expovariate(self.plant.joins_per_s)
        self._told.append(self.users)

    def news(self, now: float) -> LoadNews:
        """Return what the pool knows: the last count and those who were let in since, and a CPU that is late."""
        plant = self.plant
        capacity, count = plant.live_capacity(now), self._told[max(0, len(self._told) - 1 - plant.count_lag_s)]
        cpu, cpu_at = (0.0 if plant.tells_cpu else None), -math.inf
        if plant.tells_cpu and len(self._told) > plant.cpu_lag_s:
            cpu_at = now - plant.cpu_lag_s
            cpu = self._told[-1 - plant.cpu_lag_s] * plant.weight / plant.live_capacity(cpu_at)
        users = count + (sum(self._let_in) if plant.bridges else 0)
        return LoadNews(now, users, capacity, plant.believed_stay_s, cpu, cpu_at)

    def admit(self, now: float, per_s: float | None) -> None:
        """Let in a second's worth; no credit is kept while nobody waits."""
        self._credit += math.inf if per_s is None else per_s
        entering = int(min(self.waiting, self._credit))
        self._credit = min(1.0, self._credit - entering)
        self.waiting -= entering
        for _ in range(entering):
            heapq.heappush(self._leavings, now + self._rng.expovariate(1 / self.plant.stay_s))
        self._let_in.append(entering)
