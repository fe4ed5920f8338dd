"""Keeps the virtual queue beyond the process: writes in the background what has changed, and puts it back at the start.

Nobody waits for it. All that has changed goes into one commit, and the next begins `commit_s` after that one began.
What cannot be written is tried again, and the queue goes on from memory: with numbers that begin above all others by
the clock (`first_number`), and a secret of its own.

Whatever is killed when, no number comes twice. The store counts a block as taken before the first of it is given; a
block that was taken without it is above all before, and the store is to count on from there before it hears of any of
its numbers.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from master.queue.queues import Queues
from master.queue.rows import Changes
from master.queue.ticket_text import SECRET_BYTES, TicketText
from master.queue.turn_numbers import TurnNumbers, first_number
from master.store import QueueStore, SavedQueue, StoreError
from master.waiting.number_row import NumberRow
from master.write_behind import FINISH_S, RETRY_S, Logger, WriteBehind

TICKETS: Final = 2**18
"""So many numbers of tickets are reserved at a time: five seconds of a crowd in which 50,000 a second join."""
TICKETS_LOW: Final = 2**17
_BACK: Final = 1_000
"""So many rows are put back at once."""
_REST_S: Final = 0.5
_LOOK_S: Final = 0.5
"""How often it is looked whether numbers run out while the store is silent."""
_NUMBERS_S: Final = 5.0
"""And so long for its numbers and its secret."""


class QueueKeeper(WriteBehind[Changes]):
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
        super().__init__("queue", queues, log, tell)
        own = secrets.token_bytes(SECRET_BYTES)
        self.secrets: tuple[bytes, ...] = (own,)
        """Of tickets: the first signs. While the store cannot be read it is one of this process alone."""
        self.on_secrets: Callable[[], object] = lambda: None
        """Is called when they are others."""
        self._store = store
        self._queues = queues
        self._turns = turns
        self._commit_s = commit_s
        self._epoch_s = epoch_s
        self._own_secret = own
        self._knows_secret = False
        least = first_number(trio.current_time() + epoch_s, random.SystemRandom())
        self._ticket_row, self._turn_row = NumberRow(least), NumberRow(least)

    async def restore(self) -> None:
        """Put back what was kept, before anybody asks. What cannot be read is told of, and written over in time."""
        await self._restore(partial(self._store.load_queue, self._epoch_s), self._put_back)
        with trio.move_on_after(_NUMBERS_S):
            await self._prepare()
        self._help_out()

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
                    due = trio.current_time() + RETRY_S
                await trio.sleep_until(due)

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        with trio.move_on_after(FINISH_S):
            if await self._prepare():
                await self._commit()

    # What is written.

    def _write(self, parts: list[Changes]) -> None:
        self._store.write_queue(parts, self._epoch_s)

    def _forget_store(self) -> None:
        self._queues.write_anew()
        self._ticket_row.counted = self._turn_row.counted = 0

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
            self._failed("not_written", str(exc))
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
            self._failed("not_read", f"the secret that is kept cannot be used: {exc}")
        else:
            self.secrets = tuple(dict.fromkeys((kept, self._own_secret)))
            self.on_secrets()
