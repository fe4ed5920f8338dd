"""The three limits on whom is called: places that are free, the rate, and calls that are open."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import attrs

from lambdamu.messages import QueueReason

_SLACK_S: Final = 0.25
"""A gate that is looked at so seldom still gives its whole rate."""
_NEAR_S: Final = 1e-9


class Limit(StrEnum):
    """Why nobody more is called now."""

    NOBODY = "nobody"
    """Nobody waits."""
    MODE = "mode"
    """The operator holds or has closed the queue."""
    PLACES = "places"
    CALLS = "calls"
    RATE = "rate"
    QUEUE_RATE = "queue_rate"
    """Every queue in which somebody waits has been given what its own rate allows."""
    TURN = "turn"
    """None: as many were called as are called at a time."""


@attrs.frozen
class Room:
    """What the backends can take, as the shell has it from the pool and the control loop.

    `free_places`: how many could still be sent, users and reservations already taken off, and open calls not; None: no
    limit, below 0: too many are there. `per_minute`: the planned rate, None: none. `why`: what makes it so little.
    """

    free_places: int | None = 0
    per_minute: float | None = None
    why: QueueReason = QueueReason.NO_PLACE


class Gate:
    """So many a minute: GCRA, as in `master.core.fair`, whose idle time gives no credit.

    `begin` says that somebody waits from now on: only then the credit of a late look counts, `burst` or what falls
    due in 0.25 s, whichever is more. What is given back is let in again at once, and does not outlast the waiting.
    """

    def __init__(self, now: float, per_minute: float | None, burst: int = 1) -> None:
        self._due_at = now
        self._owed = 0
        self._per_minute: float | None = None
        self.set(now, per_minute, burst)

    @property
    def per_minute(self) -> float | None:
        return self._per_minute

    def set(self, now: float, per_minute: float | None, burst: int = 1) -> None:
        """Change the rate; what has to be waited for changes in proportion."""
        wait_s = max(self._due_at - now, 0.0)
        if per_minute != self._per_minute and wait_s > 0:
            passed = wait_s * (self._per_minute or 0.0)
            self._due_at = now + (passed / per_minute if per_minute else 0.0)
        self._per_minute = per_minute
        self._period_s = 60.0 / per_minute if per_minute else 0.0
        self._late_s = max((burst - 1) * self._period_s, _SLACK_S)

    def begin(self, now: float) -> None:
        self._due_at = max(self._due_at, now)
        self._owed = 0

    def opens_at(self, now: float) -> float:
        """Return from when on one may enter: infinity for never, as things are."""
        if self._per_minute is None or (self._owed and self._per_minute):
            return now
        return self._due_at if self._per_minute else math.inf

    def allows(self, now: float) -> bool:
        return self.opens_at(now) <= now + _NEAR_S

    def take(self, now: float) -> None:
        """Count one who enters, while it allows that."""
        if self._per_minute is None:
            return
        if self._owed:
            self._owed -= 1
        else:
            self._due_at = max(self._due_at, now - self._late_s) + self._period_s

    def give_back(self) -> None:
        """One who was counted has not entered."""
        self._owed += self._per_minute is not None


class Limits:
    """Judges whether one more may be called. What was called since the shell told of the room is taken off from it."""

    def __init__(self, now: float, per_minute: float | None, burst: int, max_calls: int) -> None:
        self.gate = Gate(now, per_minute, burst)
        self.room = Room()
        self.calls = 0
        """Those that are open: a place is reserved for each."""
        self._spare: int | None = 0
        self.set(now, per_minute, burst, max_calls)

    @property
    def spare(self) -> int | None:
        """Free places that nobody is called to, None: no limit."""
        return self._spare

    def set(self, now: float, per_minute: float | None, burst: int, max_calls: int) -> None:
        self._per_minute, self._burst, self._max_calls = per_minute, burst, max_calls
        self._set_gate(now)

    def tell(self, now: float, room: Room) -> None:
        """Take in how much room there is, now that all who were let in are counted in it."""
        self.room = room
        self._spare = None if room.free_places is None else room.free_places - self.calls
        self._set_gate(now)

    def _set_gate(self, now: float) -> None:
        rates = [rate for rate in (self._per_minute, self.room.per_minute) if rate is not None]
        self.gate.set(now, min(rates, default=None), self._burst)

    def binding(self, now: float) -> Limit | None:
        """Return the limit that forbids one more call; None when none does."""
        if self._spare is not None and self._spare <= 0:
            return Limit.PLACES
        if self.calls >= self._max_calls:
            return Limit.CALLS
        return None if self.gate.allows(now) else Limit.RATE

    def call(self, now: float, counted: bool = True) -> None:
        """Count a call; `counted`: in the rate too, which it is not where all are let through."""
        self.calls += 1
        if self._spare is not None:
            self._spare -= 1
        if counted:
            self.gate.take(now)

    def claim(self) -> None:
        """A call has become a user, whom the next room has taken off."""
        self.calls -= 1

    def take_back(self, counted: bool = True) -> None:
        """A call that did not become a user leaves its place and its part of the rate to the next."""
        self.calls -= 1
        if self._spare is not None:
            self._spare += 1
        if counted:
            self.gate.give_back()

    def deny(self) -> None:
        """Hear that there was no place after all: nobody is called until the next room."""
        self._spare = 0
