"""What is posted, and when.  Pure: `now`, in seconds of the monotonic clock, and `rng` are arguments.

Changes of one matter replace each other, so what waits is bounded by the backends and a post tells how things are, not
all that has been. A recovery is told to those only who were told of the problem. One try is under way at a time, and
tries lie `min_interval_s` apart, more after failures; what could not be delivered waits with what has happened since.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Container, Iterator
from typing import Final

import attrs

from master.alerts.matters import RANKS, RULES, Change, change_of
from master.config import AlertsPolicy
from master.event_log import Event

MOST_MATTERS: Final = 1000
"""So many matters of backends are kept; a problem of one more is counted, not told."""
MOST_CHANGES: Final = 50
"""In one post; the rest comes with the next ones."""
GATHER_S: Final = 1.0
"""A change waits so long for those that belong to it: of a rack that fails, each backend is noticed in its turn."""
RESTLESS: Final = 4
RESTLESS_S: Final = 60.0
"""A matter of one backend is told of at most so many times in this time; then it waits, and is told with its count."""
_SWEEP_S: Final = 1.0
"""Where there is no room, it is looked for no more often: thousands of events may come at once."""
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
LONGEST_RETRY_AFTER_S: Final = 600.0
MOST_TRIES: Final = 100
"""A change that so many posts could not deliver is dropped, if it is not too old before."""


@attrs.frozen
class Post:
    """`left_out`: changes for which there was no room; those that are still so come with the next posts."""

    at: float
    changes: tuple[Change, ...]
    left_out: int


@attrs.define(eq=False)
class _Matter:
    """One matter of one backend, or of the master where `restless` cannot be."""

    of_backend: bool
    told: bool = False
    """Whether the receiver knows of a problem that is not over for it."""
    waiting: Change | None = None
    flying: Change | None = None
    since: float = 0.0
    """How long something has not been told."""
    tries: int = 0
    posted: deque[float] = attrs.field(factory=lambda: deque(maxlen=RESTLESS))

    @property
    def rests_until(self) -> float:
        restless = self.of_backend and len(self.posted) == RESTLESS
        return self.posted[0] + RESTLESS_S if restless else -math.inf

    @property
    def due(self) -> float:
        return math.inf if self.waiting is None else max(self.since + GATHER_S, self.rests_until)

    def over(self, now: float) -> bool:
        """Whether nothing needs to be known of it any more."""
        rested = not self.posted or self.posted[-1] + RESTLESS_S < now
        return not self.told and self.waiting is None and self.flying is None and rested

    def put(self, change: Change) -> None:
        if self.waiting is None and self.flying is None:
            self.since = change.at
        self.waiting = attrs.evolve(change, times=1 + (self.waiting.times if self.waiting is not None else 0))

    def land(self, now: float) -> None:
        """What flew has come to its receiver."""
        assert self.flying is not None  # noqa: S101 - who calls has seen it fly
        self.told, self.flying, self.tries = self.flying.problem, None, 0
        self.posted.append(now)
        if self.waiting is not None:
            self.since = self.waiting.at

    def return_(self) -> None:
        """What flew waits again, behind what has happened since."""
        flown, self.flying = self.flying, None
        if flown is not None and self.waiting is not None:
            self.waiting = attrs.evolve(self.waiting, times=self.waiting.times + flown.times)
        else:
            self.waiting = self.waiting or flown

    def give_up(self) -> None:
        self.flying, self.tries = None, 0
        if self.waiting is not None:
            self.since = self.waiting.at


class Outbox:
    """Hears events, gives posts, and hears what became of each. Before `opens_at` nothing is posted."""

    def __init__(self, policy: AlertsPolicy, opens_at: float) -> None:
        self.policy = policy
        self.counts = {"sent": 0, "failed": 0, "dropped": 0}
        """Posts that came to their receiver, tries that failed, changes that were given up."""
        self._opens_at = opens_at
        self._free_at = -math.inf
        """When the next try may begin."""
        self._failures = 0
        self._hurried = False
        self._unknown = 0
        """Changes that were not kept, for want of room, since the last post that came through."""
        self._matters: dict[tuple[str, str], _Matter] = {}
        self._swept_at = -math.inf

    @property
    def ratio(self) -> float:
        """How much of the room for matters is used, from 0 to 1."""
        return min(1.0, len(self._matters) / MOST_MATTERS)

    @property
    def undelivered(self) -> int:
        """How many changes wait."""
        return sum(matter.waiting is not None for matter in self._matters.values())

    def hear(self, event: Event, *, aside: bool = False) -> None:
        """Take in an event. `aside`: its backend is set aside by its operator."""
        rule = RULES.get(event.kind)
        if rule is None:
            return
        change = change_of(event, rule, aside=aside)
        matter = self._matters.get((rule.matter, event.backend))
        if matter is None:
            matter = self._begin(rule.matter, change)
        if matter is None or not (change.problem or matter.told or matter.waiting or matter.flying):
            return
        unsaid = not matter.told and matter.flying is None
        if not change.problem and unsaid and self._closed(event.at):
            matter.waiting = None  # of what is over before anything may be said nothing is said
        else:
            matter.put(change)

    def next_at(self) -> float:
        """Return when a post is due: inf when there is nothing to post, or one is under way."""
        if self.policy.webhook is None or any(matter.flying for matter in self._matters.values()):
            return math.inf
        due = min((matter.due for matter in self._matters.values()), default=math.inf)
        if self._hurried:
            return -math.inf if due < math.inf else math.inf
        return max(due, self._free_at, self._opens_at)

    def take(self, now: float) -> Post | None:
        """Return the post that is due, if one is. What became of it must be told before there is another one."""
        if now < self.next_at():
            return None
        # Whoever is ready comes along, due or not.
        ready = [m for m in self._matters.values() if m.waiting and (self._hurried or m.rests_until <= now)]
        ready.sort(key=_by_urgency)
        self._hurried = False
        self._free_at = now + self.policy.min_interval_s
        return Post(now, tuple(_fly(ready[:MOST_CHANGES])), max(0, len(ready) - MOST_CHANGES) + self._unknown)

    def succeeded(self, now: float) -> None:
        """Hear that the post has come to its receiver."""
        self.counts["sent"] += 1
        self._failures = self._unknown = 0
        for matter in self._flying():
            matter.land(now)
        self._sweep(now)

    def failed(self, now: float, rng: random.Random, retry_after_s: float = 0.0) -> None:
        """Hear that it has not. `retry_after_s`: the receiver wants to be left alone for so long."""
        self.counts["failed"] += 1
        self._failures += 1
        for matter in self._flying():
            matter.tries += 1
            if matter.tries >= MOST_TRIES or now - matter.since >= self.policy.keep_s:
                matter.give_up()
                self.counts["dropped"] += 1
            else:
                matter.return_()
        self._sweep(now)
        # The exponent is bounded: a float overflows after a thousand failures.
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._failures - 1, 16)) * rng.uniform(0.5, 1.5)
        self._free_at = max(self._free_at, now + max(delay_s, min(retry_after_s, LONGEST_RETRY_AFTER_S)))

    def hurry(self) -> None:
        """Have all that waits posted at once, once: the master stops."""
        self._hurried = True

    def recall(self) -> None:
        """Hear that nobody will tell what became of the post that was under way: it is taken for not delivered."""
        for matter in self._flying():
            matter.return_()

    def keep(self, names: Container[str]) -> None:
        """Forget backends that are gone."""
        for key, matter in list(self._matters.items()):
            if key[1] and key[1] not in names and matter.flying is None:
                del self._matters[key]

    def _begin(self, kind: str, change: Change) -> _Matter | None:
        """Return a new matter, if this is a problem and there is room."""
        if not change.problem:
            return None
        if len(self._matters) >= MOST_MATTERS and change.at >= self._swept_at + _SWEEP_S:
            self._sweep(change.at)
        if change.backend and len(self._matters) >= MOST_MATTERS:
            self.counts["dropped"] += 1
            self._unknown += 1
            return None
        return self._matters.setdefault((kind, change.backend), _Matter(bool(change.backend)))

    def _closed(self, now: float) -> bool:
        return self.policy.webhook is None or now < self._opens_at

    def _flying(self) -> Iterator[_Matter]:
        return (matter for matter in list(self._matters.values()) if matter.flying is not None)

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        self._matters = {key: matter for key, matter in self._matters.items() if not matter.over(now)}


def _by_urgency(matter: _Matter) -> tuple[int, float]:
    assert matter.waiting is not None  # noqa: S101 - who calls has seen it wait
    return RANKS[matter.waiting.severity], matter.since


def _fly(matters: list[_Matter]) -> Iterator[Change]:
    for matter in matters:
        matter.flying, matter.waiting = matter.waiting, None
        assert matter.flying is not None  # noqa: S101 - those that are due wait
        yield matter.flying
