"""How it must not be: brokers with the holes that ours has closed, to show that the tests see them.

They are as small as the hole allows, and have the calls that the tests use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from master.cache.broker_core import BrokerCore, BrokerPolicy, Entry, Offered, Refusal


class HeadCore(BrokerCore[Entry]):
    """Looks at the lifetime of the head of the queue alone, when it comes to hand it out."""

    def __init__(self, policy: BrokerPolicy) -> None:
        super().__init__(policy)
        self._heads: list[tuple[int, int, Entry]] = []
        self._found: list[Entry] = []

    def offer(self, now: float, entry: Entry) -> Offered[Entry]:
        if len(self._heads) >= self.policy.length:
            return Offered(Refusal.FULL)
        self._serial += 1
        heapq.heappush(self._heads, (entry.priority, self._serial, entry))
        return Offered()

    def next(self, now: float) -> Entry | None:
        while self._heads and self._heads[0][2].deadline <= now:
            self._found.append(heapq.heappop(self._heads)[2])
        if not self._heads or self.working >= self.policy.workers:
            return None
        self.working += 1
        return heapq.heappop(self._heads)[2]

    def due(self, now: float) -> list[Entry]:
        found, self._found = self._found, []
        return found

    def next_due(self) -> float:
        return -math.inf if self._found else math.inf


class TwiceBroker:
    """Answers what has expired, and forgets to tell the worker."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def submit(
        self,
        kind: str,
        priority: int,
        lifetime_s: float,
        work: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], object],
    ) -> None:
        done = trio.Event()

        async def do() -> None:
            answer(await work())
            done.set()

        async def watch() -> None:
            with trio.move_on_after(lifetime_s):
                await done.wait()
                return
            answer(Refusal.EXPIRED)

        self._nursery.start_soon(do)
        self._nursery.start_soon(watch)
