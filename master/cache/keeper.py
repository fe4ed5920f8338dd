"""Keeps the cache beyond the process: sweeps it, writes in the background what has changed, puts it back at the start.

Nobody waits for it. All that has changed goes into one commit, and the next begins `commit_s` after that one began: so
much is lost when the process is killed. What cannot be written is tried again, and the cache goes on from memory,
saying so. Wall time is here alone: a row that another process has written lives by what the clock on the wall says has
gone by, but never longer than its ttl from the start.

Each call of the file is made in a worker thread, one at a time and in order: one that was given up holds the only token
until it has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from master.cache.rows import Changes
from master.cache.store import CacheStore
from master.log import Throttle
from master.queue.turn_numbers import first_number
from master.store import CacheFile, RowsLostError, SavedCache, StoreBusyError, StoreError

_SWEEP_S: Final = 0.25
_SWEPT: Final = 1_000
"""So many steps of a sweep are made at once: some milliseconds."""
_PART: Final = 2_000
"""So many rows are taken out at once: 1 to 3 ms in which no client is heard."""
_BACK: Final = 500
"""So many rows are put back at once."""
_FENCES: Final = 2**16
"""So many may be given of which the file has not heard yet. No more, so that they do not run ahead of the clock, by
which they begin where the file is lost."""
_RETRY_S: Final = 2.0
"""When a failure is tried again."""
_CALL_S: Final = 10.0
_CALL_S_PER_ROW: Final = 1e-4
_CALL_S_PER_BYTE: Final = 1e-7
"""So long the file may take: ten times of what a slow disk does."""
_LOG_S: Final = 600.0
_RESTORE_S: Final = 60.0
_RESTORE_S_PER_ROW: Final = 1e-4
"""A start waits so long for what was kept: to be read, and then to be put back."""
_BUSY_S: Final = 15.0
"""So long it is tried again where another process holds the file: what is not read is lost."""
_AGAIN_S: Final = 0.2
_FIRST_S: Final = 5.0
"""And so long for the first commit, which says whether anything can be kept."""
FINISH_S: Final = 1.0
"""Of the time that a stop may take."""

Logger = structlog.typing.FilteringBoundLogger
T = TypeVar("T")


class CacheKeeper:
    """`file` None: nothing is kept. `epoch_s`: the wall clock minus that of the loop, read once at the start.

    `tell`: hears of what has changed, a kind of event and a line for people.
    """

    def __init__(
        self,
        store: CacheStore,
        file: CacheFile | None,
        commit_s: float,
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
        self._store = store
        self._file = file
        self._commit_s = commit_s
        self._log = log
        self._tell = tell
        self._epoch_s = epoch_s
        self._writing = 0
        self._throttle = Throttle(_LOG_S)
        self._limiter = trio.CapacityLimiter(1)

    @property
    def unwritten(self) -> int:
        """Return how many changes would be lost if the process were killed now, where a file is to keep them."""
        return self._writing + self._store.unwritten if self._file is not None else 0

    async def restore(self) -> None:
        """Put back what was kept, before anybody asks. What cannot be read is told of, and written over in time."""
        first = first_number(trio.current_time() + self._epoch_s, random.SystemRandom())
        self._store.raise_fence(first)
        if self._file is None:
            return
        whole = False
        with trio.move_on_after(_RESTORE_S) as deadline:
            try:
                saved = await self._load(self._file)
                deadline.deadline = trio.current_time() + _RESTORE_S + _RESTORE_S_PER_ROW * len(saved.rows)
                await self._put_back(saved)
                whole = True
            except StoreError as exc:
                self._failed("cache_not_read", str(exc))
        if deadline.cancelled_caught:
            self._failed("cache_not_read", "it took too long")
        if not whole:
            self._store.write_anew()
        with trio.move_on_after(_FIRST_S):
            if await self._commit(self._file):
                self._worked()

    async def run(self) -> None:
        """Sweep, and write whatever has changed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            if self._file is not None:
                nursery.start_soon(self._keep, self._file)

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        with trio.move_on_after(FINISH_S):
            if self._file is not None and await self._commit(self._file):
                await self._do(self._file.close)

    async def _sweep(self) -> None:
        while True:
            while self._store.sweep(trio.current_time(), _SWEPT) >= _SWEPT:
                await trio.lowlevel.checkpoint()
            await trio.sleep(_SWEEP_S)

    async def _keep(self, file: CacheFile) -> None:
        while True:
            due = trio.current_time() + self._commit_s
            if await self._commit(file):
                self._worked()
            else:
                due = trio.current_time() + _RETRY_S
            await trio.sleep_until(due)

    # What is written.

    async def _commit(self, file: CacheFile) -> bool:
        """Write what has changed; return whether it was written."""
        parts: list[Changes] = []
        try:
            return not self._store.unwritten or await self._write(file, parts)
        finally:  # it was cut short
            for part in parts:
                self._store.give_back(part)
            self._writing = 0

    async def _write(self, file: CacheFile, parts: list[Changes]) -> bool:
        """Write what has changed; `parts` has what was taken out and not written."""
        await self._take_out(parts)
        size = sum(len(row.value) for part in parts for row in part.rows)
        within_s = _CALL_S + _CALL_S_PER_ROW * self._writing + _CALL_S_PER_BYTE * size
        try:
            await self._do(partial(file.write, parts, self._epoch_s), within_s)
        except StoreError as exc:
            if isinstance(exc, RowsLostError):
                self._store.write_anew()
            self._failed("cache_not_written", str(exc))
            while parts:
                self._store.give_back(parts.pop(0))
                await trio.lowlevel.checkpoint()
            return False
        parts.clear()
        self.commits += 1
        self.written_at = trio.current_time()
        return True

    async def _take_out(self, parts: list[Changes]) -> None:
        """Take out all that has changed, in pieces between which others are heard.

        What changes meanwhile is taken too, as far as that has an end.
        """
        for _ in range(2 + 2 * self._store.unwritten // _PART):
            part = self._store.take_changes(_PART)
            parts.append(part)
            self._writing += len(part.rows) + len(part.gone)
            if part.last:
                return
            await trio.lowlevel.checkpoint()

    # What is put back.

    async def _load(self, file: CacheFile) -> SavedCache:
        """Return what was kept; who else holds the file may hold it for a while. Raise StoreError."""
        end = trio.current_time() + _BUSY_S
        while True:
            try:
                return await self._do(partial(file.load, self._epoch_s), _RESTORE_S)
            except StoreBusyError:
                if trio.current_time() > end:
                    raise
                await trio.sleep(_AGAIN_S)

    async def _put_back(self, saved: SavedCache) -> None:
        self._store.raise_fence(saved.fence + _FENCES)
        living = 0
        for at in range(0, max(len(saved.rows), 1), _BACK):
            living += self._store.restore(trio.current_time(), saved.rows[at : at + _BACK])
            await trio.lowlevel.checkpoint()
        if saved.rows:
            self._log.info("cache_restored", rows=living, dead=len(saved.rows) - living)

    # Within.

    async def _do(self, call: Callable[[], T], within_s: float = _CALL_S) -> T:
        """Have the file do something. Raise StoreError, also when it takes too long."""
        try:
            with trio.fail_after(within_s):
                return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except trio.TooSlowError:
            raise StoreError(f"the store is silent for {within_s:.0f} s") from None

    def _worked(self) -> None:
        if self.failing:
            self.failing = False
            self._log.info("cache_written", message="the cache is kept again")
            self._tell("cache_written", "the cache is kept again")

    def _failed(self, event: str, error: str) -> None:
        self.failures += 1
        if not self.failing:
            self.failing = True
            self._tell(event, error)
        held = self._throttle.let_through(trio.current_time())
        if held is not None:
            self._log.error(event, error=error, left_out=held)
