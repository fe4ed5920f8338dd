"""Keeps the cache beyond the process: sweeps it, writes in the background what has changed, puts it back at the start.

Nobody waits for it. All that has changed goes into one commit, and the next begins so early that it is to end
`commit_s` after that one began: so much is lost when the process is killed. The disk is waited for beside that. What
cannot be written is tried again, and the cache goes on from memory, saying so. Wall time is here alone: a row that
another process has written lives by what the clock on the wall says has gone by, but never longer than its ttl from
the start.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from master.cache.rows import Changes
from master.cache.store import CacheStore
from master.queue.turn_numbers import first_number
from master.store import CacheFile, SavedCache, StoreError
from master.write_behind import FINISH_S, RETRY_S, Logger, WriteBehind

_SWEEP_S: Final = 0.25
_SWEPT: Final = 1_000
"""So many steps of a sweep are made at once: some milliseconds."""
_BACK: Final = 500
"""So many rows are put back at once."""
_FENCES: Final = 2**16
"""So many may be given of which the file has not heard yet. No more, so that they do not run ahead of the clock, by
which they begin where the file is lost."""
_FADES: Final = 0.9
"""Of how long a commit has taken, what is expected still at the next: those that take long come now and then."""
_SETTLE_S: Final = 60.0
"""So long the disk may take to keep what it was given."""
_FIRST_S: Final = 5.0
"""A start waits so long for the first commit, which says whether anything can be kept."""


class Pace:
    """Has a commit begin so early that it ends `commit_s` after the last one began: as old is the oldest change then
    that is not in the file. One that takes longer than half of that is not made up for."""

    def __init__(self, commit_s: float) -> None:
        self._commit_s = commit_s
        self._takes_s = 0.0

    def next(self, began: float, ended: float) -> float:
        """Return when the next commit is to begin, after one that has begun and ended then."""
        self._takes_s = max(ended - began, _FADES * self._takes_s)
        return began + max(self._commit_s - self._takes_s, self._commit_s / 2)


class CacheKeeper(WriteBehind[Changes]):
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
        super().__init__("cache", store, log, tell)
        self._store = store
        self._file = file
        self._commit_s = commit_s
        self._epoch_s = epoch_s
        self._committed = trio.Event()
        """There is what the disk is to keep."""
        self._settles = True
        """Whether the disk has kept what it was given last."""

    @property
    def unwritten(self) -> int:
        """Return how many changes would be lost if the process were killed now, where a file is to keep them."""
        return super().unwritten if self._file is not None else 0

    async def restore(self) -> None:
        """Put back what was kept, before anybody asks. What cannot be read is told of, and written over in time.

        Raise StoreBusyError where another process keeps its own there: to write over that would lose it.
        """
        first = first_number(trio.current_time() + self._epoch_s, random.SystemRandom())
        self._store.raise_fence(first)
        if self._file is None:
            return
        await self._restore(partial(self._file.load, self._epoch_s), self._put_back, alone=True)
        with trio.move_on_after(_FIRST_S):
            if await self._commit():
                self._worked()

    async def run(self) -> None:
        """Sweep, and write whatever has changed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            if self._file is not None:
                nursery.start_soon(self._keep)
                nursery.start_soon(self._settle, self._file)

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        with trio.move_on_after(FINISH_S):
            if self._file is not None:
                await self._commit()
                await self._do(self._file.close)

    async def _sweep(self) -> None:
        while True:
            while self._store.sweep(trio.current_time(), _SWEPT) >= _SWEPT:
                await trio.lowlevel.checkpoint()
            await trio.sleep(_SWEEP_S)

    async def _keep(self) -> None:
        pace = Pace(self._commit_s)
        while True:
            began = trio.current_time()
            if await self._commit():
                due = pace.next(began, trio.current_time())
                if self._settles:
                    self._worked()
            else:
                due = trio.current_time() + RETRY_S
            await trio.sleep_until(due)

    async def _settle(self, file: CacheFile) -> None:
        """Have the disk keep each commit, while the next ones are made."""
        limiter = trio.CapacityLimiter(1)
        while True:
            await self._committed.wait()
            self._committed = trio.Event()
            try:
                await self._do(file.settle, _SETTLE_S, limiter)
                self._settles = True
            except StoreError as exc:
                self._settles = False
                self._failed("not_written", str(exc))
                self._committed.set()
                await trio.sleep(RETRY_S)

    # What is written, and put back.

    async def _commit(self) -> bool:
        commits = self.commits
        written = await super()._commit()
        if self.commits != commits:
            self._committed.set()
        return written

    def _write(self, parts: list[Changes]) -> None:
        if self._file is not None:
            self._file.write(parts, self._epoch_s)

    def _forget_store(self) -> None:
        self._store.write_anew()

    def _bytes_of(self, parts: list[Changes]) -> int:
        return sum(len(row.value) for part in parts for row in part.rows)

    async def _put_back(self, saved: SavedCache) -> None:
        self._store.raise_fence(saved.fence + _FENCES)
        living = 0
        for at in range(0, max(len(saved.rows), 1), _BACK):
            living += self._store.restore(trio.current_time(), saved.rows[at : at + _BACK])
            await trio.lowlevel.checkpoint()
        if saved.rows:
            self._log.info("cache_restored", rows=living, dead=len(saved.rows) - living)
