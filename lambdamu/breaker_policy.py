"""When a circuit breaker trips and for how long: its settings, and the counts they are compared with. Pure."""

from __future__ import annotations

import math
from typing import Any

import attrs
from attrs.validators import ge, gt, instance_of


def _share() -> Any:
    return [gt(0.0), attrs.validators.le(1.0)]


@attrs.frozen
class BreakerPolicy:
    """When it trips, and for how long. The defaults suit calls of milliseconds that have a deadline of seconds."""

    consecutive: int = attrs.field(default=5, validator=ge(1))
    """System failures in a row that trip it: so it notices at once that a busy and good callee has died. (Envoy: 5.)"""
    failure_share: float = attrs.field(default=0.5, validator=_share())
    """It trips when more of the calls in the window surely failed: it notices one half broken. (Hystrix: 50 %.)"""
    slow_share: float = attrs.field(default=0.8, validator=_share())
    """It trips when more of the calls in the window were surely slow, failed or not."""
    slow_s: float = attrs.field(default=3.0, validator=gt(0.0))
    """A call that takes longer is slow; below the deadline of a call, or only failures would be."""
    confidence_z: float = attrs.field(default=1.96, validator=ge(0.0))
    """"Surely": so many standard deviations. With 1.96, 3 failures of 3 are chance, and 4 of 4 are more than half."""
    window_s: float = attrs.field(default=10.0, validator=gt(0.0))
    buckets: int = attrs.field(default=10, validator=ge(1))
    """The window slides by a bucket, window_s / buckets seconds; memory is the same for any number of calls."""
    same_event_s: float = attrs.field(default=0.1, validator=ge(0.0))
    """Calls in flight at a failure that fail within this time of it fell to the same event, which counts once."""
    open_s: float = attrs.field(default=5.0, validator=gt(0.0))
    max_open_s: float = attrs.field(default=60.0, validator=gt(0.0))
    """The first open time, and the longest: it doubles each time that a trial fails or the breaker trips again soon."""
    jitter: float = attrs.field(default=0.5, validator=[ge(0.0), attrs.validators.lt(1.0)])
    """An open time is cut by chance, by up to this share of it: those who broke off together return one by one."""
    decay_s: float = attrs.field(default=30.0, validator=gt(0.0))
    """Each such time spent closed takes one doubling back."""
    trials: int = attrs.field(default=1, validator=ge(1))
    """Good trials, one after the other, that close it."""
    lease_s: float = attrs.field(default=30.0, validator=gt(0.0))
    """A permit that is not given back by then is taken for lost; longer than the deadline of a call."""
    workers: int = attrs.field(default=100, validator=[instance_of(int), ge(1)])
    """Calls that the caller can carry at once, to all; the two shares below are of it."""
    crowded_share: float = attrs.field(default=0.5, validator=_share())
    """So many in flight to this one callee are told to the observer: it hangs, and no deadline has passed yet."""
    full_share: float = attrs.field(default=0.8, validator=_share())
    """One more than so many is refused at once: a callee that hangs must not hold every worker."""

    def __attrs_post_init__(self) -> None:
        if self.max_open_s < self.open_s:
            raise ValueError(f"'max_open_s' must not be below 'open_s': {self.max_open_s} < {self.open_s}")
        if self.crowded_share > self.full_share:
            raise ValueError("'crowded_share' must not be above 'full_share': it tells before it refuses")

    @property
    def crowded_at(self) -> int:
        return max(1, math.floor(self.workers * self.crowded_share))

    @property
    def full_at(self) -> int:
        return max(1, math.floor(self.workers * self.full_share))

    @property
    def doublings(self) -> int:
        """Doublings that bring the open time to its cap; one more would change nothing."""
        return math.ceil(math.log2(self.max_open_s / self.open_s))

    def open_time_s(self, doubled: int, luck: float) -> float:
        """Return an open time, open_s x (1 - jitter) to max_open_s; `luck`, 0 to 1, is the part of the jitter taken."""
        return min(self.open_s * 2.0**doubled, self.max_open_s) * (1.0 - self.jitter * luck)


@attrs.define
class Counts:
    """Calls that have a result: how many, and how many of them failed by whose fault, or were slow."""

    calls: int = 0
    system: int = 0
    logic: int = 0
    slow: int = 0

    def add(self, other: Counts) -> None:
        self.calls += other.calls
        self.system += other.system
        self.logic += other.logic
        self.slow += other.slow


def wilson_lower(hits: int, trials: int, z: float) -> float:
    """Return the share that is surely reached, 0 to 1: the lower end of the score interval for `hits` of `trials`.

    With few trials it is far below hits / trials, which for 1 of 1 would be all. E. B. Wilson, Probable Inference, the
    Law of Succession, and Statistical Inference, J. Am. Stat. Assoc. 22 (1927) 209-212. `z`: standard deviations.
    """
    if not hits:
        return 0.0
    share, z2 = hits / trials, z * z / trials
    spread = z * math.sqrt(share * (1.0 - share) / trials + z2 / (4.0 * trials))
    return (share + z2 / 2.0 - spread) / (1.0 + z2)


class Window:
    """The counts of the last window_s, in a ring of buckets: each is emptied when its turn comes again."""

    def __init__(self, window_s: float, buckets: int) -> None:
        self._bucket_s = window_s / buckets
        self._ring = [(-1, Counts()) for _ in range(buckets)]

    def add(self, now: float, counts: Counts) -> None:
        turn = math.floor(now / self._bucket_s)
        place = turn % len(self._ring)
        if self._ring[place][0] != turn:
            self._ring[place] = (turn, Counts())
        self._ring[place][1].add(counts)

    def total(self, now: float) -> Counts:
        oldest = math.floor(now / self._bucket_s) - len(self._ring)
        total = Counts()
        for turn, counts in self._ring:
            if turn > oldest:
                total.add(counts)
        return total

    def clear(self) -> None:
        self._ring = [(-1, Counts()) for _ in self._ring]
