"""Which of the candidates: the first in the order of the policy among those that are open, ties by chance.

A heap holds the candidates that are ready, by the key of the policy; a row and a heap hold those that are parked until
their turn, by their turn. A candidate whose key, turn or standing changes gets a new stamp and a new entry; entries
with an old stamp are passed over when they come to the top, and swept out when they are too many. So a choice costs
about the same with ten backends as with ten thousand.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import attrs

_SPARE_ENTRIES: Final = 64
"""Entries are swept when they are twice as many as the members of a group and this many more."""
_UNLISTED: Final = 0


@attrs.define(eq=False)
class Candidate:
    """What a choice knows of a backend."""

    key: float = attrs.field(default=0.0, init=False)
    """Its place in the order of the policy, lowest first."""
    tie: float = attrs.field(default=0.0, init=False)
    """Its place among equals, by chance."""
    stamp: int = attrs.field(default=_UNLISTED, init=False)
    """Which of its entries count; 0 when it is no candidate."""


C = TypeVar("C", bound=Candidate)
Entry = tuple[float, float, int, C]
"""The key or the turn, the tie, the stamp."""


def _push(heap: list[Entry[C]], entry: Entry[C]) -> None:
    # Mostly the one on top is outdated, because it was chosen last: one step does for both.
    if heap and heap[0][2] != heap[0][3].stamp:
        heapq.heapreplace(heap, entry)
    else:
        heapq.heappush(heap, entry)


@attrs.define(eq=False)
class Group(Generic[C]):
    """The candidates of which one choice is made: those of one level, or of one zone in it."""

    size: int = 0
    """How many may ever be in it."""
    ready: list[Entry[C]] = attrs.field(factory=list, init=False)
    row: deque[Entry[C]] = attrs.field(factory=deque, init=False)
    """Those that are parked and came in the order of their turns, as most do: they need no heap."""
    parked: list[Entry[C]] = attrs.field(factory=list, init=False)
    """The other ones."""
    _most: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.resize(self.size)

    def resize(self, size: int) -> None:
        self.size = size
        self._most = 2 * size + _SPARE_ENTRIES

    def __len__(self) -> int:
        """How many entries there are, outdated ones included: at most twice `size` and a few."""
        return len(self.ready) + len(self.row) + len(self.parked)

    def add(self, entry: Entry[C]) -> None:
        """Take in a candidate by its key: its turn has come."""
        _push(self.ready, entry)
        if len(self.ready) + len(self.row) + len(self.parked) > self._most:
            self._sweep()

    def park(self, entry: Entry[C]) -> None:
        """Take in a candidate by its turn."""
        row = self.row
        if not row or entry[0] >= row[-1][0]:
            row.append(entry)
        else:
            _push(self.parked, entry)
        if len(self.ready) + len(row) + len(self.parked) > self._most:
            self._sweep()

    def best(self, expected: float) -> C | None:
        """Return the first of those whose turn has come at `expected` asks; it stays where it is."""
        ready, row, parked = self.ready, self.row, self.parked
        while row and row[0][0] <= expected:
            _, tie, stamp, item = row.popleft()
            if stamp == item.stamp:
                _push(ready, (item.key, tie, stamp, item))
        while parked and parked[0][0] <= expected:
            _, tie, stamp, item = heapq.heappop(parked)
            if stamp == item.stamp:
                _push(ready, (item.key, tie, stamp, item))
        while ready:
            _, _, stamp, item = ready[0]
            if stamp == item.stamp:
                return item
            heapq.heappop(ready)
        return None

    def first_parked(self) -> Entry[C] | None:
        """Return the entry of the parked one whose turn comes first; it stays where it is."""
        row, parked = self.row, self.parked
        while row and row[0][2] != row[0][3].stamp:
            row.popleft()
        while parked and parked[0][2] != parked[0][3].stamp:
            heapq.heappop(parked)
        if row and parked:
            return min(row[0], parked[0])
        return row[0] if row else parked[0] if parked else None

    def second(self) -> C | None:
        """Return the ready one after the one that `best` has just returned; both stay."""
        first = heapq.heappop(self.ready)
        second = self.best(-math.inf)
        heapq.heappush(self.ready, first)
        return second

    def front(self, count: int) -> list[C]:
        """Return up to `count`: the ready ones in order, then the parked ones by turn. They stay where they are.

        The whole row is gone through only where fewer are ready than are wanted.
        """
        found: list[C] = []
        taken: list[Entry[C]] = []
        while self.ready and len(found) < count:
            entry = heapq.heappop(self.ready)
            if entry[2] == entry[3].stamp:
                taken.append(entry)
                found.append(entry[3])
        for entry in taken:
            heapq.heappush(self.ready, entry)
        if len(found) < count:
            waiting = (entry for entry in (*self.row, *self.parked) if entry[2] == entry[3].stamp)
            found += [entry[3] for entry in heapq.nsmallest(count - len(found), waiting)]
        return found

    def _sweep(self) -> None:
        self.row = deque(entry for entry in self.row if entry[2] == entry[3].stamp)
        for heap in (self.ready, self.parked):
            heap[:] = [entry for entry in heap if entry[2] == entry[3].stamp]
            heapq.heapify(heap)


@attrs.define(eq=False)
class Level(Generic[C]):
    """The backends of one priority, by zone where they are of more than one."""

    every: Group[C]
    zones: dict[str, Group[C]]
    weights: float = attrs.field(default=0.0, init=False)
    """What its candidates weigh together."""
    candidates: int = attrs.field(default=0, init=False)

    @classmethod
    def of(cls, zones: Iterable[str]) -> Level[C]:
        """Return the level of backends that stand in these zones, one for each of them; an empty one is no zone."""
        counts = Counter(zones)
        groups: dict[str, Group[C]] = {zone: Group(n) for zone, n in counts.items() if zone}
        return cls(Group(counts.total()), groups if len(counts) > 1 else {})

    def resize(self, other: Level[C]) -> bool:
        """Be of the size of another one, group by group; return whether it has the same groups."""
        if self.zones.keys() != other.zones.keys():
            return False
        self.every.resize(other.every.size)
        for zone, group in self.zones.items():
            group.resize(other.zones[zone].size)
        return True

    def __len__(self) -> int:
        return len(self.every) + sum(map(len, self.zones.values()))

    def groups(self, zone: str) -> tuple[Group[C], ...]:
        """Return the groups that a backend of `zone` stands in."""
        return (self.every, self.zones[zone]) if zone in self.zones else (self.every,)

    def enlisted(self, weight: float) -> None:
        self.candidates += 1
        self.weights += weight

    def left(self, weight: float) -> None:
        self.candidates -= 1
        # Sums and differences of floats drift; nobody at all weighs nothing.
        self.weights = self.weights - weight if self.candidates else 0.0

    def first_turn(self, expected: float) -> float:
        """Return the turn of a backend that comes: now, or with the first of the others where none of them is open.

        After a crowd that had to be let through, all turns lie far ahead; to one that had not, all clients would go.
        """
        first = None if self.every.best(expected) is not None else self.every.first_parked()
        return expected if first is None else max(expected, first[0])
