"""What "less loaded" means now: the users a backend reported, and those it was sent since, by weight.

A report tells of the moment at which it was asked for. A client needs up to `connect_s` to arrive, so who was sent
later than that before the question may not be in the count, and is added. An assignment that no report confirms is
forgotten after `reservation_s`: that client never came.
"""

from __future__ import annotations

from collections import deque

import attrs


@attrs.frozen
class LoadPolicy:
    connect_s: float = 2.0
    reservation_s: float = 15.0


@attrs.define(eq=False)
class Reservations:
    """The times of a backend's assignments that its report may not count yet, oldest first."""

    policy: LoadPolicy
    _times: deque[float] = attrs.field(factory=deque, init=False)

    def count(self, now: float) -> int:
        """Return how many there are; what no report has confirmed in time is forgotten."""
        # The same sum as in `next_expiry`: two ways to reckon it would differ by the last bit now and then.
        while self._times and self._times[0] + self.policy.reservation_s <= now:
            self._times.popleft()
        return len(self._times)

    def add(self, now: float) -> None:
        self._times.append(now)

    def confirmed_by(self, asked_at: float) -> None:
        """Forget those whose clients are in a count that was asked for at `asked_at`."""
        while self._times and self._times[0] <= asked_at - self.policy.connect_s:
            self._times.popleft()

    def next_expiry(self) -> float | None:
        """Return when the oldest one is forgotten, or None when there is none."""
        return self._times[0] + self.policy.reservation_s if self._times else None


def load(users: int, weight: float) -> float:
    """Return users per unit of weight, the number by which backends are compared; `weight` is over 0."""
    return users / weight
