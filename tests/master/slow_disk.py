"""A disk that fails while it is told to and hangs while it is held, for the tests of those who write to one."""

from __future__ import annotations

import threading

from master.store import StoreError

_at: dict[int, threading.Event] = {}
"""Threads that wait, and for what."""


def hangs(thread: int) -> bool:
    """Return whether the thread waits for a disk that is still held."""
    held = _at.get(thread)
    return held is not None and not held.is_set()


class SlowDisk:
    """Enter it for each call, in the thread that makes the call. `most_at_once`: calls that were under way together."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.held = threading.Event()
        self.held.set()
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self.threads.add(thread)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        _at[thread] = self.held
        self.held.wait(20)
        del _at[thread]
        if self.full:
            self.at_once -= 1
            raise StoreError("the disk is full")

    def __exit__(self, *fault: object) -> None:
        self.at_once -= 1
