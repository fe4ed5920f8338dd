"""`sessions`: users who come, stay for a while and go; and a backend that crashes and comes back empty.

Exponential sessions, probes that take turns, half a second from the answer of a master to the count of a backend, and
one client of twenty that never comes. At a third of the run a backend crashes: its users ask again within 5 s, and 10 s
after the crash it is back without any.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from master.core.backend import Backend
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.simulation.masters import Masters, Progress, Setting, make_backends, no_progress
from master.simulation.spread import spread
from master.simulation.watch import Crash, Watch

_CONNECT_S: Final = 0.5
_NEVER_CONNECT: Final = 0.05
_RECONNECT_S: Final = 5.0
_AWAY_S: Final = 10.0
_SAMPLE_S: Final = 1.0


@attrs.frozen
class SessionsSetting:
    """`joins_per_s` clients ask, those that come stay `session_s` on the average. `crash_at_s` None: nobody crashes."""

    backends: Sequence[Backend]
    joins_per_s: float = 200.0
    session_s: float = 600.0
    period_s: float = 5.0
    length_s: float = 1800.0
    crash_at_s: float | None = None
    crashes: int = 0
    """Which one."""

    @classmethod
    def of(
        cls, backends: int, joins_per_s: float, session_s: float, period_s: float, length_s: float
    ) -> SessionsSetting:
        """Return that of equal backends, of which one crashes at a third of the run."""
        return cls(make_backends(backends), joins_per_s, session_s, period_s, length_s, length_s / 3)

    @classmethod
    def for_users(cls, users: int, backends: Sequence[Backend], session_s: float, period_s: float) -> SessionsSetting:
        """Return that in which so many users are there in the long run."""
        return cls(backends, users / session_s / (1 - _NEVER_CONNECT), session_s, period_s)

    @property
    def users(self) -> float:
        """How many there are in the long run."""
        return self.joins_per_s * (1 - _NEVER_CONNECT) * self.session_s


def run_sessions(sessions: SessionsSetting, setting: Setting, progress: Progress = no_progress) -> Watch:
    """Return what was seen in a run."""
    world = _World(sessions, setting)
    for now in world.run():
        progress(now / sessions.length_s)
    return world.watch


class _World:
    """The users of each backend, and what will happen next: one queue for each kind of event."""

    def __init__(self, sessions: SessionsSetting, setting: Setting) -> None:
        self._sessions = sessions
        self._rng = setting.rng("clients")
        backends = sessions.backends
        self._users = [0] * len(backends)
        self._lives = [0] * len(backends)
        """How often each has come back: who was there before is not there any more."""
        self._up = [True] * len(backends)
        self._asks: list[float] = [self._rng.expovariate(sessions.joins_per_s)]
        self._next_own = self._asks[0]
        """The next ask that is not a second one."""
        self._arrivals: deque[tuple[float, int, int]] = deque()
        self._leavings: list[tuple[float, int, int]] = []
        self._probes = self._plan_probes(setting)
        self._fill()
        health = HealthPolicy(stale_after_s=3 * sessions.period_s)
        loads = LoadPolicy(_CONNECT_S, max(LoadPolicy().reservation_s, _CONNECT_S + 2 * sessions.period_s))
        self._masters = Masters(backends, setting, health, loads)
        for number, users in enumerate(self._users):
            self._masters.report_to_all(0.0, number, users)
        crash_at = math.inf if sessions.crash_at_s is None else sessions.crash_at_s
        self._changes: deque[tuple[float, Callable[[float], None]]] = deque(
            [(crash_at, self._crash), (crash_at + _AWAY_S, self._return)]
        )
        crash = Crash(sessions.crashes, crash_at, crash_at + _RECONNECT_S, crash_at + _AWAY_S)
        self.watch = Watch([backend.weight for backend in backends], setting, crash)

    def run(self) -> Iterator[float]:
        """Go to the end; yield the time, each second of it."""
        length_s, next_sample = self._sessions.length_s, _SAMPLE_S
        while True:
            ask_at, arrive_at = self._asks[0], self._arrivals[0][0] if self._arrivals else math.inf
            leave_at, probe_at = self._leavings[0][0] if self._leavings else math.inf, self._probes[0][0]
            change_at = self._changes[0][0] if self._changes else math.inf
            now = min(ask_at, arrive_at, leave_at, probe_at, change_at, next_sample)
            if now > length_s:
                return
            if now == leave_at:
                self._leave()
            elif now == arrive_at:
                self._arrive()
            elif now == ask_at:
                self._ask()
            elif now == probe_at:
                self._probe()
            elif now == change_at:
                self._changes.popleft()[1](now)
            else:
                next_sample += _SAMPLE_S
                self.watch.sample(now, self._users, self._masters.ask_rate())
                yield now

    def _plan_probes(self, setting: Setting) -> list[tuple[float, int, int]]:
        """Return the first probe of each backend by each master: they take turns within the period."""
        count, rng = len(self._users), setting.rng("probes")
        probes = [
            ((number + rng.random()) / count * self._sessions.period_s, master, number)
            for master, number in itertools.product(range(setting.masters), range(count))
        ]
        heapq.heapify(probes)
        return probes

    def _fill(self) -> None:
        """Begin with as many users as there will be, evenly."""
        counts, _ = spread(round(self._sessions.users), self._sessions.backends)
        for number, count in enumerate(counts):
            for _ in range(count):
                self._stay(0.0, number)

    def _stay(self, now: float, number: int) -> None:
        self._users[number] += 1
        leave_at = now + self._rng.expovariate(1 / self._sessions.session_s)
        heapq.heappush(self._leavings, (leave_at, number, self._lives[number]))

    def _ask(self) -> None:
        now = heapq.heappop(self._asks)
        if now == self._next_own:
            self._next_own = now + self._rng.expovariate(self._sessions.joins_per_s)
            heapq.heappush(self._asks, self._next_own)
        number = self._masters.ask(now)
        self.watch.asked(now, number, self._masters.ask_rate)
        if number is None:
            heapq.heappush(self._asks, now + self._rng.uniform(1.0, 3.0))
        elif self._rng.random() >= _NEVER_CONNECT:
            self._arrivals.append((now + _CONNECT_S, number, self._lives[number]))

    def _arrive(self) -> None:
        now, number, life = self._arrivals.popleft()
        if self._up[number] and life == self._lives[number]:
            self._stay(now, number)
        else:
            heapq.heappush(self._asks, now)

    def _leave(self) -> None:
        _, number, life = heapq.heappop(self._leavings)
        if life == self._lives[number]:
            self._users[number] -= 1

    def _probe(self) -> None:
        now, master, number = self._probes[0]
        heapq.heapreplace(self._probes, (now + self._sessions.period_s, master, number))
        if self._up[number]:
            self._masters.report(now, master, number, self._users[number])

    def _crash(self, now: float) -> None:
        number = self._sessions.crashes
        self._masters.lose(now, number)
        for _ in range(self._users[number]):
            heapq.heappush(self._asks, now + self._rng.uniform(0.0, _RECONNECT_S))
        self._up[number] = False
        self._lives[number] += 1
        self._users[number] = 0

    def _return(self, _now: float) -> None:
        self._up[self._sessions.crashes] = True
