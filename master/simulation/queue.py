"""`queue`: servers that work off their queues, the model of which theory knows the answers.

Poisson arrivals, exponential service of mean 1 s, first come, first served, and reports of all every `period_s`.
With fresh counts and many servers, the best of two gives the sum over i >= 1 of u^(2^i - 2) at utilisation u
(Vvedenskaya, Dobrushin and Karpelevich, 1996; Mitzenmacher, 1996), and chance gives 1 / (1 - u).
"""

from __future__ import annotations

import heapq
from collections import deque

import attrs

from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.simulation.masters import NEVER_S, Masters, Progress, Setting, make_backends, no_progress

_WARM_UP: float = 0.1
"""The part of a run that is not measured."""


@attrs.frozen
class QueueSetting:
    """`period_s` 0: every count is fresh at every ask."""

    servers: int = 100
    utilisation: float = 0.9
    period_s: float = 5.0
    length_s: float = 6000.0


def run_queue(queue: QueueSetting, setting: Setting, progress: Progress = no_progress) -> dict[str, float]:
    """Return the mean seconds that a client waits and is served: {"mean_time_in_system"}."""
    run = _Fresh(queue, setting) if queue.period_s == 0 else _Periodic(queue, setting)
    rng = setting.rng("clients")
    rate = queue.servers * queue.utilisation
    now, total, clients, steps = 0.0, 0.0, 0, 0
    while now < queue.length_s:
        now += rng.expovariate(rate)
        run.bring_up(now)
        time = run.join(now, rng.expovariate(1.0))
        if now > _WARM_UP * queue.length_s:
            total, clients = total + time, clients + 1
        steps += 1
        if steps % 10_000 == 0:
            progress(now / queue.length_s)
    return {"mean_time_in_system": total / clients}


class _Servers:
    """The queues: a client is known by the time at which it will leave."""

    def __init__(self, queue: QueueSetting, setting: Setting) -> None:
        loads = LoadPolicy(connect_s=0.0, reservation_s=NEVER_S)
        health = HealthPolicy(stale_after_s=NEVER_S)
        self.masters = Masters(make_backends(queue.servers), setting, health, loads)
        self.leaving: list[deque[float]] = [deque() for _ in range(queue.servers)]
        for number in range(queue.servers):
            self.masters.report_to_all(0.0, number, 0)

    def join(self, now: float, service_s: float) -> float:
        """Send a client to a server; return how long it will be there."""
        number = self.masters.ask(now)
        assert number is not None  # noqa: S101 - all servers always work
        line = self.leaving[number]
        left_at = max(now, line[-1] if line else 0.0) + service_s
        line.append(left_at)
        self.joined(now, number, left_at)
        return left_at - now

    def count(self, now: float, number: int) -> int:
        line = self.leaving[number]
        while line and line[0] <= now:
            line.popleft()
        return len(line)

    def joined(self, now: float, number: int, left_at: float) -> None:
        """Hear of a client that was sent to a server."""


class _Periodic(_Servers):
    """All masters hear of all servers at once, and then nothing for a period."""

    def __init__(self, queue: QueueSetting, setting: Setting) -> None:
        super().__init__(queue, setting)
        self._due = self._period_s = queue.period_s

    def bring_up(self, now: float) -> None:
        while self._due <= now:
            for number in range(len(self.leaving)):
                self.masters.report_to_all(self._due, number, self.count(self._due, number))
            self._due += self._period_s


class _Fresh(_Servers):
    """Every change of a count is reported at once."""

    def __init__(self, queue: QueueSetting, setting: Setting) -> None:
        super().__init__(queue, setting)
        self._changes: list[tuple[float, int]] = []

    def bring_up(self, now: float) -> None:
        while self._changes and self._changes[0][0] <= now:
            at, number = heapq.heappop(self._changes)
            self.masters.report_to_all(at, number, self.count(at, number))

    def joined(self, now: float, number: int, left_at: float) -> None:
        heapq.heappush(self._changes, (left_at, number))
        self.masters.report_to_all(now, number, self.count(now, number))
