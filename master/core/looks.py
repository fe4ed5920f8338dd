"""When to look at which member again, because time alone changes how it stands."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from master.core.member import Member

_SPARE: Final = 64
"""Times to look are swept when they are twice as many as the members and this many more."""


@attrs.define(eq=False)
class Looks:
    """A heap of moments; those that are outdated are passed over when they come up."""

    _members: Mapping[str, Member]
    next: float = attrs.field(default=math.inf, init=False)
    """When the next look is due."""
    _heap: list[tuple[float, str]] = attrs.field(factory=list, init=False)

    def watch(self, member: Member, now: float) -> None:
        """See to it that a member is looked at when the next thing is due: later than now, or it would have no end."""
        when = member.next_look()
        if when >= member.look_at:
            return
        member.look_at = when = max(when, math.nextafter(now, math.inf))
        heapq.heappush(self._heap, (when, member.backend.name))
        if len(self._heap) > 2 * len(self._members) + _SPARE:
            self._heap = [(at, name) for at, name in self._heap if self._is_meant(name, at)]
            heapq.heapify(self._heap)
        self.next = self._heap[0][0]

    def due(self, now: float) -> Iterator[Member]:
        """Give those for whom something is due; whoever takes one lets it be judged, and so watched again."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, name = heap[0]
            member = self._members.get(name)
            if member is None or when != member.look_at:  # it left the pool, or is looked at at another time
                heapq.heappop(heap)
                continue
            later = member.next_look()
            if now < later < math.inf:  # mostly: there is a newer report by now
                member.look_at = later
                heapq.heapreplace(heap, (later, name))
                continue
            heapq.heappop(heap)
            member.look_at = math.inf
            self.next = heap[0][0] if heap else math.inf
            yield member
            heap = self._heap
        self.next = heap[0][0] if heap else math.inf

    def _is_meant(self, name: str, when: float) -> bool:
        """Whether that member is still to be looked at then, and is still in the pool."""
        member = self._members.get(name)
        return member is not None and member.look_at == when
