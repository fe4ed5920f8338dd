"""When those who wait are to poll again: a calendar of seconds, each with so many places and no more.

How soon somebody should come follows from his estimate: the longer, the later, and every second or two near the head,
so that a call is claimed at once. Whether that second is free follows from all the others: each `RetryAfter` takes a
place in the calendar, and where a second is full it is the next one that is not. So all who wait together never come
more than `max_polls_per_s` times a second, whatever their number, when they come when they were told. Who is near the
head may use every place, the others all but a quarter. Full seconds in a row are passed over in one step: union-find
with path halving (Tarjan and van Leeuwen, 1984).

Pure: `now` and `rng` are arguments; seconds, monotonic.
"""

from __future__ import annotations

import math
import random
from typing import Final

import attrs
from attrs.validators import ge

_NEAR_S: Final = 10.0
_NEAR_AHEAD: Final = 10
_SOON_S: Final = 2.0
_PART: Final = 0.25
"""Somebody polls again when so much of his wait is over."""
_LEAST_IDLE: Final = 0.1
"""A master that is busy all the time still has a tenth of its calendar, or nobody would ever claim."""
_FAR_SHARE: Final = 0.75
_EARLY_S: Final = 0.5
"""Who comes so much before his time has come too soon."""


@attrs.frozen
class PollPolicy:
    """`longest_s`: nobody is told to stay away for longer for the sake of his estimate; for want of room he may be."""

    max_polls_per_s: float = attrs.field(default=5000.0, validator=ge(1))
    longest_s: float = attrs.field(default=30.0, validator=ge(_SOON_S))


def desired_s(rng: random.Random, ahead: int, mean_s: float | None, policy: PollPolicy) -> float:
    """Return when to poll again for oneself alone, in seconds from now, jittered."""
    # Where nothing moves that we know of, by the place alone, so that the first ones see at once when it does.
    longest = _SOON_S + ahead / _NEAR_AHEAD if mean_s is None else max(_SOON_S, mean_s * _PART)
    longest = min(policy.longest_s, longest)
    return rng.uniform(longest / 2, longest)


class _Full:
    """The seconds that are full; `first_free` passes over those in a row in one step."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def first_free(self, second: int) -> int:
        after = self._next
        while second in after:
            if after[second] in after:
                after[second] = after[after[second]]
            second = after[second]
        return second

    def add(self, second: int) -> None:
        self._next[second] = second + 1

    def discard(self, second: int) -> None:
        self._next.pop(second, None)


class Calendar:
    """Tells each who waits when to poll again. Memory: as many seconds as lie between now and the last place taken."""

    def __init__(self, policy: PollPolicy) -> None:
        self.policy = policy
        self._taken: dict[int, int] = {}
        self._full = {False: _Full(), True: _Full()}
        """By whether one is near the head."""
        self._from = 0

    def __len__(self) -> int:
        """How many seconds are in it."""
        return len(self._taken)

    def retry_after_s(
        self,
        now: float,
        rng: random.Random,
        ahead: int,
        mean_s: float | None = None,
        busy: float = 0.0,
        kept_s: float = 0.0,
    ) -> float:
        """Return in how many seconds to poll, and keep a place for it.

        `ahead`: living tickets ahead. `mean_s`: the estimate. `busy`: how busy the master is, from 0 to 1: so much of
        each second's places is not given away. `kept_s`: the place that it has, in seconds from now. Who comes before
        his time keeps it unless there is a sooner one: or a single client that polls and polls would take them all.
        """
        at = now + desired_s(rng, ahead, mean_s, self.policy)
        near = ahead < _NEAR_AHEAD or (mean_s is not None and mean_s < _NEAR_S)
        idle = max(_LEAST_IDLE, 1.0 - min(1.0, max(0.0, busy)))
        places = max(1, math.floor(self.policy.max_polls_per_s * idle * (1.0 if near else _FAR_SHARE)))
        self._forget(math.floor(now))
        second = self._find(math.floor(at), places, self._full[near])
        if kept_s > _EARLY_S and now + kept_s <= max(at, second):
            return kept_s
        self._taken[second] = self._taken.get(second, 0) + 1
        return (at if second == math.floor(at) else second + rng.random()) - now

    def give_back(self, now: float, at: float) -> None:
        """Hear that nobody will poll `at` a moment for which a place is kept, if that is still to come."""
        second = math.floor(at)
        if at > now and self._taken.get(second, 0):
            self._taken[second] -= 1
            for full in self._full.values():
                full.discard(second)

    def _find(self, second: int, places: int, full: _Full) -> int:
        """Return the first second from that one on that has a place."""
        second = full.first_free(second)
        while self._taken.get(second, 0) >= places:
            full.add(second)
            second = full.first_free(second + 1)
        return second

    def _forget(self, now: int) -> None:
        """Forget the seconds that have passed."""
        if now <= self._from:
            return
        if now - self._from > len(self._taken):  # after a pause: by what there is, and not by what has passed
            passed = [second for second in self._taken if second < now]
        else:
            passed = list(range(self._from, now))
        for second in passed:
            self._taken.pop(second, None)
            for full in self._full.values():
                full.discard(second)
        self._from = now
