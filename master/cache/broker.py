"""Hands out work to a fixed number of tasks, and sees to it that each request has one answer, in time.

All tasks are started at the start; a request is a value in `BrokerCore` and costs none. What has expired is answered by
one more task, which sleeps until the first deadline. A worker whose request has expired is cut off: nobody waits for
the result, and the next one does for the worker. Work that does not let itself be cut off ends when it ends, and its
result is dropped.

An expected error is a result like any other. An exception ends `run`, and with it the process: it is our bug.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, TypeVar

import attrs
import trio

from master.cache.broker_core import BrokerCore, BrokerPolicy, Entry, Refusal, Stage

T = TypeVar("T")


class _Cut(Enum):
    CUT = 0


_CUT: Final = _Cut.CUT


def _nobody(result: object) -> None:
    """Hear an answer that nobody waits for."""


@attrs.define(eq=False)
class Ask(Entry):
    """A request that was submitted or parked: what `withdraw` and `settle` know it by."""

    answer: Callable[[Any], object] = attrs.field(kw_only=True)


class Broker:
    """Times are those of `trio.current_time()`.

    An `answer` is called with the result or a `Refusal`, once, perhaps before `submit` or `park` returns; it does not
    raise. It is never called after `withdraw`.
    """

    def __init__(self, policy: BrokerPolicy) -> None:
        self.core: BrokerCore[Ask] = BrokerCore(policy)
        """To be read: lengths, ages and counts."""
        self.dropped = 0
        """How many results came when nobody waited for them any more."""
        self.cut = 0
        """How many workers were cut off."""
        self._handed: deque[Ask] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._alarm = trio.CancelScope()
        self._over = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until `stop`, and then until all that has a worker is done. Nobody is left without an answer."""
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self.core.policy.workers):
                    nursery.start_soon(self._work)
                nursery.start_soon(self._watch)
                task_status.started()
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            for ask in self.core.abandon():
                ask.answer(Refusal.STOPPING)

    def submit(
        self,
        kind: str,
        priority: int,
        lifetime_s: float,
        work: Callable[[], Awaitable[T]],
        answer: Callable[[T | Refusal], object],
        *,
        needs_s: float = 0.0,
    ) -> Ask:
        """Have a worker do `work`, and answer with its result.

        `lifetime_s`: the answer comes within that time. `needs_s`: what the work takes; it is not begun with less left.
        """
        now = trio.current_time()
        ask = Ask(kind, priority, now + lifetime_s, work, needs_s, answer=answer)
        offered = self.core.offer(now, ask)
        if offered.refused is None:
            self._wake_at(ask.due)
            self._hand_out(now)
            if offered.put_out is not None:
                offered.put_out.answer(Refusal.FULL)
        else:
            answer(offered.refused)
        return ask

    def park(self, lifetime_s: float, answer: Callable[[Any], object]) -> Ask:
        """Have a request wait for what somebody else does, without a worker, until `settle` brings the result."""
        now = trio.current_time()
        ask = Ask("", 0, now + lifetime_s, None, answer=answer)
        refused = self.core.park(now, ask)
        if refused is None:
            self._wake_at(ask.due)
        else:
            answer(refused)
        return ask

    def settle(self, parked: Ask, result: object) -> bool:
        """Answer a parked request; return False, and drop the result, where it has its answer already."""
        wanted = parked.stage is Stage.PARKED and self.core.ended(parked)
        if wanted:
            parked.answer(result)
        return wanted

    def withdraw(self, ask: Ask) -> bool:
        """Hear that nobody waits for it any more; return whether it had no answer yet. A worker that has it goes on."""
        ask.answer = _nobody  # also where it has expired, and its turn to be told has not come
        return self.core.withdraw(ask)

    def stop(self) -> None:
        """Take nothing new, and refuse what has no worker yet; `run` ends when the workers have."""
        for ask in self.core.close():
            ask.answer(Refusal.STOPPING)
        self._end_if_done()

    def _hand_out(self, now: float) -> None:
        ask = self.core.next(now)
        if ask is not None:
            self._handed.append(ask)
            self._idle.unpark()

    async def _work(self) -> None:
        while True:
            while not self._handed:
                await self._idle.park()
            ask: Ask | None = self._handed.popleft()
            while ask is not None:
                await self._do(ask)
                self._end_if_done()
                ask = self.core.next(trio.current_time())

    async def _do(self, ask: Ask) -> None:
        """Do the work of one that has been given this worker, and answer it if that is still wanted."""
        result = _CUT
        if ask.stage is Stage.BUSY:  # it may have expired, or been withdrawn, before this task had its turn
            with trio.CancelScope(deadline=ask.deadline) as scope:
                result = await ask.work()
            self.cut += scope.cancelled_caught
        if result is _CUT:
            self._expire()
        if self.core.ended(ask):
            ask.answer(result)
        elif result is not _CUT:
            self.dropped += 1

    async def _watch(self) -> None:
        """Answer what has expired, when it does."""
        while True:
            with trio.CancelScope(deadline=self.core.next_due()) as self._alarm:
                await trio.sleep_forever()
            self._expire()

    def _wake_at(self, due: float) -> None:
        self._alarm.deadline = min(self._alarm.deadline, due)

    def _expire(self) -> None:
        for ask in self.core.due(trio.current_time()):
            ask.answer(Refusal.EXPIRED)

    def _end_if_done(self) -> None:
        if self.core.closed and not self.core.working:
            self._over.set()
