"""What is kept, and the interface of whoever keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from lambdamu.errors import LambdaMuError
from master.core.admin import Wish


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


class StoreError(LambdaMuError):
    """It cannot be read or written; str() is one line that says why."""


class BlockStore(Protocol):
    """Gives out numbers. Each call is one atomic operation, may take long, and is made in a worker thread."""

    def take_block(self, name: str, size: int, least: int = 0) -> int:
        """Reserve `size` numbers of the row `name`, 1 at least, for ever, and return the first: `least` or above.

        They are reserved when it returns, whatever happens to the process then; nobody else who asks this store ever
        gets one of them. Raise StoreError; then some may be lost, and none is given twice.
        """


class Store(BlockStore, Protocol):
    """Keeps one State. All calls may take long, and are made in a worker thread, one at a time."""

    def load(self) -> State:
        """Return what was saved last, an empty State at first. Raise StoreError."""

    def save(self, state: State) -> None:
        """Keep this in place of what was saved before: all of it, or nothing. Raise StoreError."""

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the secret that is kept under `name`; the first time keep `fresh`. Raise StoreError."""
