"""Single flight: which data are on their way, who waits for them, and how it rests after a failure. Pure.

However many ask for the same data of a client, one fetch runs. `now`: seconds, monotonic.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from enum import StrEnum
from typing import Any, Final

import attrs

from lambdamu.retry import Backoff
from master.cache.warm_types import WarmType

Key = tuple[str, int, int]
"""Client, data type, version of the front servers."""


class Stage(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ELSEWHERE = "elsewhere"
    """Another instance fetches: it holds the lease, and its value will stand in the store."""
    LANDED = "landed"


class Step(StrEnum):
    """What moves a flight from one stage to the next."""

    STARTED = "started"
    HELD = "held"
    FREED = "freed"
    LANDED = "landed"


# A flight is queued until a worker takes it. Then either this instance gets the lease and fetches, or another one holds
# it: the worker goes, and the flight waits outside of the queue until the value of the other is there (it lands), or
# its lease is over (freed: it is queued again). An instance that was too slow finds that its lease is held by the next:
# its own value is thrown away, and it waits for that of the other. Every other pair is impossible, and a KeyError.
MOVES: Final = {
    (Stage.QUEUED, Step.STARTED): Stage.RUNNING,
    (Stage.QUEUED, Step.HELD): Stage.ELSEWHERE,
    (Stage.RUNNING, Step.HELD): Stage.ELSEWHERE,
    (Stage.ELSEWHERE, Step.FREED): Stage.QUEUED,
    (Stage.QUEUED, Step.LANDED): Stage.LANDED,
    (Stage.RUNNING, Step.LANDED): Stage.LANDED,
    (Stage.ELSEWHERE, Step.LANDED): Stage.LANDED,
}


@attrs.define(eq=False)
class Flight:
    """One fetch and all who wait for it; it goes on when none of them does any more."""

    key: Key
    kind: WarmType
    session: str | None
    """For whom it is made; None: before anybody has logged in."""
    stage: Stage = Stage.QUEUED
    queued: list[int] = attrs.field(factory=list)
    """The priorities with which it stands in the queue of the broker: once more where somebody is in more of a hurry.
    The first entry that is taken fetches; the others find nothing to do."""
    waiters: dict[Any, None] = attrs.field(factory=dict)
    """Who waits, in the order in which they came."""

    @property
    def running(self) -> bool:
        return self.stage is Stage.RUNNING

    def move(self, step: Step) -> None:
        self.stage = MOVES[self.stage, step]

    def queue(self, priority: int) -> bool:
        """Return whether an entry of that priority brings it forward; then count it."""
        if self.stage is not Stage.QUEUED or any(other <= priority for other in self.queued):
            return False
        self.queued.append(priority)
        return True


class Flights:
    """All of them, at most `most`; so many failures are remembered, too."""

    def __init__(self, most: int, backoff: Backoff) -> None:
        self._most = most
        self._backoff = backoff
        self._flights: dict[Key, Flight] = {}
        self._failures: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        """How often in a row, and until when it rests; the oldest goes where there are too many."""

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: Key) -> Flight | None:
        return self._flights.get(key)

    def rest_s(self, now: float, key: Key) -> float:
        """Return for how many seconds more these data are not to be fetched; 0: they may be."""
        _, until = self._failures.get(key, (0, now))
        return max(0.0, until - now)

    def begin(self, key: Key, kind: WarmType, session: str | None) -> Flight | None:
        """Begin a flight; None where there are as many as may be."""
        assert key not in self._flights  # noqa: S101 - there is one for each key
        if len(self._flights) >= self._most:
            return None
        flight = self._flights[key] = Flight(key, kind, session)
        return flight

    def land(self, flight: Flight) -> list[Any]:
        """End a flight; return who is to be given the answer."""
        flight.move(Step.LANDED)
        del self._flights[flight.key]
        return list(flight.waiters)

    def succeeded(self, key: Key) -> None:
        """Forget the failures of these data."""
        self._failures.pop(key, None)

    def failed(self, now: float, key: Key, rng: random.Random) -> float:
        """Count a failure, and return for how many seconds these data rest."""
        count, _ = self._failures.pop(key, (0, now))
        rest_s = self._backoff.longest_s(count) * rng.uniform(0.5, 1.0)
        self._failures[key] = count + 1, now + rest_s
        if len(self._failures) > self._most:
            self._failures.popitem(last=False)
        return rest_s
