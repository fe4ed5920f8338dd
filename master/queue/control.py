"""How many to let in a second, so that the backends stay at their target load: the control loop.

A rate alone is wrong where people stay: the load is the sum of the rate over the stay. With L the users who are
there, L* those who are to be there and W the mean stay,

    rate = L* / W  +  (L* - L) / tau  +  integral

The first part is what leaves at the target (Little's law, 1961), the second fills what is free or lets it empty, and
the clamped third makes up for what W and the count do not know. A loop that is closed over a delay settles without a
swing when tau is over e times the delay (Gyori and Ladas, 1991), so tau is at least four lags. Every backend tells its
count of users, so the lag is that of a probe; web rooms that steer by the CPU alone have to take the lag of the CPU.

Where backends tell their CPU too, it judges how many users they carry: L* is lowered fast when the CPU is higher than
the count accounts for, and raised slowly again; never over what the capacity says. And until the CPU has told of the
last ones, no more than a step of the capacity goes in on top of those of whom it has told.

Pure: `now` is an argument, seconds, monotonic.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import Final

import attrs
from attrs.validators import ge, gt, le

_LAGS: Final = 4.0
_HISTORY: Final = 512
"""Counts that are kept, to be compared with a CPU that is told later: at one a second, a lag of over eight minutes."""
_LEAST_GAUGE: Final = 0.1
"""The CPU lowers the target to a tenth at most: what is told beyond is rather a fault of who tells it."""
_MOST: Final = 2.0**53
"""The wire knows no greater count."""
_LEAST_STAY_S: Final = 1e-3
_TELLING: Final = 0.02
"""With fewer users than this part of the capacity, the CPU tells more of the machine than of them."""


@attrs.frozen
class ControlPolicy:
    """`target_load`: which part of the capacity is to be used. `lag_s`: how old a count is when the next one comes.
    `tau_s`: over which time a difference is made up, at least four lags. `clamp`: the integral is at most this part
    of the feed-forward. `cpu_lag_s`: how old the CPU is when it is told. `step`: the part of the capacity that goes in
    before the CPU has told of it. `stale_after_s`: with news that is older the loop is frozen. `shadow`: it plans and
    shows, and binds nobody.
    """

    target_load: float = attrs.field(default=0.7, validator=[gt(0.0), le(1.0)])
    lag_s: float = attrs.field(default=1.0, validator=gt(0.0))
    tau_s: float = attrs.field(default=4.0, validator=gt(0.0))
    clamp: float = attrs.field(default=0.5, validator=[ge(0.0), le(1.0)])
    cpu_lag_s: float = attrs.field(default=15.0, validator=gt(0.0))
    step: float = attrs.field(default=0.1, validator=[gt(0.0), le(1.0)])
    stale_after_s: float = attrs.field(default=10.0, validator=gt(0.0))
    shadow: bool = False

    @tau_s.validator
    def _settles(self, _attribute: object, tau_s: float) -> None:
        if tau_s < _LAGS * self.lag_s:
            raise ValueError(f"tau_s: must be at least four times lag_s, that is {_LAGS * self.lag_s:g}")


@attrs.frozen
class LoadNews:
    """What is known of the usable backends together.

    `users`: who is there at `asked_at`, with those who were sent and are in no count yet. `capacity`: how many they
    carry. `stay_s`: the mean stay. `cpu`: from 0 to 1, and over 1 where more is asked of them than they give, at
    `cpu_at`, mostly an earlier moment; None where none is ever told, and 0 at minus infinity until it is.
    """

    asked_at: float
    users: float
    capacity: float
    stay_s: float
    cpu: float | None = None
    cpu_at: float = -math.inf


class Steered(StrEnum):
    """Why the rate is what it is."""

    LOOP = "loop"
    MANUAL = "manual"
    FROZEN = "frozen"
    """The news is too old: the rate stays, and is no more than what leaves at the target."""
    NO_NEWS = "no_news"
    """There has been none yet: nothing is planned."""


@attrs.frozen
class Plan:
    """`planned_per_s`: what the loop would let in a second; None when it does not know. `per_s`: what binds; None: it
    does not. `goal`: the users who are to be there. `steady_per_s`: what leaves a second at the goal. `by`: why.
    """

    planned_per_s: float | None
    per_s: float | None
    by: Steered
    goal: float | None = None
    steady_per_s: float | None = None


@attrs.define(eq=False)
class Gauge:
    """Which part of the capacity the backends carry by their CPU: 1 as configured, less where users weigh more.

    A CPU is compared with the count of the same moment, so its lag shifts nothing.
    """

    policy: ControlPolicy
    part: float = attrs.field(default=1.0, init=False)
    told_at: float = attrs.field(default=-math.inf, init=False)
    """The moment the last CPU tells of."""
    confirmed: float | None = attrs.field(default=None, init=False)
    """The users of that moment; None while no CPU is told."""
    _counts: deque[tuple[float, float, float]] = attrs.field(factory=lambda: deque(maxlen=_HISTORY), init=False)

    def take(self, news: LoadNews) -> None:
        """Keep the count of `news`, and compare its CPU, when it is a new one, with the count of then."""
        self._counts.append((news.asked_at, news.users, news.capacity))
        if news.cpu is None:
            self.part, self.confirmed = 1.0, None
            return
        if self.confirmed is None:
            self.confirmed = news.users  # who is there at the start has not been let in by us
        if news.cpu_at > self.told_at:
            self._compare(news.cpu, news.cpu_at)

    def _compare(self, cpu: float, at: float) -> None:
        while len(self._counts) > 1 and self._counts[1][0] <= at:
            self._counts.popleft()
        counted_at, users, capacity = self._counts[0]
        if counted_at > at:  # nobody has counted then
            return
        seconds, self.told_at, self.confirmed = at - self.told_at, at, users
        if users <= _TELLING * capacity or cpu <= 0:
            return
        part = min(1.0, max(_LEAST_GAUGE, users / max(capacity, 1.0) / cpu))
        memory_s = self.policy.cpu_lag_s / _LAGS if part < self.part else self.policy.cpu_lag_s * _LAGS
        self.part += (part - self.part) * -math.expm1(-seconds / memory_s)


@attrs.define(eq=False)
class Control:
    """Take in news with `learn`, and ask for the rate with `plan`."""

    policy: ControlPolicy = attrs.field(factory=ControlPolicy)
    gauge: Gauge = attrs.field(init=False)
    manual_per_s: float | None = attrs.field(default=None, init=False)
    """What an operator wants instead; None: the loop."""
    _news: LoadNews | None = attrs.field(default=None, init=False)
    _goal: float = attrs.field(default=0.0, init=False)
    _rate: float = attrs.field(default=0.0, init=False)
    _integral: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.gauge = Gauge(self.policy)

    def override(self, per_s: float | None) -> None:
        """Have an operator set the rate; None hands it back to the loop. The loop goes on to plan meanwhile."""
        if per_s is not None and not 0.0 <= per_s < math.inf:
            raise ValueError(f"{per_s} is no rate")
        self.manual_per_s = per_s

    def learn(self, news: LoadNews, *, waiting: bool) -> None:
        """Take in news, no more often than it is told; `waiting`: whether anybody is held up.

        While nobody waits the load is low for want of people, which is nothing to make up for later. What is no
        number is not taken in: the loop freezes by itself when nothing better comes.
        """
        if not _is_sound(news) or (self._news is not None and news.asked_at <= self._news.asked_at):
            return
        seconds = 0.0 if self._news is None else min(self.policy.tau_s, news.asked_at - self._news.asked_at)
        self._news = news
        self.gauge.take(news)
        self._goal = self.policy.target_load * news.capacity * self.gauge.part
        if self.gauge.confirmed is not None:
            self._goal = min(self._goal, self.gauge.confirmed + self.policy.step * news.capacity)
        self._integrate(news, seconds if waiting else 0.0)
        self._move(max(0.0, self._goal / news.stay_s + self._miss(news) + self._integral), seconds)

    def plan(self, now: float) -> Plan:
        """Return the rate for now."""
        news = self._news
        if news is None:
            by, planned, goal, steady = Steered.NO_NEWS, None, None, None
        else:
            goal, steady = self._goal, self._goal / news.stay_s
            frozen = now - news.asked_at > self.policy.stale_after_s
            by, planned = (Steered.FROZEN, min(self._rate, steady)) if frozen else (Steered.LOOP, self._rate)
        if self.manual_per_s is not None:
            return Plan(planned, self.manual_per_s, Steered.MANUAL, goal, steady)
        return Plan(planned, None if self.policy.shadow else planned, by, goal, steady)

    def _miss(self, news: LoadNews) -> float:
        return (self._goal - news.users) / self.policy.tau_s

    def _integrate(self, news: LoadNews, seconds: float) -> None:
        miss, bound = self._miss(news), self.policy.clamp * self._goal / news.stay_s
        shut = miss < 0.0 and self._goal / news.stay_s + miss + self._integral <= 0.0
        if not shut:  # nobody is let in as it is: more of the same would only be missing later
            self._integral += miss * seconds / (_LAGS * self.policy.tau_s)
        self._integral = min(bound, max(-bound, self._integral))

    def _move(self, wanted: float, seconds: float) -> None:
        """Go down at once, and up over tau: too many cannot be sent away again, too few are let in a moment later."""
        if wanted > self._rate:
            wanted = self._rate + (wanted - self._rate) * -math.expm1(-seconds / self.policy.tau_s)
        self._rate = wanted


def _is_sound(news: LoadNews) -> bool:
    """Whether all of it are numbers that can be: what is reckoned with them is one, too."""
    counts = (news.users, news.capacity, news.cpu or 0.0)
    told = all(0.0 <= count <= _MOST for count in counts) and _LEAST_STAY_S <= news.stay_s <= _MOST
    return told and math.isfinite(news.asked_at) and news.cpu_at <= news.asked_at
