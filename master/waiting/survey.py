"""How the backends stand together: how much room the queue has, and what the control loop learns. Pure.

`now` is seconds of one monotonic clock. A survey is made in parts, because with ten thousand backends it takes tens of
milliseconds; whoever is let in meanwhile has to be taken off by who makes it.
"""

from __future__ import annotations

from collections.abc import Set

import attrs

from lambdamu.messages import QueueReason
from master.core.member import Member
from master.queue.control import LoadNews
from master.queue.limits import Room


@attrs.define
class Survey:
    """`target_load`: the part of each capacity that is to be used. Only those count to whom clients are sent.

    `asked`: the names of those that are asked for their CPU.
    """

    target_load: float
    asked: Set[str] = frozenset()
    wanted: int = 0
    """Backends that are configured to take clients, in service or not."""
    serving: int = 0
    users: int = 0
    capacity: int = 0
    unlimited: int = 0
    """Of those in service, how many have no capacity."""
    goal: int = 0
    """How many users there are to be."""
    biggest: int = 0
    """The most of that at one backend."""
    silent: int = 0
    """Of those that are asked for their CPU, how many have not told it."""
    _asked_at: float = 0.0
    _cpu: float = 0.0
    _cpu_capacity: int = 0

    def add(self, member: Member, now: float) -> None:
        """Take in one backend."""
        if not member.backend.weight:
            return
        self.wanted += 1
        if not member.serving or member.report is None:
            return
        self.serving += 1
        self.users += member.users(now)
        self._asked_at += member.report.asked_at
        self.silent += member.said.cpu is None and member.backend.name in self.asked
        if member.limit is None:
            self.unlimited += 1
            return
        # One that is over its target takes from the room of the others: where people go is the choice of the pool.
        goal = max(int(member.limit * self.target_load), min(member.limit, 1))
        self.capacity += member.limit
        self.goal += goal
        self.biggest = max(self.biggest, goal)
        if member.said.cpu is not None:
            self._cpu += member.said.cpu * member.limit
            self._cpu_capacity += member.limit

    @property
    def cpu(self) -> float | None:
        """The mean CPU of those that tell it, from 0 to 1, by capacity."""
        return self._cpu / self._cpu_capacity if self._cpu_capacity else None

    @property
    def places(self) -> int | None:
        """How many users there may be in all; None for no limit."""
        return None if self.unlimited else self.goal

    def room(self, *, open_: bool, n_minus_1: bool, taken: int = 0, per_minute: float | None = None) -> Room:
        """Return the room for more. `open_`: whether the pool names backends at all; `taken`: who was let in meanwhile.

        `n_minus_1`: the places of the biggest are kept free, for the case that one falls; the only one is used.
        """
        if not open_ or not self.serving:
            return Room(0, per_minute, QueueReason.NO_BACKEND)
        why = QueueReason.FEWER_BACKENDS if self.serving < self.wanted else QueueReason.NO_PLACE
        if self.unlimited:
            return Room(None, per_minute, why)
        kept = self.biggest if n_minus_1 and self.serving > 1 else 0
        return Room(self.goal - kept - self.users - taken, per_minute, why)

    def news(self, stay_s: float, cpu_at: float) -> LoadNews | None:
        """Return what the control loop learns; None where there is nothing that it could steer by."""
        if not self.serving or self.unlimited or not self.capacity:
            return None
        asked_at = self._asked_at / self.serving
        cpu_at = min(cpu_at, asked_at)
        return LoadNews(asked_at, self.users, self.capacity, stay_s, self.cpu, cpu_at)
