"""`capacity`: a pool as it is configured, and a population: what happens when the biggest backend falls."""

from __future__ import annotations

import random

import attrs

from master.config import Config
from master.core.pool import Spare
from master.pool_config import make_backend, make_pool
from master.simulation.masters import Progress, Setting, no_progress
from master.simulation.sessions import SessionsSetting, run_sessions
from master.simulation.spread import spread
from master.simulation.watch import Watch


@attrs.frozen
class Carried:
    """`spare`: whether the users fit when the biggest backend falls. `unplaced`: users for whom there is no room.
    `seen`: a run in which that backend crashes; None where nobody can be sent anywhere.
    """

    spare: Spare
    unplaced: int
    seen: Watch | None

    @property
    def carries(self) -> bool:
        return self.unplaced == 0 and self.spare.fits

    def figures(self) -> dict[str, float | str | None]:
        """Return it in words and numbers, for people and programs."""
        seen = self.seen
        return {
            "carries_n_minus_1": self.carries,
            "biggest": self.spare.biggest,
            "users_of_biggest": self.spare.users,
            "room_elsewhere": self.spare.room,
            "without_a_place": self.unplaced,
            "max_over_mean": None if seen is None else seen.max_over_mean,
            "seconds_to_even": None if seen is None else seen.even_s,
            "refused": None if seen is None else seen.refused,
        }


@attrs.frozen
class CapacitySetting:
    """`users` are there in the long run, for `session_s` each on the average."""

    users: int
    session_s: float = 600.0
    length_s: float = 1800.0
    seed: int = 1


def run_capacity(config: Config, capacity: CapacitySetting, progress: Progress = no_progress) -> Carried:
    """Return what the pool of `config` makes of a population."""
    backends = [make_backend(backend) for backend in config.backends]
    counts, unplaced = spread(capacity.users, backends)
    pool = make_pool(config)
    for backend, count in zip(backends, counts, strict=True):
        pool.record_report(0.0, random.Random(capacity.seed), backend.name, count, 0.0, ("192.0.2.1", 9001))
    spare = pool.spare(0.0)
    if spare.biggest is None:
        return Carried(spare, unplaced, None)
    sessions = SessionsSetting.for_users(capacity.users, backends, capacity.session_s, config.probe.interval_s)
    crashes = [backend.name for backend in backends].index(spare.biggest)
    sessions = attrs.evolve(sessions, length_s=capacity.length_s, crash_at_s=capacity.length_s / 3, crashes=crashes)
    setting = Setting(config.choice, config.choice.masters, capacity.seed, config.choice.session_s)
    return Carried(spare, unplaced, run_sessions(sessions, setting, progress))
