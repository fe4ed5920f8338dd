"""Which of the candidates: the one with the least load, equal loads by chance.

A heap holds an entry for each backend that may be chosen. A backend whose load or state changes gets a new entry, and
its old one is skipped when it comes to the top. So a choice costs the same with ten backends as with ten thousand.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

Item = TypeVar("Item")

_SPARE_ENTRIES = 64
"""The heap is rebuilt when its outdated entries are as many as the others and this many more."""


@attrs.define(eq=False)
class LeastLoaded(Generic[Item]):
    """Items by load. `usable` is asked at the moment of choice; what is not usable leaves until it is ranked again."""

    usable: Callable[[Item, float], bool]
    _heap: list[tuple[float, float, int, Item]] = attrs.field(factory=list, init=False)
    _current: dict[Item, int] = attrs.field(factory=dict, init=False)
    _stamp: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """How many entries the heap holds, outdated ones included."""
        return len(self._heap)

    def rank(self, item: Item, load: float, rng: random.Random) -> None:
        """Give `item` its place by `load`, among equals by chance."""
        self._stamp += 1
        self._current[item] = self._stamp
        heapq.heappush(self._heap, (load, rng.random(), self._stamp, item))
        if len(self._heap) > 2 * len(self._current) + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._current.get(entry[3]) == entry[2]]
            heapq.heapify(self._heap)

    def rerank_best(self, load: float, rng: random.Random) -> None:
        """Give the item that `best` has just returned its new place; the cheap way for the most frequent change."""
        self._stamp += 1
        item = self._heap[0][3]
        self._current[item] = self._stamp
        heapq.heapreplace(self._heap, (load, rng.random(), self._stamp, item))

    def drop(self, item: Item) -> None:
        """Take `item` out of choice until it is ranked again."""
        self._current.pop(item, None)

    def best(self, now: float) -> Item | None:
        """Return the usable item with the least load, which stays where it is."""
        heap, current = self._heap, self._current
        while heap:
            item = heap[0][3]
            if current.get(item) != heap[0][2]:
                heapq.heappop(heap)
            elif self.usable(item, now):
                return item
            else:
                heapq.heappop(heap)
                del current[item]
        return None

    def next_best(self, now: float, count: int) -> list[Item]:
        """Return up to `count` usable items after the best, which stay where they are."""
        taken: list[tuple[float, float, int, Item]] = []
        while len(taken) <= count and self.best(now) is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [entry[3] for entry in taken[1:]]
