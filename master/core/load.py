"""What "less loaded" means now, between two reports that are seconds apart.

A report tells of the moment at which it was asked for; since then users have left, and clients were sent. With D the
mean session time and M the number of masters that send as many as this one,

    load = (reported x exp(-age / D) + M x the sum of exp(-age / D) over own assignments) / weight

where those assignments count that the report cannot hold: made later than `connect_s` before its question. Without the
decay the backend that was asked last would always look emptiest.

All of it fades at one pace, so the order of two backends never changes between events. With x, the integral of
dt / D, the key log(load) + x of a backend stays as it is until it is sent a client or gives a report, and a change of D
touches no key (forward decay: Cormode, Shkapenyuk, Srivastava and Xu, 2009). So a heap serves.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import attrs

FIRST_SESSION_S: Final = 600.0
"""The mean session time that is assumed until there is something to learn from."""
LEAST_SESSION_S: Final = 0.1
MOST_SESSION_S: Final = 7 * 86400.0
_MEMORY_S: Final = 300.0
"""What is learned of sessions fades over this time."""
_DOUBT: Final = 20.0
"""The first assumption weighs as much as so many ended sessions."""
_LEAST_GONE: Final = 5.0
"""With fewer that have surely ended, nobody knows how long they are."""
_CAUTION: Final = 2.0
"""What is seen may be so much too short: backends fall, and the first to go are those who stay a moment."""


@attrs.frozen
class LoadPolicy:
    """`connect_s`: a client is counted by its backend after at most this. `reservation_s`: an assignment that no report
    has confirmed is forgotten after this. `session_s`: the mean session time, None to learn it. `masters`: how many
    share the clients evenly, this one included.
    """

    connect_s: float = 2.0
    reservation_s: float = 15.0
    session_s: float | None = None
    masters: int = 1


@attrs.define(eq=False)
class SessionClock:
    """Time in mean sessions: `at(now)` is x, the integral of dt / D. It learns D where it was not told.

    Between two reports of one backend, the users it had times the seconds are user-seconds, and those it had and was
    sent but has not any more are ended sessions; by Little's law (1961) their quotient is D. A client that was sent and
    never came is a session of no length, so D is right for what an assignment is worth, too.
    """

    policy: LoadPolicy
    first_s: float = FIRST_SESSION_S
    mean_s: float = attrs.field(init=False)
    """D, in seconds."""
    per_s: float = attrs.field(init=False)
    """1 / D."""
    base: float = attrs.field(default=0.0, init=False)
    """x at the time `since`, which is that of the last change of D."""
    since: float = attrs.field(default=0.0, init=False)
    _user_s: float = attrs.field(default=0.0, init=False)
    _ended: float = attrs.field(default=0.0, init=False)
    _gone: float = attrs.field(default=0.0, init=False)
    """Of the ended ones, those that are certain: who was just sent may be on his way."""
    _learned_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.mean_s = self.policy.session_s or self.first_s
        self.per_s = 1 / self.mean_s

    def at(self, now: float) -> float:
        """Return x; of a time before the last change of D as if D had been what it is now."""
        return self.base + (now - self.since) * self.per_s

    @property
    def seen_s(self) -> float | None:
        """What one can promise by: at most D, and not far over what was seen; None: nobody has seen anything yet.

        D begins with an assumption, which would be a hundred times too long for long where sessions are short.
        """
        if self.policy.session_s is not None:
            return self.policy.session_s
        if self._gone < _LEAST_GONE:
            return None
        return min(self.mean_s, max(LEAST_SESSION_S, _CAUTION * self._user_s / self._gone))

    def learn(self, now: float, seconds: float, before: int, joined: int, after: int, came: int = 0) -> None:
        """Take in that of `before` users and `joined` that were sent in `seconds`, `after` are there.

        `came`: the same as `joined`, of those sent so long before that they are in the counts if they came.
        """
        if self.policy.session_s is not None:
            return
        faded = math.exp((self._learned_at - now) / _MEMORY_S)
        self._learned_at = now
        self._user_s = self._user_s * faded + (before + after) / 2 * seconds
        self._ended = self._ended * faded + before + joined - after
        self._gone = self._gone * faded + before + came - after
        # Users who come by other ways than a master can make the count of the ended negative.
        ended = max(self._ended + _DOUBT, 1e-9)
        self._set(now, min(MOST_SESSION_S, max(LEAST_SESSION_S, (self._user_s + _DOUBT * self.first_s) / ended)))

    def _set(self, now: float, mean_s: float) -> None:
        self.base, self.since = self.at(now), now
        self.mean_s, self.per_s = mean_s, 1 / mean_s


@attrs.define(eq=False)
class Reservations:
    """A backend's assignments that its report may not count yet, oldest first, and what they weigh now."""

    policy: LoadPolicy
    clock: SessionClock
    total: int = attrs.field(default=0, init=False)
    """Assignments since the start."""
    own: float = attrs.field(default=0.0, init=False)
    """The sum of exp(-age / D), as it was at `own_at`."""
    own_at: float = attrs.field(default=0.0, init=False)
    """In mean sessions, as `clock` counts."""
    sent: deque[tuple[float, float]] = attrs.field(factory=deque, init=False)
    """When each was made, in seconds and in mean sessions."""

    def count(self, now: float) -> int:
        """Return how many there are; what no report has confirmed in time is forgotten."""
        # The same sum as in `next_expiry`: two ways to reckon it would differ by the last bit now and then.
        while self.sent and self.sent[0][0] + self.policy.reservation_s <= now:
            self._forget_oldest()
        return len(self.sent)

    def add(self, now: float, x: float) -> None:
        """Note one that is made `now`, which is `x` in mean sessions."""
        self.total += 1
        self.own = self.weigh(x) + 1
        self.own_at = x
        self.sent.append((now, x))

    def confirmed_by(self, asked_at: float) -> None:
        """Forget those whose clients are in a count that was asked for at `asked_at`."""
        while self.sent and self.sent[0][0] <= asked_at - self.policy.connect_s:
            self._forget_oldest()

    def made_by(self, moment: float) -> int:
        """Return how many of `total` were made by `moment`, which is not long ago."""
        return self.total - self.made_since(math.nextafter(moment, math.inf))

    def made_since(self, moment: float) -> int:
        """Return how many were made then or later."""
        later = 0
        for at, _ in reversed(self.sent):
            if at < moment:
                break
            later += 1
        return later

    def next_expiry(self) -> float:
        """Return when the oldest one is forgotten; never, when there is none."""
        return self.sent[0][0] + self.policy.reservation_s if self.sent else math.inf

    def weigh(self, x: float) -> float:
        """Return the sum of exp(-age / D) at `x`."""
        return self.own * math.exp(self.own_at - x)

    def _forget_oldest(self) -> None:
        _, x = self.sent.popleft()
        # What rounding leaves over fades; an empty sum is 0 and nothing near it.
        self.own = max(0.0, self.own - math.exp(x - self.own_at)) if self.sent else 0.0


@attrs.define(eq=False)
class Spell:
    """Reports of one incarnation of a backend, one after the other: what D is learned from."""

    clock: SessionClock
    reservations: Reservations
    _count: int = attrs.field(default=0, init=False)
    _asked_at: float | None = attrs.field(default=None, init=False)
    _made: int = attrs.field(default=0, init=False)
    _settled: int = attrs.field(default=0, init=False)

    def reported(self, now: float, count: int, asked_at: float) -> None:
        """Take in a report; clients that were sent while its answer was under way belong to the next one."""
        made = self.reservations.made_by(asked_at)
        settled = self.reservations.made_by(asked_at - self.clock.policy.connect_s)
        if self._asked_at is not None:
            joined = (made - self._made) * self.clock.policy.masters
            came = (settled - self._settled) * self.clock.policy.masters
            self.clock.learn(now, asked_at - self._asked_at, self._count, joined, count, came)
        self._count, self._asked_at, self._made, self._settled = count, asked_at, made, settled

    def broken(self) -> None:
        """Hear that the backend was gone: its next count may be of another process, which began with nobody."""
        self._asked_at = None
