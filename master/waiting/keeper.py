"""Keeps the virtual queue beyond the process: writes in the background what has changed, and puts it back at the start.

Nobody waits for it. All that has changed goes into one commit, and the next begins `commit_s` after that one began.
What cannot be written is tried again, and the queue goes on from memory: with numbers that begin above all others by
the clock (`first_number`), and a secret of its own.

Whatever is killed when, no number comes twice. The store counts a block as taken before the first of it is given; a
block that was taken without it is above all before, and the store is to count on from there before it hears of any of
its numbers. Each call of the store is made in a worker thread, one at a time and in order: one that was given up holds
the only token until it has ended.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from master.log import Throttle
from master.queue.queues import Queues
from master.queue.rows import Changes
from master.queue.ticket_text import SECRET_BYTES, TicketText
from master.queue.turn_numbers import TurnNumbers, first_number
from master.store import QueueStore, RowsLostError, SavedQueue, StoreBusyError, StoreError
from master.waiting.number_row import NumberRow

TICKETS: Final = 2**18
"""So many numbers of tickets are reserved at a time: five seconds of a crowd in which 50,000 a second join."""
TICKETS_LOW: Final = 2**17
_PART: Final = 2_000
"""So many rows are taken out at once: 1 to 5 ms in which no client is heard."""
_BACK: Final = 1_000
"""So many rows are put back at once."""
_RETRY_S: Final = 2.0
"""When a failure is tried again."""
_CALL_S: Final = 10.0
_CALL_S_PER_ROW: Final = 1e-4
"""So long the store may take: ten times of what a slow disk does."""
_REST_S: Final = 0.5
_LOOK_S: Final = 0.5
"""How often it is looked whether numbers run out while the store is silent."""
_LOG_S: Final = 600.0
_RESTORE_S: Final = 60.0
_RESTORE_S_PER_ROW: Final = 1e-4
"""A start waits so long for its queue: to be read, and then to be put back. a million takes 10 and 15 s of a CPU."""
_BUSY_S: Final = 15.0
"""So long it is tried again where another process holds the store: what is not read is lost."""
_AGAIN_S: Final = 0.2
_NUMBERS_S: Final = 5.0
"""And so long for its numbers and its secret."""
FINISH_S: Final = 1.0
"""Of the time that a stop may take."""

Logger = structlog.typing.FilteringBoundLogger
T = TypeVar("T")


class QueueKeeper:
    """`epoch_s`: the wall clock minus that of the loop, read once at the start, the same that `Queues` has.

    `commit_s`: returns the policy's. `tell`: hears of what has changed, a kind of event and a line for people.
    """

    def __init__(
        self,
        store: QueueStore,
        queues: Queues,
        turns: TurnNumbers,
        commit_s: Callable[[], float],
        log: Logger,
        tell: Callable[[str, str], None],
        *,
        epoch_s: float,
    ) -> None:
        self.failing = False
        """What was tried last, failed."""
        self.commits = 0
        self.failures = 0
        self.written_at = trio.current_time()
        """When the last commit ended well, or the start."""
        own = secrets.token_bytes(SECRET_BYTES)
        self.secrets: tuple[bytes, ...] = (own,)
        """Of tickets: the first signs. While the store cannot be read it is one of this process alone."""
        self.on_secrets: Callable[[], object] = lambda: None
        """Is called when they are others."""
        self._store = store
        self._queues = queues
        self._turns = turns
        self._commit_s = commit_s
        self._log = log
        self._tell = tell
        self._epoch_s = epoch_s
        self._own_secret = own
        self._knows_secret = False
        self._writing = 0
        self._throttle = Throttle(_LOG_S)
        self._limiter = trio.CapacityLimiter(1)
        least = first_number(trio.current_time() + epoch_s, random.SystemRandom())
        self._ticket_row, self._turn_row = NumberRow(least), NumberRow(least)

    @property
    def unwritten(self) -> int:
        """Return how many changes would be lost if the process were killed now."""
        return self._writing + self._queues.book.unwritten

    async def restore(self) -> None:
        """Put back what was kept, before anybody asks. What cannot be read is told of, and written over in time."""
        whole = False
        with trio.move_on_after(_RESTORE_S) as deadline:
            try:
                saved = await self._load()
                deadline.deadline = trio.current_time() + _RESTORE_S + _RESTORE_S_PER_ROW * len(saved.rows)
                await self._put_back(saved)
                whole = True
            except StoreError as exc:
                self._failed("queue_not_read", str(exc))
        if deadline.cancelled_caught:
            self._failed("queue_not_read", "it took too long")
        if not whole:
            self._forget_store()
        with trio.move_on_after(_NUMBERS_S):
            await self._prepare()
        self._help_out()

    async def _load(self) -> SavedQueue:
        """Return what was kept; who else holds the store may hold it for a while. Raise StoreError."""
        end = trio.current_time() + _BUSY_S
        while True:
            try:
                return await self._do(partial(self._store.load_queue, self._epoch_s), _RESTORE_S)
            except StoreBusyError:
                if trio.current_time() > end:
                    raise
                await trio.sleep(_AGAIN_S)

    async def run(self) -> None:
        """Write whatever has changed, and have numbers before they are needed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_numbers)
            while True:
                began = trio.current_time()
                due = began + self._commit_s()
                if await self._prepare() and await self._commit():
                    self._worked()
                    # In a rush it shares the interpreter with those who join: half of the time at most is for it.
                    now = trio.current_time()
                    due = max(due, now + min(now - began, _REST_S))
                else:
                    due = trio.current_time() + _RETRY_S
                await trio.sleep_until(due)

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        with trio.move_on_after(FINISH_S):
            if await self._prepare():
                await self._commit()

    # What is written.

    async def _commit(self) -> bool:
        """Write what has changed; return whether it was written."""
        parts: list[Changes] = []
        try:
            return not self._queues.book.unwritten or await self._write(parts)
        finally:  # it was cut short
            for part in parts:
                self._queues.give_back(part)
            self._writing = 0

    async def _write(self, parts: list[Changes]) -> bool:
        """Write what has changed; `parts` has what was taken out and not written."""
        await self._take_out(parts)
        try:
            within_s = _CALL_S + _CALL_S_PER_ROW * self._writing
            await self._do(partial(self._store.write_queue, parts, self._epoch_s), within_s)
        except StoreError as exc:
            if isinstance(exc, RowsLostError):
                self._forget_store()
            self._failed("queue_not_written", str(exc))
            while parts:
                self._queues.give_back(parts.pop(0))
                await trio.lowlevel.checkpoint()
            return False
        parts.clear()
        self.commits += 1
        self.written_at = trio.current_time()
        return True

    def _forget_store(self) -> None:
        """Have all written anew: what the store has is not what this process goes on from."""
        self._queues.write_anew()
        self._ticket_row.counted = self._turn_row.counted = 0

    async def _take_out(self, parts: list[Changes]) -> None:
        """Take out all that has changed, in pieces between which others are heard.

        What changes meanwhile is taken too, as far as that has an end: with all of it comes what numbers are unused.
        """
        for _ in range(2 + 2 * self._queues.book.unwritten // _PART):
            part = self._queues.take_changes(_PART)
            parts.append(part)
            self._writing += len(part.rows) + len(part.gone)
            if part.unused is not None:
                return
            await trio.lowlevel.checkpoint()

    # What is put back.

    async def _put_back(self, saved: SavedQueue) -> None:
        rows, lost = saved.rows, saved.unused
        self._ticket_row.pass_over(block.end for block in lost)
        for first in range(0, max(len(rows), 1), _BACK):
            part = rows[first : first + _BACK]
            self._queues.restore(trio.current_time(), part, lost)
            lost = ()
            self._ticket_row.pass_over(row.number + 1 for row in part)
            await trio.lowlevel.checkpoint()
        if rows:
            self._log.info("queue_restored", tickets=len(rows))

    # Numbers, and the secret.

    async def _prepare(self) -> bool:
        """Have numbers and the secret; return whether the store gave all that was wanted of it."""
        try:
            while not self._ticket_row.is_counted or len(self._queues.numbers) < max(TICKETS_LOW, self.unwritten):
                await self._reserve_tickets()
            while not self._turn_row.is_counted or self._turns.wanted:
                await self._reserve_turns(self._turns.size)
            if not self._knows_secret:
                self._take_secret(await self._do(partial(self._store.secret, "ticket", self._own_secret)))
        except StoreError as exc:
            self._failed("queue_not_written", str(exc))
            return False
        return True

    async def _reserve_tickets(self) -> None:
        first = await self._do(partial(self._store.reserve_tickets, TICKETS, self._ticket_row.next))
        block = self._ticket_row.take(first, TICKETS)
        if block is not None:
            self._queues.numbers.add(block)

    async def _reserve_turns(self, size: int) -> None:
        first = await self._do(partial(self._store.take_block, "turn", size, self._turn_row.next))
        block = self._turn_row.take(first, size)
        if block is not None:
            self._turns.add(block.first, size)

    async def _keep_numbers(self) -> None:
        while True:
            self._help_out()
            await trio.sleep(_LOOK_S)

    def _help_out(self) -> None:
        """Take numbers without the store, where it has given none and those that are here do not last."""
        if len(self._queues.numbers) < TICKETS_LOW // 2:
            self._queues.numbers.add(self._ticket_row.take_uncounted(TICKETS))
        if self._turns.left < self._turns.low // 2:
            self._turns.add(self._turn_row.take_uncounted(self._turns.size).first, self._turns.size)

    def _take_secret(self, kept: bytes) -> None:
        self._knows_secret = True
        try:
            TicketText((kept,))
        except ValueError as exc:  # somebody has changed it; tickets of this process are good in this process
            self._failed("queue_not_read", f"the secret that is kept cannot be used: {exc}")
        else:
            self.secrets = tuple(dict.fromkeys((kept, self._own_secret)))
            self.on_secrets()

    # Within.

    async def _do(self, call: Callable[[], T], within_s: float = _CALL_S) -> T:
        """Have the store do something. Raise StoreError, also when it takes too long."""
        try:
            with trio.fail_after(within_s):
                return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except trio.TooSlowError:
            raise StoreError(f"the store is silent for {within_s:.0f} s") from None

    def _worked(self) -> None:
        if self.failing:
            self.failing = False
            self._log.info("queue_written", message="the queue is kept again")
            self._tell("queue_written", "the queue is kept again")

    def _failed(self, event: str, error: str) -> None:
        self.failures += 1
        if not self.failing:
            self.failing = True
            self._tell(event, error)
        held = self._throttle.let_through(trio.current_time())
        if held is not None:
            self._log.error(event, error=error, left_out=held)
