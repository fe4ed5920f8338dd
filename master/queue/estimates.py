"""The estimates of all queues: what each is told of, who was promised what, and when each is to poll again.

Pure: `now` is an argument, seconds, monotonic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from master.queue.estimate import EstimatePolicy, Forecast, Wait
from master.queue.polls import Calendar, PollPolicy
from master.queue.promises import Promise, Score
from master.queue.ticket import Ticket


@attrs.frozen
class Outlook:
    """Of one queue: how many wait, and how many are to be let in a second, None when that is not planned.

    `known`: whether what is measured may stand for it where it is not; what fills free places says nothing of later.
    """

    waiting: int
    planned_per_s: float | None = None
    known: bool = True


class Estimates:
    """The estimator of the virtual queue. `look` has to be called every second or so; the rest is said by the queue.

    Memory: that of the queues of the last look, a promise for each ticket, and the calendar.
    """

    def __init__(
        self,
        rng: random.Random,
        polls: PollPolicy,
        policy: EstimatePolicy = EstimatePolicy(),  # noqa: B008 - frozen
    ) -> None:
        self.calendar = Calendar(polls)
        self.score = Score()
        self._rng = rng
        self._policy = policy
        self._forecasts: dict[str, Forecast] = {}
        self._busy = 0.0

    def look(self, now: float, queues: Mapping[str, Outlook], busy: float = 0.0) -> None:
        """Hear how all queues stand, and how busy the master is, from 0 to 1.

        A queue that is not named is forgotten.
        """
        self._busy = busy
        self._forecasts = {queue: self._forecasts.get(queue) or Forecast(self._policy) for queue in queues}
        for queue, outlook in queues.items():
            planned_per_s = outlook.planned_per_s if outlook.known else 0.0
            self._forecasts[queue].look(now, waiting=outlook.waiting > 0, planned_per_s=planned_per_s)

    def forecast(self, queue: str) -> Forecast | None:
        """Return what is known of a queue; None when the last look did not name it."""
        return self._forecasts.get(queue)

    def eta(self, now: float, ticket: Ticket, ahead: int) -> tuple[float | None, float | None]:
        """Return the mean and the 90 % point of the wait that is left, seconds, and note that they are promised."""
        wait = self._wait(ticket, ahead)
        if wait is None:
            return None, None
        _promise(ticket).show(now, self._rng, wait.point90_s)
        return wait.mean_s, wait.point90_s

    def retry_after(self, now: float, rng: random.Random, ticket: Ticket, ahead: int) -> float:
        """Return when the client is to ask again, seconds, and keep a place for that poll."""
        _promise(ticket).polls += 1
        wait, kept_s = self._wait(ticket, ahead), ticket.polled_at + ticket.retry_after_s - now
        return self.calendar.retry_after_s(now, rng, ahead, None if wait is None else wait.mean_s, self._busy, kept_s)

    def called(self, now: float, ticket: Ticket) -> None:
        """Hear of a call: who does not come for it was not kept waiting any longer."""
        _promise(ticket).called_at = now

    def claimed(self, now: float, ticket: Ticket) -> None:
        self._call_ended(ticket, claimed=True)
        self._wait_ended(now, ticket, claimed=True)

    def no_show(self, _now: float, ticket: Ticket) -> None:
        self._call_ended(ticket, claimed=False)
        self._wait_ended(_promise(ticket).called_at, ticket, claimed=False)

    def left(self, now: float, ticket: Ticket) -> None:
        self.calendar.give_back(now, ticket.polled_at + ticket.retry_after_s)
        self._wait_ended(now, ticket, claimed=False)

    def _wait(self, ticket: Ticket, ahead: int) -> Wait | None:
        forecast = self._forecasts.get(ticket.queue)
        return None if forecast is None else forecast.wait(ahead)

    def _call_ended(self, ticket: Ticket, *, claimed: bool) -> None:
        forecast = self._forecasts.get(ticket.queue)
        if forecast is not None:
            forecast.call_ended(claimed=claimed, polled=ticket.held or _promise(ticket).polls > 1)

    def _wait_ended(self, now: float, ticket: Ticket, *, claimed: bool) -> None:
        self.score.ended(now, _promise(ticket), claimed=claimed)
        ticket.promise = None


def _promise(ticket: Ticket) -> Promise:
    if ticket.promise is None:
        ticket.promise = Promise()
    promise: Promise = ticket.promise
    return promise
