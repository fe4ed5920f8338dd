"""How soon to try again, and how often at all. Pure: `now` is seconds of one monotonic clock."""

from __future__ import annotations

import random

import attrs
from attrs.validators import ge, gt


@attrs.frozen
class Backoff:
    """Full jitter: a wait is anything up to a bound that doubles each time, from `first_s` to `most_s`.

    Of all ways to wait it spends the fewest calls where many wait for the same thing: M. Brooker, Exponential Backoff
    and Jitter (2015), https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
    """

    first_s: float = attrs.field(default=0.2, validator=gt(0.0))
    most_s: float = attrs.field(default=10.0, validator=gt(0.0))

    def longest_s(self, waited: int) -> float:
        """Return the bound on the next wait of somebody who has waited so many times."""
        # Beyond 64 doublings nobody is below the bound, and a power could leave the floats.
        return min(self.most_s, self.first_s * 2.0 ** min(waited, 64))

    def wait_s(self, waited: int, rng: random.Random) -> float:
        return rng.uniform(0.0, self.longest_s(waited))


@attrs.frozen
class BudgetPolicy:
    """Retries are bought: each first call pays `share` of one in, time pays `per_s`, and no more than `most` are saved.

    So in a long outage retries add no more than `share` to the load, whatever each single call would like to do. After
    Finagle's RetryBudget, https://twitter.github.io/finagle/guide/Clients.html#retries, whose share is 20 % too; it
    gives a server 10 a second, and one device needs far fewer.
    """

    share: float = attrs.field(default=0.2, validator=ge(0.0))
    per_s: float = attrs.field(default=0.2, validator=ge(0.0))
    most: float = attrs.field(default=20.0, validator=ge(1.0))


class RetryBudget:
    """A bucket of tokens, one a retry; full to begin with."""

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self._tokens = policy.most
        self._at: float | None = None

    def deposit(self, now: float) -> None:
        """Take in that a first call is made."""
        self._flow(now)
        self._add(self._policy.share)

    def withdraw(self, now: float) -> bool:
        """Pay for a retry; False when there is nothing left to pay with."""
        self._flow(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _flow(self, now: float) -> None:
        if self._at is not None:
            self._add((now - self._at) * self._policy.per_s)
        self._at = now

    def _add(self, tokens: float) -> None:
        self._tokens = min(self._policy.most, self._tokens + tokens)
