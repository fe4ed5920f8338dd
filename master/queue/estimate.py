"""How long somebody in a line still has to wait: the mean, and the time that nine in ten will not exceed.

With n living tickets ahead of which a part p comes when called, and mu claims a second, the wait until one's own
claim is

    mean = (n p + 1) / mu + the wait for one's own next poll

mu counts people who went in, not calls, so what no-shows cost is in it. p is learned only from people who had polled
since they joined: who joins and goes is no ticket any more when his lease is over, and would make those who stay look
like him. The 90 % point takes the wait for lognormal, which has one parameter more and no negative times:

    point90 = mean exp(1.28 s),  s^2 = ln(1 + cv^2),  cv^2 = D / N + D / k + drift^2 + base^2

N = n p + 1 claims are to come, and vary by the index of dispersion D (Cox and Lewis, 1966: the variance of counts
over their mean; 1 for Poisson); mu itself rests on k claims; and it may move, as by the difference of its short and
its long average. What was promised is scored in `master/queue/promises.py`.

Pure: `now` is an argument, seconds, monotonic.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
from attrs.validators import gt

_POINT90: Final = 1.2816
"""The 90 % point of the normal distribution."""
_MOST_S: Final = 30 * 86400.0
"""A longer wait is told as unknown: nobody waits for it, and no drain is known so well."""
_LEAST_KNOWN: Final = 3.0
"""With fewer claims than this there is no measured drain."""
_LEAST_DISPERSION: Final = 0.25
"""A drain that is paced varies little, but its claims come when people poll."""
_ALL_COME: Final = 5.0
"""Before anybody was called, so many are taken to have come: nobody is promised a line of people who stay away."""


@attrs.frozen
class EstimatePolicy:
    """`step_s`: over so long claims are counted. `memory_s` and `long_s`: the short and the long memory of the drain.
    `calls`: over so many calls the show rate is learned. `poll_s`: how long one who is called takes to poll at most.
    `base`: by which part a drain is taken to vary in any case.
    """

    step_s: float = attrs.field(default=2.0, validator=gt(0.0))
    memory_s: float = attrs.field(default=60.0, validator=gt(0.0))
    long_s: float = attrs.field(default=300.0, validator=gt(0.0))
    calls: float = attrs.field(default=200.0, validator=gt(1.0))
    poll_s: float = attrs.field(default=2.0, validator=gt(0.0))
    base: float = attrs.field(default=0.1, validator=gt(0.0))


@attrs.frozen
class Drain:
    """`per_s`: claims a second, over 0. `known`: on how many it rests. `dispersion`: D. `drift`: how far it moves."""

    per_s: float
    known: float = math.inf
    dispersion: float = 1.0
    drift: float = 0.0

    def cv2(self, claims: float, base: float) -> float:
        """Return the square of the coefficient of variation of the time that `claims` take."""
        return self.dispersion * (1 / claims + 1 / self.known) + self.drift**2 + base**2


@attrs.frozen
class Wait:
    """A wait that is left, in seconds, both over 0 and finite; `point90_s` is not below the mean."""

    mean_s: float
    point90_s: float


@attrs.define(eq=False)
class _Average:
    """An average that fades with the time that it has seen, and knows how much that is."""

    memory_s: float
    _sum: float = attrs.field(default=0.0, init=False)
    weight: float = attrs.field(default=0.0, init=False)
    """From 0 to 1: which part of a full memory it has."""

    @property
    def value(self) -> float:
        return self._sum / self.weight if self.weight else 0.0

    def take(self, value: float, seconds: float) -> None:
        faded = math.exp(-seconds / self.memory_s)
        self._sum = self._sum * faded + value * (1 - faded)
        self.weight = self.weight * faded + 1 - faded


@attrs.define(eq=False)
class DrainMeter:
    """Claims a second while people wait: what goes through an empty line says nothing of what could."""

    policy: EstimatePolicy
    _short: _Average = attrs.field(init=False)
    _long: _Average = attrs.field(init=False)
    _dispersion: _Average = attrs.field(init=False)
    _count: int = attrs.field(default=0, init=False)
    _since: float | None = attrs.field(default=None, init=False)
    """Since when people have waited all the time; None when nobody does."""

    def __attrs_post_init__(self) -> None:
        self._short, self._long = _Average(self.policy.memory_s), _Average(self.policy.long_s)
        self._dispersion = _Average(self.policy.long_s)

    def claimed(self) -> None:
        self._count += 1

    def look(self, now: float, *, waiting: bool) -> None:
        """Hear whether people wait now; to be called every second or so, and when the last one has gone."""
        if self._since is None or not waiting:
            self._since, self._count = (now if waiting else None), 0
            return
        seconds = now - self._since
        if seconds < self.policy.step_s:
            return
        if self._long.weight and self._long.value > 0:
            expected = self._short.value * seconds or self._long.value * seconds
            if expected > 0:
                self._dispersion.take((self._count - expected) ** 2 / expected, seconds)
        self._short.take(self._count / seconds, seconds)
        self._long.take(self._count / seconds, seconds)
        self._since, self._count = now, 0

    def measured(self) -> Drain | None:
        """Return the drain; None while too few have gone in to tell."""
        short, long = self._short.value, self._long.value
        known = short * self._short.weight * self.policy.memory_s
        if known < _LEAST_KNOWN:
            return None
        dispersion = max(_LEAST_DISPERSION, self._dispersion.value if self._dispersion.weight else 1.0)
        return Drain(short, known, dispersion, min(1.0, abs(math.log(short / long))))


@attrs.define(eq=False)
class ShowRate:
    """Which part of those who are called comes, of people who have polled since they joined; older calls fade."""

    calls: float
    _shown: float = attrs.field(default=0.0, init=False)
    _called: float = attrs.field(default=0.0, init=False)

    def ended(self, *, claimed: bool) -> None:
        """Hear how a call ended."""
        faded = 1 - 1 / self.calls
        self._shown, self._called = self._shown * faded + claimed, self._called * faded + 1

    @property
    def value(self) -> float | None:
        """From 0 to 1; None when nobody has been called."""
        return self._shown / self._called if self._called else None

    @property
    def assumed(self) -> float:
        """What is reckoned with: over 0, and 1 while it is unknown."""
        return (self._shown + _ALL_COME) / (self._called + _ALL_COME)

    @property
    def highest(self) -> float:
        """What it does not exceed, nine times in ten."""
        part, known = self.assumed, self._called + _ALL_COME
        return min(1.0, part + _POINT90 * math.sqrt(part * (1 - part) / known))


@attrs.define(eq=False)
class Forecast:
    """What is known of the drain of one line, and what follows for who waits there.

    The line tells it of each call that ends (`call_ended`), and `look`s every second or so.
    """

    policy: EstimatePolicy = attrs.field(factory=EstimatePolicy)
    show: ShowRate = attrs.field(init=False)
    meter: DrainMeter = attrs.field(init=False)
    drain: Drain | None = attrs.field(default=None, init=False)
    """What is reckoned with since the last look; None when it is not known, or nobody is let in."""

    def __attrs_post_init__(self) -> None:
        self.show, self.meter = ShowRate(self.policy.calls), DrainMeter(self.policy)

    def call_ended(self, *, claimed: bool, polled: bool) -> None:
        """Hear that one who was called has come, or has not; `polled`: whether he had polled since he joined."""
        if claimed:
            self.meter.claimed()
        if polled:
            self.show.ended(claimed=claimed)

    def look(self, now: float, *, waiting: bool, planned_per_s: float | None = None) -> None:
        """Hear whether people wait now, and how many are to be let in a second; None: nobody has planned that.

        A plan is the most that will be, and is known before it shows; what is measured is what comes of it.
        """
        self.meter.look(now, waiting=waiting)
        measured, planned = self.meter.measured(), planned_per_s
        if planned is None or not math.isfinite(planned):
            self.drain = measured
        elif planned <= 0:
            self.drain = None
        elif measured is None:
            self.drain = Drain(planned)
        else:
            self.drain = attrs.evolve(measured, per_s=min(measured.per_s, planned))

    def wait(self, ahead: int) -> Wait | None:
        """Return how long one waits who has so many living tickets ahead; None when nobody knows."""
        drain = self.drain
        if drain is None:
            return None
        claims, most = ahead * self.show.assumed + 1, ahead * self.show.highest + 1
        mean_s = claims / drain.per_s + self.policy.poll_s / 2
        spread = math.sqrt(math.log1p(drain.cv2(most, self.policy.base)))
        point90_s = most / drain.per_s * math.exp(_POINT90 * spread) + self.policy.poll_s
        return Wait(mean_s, point90_s) if point90_s < _MOST_S else None
