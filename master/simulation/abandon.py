"""`abandon`: many join a queue, and most of them go without a word; how many of the others get in, and how soon.

10,000 join within 10 s, nine in ten go at once: their phones never ask again, and their turns would be lost. Of these,
a part may come back within five minutes and stay: who is back in time finds his place where it was.
"""

from __future__ import annotations

from typing import Final

import attrs

from master.queue.limits import Room
from master.queue.policy import Mode, QueuePolicy
from master.simulation.crowd import Crowd
from master.simulation.masters import Progress, no_progress

_JOIN_S: Final = 10.0
_BACK_S: Final = 300.0


@attrs.frozen
class AbandonSetting:
    """`leave` is the part of `people` that goes, `back` the part of these that comes back."""

    people: int = 10_000
    leave: float = 0.9
    back: float = 0.0
    per_minute: float = 60.0
    burst: int = 10

    @property
    def policy(self) -> QueuePolicy:
        return QueuePolicy(Mode.QUEUE_ALL, per_minute=self.per_minute, burst=self.burst)


@attrs.define
class Turns:
    """`entered`: when each came in who stayed. `estimates_kept`: the part of the promises that came true. `most_over`:
    by how many more came in at any moment than the rate allows since the start. `in_time`: who was back before his
    lease, or call, and the time to return were over; `lost_place`: who of them was not where he had been.
    """

    entered: dict[int, float] = attrs.field(factory=dict)
    estimates_kept: float | None = None
    out_of_order: int = 0
    mean_over_wait: float = 0.0
    point90_over_wait: float = 0.0
    most_over: float = 0.0
    in_time: int = 0
    lost_place: int = 0

    @property
    def last_minute(self) -> float:
        return max(self.entered.values()) / 60

    @property
    def per_minute(self) -> float:
        return len(self.entered) / self.last_minute


def run_abandon(setting: AbandonSetting, seed: int = 1, progress: Progress = no_progress) -> Turns:
    """Return what came of it."""
    world = _World(setting, seed)
    for _ in world.crowd.run(lambda: len(world.turns.entered) == world.stay):
        progress(len(world.turns.entered) / world.stay)
    return world.judge()


class _World:
    def __init__(self, setting: AbandonSetting, seed: int) -> None:
        self._setting = setting
        self.turns = Turns()
        self.crowd = crowd = Crowd(setting.policy, seed, self._room, self._enter)
        self._in_time: set[int] = set()
        self.stay = 0
        for person in range(setting.people):
            joins_at = crowd.rng.uniform(0.0, _JOIN_S)
            crowd.join(joins_at, person)
            if crowd.rng.random() >= setting.leave:
                self.stay += 1
                continue
            back_s = crowd.rng.uniform(0.5, _BACK_S) if crowd.rng.random() < setting.back else None
            self._go(person, joins_at, back_s)

    def _go(self, person: int, joins_at: float, back_s: float | None) -> None:
        """Have somebody go as soon as he has been told his place, and come back after a time or never."""
        policy = self._setting.policy
        self.crowd.plan(joins_at, lambda _now: self.crowd.forget(person))
        if back_s is not None:
            self.stay += 1
            if back_s < min(policy.lease_s, policy.claim_s) + policy.return_s:
                self._in_time.add(person)
            self.crowd.plan(joins_at + back_s, lambda now: self.crowd.join(now, person))

    def judge(self) -> Turns:
        turns, crowd = self.turns, self.crowd
        turns.estimates_kept, turns.out_of_order = crowd.estimates.score.share, crowd.estimates.out_of_order
        turns.mean_over_wait, turns.point90_over_wait = crowd.estimates.over_wait
        turns.in_time, turns.lost_place = len(self._in_time), len(self._in_time & crowd.moved)
        return turns

    def _room(self, _now: float) -> tuple[Room, float | None]:
        return Room(None), self._setting.per_minute / 60

    def _enter(self, now: float, person: int) -> str:
        self.turns.entered[person] = now
        allowed = now * self._setting.per_minute / 60 + self._setting.burst
        self.turns.most_over = max(self.turns.most_over, len(self.turns.entered) - allowed)
        return "in"
