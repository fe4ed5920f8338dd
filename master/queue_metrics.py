"""What the virtual queue knows, as metrics: read from it when somebody looks, and not stored a second time.

Clients make up the ids of queues, so no series has one: queues are summed up by the template that opened them. It
goes over all queues some times, with others in between, and never over tickets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
from prometheus_client.core import CounterMetricFamily, Metric

from master.metric_families import Series, by, gauge, gauge_of, gauges, kept, total
from master.queue.limits import Limit
from master.queue.policy import Mode
from master.queue.ticket import Lane
from master.queue_watch import LoopState, loop_state
from master.waiting.room import WaitingRoom

_NO_TEMPLATE: Final = "(none)"
"""Stands for templates that are configured no more, whose queues are still open."""


@attrs.define(eq=False)
class QueueMetrics:
    """Of what keeps the queue there are no series where nothing does."""

    room: WaitingRoom

    def bounds(self) -> dict[str, Callable[[], float]]:
        """Return how much of each bound is used, from 0 to 1."""
        queues, desk, room = self.room.queues, self.room.desk, self.room
        book = queues.book
        return {
            "queue_tickets": lambda: _part(book.places, room.policy.max_tickets),
            "queue_remembered": lambda: _part(book.claimed + book.missed, room.policy.max_tickets),
            "queue_calls": lambda: _part(queues.limits.calls, room.policy.max_calls),
            "queue_queues": lambda: _part(queues.lines.used, room.policy.max_queues),
            "queue_held": lambda: _part(desk.held, desk.max_held),
        }

    def collect(self, now: float) -> Iterator[Metric]:
        """Yield all of it, in parts."""
        room, queues = self.room, self.room.queues
        yield from gauges("queue_waiting", "People who wait.", self._waiting(), ("template", "lane"))
        yield gauge("queue_oldest_wait_seconds", "How long the first of any lane has waited.", self._oldest(now))
        drain = self._drain()
        if drain is not None:
            yield gauge("queue_drain_per_second", "Claims a second, measured where people wait.", drain)
        yield gauge("queue_queues", "Queues to which anybody belongs.", queues.lines.used)
        book = queues.book
        stages = {"waiting": book.waiting, "called": len(book.called), "claimed": book.claimed, "missed": book.missed}
        yield gauge_of("queue_tickets", "Tickets by stage.", "stage", stages)
        yield gauge("queue_held", "Plain clients that wait on their connections.", room.desk.held)
        yield by("queue_steps", "What has become of tickets.", "step", attrs.asdict(queues.tally))
        yield self._answers()
        promises = {"kept": room.estimates.score.kept, "broken": room.estimates.score.broken}
        yield by("queue_promises", "Waits that ended within the ETA90 that was shown, or after.", "result", promises)
        yield from self._limits()
        yield _states("queue_mode", "1: the mode at work.", "mode", Mode, room.policy.mode)
        yield _states("queue_loop", "1: how the rate is steered.", "state", LoopState, loop_state(room))
        yield total("queue_turns_signed", "Turns that were signed.", room.turns.signed)
        left = {"tickets": len(queues.numbers), "turns": room.turns.numbers.left}
        yield gauge_of("queue_numbers_left", "Numbers that are reserved and not given yet.", "kind", left)
        yield from self._kept()

    def _waiting(self) -> Iterator[Series]:
        counts = {template.pattern: (0, 0, 0) for template in self.room.policy.templates}
        for line in self.room.queues.lines:
            pattern = line.template.pattern if line.template.pattern in counts else _NO_TEMPLATE
            resume, vip, plain = counts.get(pattern, (0, 0, 0))
            more_resume, more_vip, more_plain = line.by_lane()
            counts[pattern] = resume + more_resume, vip + more_vip, plain + more_plain
        for pattern, count in counts.items():
            for lane in Lane:
                yield (pattern, lane.name.lower()), count[lane]

    def _oldest(self, now: float) -> float:
        first = min((ticket.joined_at for line in self.room.queues.lines for ticket in line.heads()), default=now)
        return max(now - first, 0.0)

    def _drain(self) -> float | None:
        """Add up the drains that estimates reckon with, but for those that are planned and have not shown yet."""
        found = None
        for line in self.room.queues.lines:
            forecast = self.room.estimates.forecast(line.queue) if len(line) else None
            if forecast is not None and forecast.drain is not None and forecast.drain.known < math.inf:
                found = (found or 0.0) + forecast.drain.per_s
        return found

    def _answers(self) -> Metric:
        family = CounterMetricFamily(
            "lambdamu_queue_answers", "Answers of the queue but for OK.", labels=["result", "reason"]
        )
        for words, count in self.room.desk.told.items():
            family.add_metric(words, count)
        return family

    def _limits(self) -> Iterator[Metric]:
        room, limits = self.room, self.room.queues.limits
        yield _states("queue_limit", "1: why nobody more was called last.", "limit", Limit, room.queues.limit)
        if limits.spare is not None:
            yield gauge("queue_free_places", "Free places to which nobody is called.", limits.spare)
        if limits.gate.per_minute is not None:
            yield gauge("queue_rate_per_second", "The most that are called a second.", limits.gate.per_minute / 60)
        if room.plan.planned_per_s is not None:
            yield gauge("queue_planned_per_second", "What the control loop would let in.", room.plan.planned_per_s)
        if room.plan.goal is not None:
            yield gauge("queue_goal_users", "Users at the target, by the control loop.", room.plan.goal)

    def _kept(self) -> Iterator[Metric]:
        keeper = self.room.kept
        if keeper is None:
            return
        yield from kept("queue", "the queue", keeper)


def _part(used: int, most: int) -> float:
    """Return how much is used; an operator may have lowered the bound below that."""
    return min(used / most, 1.0) if most else float(used > 0)


def _states(name: str, text: str, label: str, words: Iterable[str], current: str) -> Metric:
    return gauge_of(name, text, label, {str(word): float(word == current) for word in words})
