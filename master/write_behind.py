"""Writes in the background what has changed, and puts back at the start what was kept: for the queue and for the cache.

Nobody waits for it. All that has changed goes into one commit; what cannot be written is tried again, and is told of.
Each call of the store is made in a worker thread, one at a time and in order: one that was given up holds the only
token until it has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Final, Generic, Protocol, TypeVar

import structlog
import trio

from master.log import Throttle
from master.store import RowsLostError, StoreBusyError, StoreError

RETRY_S: Final = 2.0
"""When a failure is tried again."""
FINISH_S: Final = 1.0
"""Of the time that a stop may take."""
_PART: Final = 2_000
"""So many rows are taken out at once: 1 to 5 ms in which no client is heard."""
_CALL_S: Final = 10.0
_CALL_S_PER_ROW: Final = 1e-4
_CALL_S_PER_BYTE: Final = 1e-7
"""So long the store may take: ten times of what a slow disk does."""
_LOG_S: Final = 600.0
_RESTORE_S: Final = 60.0
_RESTORE_S_PER_ROW: Final = 1e-4
"""A start waits so long for what was kept: to be read, and then put back. A million takes 10 and 15 s of a CPU."""
_BUSY_S: Final = 15.0
"""So long it is tried again where another process holds the store: what is not read is lost."""
_AGAIN_S: Final = 0.2

Logger = structlog.typing.FilteringBoundLogger
T = TypeVar("T")


class Part(Protocol):
    """A part of what is written in one commit; the commit is whole with the one that is `last`."""

    @property
    def rows(self) -> Sequence[object]: ...

    @property
    def gone(self) -> Sequence[object]: ...

    @property
    def last(self) -> bool: ...


class Saved(Protocol):
    @property
    def rows(self) -> Sized: ...


P = TypeVar("P", bound=Part)
S = TypeVar("S", bound=Saved)


class Source(Protocol[P]):
    """Knows what has changed since it was written last."""

    @property
    def unwritten(self) -> int: ...

    def take_changes(self, most: int) -> P: ...

    def give_back(self, changes: P) -> None: ...


class Trouble:
    """Tells when what is tried again and again begins to fail and when it works again, and logs now and then meanwhile.

    `tell`: hears of it, a kind of event and a line for people.
    """

    def __init__(self, log: Logger, tell: Callable[[str, str], None]) -> None:
        self.failing = False
        self.failures = 0
        self.error = ""
        self._log = log
        self._tell = tell
        self._throttle = Throttle(_LOG_S)

    def _recovered(self, event: str, text: str) -> None:
        if self.failing:
            self.failing = False
            self._log.info(event, message=text)
            self._tell(event, text)

    def _fell_short(self, event: str, error: str) -> None:
        self.failures += 1
        self.error = error
        if not self.failing:
            self.failing = True
            self._tell(event, error)
        held = self._throttle.let_through(trio.current_time())
        if held is not None:
            self._log.error(event, error=error, left_out=held)


class WriteBehind(Trouble, Generic[P]):
    """`what`: the word for it in events and in the log. `tell`: hears of what has changed, an event and a line."""

    def __init__(self, what: str, source: Source[P], log: Logger, tell: Callable[[str, str], None]) -> None:
        super().__init__(log, tell)
        self.commits = 0
        self.written_at = trio.current_time()
        self._what = what
        self._source = source
        self._writing = 0
        self._limiter = trio.CapacityLimiter(1)

    @property
    def unwritten(self) -> int:
        return self._writing + self._source.unwritten

    # What whoever inherits it says.

    def _write(self, parts: list[P]) -> None:
        """Write them in one commit. It runs in a worker thread. Raise StoreError."""
        raise NotImplementedError

    def _forget_store(self) -> None:
        """Have all written anew: what the store has is not what this process goes on from."""
        raise NotImplementedError

    def _bytes_of(self, parts: list[P]) -> int:  # noqa: ARG002 - most rows are small
        """Return how many bytes the rows have beside what each has."""
        return 0

    # What is written.

    async def _commit(self) -> bool:
        """Write what has changed; return whether it was written."""
        parts: list[P] = []
        try:
            return not self._source.unwritten or await self._write_out(parts)
        finally:  # it was cut short
            for part in parts:
                self._source.give_back(part)
            self._writing = 0

    async def _write_out(self, parts: list[P]) -> bool:
        """Write what has changed; `parts` has what was taken out and not written."""
        await self._take_out(parts)
        within_s = _CALL_S + _CALL_S_PER_ROW * self._writing + _CALL_S_PER_BYTE * self._bytes_of(parts)
        taken = list(parts)
        try:
            await self._do(lambda: self._write(taken), within_s)
        except StoreError as exc:
            if isinstance(exc, RowsLostError):
                self._forget_store()
            self._failed("not_written", str(exc))
            while parts:
                self._source.give_back(parts.pop(0))
                await trio.lowlevel.checkpoint()
            return False
        parts.clear()
        self.commits += 1
        self.written_at = trio.current_time()
        return True

    async def _take_out(self, parts: list[P]) -> None:
        """Take out all that has changed, in pieces between which others are heard.

        What changes meanwhile is taken too, as far as that has an end.
        """
        for _ in range(2 + 2 * self._source.unwritten // _PART):
            part = self._source.take_changes(_PART)
            parts.append(part)
            self._writing += len(part.rows) + len(part.gone)
            if part.last:
                return
            await trio.lowlevel.checkpoint()

    # What is put back.

    async def _restore(
        self, load: Callable[[], S], put_back: Callable[[S], Awaitable[None]], *, alone: bool = False
    ) -> None:
        """Put back what was kept. What cannot be read is told of, and written over in time.

        `alone`: the store is for one process; raise StoreBusyError where another one has it and does not let it go.
        """
        whole = False
        with trio.move_on_after(_RESTORE_S) as deadline:
            try:
                saved = await self._load(load)
                deadline.deadline = trio.current_time() + _RESTORE_S + _RESTORE_S_PER_ROW * len(saved.rows)
                await put_back(saved)
                whole = True
            except StoreError as exc:
                if alone and isinstance(exc, StoreBusyError):
                    raise
                self._failed("not_read", str(exc))
        if deadline.cancelled_caught:
            self._failed("not_read", "it took too long")
        if not whole:
            self._forget_store()

    async def _load(self, load: Callable[[], S]) -> S:
        """Return what was kept; who else holds the store may hold it for a while. Raise StoreError."""
        end = trio.current_time() + _BUSY_S
        told = False
        while True:
            try:
                return await self._do(load, _RESTORE_S)
            except StoreBusyError as exc:
                if trio.current_time() > end:
                    raise
                if not told:
                    told = True
                    waits = f"for {exc.file}, which another process has open, {_BUSY_S:g} s at most"
                    self._log.warning(f"{self._what}_waits", message=waits)
                await trio.sleep(_AGAIN_S)

    # Within.

    async def _do(
        self, call: Callable[[], T], within_s: float = _CALL_S, limiter: trio.CapacityLimiter | None = None
    ) -> T:
        """Have the store do something; by `limiter`, what need not wait for the rest. Raise StoreError, also when it
        takes too long."""
        try:
            with trio.fail_after(within_s):
                return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter or self._limiter)
        except trio.TooSlowError:
            raise StoreError(f"the store is silent for {within_s:.0f} s") from None

    def _worked(self) -> None:
        self._recovered(f"{self._what}_written", f"the {self._what} is kept again")

    def _failed(self, how: str, error: str) -> None:
        self._fell_short(f"{self._what}_{how}", error)
