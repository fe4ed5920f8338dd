"""The join cap: what a backend may be given of the clients that come, however empty it looks.

A permit costs expected asks, not seconds: with V the asks expected since the start, a backend is open while its turn,
the V from which it may be given the next client, is not over V. Being given one moves the turn on by the cost of a
permit. It is the generic cell rate algorithm (ITU-T I.371, 1996), on a clock that runs with the crowd: nothing has to
be set by hand when the crowd grows, and a crowd that comes at once lifts nobody's share.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from master.core.choice import ChoicePolicy

_FIRST_SHARE: Final = 0.1
"""Of its own, what a backend is given that has just come."""


@attrs.define(eq=False)
class Permits:
    """The permits of one backend, of `weight` over 0."""

    policy: ChoicePolicy
    weight: float
    turn: float = attrs.field(default=0.0, init=False)
    """It is open from this V on."""
    began_at: float = attrs.field(default=0.0, init=False)
    """When it came into service last."""
    slow_until: float = attrs.field(default=0.0, init=False)

    _ramp: float = attrs.field(default=1.0, init=False)
    """By which part of its share `turn` was reckoned."""
    whole: float = attrs.field(init=False)
    """What a permit costs at its whole share, in expected asks for each unit that all candidates weigh."""

    def __attrs_post_init__(self) -> None:
        self.weigh(self.weight)

    def weigh(self, weight: float) -> None:
        """Reckon by another weight; the turn stays, which was reckoned by the old one."""
        self.weight = weight
        self.whole = 1 / (self.policy.join_cap * weight) if weight else math.inf

    def begin(self, now: float) -> None:
        """Hear that the backend comes into service: its slow start begins."""
        self.began_at, self.slow_until = now, now + self.policy.slow_start_s
        self._ramp = self.ramp(now)

    @property
    def grows(self) -> bool:
        """Whether `turn` was reckoned by a part of its share."""
        return self._ramp < 1

    def grow(self, now: float, expected: float, least: float) -> None:
        """Bring the time until its turn up to the part of its share that it may be given now; not before `least`.

        Where few clients ask, a permit that was dear at first would keep it out long after its slow start.
        """
        before, self._ramp = self._ramp, self.ramp(now)
        self.turn = min(self.turn, max(least, expected + (self.turn - expected) * before / self._ramp))

    def ramp(self, now: float) -> float:
        """Return the part of its share that it may be given: from a tenth to 1 over the slow start."""
        if now >= self.slow_until:
            return 1.0
        return _FIRST_SHARE + (1 - _FIRST_SHARE) * (now - self.began_at) / self.policy.slow_start_s

    def take(self, now: float, expected: float, weights: float) -> None:
        """Take a permit, open or not, at `expected` asks, where all candidates together weigh `weights`.

        It costs `weights` / (`join_cap` x weight x ramp) expected asks.
        """
        cost = self._cost(now, weights)
        least = expected - self.policy.slack
        self.turn = (self.turn if self.turn > least else least) + cost  # noqa: FURB136 - a call less for each ask

    def is_near(self, now: float, expected: float, weights: float, ahead: int) -> bool:
        """Whether its turn has come at `expected` asks, or would with so many permits less given."""
        return self.turn <= expected or self.turn <= expected + ahead * self._cost(now, weights)

    def _cost(self, now: float, weights: float) -> float:
        cost = weights * self.whole
        return cost / self.ramp(now) if now < self.slow_until else cost
