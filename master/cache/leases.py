"""Leases: who alone may do something, until when. Pure.

A lease ends at its time, without anybody having to say so, and is given to the next one with a higher fencing number.
Only its holder can extend or release it: who comes too late is told so, and ends nobody else's lease.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

import attrs

from master.cache.rows import Key

LeaseName = str | Key
_SPARE: Final = 1024


@attrs.frozen
class Lease:
    """`fence`: higher than of all leases before. `until`: by the store's clock."""

    name: LeaseName
    owner: str
    fence: int
    until: float


@attrs.frozen
class Held:
    """Somebody has it. `until`: when it ends, if it is not extended; asking earlier may be in vain."""

    until: float


class Leases:
    """`most`: so many are held at once."""

    def __init__(self, most: int) -> None:
        self.fence = 0
        """The highest that was given."""
        self._most = most
        self._held: dict[LeaseName, Lease] = {}
        self._ends: list[tuple[float, int, LeaseName]] = []

    def __len__(self) -> int:
        return len(self._held)

    def take(self, now: float, name: LeaseName, owner: str, for_s: float) -> Lease | Held:
        """Give the lease to `owner` where nobody has it, not even `owner` itself: it may ask from two places."""
        _check(for_s)
        held = self._held.get(name)
        if held is not None and held.until > now:
            return Held(held.until)
        if held is None:
            while len(self._held) >= self._most:
                if not self.sweep(now, 1):
                    return Held(self._ends[0][0])
        self.fence += 1
        return self._hold(Lease(name, owner, self.fence, now + for_s))

    def holds(self, now: float, lease: Lease) -> bool:
        held = self._held.get(lease.name)
        return held is not None and held.fence == lease.fence and held.owner == lease.owner and held.until > now

    def extend(self, now: float, lease: Lease, for_s: float) -> Lease | None:
        """Return it with its new end; None when it is not held any more."""
        _check(for_s)
        if not self.holds(now, lease):
            return None
        return self._hold(attrs.evolve(lease, until=now + for_s))

    def release(self, now: float, lease: Lease) -> bool:
        """Return whether it was held."""
        if not self.holds(now, lease):
            return False
        del self._held[lease.name]
        return True

    def sweep(self, now: float, most: int) -> int:
        """Forget those that have ended, looking at no more than `most`; return how many were looked at."""
        looked = 0
        while looked < most and self._ends and self._ends[0][0] <= now:
            looked += 1
            at, fence, name = heapq.heappop(self._ends)
            held = self._held.get(name)
            if held is not None and held.until == at and held.fence == fence:
                del self._held[name]
        return looked

    def _hold(self, lease: Lease) -> Lease:
        self._held[lease.name] = lease
        heapq.heappush(self._ends, (lease.until, lease.fence, lease.name))
        if len(self._ends) > 2 * len(self._held) + _SPARE:
            self._ends[:] = [(held.until, held.fence, held.name) for held in self._held.values()]
            heapq.heapify(self._ends)
        return lease


def _check(for_s: float) -> None:
    if not 0 < for_s < math.inf:
        raise ValueError(f"a lease is not held for {for_s} s")
