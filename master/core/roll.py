"""How many backends work: whether the door is open, and whether the master's own network is to be suspected.

Those count that the operator wants in service and of which a probe has told: who is set aside is no outage, and who has
just been added closes no door.
"""

from __future__ import annotations

import math

import attrs

from master.core.answers import Reason
from master.core.choice import ChoicePolicy, Panic


@attrs.define(eq=False)
class Roll:
    """Counts of the members: `size` in all, `unheard` that are waited for at the start, `working`."""

    policy: ChoicePolicy
    size: int
    instant_s: float
    """Backends that fall within so long fall together: one and the same failure is noticed at each in its turn."""
    unheard: int = attrs.field(init=False)
    working: int = attrs.field(default=0, init=False)
    suspicions: int = attrs.field(default=0, init=False)
    """How often all backends have failed together."""
    suspected: bool = attrs.field(default=False, init=False)
    """Whether they did last time, and none has worked since: the master's own network may be what failed."""
    closed: Reason | None = attrs.field(default=Reason.FIRST_ROUND, init=False)
    """Why nobody is named, whoever works."""
    started_at: float = attrs.field(default=-math.inf, init=False)
    _opens_at: float = attrs.field(default=math.inf, init=False)
    _opened_at: float = attrs.field(default=math.inf, init=False)
    _fell_at: float = attrs.field(default=-math.inf, init=False)
    _before: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.unheard = self.size
        self.look(-math.inf)

    @property
    def last_known(self) -> bool:
        """Whether so few work that the last good reports are taken for true."""
        return self.policy.panic is Panic.LAST_KNOWN and (self._few or self.working == 0)

    @property
    def spares_one(self) -> bool:
        """Whether those that work are enough when one of them does not any more."""
        return self.working - 1 >= self.policy.panic_threshold * self.size

    @property
    def _few(self) -> bool:
        return self.working < self.policy.panic_threshold * self.size

    def look(self, now: float) -> None:
        """Open the door or close it. The first look with a time is the start."""
        if self._opens_at == math.inf and now > -math.inf:
            self.started_at, self._opens_at = now, now + self.policy.first_round_s
        if self.closed is Reason.FIRST_ROUND and self.unheard and now < self._opens_at:
            return
        if self.closed is Reason.FIRST_ROUND and now > -math.inf:
            self._opened_at = now
        self.closed = Reason.PANIC if self._few and not self.last_known else None

    def came_at(self, now: float) -> float:
        """Return since when one counts that works from `now` on: those of the first round are all equally new."""
        return self.started_at if self.started_at <= now <= self._opened_at else now

    def rose(self) -> None:
        """Count one more that works."""
        self.working += 1

    def answered(self) -> None:
        """Hear that a probe was good: the network of the master has not failed."""
        self.suspected = False

    def left(self) -> None:
        """Count one less that works, by the will of the operator: nothing has failed."""
        self.working -= 1
        self._before -= 1

    def fell(self, now: float) -> None:
        """Count one less."""
        if now - self._fell_at > self.instant_s:
            self._fell_at, self._before = now, self.working
        self.working -= 1
        if self.working == 0 and self._before >= max(2, self.size / 2):
            self.suspected = True
            self.suspicions += 1
