"""The verdict on a backend from its probes.

One integer says it all (after HAProxy): below `rise` the backend is down, from `rise` on it is up. A result that
agrees with the verdict takes the integer to its end of the scale, one that disagrees moves it a step, so only
consecutive results count. A link that was lost takes an up backend out of choice at once, until it answers again.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class HealthPolicy:
    """`rise`, `fall`: consecutive good probes that bring a backend up, and bad ones that take it down.

    `stale_after_s`: a report older than that is invalid at the moment of use.
    """

    rise: int = 1
    fall: int = 2
    stale_after_s: float = 3.0


@attrs.define(eq=False)
class Health:
    policy: HealthPolicy
    lost: bool = False
    """The kept connection broke, and the backend has not answered since."""
    _score: int = 0

    def adopt(self, policy: HealthPolicy) -> None:
        """Judge by other counts from now on; the verdict stays, and so does a run that has begun, as far as it can."""
        up = self.up
        self.policy = policy
        self._score = policy.rise + policy.fall - 1 if up else min(self._score, policy.rise - 1)

    @property
    def up(self) -> bool:
        return self._score >= self.policy.rise

    def succeeded(self) -> None:
        self.lost = False
        self._score += 1
        if self.up:
            self._score = self.policy.rise + self.policy.fall - 1

    def failed(self) -> None:
        self._score -= 1
        if not self.up:
            self._score = 0

    def lose(self) -> None:
        """Hear that the kept connection broke; this is no result of a probe."""
        self.lost = True


@attrs.frozen
class Said:
    """What a backend says of itself, if asked: that it drains, the most users it takes, its CPU from 0 to 1."""

    drain: bool = False
    capacity: int | None = None
    cpu: float | None = None


NOTHING_SAID: Final = Said()


@attrs.frozen
class Report:
    """A good answer: `count` users as the backend counted them, asked for at `asked_at` seconds, monotonic."""

    count: int
    asked_at: float

    def age(self, now: float) -> float:
        """Return seconds since the question; what happened in between may or may not be counted in it."""
        return max(0.0, now - self.asked_at)
