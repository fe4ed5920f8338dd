"""What the queue wants of whoever estimates the wait, and one that knows nothing."""

from __future__ import annotations

import random
from typing import Protocol

import attrs

from master.queue.ticket import Ticket


class Estimator(Protocol):
    """`ahead` is the true number of people before a ticket, 0: next. What it is told it may measure by."""

    def eta(self, now: float, ticket: Ticket, ahead: int) -> tuple[float | None, float | None]:
        """Return the mean and the 90 % point of the wait from now, seconds; None: unknown."""

    def retry_after(self, now: float, rng: random.Random, ticket: Ticket, ahead: int) -> float:
        """Return when to ask again, seconds, over 0 and jittered; the ticket says when that was before."""

    def called(self, now: float, ticket: Ticket) -> None: ...

    def claimed(self, now: float, ticket: Ticket) -> None: ...

    def no_show(self, now: float, ticket: Ticket) -> None:
        """Hear that nobody came for a call."""

    def left(self, now: float, ticket: Ticket) -> None:
        """Hear that a waiting ticket was given up, or its lease has ended."""


@attrs.frozen
class NoEstimate:
    """Promises nothing, and has everybody ask again at the same pace."""

    retry_after_s: float = 5.0

    def eta(self, _now: float, _ticket: Ticket, _ahead: int) -> tuple[float | None, float | None]:
        return None, None

    def retry_after(self, _now: float, rng: random.Random, _ticket: Ticket, _ahead: int) -> float:
        return self.retry_after_s * rng.uniform(0.8, 1.2)

    def called(self, now: float, ticket: Ticket) -> None:
        pass

    def claimed(self, now: float, ticket: Ticket) -> None:
        pass

    def no_show(self, now: float, ticket: Ticket) -> None:
        pass

    def left(self, now: float, ticket: Ticket) -> None:
        pass
