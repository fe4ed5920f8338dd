"""Circuit breaker: whoever fails again and again is left alone for a while, then tried by one call at a time. Pure.

    permit = breaker.acquire(now, rng)
    if isinstance(permit, Refused):
        ...                                # ask somebody else, or again after permit.retry_after_s
    try:
        ...                                # permit.succeeded(now), or permit.failed(now)
    finally:
        permit.ignored(now)                # a call that was cancelled; counts nothing where the result is in

`now`: seconds of one monotonic clock. `rng` spreads the times at which many breakers try again.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from enum import StrEnum
from typing import Final

import attrs

from lambdamu.breaker_policy import BreakerPolicy, Counts, Window, wilson_lower

__all__ = [
    "MOVES",
    "Breaker",
    "BreakerObserver",
    "BreakerPolicy",
    "Counts",
    "Event",
    "Fault",
    "Permit",
    "Refused",
    "State",
    "Why",
]


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    """What moves a breaker from one state to the next."""

    TRIPPED = "tripped"
    WAITED = "waited"
    TRIAL_FAILED = "trial_failed"
    TRIALS_SUCCEEDED = "trials_succeeded"


# After M. Nygard, Release It! (2007), chapter 5. Calls flow while it is closed. It trips on too many failures and is
# then open: each call would cost its caller a deadline and the callee work, and would bring nothing, so it is refused
# at once. When the open time is over nothing is known but that time has passed: it is half-open, and one call at a
# time finds out. What began under one state tells nothing about the next one: a call that set out before the breaker
# opened, and comes back while it is half-open, is no trial. So each move begins a new generation, and results of an
# older one count nowhere. Every other pair of a state and an event is impossible, and a KeyError.
MOVES: Final = {
    (State.CLOSED, Event.TRIPPED): State.OPEN,
    (State.OPEN, Event.WAITED): State.HALF_OPEN,
    (State.HALF_OPEN, Event.TRIAL_FAILED): State.OPEN,
    (State.HALF_OPEN, Event.TRIALS_SUCCEEDED): State.CLOSED,
}


class Fault(StrEnum):
    """Whose failure it was: SYSTEM, it was not there, or LOGIC, it was there and said no. Only SYSTEM trips."""

    SYSTEM = "system"
    LOGIC = "logic"


class Why(StrEnum):
    """Why a call was refused."""

    OPEN = "open"
    TRIAL_OUT = "trial_out"
    FULL = "full"


@attrs.frozen
class Refused:
    """No call now. It is no failure of the callee.

    `retry_after_s`: when OPEN, sooner it is of no use to come back; otherwise the last moment at which there is room.
    """

    why: Why
    retry_after_s: float


_NO_TRIAL: Final = -1


class BreakerObserver:
    """Hears what happens to a breaker; this one does nothing with it."""

    def moved(self, now: float, state: State, event: Event) -> None:
        """It is in another state now, because of `event`."""

    def crowded(self, now: float, in_flight: int) -> None:
        """Many calls are in flight; told once, and once more when half of them had gone meanwhile."""

    def refused(self, now: float, why: Why) -> None:
        """A call was refused."""


@attrs.frozen(eq=False)
class Permit:
    """The right to one call. It is given back once: what is said after that, or after its lease, counts nothing."""

    _breaker: Breaker = attrs.field(repr=False)
    number: int
    generation: int
    began: float
    luck: float

    def succeeded(self, now: float) -> None:
        self._breaker.give_back(self, now, Counts(calls=1))

    def failed(self, now: float, kind: Fault = Fault.SYSTEM) -> None:
        """Say that the call failed. A logic error is an answer: it shows that the callee is there."""
        logic = kind is Fault.LOGIC
        self._breaker.give_back(self, now, Counts(calls=1, system=int(not logic), logic=int(logic)))

    def ignored(self, now: float) -> None:
        """Say that the call came to nothing and tells nothing, such as a cancelled one."""
        self._breaker.give_back(self, now, None)


class Breaker:
    """One callee as seen by one caller. Synchronous, so each call of it is atomic under trio."""

    def __init__(self, policy: BreakerPolicy | None = None, observer: BreakerObserver | None = None) -> None:
        self.policy: Final = policy or BreakerPolicy()
        self._observer = observer or BreakerObserver()
        self._state = State.CLOSED
        self._generation = 0
        self._window = Window(self.policy.window_s, self.policy.buckets)
        self._in_a_row = 0
        self._trial = _NO_TRIAL
        self._good_trials = 0
        self._doubled = 0
        self._since = 0.0
        """When it closed; while open, when the open time ends."""
        self._numbers = 0
        self._leases: OrderedDict[int, float] = OrderedDict()
        """Permits that are out, by number, with the end of their lease: all are as long, so the oldest ends first."""
        self._event = (0, -math.inf)
        """The first permit after the last failure that counted, and when that was."""
        self._told_crowded = False

    def state(self, now: float) -> State:
        self._settle(now)
        return self._state

    def in_flight(self, now: float) -> int:
        self._settle(now)
        return len(self._leases)

    def counts(self, now: float) -> Counts:
        """Return what the window holds: the results since it closed, at most window_s old."""
        return self._window.total(now)

    def refusal(self, now: float) -> Refused | None:
        """Return what `acquire` would refuse with now, and take nothing; None where it would give a permit."""
        self._settle(now)
        if self._state is State.OPEN:
            return Refused(Why.OPEN, self._since - now)
        if self._state is State.CLOSED:
            full = len(self._leases) >= self.policy.full_at
            # Nobody knows when a place gets free; a call that is not slow is over by then.
            return Refused(Why.FULL, self.policy.slow_s) if full else None
        # Calls from before it opened may still fill all places. A trial goes out all the same, one over the number:
        # or a callee that held every call would be left alone for good.
        lease = self._leases.get(self._trial)
        return None if lease is None else Refused(Why.TRIAL_OUT, lease - now)

    def acquire(self, now: float, rng: random.Random) -> Permit | Refused:
        """Take a permit for one call, or hear why not."""
        refused = self.refusal(now)
        if refused is not None:
            self._observer.refused(now, refused.why)
            return refused
        permit = Permit(self, self._numbers, self._generation, now, rng.random())
        self._numbers += 1
        if self._state is State.HALF_OPEN:
            self._trial = permit.number
        self._leases[permit.number] = now + self.policy.lease_s
        self._tell_crowded(now)
        return permit

    def trip(self, now: float, rng: random.Random) -> None:
        """Open it on evidence from elsewhere; while it is open this changes nothing."""
        self._settle(now)
        if self._state is not State.OPEN:
            self._open(now, rng.random())

    def give_back(self, permit: Permit, now: float, result: Counts | None) -> None:
        """Take a permit back, with the result of its one call; None for one that tells nothing."""
        self._settle(now)
        if self._leases.pop(permit.number, None) is None:
            return  # given back before, or its lease had ended
        if result is None or permit.generation != self._generation:
            return
        result.slow = int(now - permit.began > self.policy.slow_s)
        if self._state is State.HALF_OPEN:
            self._judge_trial(permit, now, result)
        elif not (result.system and self._is_echo(permit, now)):
            self._count(permit, now, result)

    def _is_echo(self, permit: Permit, now: float) -> bool:
        """Whether this failure is of an event that was counted: a peer that ends breaks all its connections at once."""
        number, at = self._event
        return permit.number < number and now <= at + self.policy.same_event_s

    def _count(self, permit: Permit, now: float, result: Counts) -> None:
        self._window.add(now, result)
        if result.system:
            self._event = (self._numbers, now)
        self._in_a_row = self._in_a_row + 1 if result.system else 0
        if not (result.system or result.slow):
            return  # no share has grown
        if self._in_a_row >= self.policy.consecutive or self._too_many(now):
            self._open(now, permit.luck)

    def _too_many(self, now: float) -> bool:
        policy, total = self.policy, self._window.total(now)
        surely_failed = wilson_lower(total.system, total.calls, policy.confidence_z)
        surely_slow = wilson_lower(total.slow, total.calls, policy.confidence_z)
        return surely_failed > policy.failure_share or surely_slow > policy.slow_share

    def _judge_trial(self, permit: Permit, now: float, result: Counts) -> None:
        if result.system or result.slow:
            self._open(now, permit.luck)
            return
        self._good_trials += 1
        if self._good_trials >= self.policy.trials:
            self._move(now, Event.TRIALS_SUCCEEDED)
            self._since = now

    def _open(self, now: float, luck: float) -> None:
        if self._state is State.CLOSED:
            self._doubled = max(0, self._doubled - int((now - self._since) / self.policy.decay_s))
        self._since = now + self.policy.open_time_s(self._doubled, luck)
        self._doubled = min(self._doubled + 1, self.policy.doublings)
        self._move(now, Event.TRIPPED if self._state is State.CLOSED else Event.TRIAL_FAILED)

    def _settle(self, now: float) -> None:
        """Do what the time that has passed has brought: leases end, and so does the open time."""
        while self._leases and next(iter(self._leases.values())) <= now:
            self._leases.popitem(last=False)
        if self._state is State.OPEN and now >= self._since:
            self._move(now, Event.WAITED)

    def _move(self, now: float, event: Event) -> None:
        self._state = MOVES[self._state, event]
        self._generation += 1
        self._window.clear()
        self._in_a_row = self._good_trials = 0
        self._trial = _NO_TRIAL
        self._observer.moved(now, self._state, event)

    def _tell_crowded(self, now: float) -> None:
        if (len(self._leases) - 1) * 2 < self.policy.crowded_at:
            self._told_crowded = False
        if not self._told_crowded and len(self._leases) >= self.policy.crowded_at:
            self._told_crowded = True
            self._observer.crowded(now, len(self._leases))
