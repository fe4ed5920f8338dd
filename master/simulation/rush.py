"""`rush`: thousands come within seconds to three small backends, of which one dies in the middle.

Each carries 300 users, who stay a minute on the average. People join within 15 s and wait; a minute after the first,
one backend dies, and its users ask again within 5 s, in the lane of those who were in already. The pool is that of the
master: it gets a report of each backend every second, and learns by itself how long people stay.
"""

from __future__ import annotations

from typing import Final

import attrs

from lambdamu.messages import QueueReason
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.queue.limits import Room
from master.queue.policy import Mode, QueuePolicy
from master.queue.ticket import Lane
from master.simulation.crowd import Crowd
from master.simulation.masters import Progress, Setting, make_backends, no_progress

_CONNECT_S: Final = 0.5
_RECONNECT_S: Final = 5.0
_PROBED: Final = ("192.0.2.1", 9001)


@attrs.frozen
class RushSetting:
    people: int = 3000
    within_s: float = 15.0
    backends: int = 3
    capacity: int = 300
    stay_s: float = 60.0
    dies_at_s: float = 60.0
    policy: QueuePolicy = QueuePolicy(Mode.AUTO, target_load=0.9)  # noqa: RUF009 - a frozen value


@attrs.define
class Rushed:
    """Waits are seconds of all who got in, those of the dead backend twice. `most_over`: by how many users the living
    backends together were over the target at most. `estimates_kept`: the part of the promises that came true.
    """

    served: int
    mean_wait_s: float
    longest_wait_s: float
    out_of_order: int
    most_over: int
    most_asks_per_s: int
    estimates_kept: float | None
    mean_over_wait: float
    point90_over_wait: float

    def figures(self) -> dict[str, float | None]:
        """Return it in words and numbers, for people and programs."""
        return {
            "served": self.served,
            "called_out_of_order": self.out_of_order,
            "mean_wait_s": self.mean_wait_s,
            "longest_wait_s": self.longest_wait_s,
            "most_users_over_target": self.most_over,
            "most_asks_per_s": self.most_asks_per_s,
            "estimates_within_90_point": self.estimates_kept,
            "mean_estimates_over_waits": self.mean_over_wait,
            "90_points_over_waits": self.point90_over_wait,
        }


def run_rush(setting: RushSetting, seed: int = 1, progress: Progress = no_progress) -> Rushed:
    """Return what came of it."""
    world = _World(setting, seed)
    for now in world.crowd.run(lambda: len(world.served) == setting.people and not world.homeless):
        world.report(now)
        progress(len(world.served) / setting.people)
    crowd, waits = world.crowd, world.crowd.waited.waits
    return Rushed(
        len(world.served),
        sum(waits) / len(waits),
        max(waits),
        crowd.estimates.out_of_order,
        world.most_over,
        crowd.waited.most_asks_per_s,
        crowd.estimates.score.share,
        *crowd.estimates.over_wait,
    )


class _World:
    def __init__(self, setting: RushSetting, seed: int) -> None:
        self._setting = setting
        backends = [attrs.evolve(backend, capacity=setting.capacity) for backend in make_backends(setting.backends)]
        self._pool = Pool(backends, HealthPolicy(), LoadPolicy(_CONNECT_S))
        self._rng = Setting(seed=seed).rng("pool")
        self._users: dict[str, set[int]] = {backend.name: set() for backend in backends}
        self._dead: set[str] = set()
        self.served: set[int] = set()
        self.homeless: set[int] = set()
        """Those of the dead backend who are not in again."""
        self.most_over = 0
        self.crowd = crowd = Crowd(setting.policy, seed, self._room, self._enter)
        self.report(0.0)
        for person in range(setting.people):
            crowd.join(crowd.rng.uniform(0.0, setting.within_s), person)
        crowd.plan(setting.dies_at_s, lambda now: self._die(now, backends[0].name))

    def report(self, now: float) -> None:
        """Have every backend that lives tell its users."""
        for name, users in self._users.items():
            if name not in self._dead:
                self._pool.record_report(now, self._rng, name, len(users), now, _PROBED)
        living = len(self._users) - len(self._dead)
        over = sum(map(len, self._users.values())) - living * self._goal
        self.most_over = max(self.most_over, over)

    @property
    def _goal(self) -> int:
        return int(self._setting.capacity * self._setting.policy.target_load)

    def _room(self, now: float) -> tuple[Room, float | None]:
        """Return the free places, and what leaves in a second at the target (Little's law)."""
        serving = [member for member in self._pool if member.serving]
        # One that is over its target takes from the room of the others: where people go is the choice of the pool.
        free = sum(self._goal - member.users(now) for member in serving)
        stay_s = self._pool.clock.seen_s
        planned_per_s = 0.0 if stay_s is None else len(serving) * self._goal / stay_s  # 0: nobody knows
        return Room(free, why=QueueReason.NO_PLACE), planned_per_s

    def _enter(self, now: float, person: int) -> str | None:
        member = self._pool.pick(now, self._rng)
        if member is None:
            return None
        name = member.backend.name
        self.crowd.plan(now + _CONNECT_S, lambda later: self._arrive(later, person, name))
        return name

    def _arrive(self, now: float, person: int, name: str) -> None:
        if name in self._dead:
            self._resume(now, person)
            return
        self.served.add(person)
        self.homeless.discard(person)
        self._users[name].add(person)
        stays_s = self.crowd.rng.expovariate(1 / self._setting.stay_s)
        self.crowd.plan(now + stays_s, lambda _now: self._users[name].discard(person))

    def _die(self, now: float, name: str) -> None:
        self._dead.add(name)
        self._pool.record_lost(now, name)
        users, self._users[name] = self._users[name], set()
        for person in sorted(users):
            self._resume(now + self.crowd.rng.uniform(0.0, _RECONNECT_S), person)

    def _resume(self, at: float, person: int) -> None:
        self.homeless.add(person)
        self.crowd.join(at, person, Lane.RESUME)
