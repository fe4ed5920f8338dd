"""Masters as a simulation sees them: each has a pool and a source of chance of its own, and who asks takes any."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Policy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool

NEVER_S: Final = 1e12
_PROBED: Final = ("192.0.2.1", 9001)

Progress = Callable[[float], None]
"""Told now and then which part of a run is done, from 0 to 1."""


def no_progress(_part: float) -> None:
    """Tell nobody."""


@attrs.frozen
class Setting:
    """How many masters choose in which way, and where chance begins. `session_s` None: learned."""

    choice: ChoicePolicy = ChoicePolicy()  # noqa: RUF009 - a frozen value
    masters: int = 1
    seed: int = 1
    session_s: float | None = None

    def rng(self, stream: str) -> random.Random:
        """Return a source of chance for one purpose: a change of one leaves the others as they were."""
        return random.Random(f"{self.seed} {stream}")


def textbook(policy: Policy) -> ChoicePolicy:
    """Return the policy as it is meant: `least_load` under the join cap, the others as they stand in the textbook."""
    return ChoicePolicy(policy) if policy is Policy.LEAST_LOAD else ChoicePolicy(policy, join_cap=math.inf)


class Masters:
    """Pools of the same backends, which are known by their numbers."""

    def __init__(self, backends: Sequence[Backend], setting: Setting, health: HealthPolicy, loads: LoadPolicy) -> None:
        loads = attrs.evolve(loads, masters=setting.masters, session_s=setting.session_s)
        self.pools = [Pool(backends, health, loads, setting.choice) for _ in range(setting.masters)]
        self._numbers = {backend.name: number for number, backend in enumerate(backends)}
        self._names = [backend.name for backend in backends]
        self._rngs = [setting.rng(f"master {number}") for number in range(setting.masters)]
        self._router = setting.rng("router")

    def ask(self, now: float) -> int | None:
        """Ask any master; return the number of the backend that it names."""
        master = self._router.randrange(len(self.pools)) if len(self.pools) > 1 else 0
        member = self.pools[master].pick(now, self._rngs[master])
        return None if member is None else self._numbers[member.backend.name]

    def report(self, now: float, master: int, number: int, count: int) -> None:
        """Have a master probe a backend, which answers at once."""
        self.pools[master].record_report(now, self._rngs[master], self._names[number], count, now, _PROBED)

    def report_to_all(self, now: float, number: int, count: int) -> None:
        for master in range(len(self.pools)):
            self.report(now, master, number, count)

    def lose(self, now: float, number: int) -> None:
        """Have all masters see their connections to a backend break."""
        for pool in self.pools:
            pool.record_lost(now, self._names[number])

    def ask_rate(self) -> float:
        """Return the asks a second that the join caps are reckoned by, of all masters."""
        return sum(pool.ask_rate for pool in self.pools)


def make_backends(count: int) -> list[Backend]:
    return [Backend(f"b{number}") for number in range(count)]
