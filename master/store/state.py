"""What is kept, and the interface of whoever keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from lambdamu.errors import LambdaMuError
from master.cache import rows as cache_rows
from master.core.admin import Wish
from master.queue.numbers import NumberBlock
from master.queue.rows import Changes, TicketRow


@attrs.frozen
class SavedAdmin:
    """What an operator wants of a backend; `until` None: for good."""

    wish: Wish
    who: str
    why: str
    until: float | None = None


@attrs.frozen
class SavedReport:
    """The last good report of a backend that is configured at `place`: `count` users, told by `host` and `port`."""

    place: str
    count: int
    asked_at: float
    host: str
    port: int


@attrs.frozen
class State:
    """All of it, by the name of the backend."""

    admins: Mapping[str, SavedAdmin] = attrs.field(factory=dict)
    reports: Mapping[str, SavedReport] = attrs.field(factory=dict)


@attrs.frozen
class SavedOrder:
    """What an operator wants of a queue, "" of all; None: as it is configured. `at`: Unix seconds."""

    queue: str
    mode: str | None
    text: str | None
    per_minute: float | None
    target_load: float | None
    who: str
    why: str
    at: float


@attrs.frozen
class SavedQueue:
    """Who was in the queues, in their order, and which numbers were not used then."""

    rows: Sequence[TicketRow] = ()
    unused: tuple[NumberBlock, ...] = ()


@attrs.frozen
class SavedCache:
    """Rows of the cache, sessions first, and the fence that was written last."""

    rows: Sequence[cache_rows.Row] = ()
    fence: int = 0


class StoreError(LambdaMuError):
    """It cannot be read or written; str() is one line that says why."""


class RowsLostError(StoreError):
    """What was written before is not there: the file was taken away, or something else is in its place."""


class StoreBusyError(StoreError):
    """Somebody else holds `file`: it can be tried again."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file


class BlockStore(Protocol):
    """Gives out numbers. Each call is one atomic operation, may take long, and is made in a worker thread."""

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        """Reserve `size` numbers of the row `name`, 1 at least, for ever, and return the first: `least` or above.

        They are reserved when it returns, whatever happens to the process then; nobody else who asks this store ever
        gets one of them. Raise StoreError; then some may be lost, and none is given twice.
        """


class QueueStore(BlockStore, Protocol):
    """Keeps one virtual queue. Each call is one atomic operation, may take long, and is made in a worker thread.

    Times of rows are of the clock of whoever calls; kept are Unix seconds, which are `epoch_s` more.
    """

    def load_queue(self, epoch_s: float) -> SavedQueue:
        """Return what was written, before anything is. Raise StoreError."""

    def write_queue(self, parts: Sequence[Changes], epoch_s: float) -> None:
        """Keep these changes, one after the other: all of them, or nothing.

        Raise RowsLostError when what was loaded and written before is not there; only what begins with `anew` is
        written then. Raise StoreError.
        """

    def reserve_tickets(self, size: int, least: int = 0) -> int:
        """Take a block of the row of ticket numbers, and have it among the unused ones at once. Raise StoreError."""

    def load_orders(self) -> tuple[SavedOrder, ...]:
        """Return what was saved last, nothing at first. Raise StoreError."""

    def save_orders(self, orders: Sequence[SavedOrder]) -> None:
        """Keep these, one for each queue, in place of all that were saved before. Raise StoreError."""

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the secret that is kept under `name`; the first time keep `fresh`. Raise StoreError."""


class Store(QueueStore, Protocol):
    """Keeps one State, and one virtual queue beside it: whoever asks for either does so one call after the other."""

    def load(self) -> State:
        """Return what was saved last, an empty State at first. Raise StoreError."""

    def save(self, state: State) -> None:
        """Keep this in place of what was saved before: all of it, or nothing. Raise StoreError."""


class CacheFile(Protocol):
    """Keeps the cache. Each call is one atomic operation, may take long, and is made in a worker thread, one at a
    time but for `settle`.

    Times of rows are of the clock of whoever calls; kept are Unix seconds, which are `epoch_s` more.
    """

    def load(self, epoch_s: float) -> SavedCache:
        """Return what was written, before anything is. Raise StoreError."""

    def write(self, parts: Sequence[cache_rows.Changes], epoch_s: float) -> None:
        """Keep these changes, one after the other: all of them, or nothing.

        Raise RowsLostError when what was loaded and written before is not there; only what begins with `anew` is
        written then. Raise StoreError.
        """

    def settle(self) -> None:
        """Have the disk keep what was written; beside the other calls, in a thread of its own. Raise StoreError."""

    def close(self) -> None:
        """Let the file go, until the next call."""
