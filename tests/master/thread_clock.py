"""Virtual time for those who have work done in threads: it stands still until what a thread does has been done.

A clock that jumps after some real milliseconds without work would be a bet on how soon a busy machine runs a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio

from lambdamu.testing import virtual_clock
from tests.master.slow_disk import hangs

_MOST_S: Final = 5.0
"""Real seconds after which a thread is taken for one that hangs: the clock may jump over what it does."""
_IDLE_S: Final = 0.001
"""More than none tells a loop that has nothing to do from one that only looks whether anything has come."""


class _Threads(trio.abc.Instrument):
    """What threads do for one loop. It keeps the loop from waiting, and so the clock from jumping, meanwhile."""

    def __init__(self, start: Callable[..., None]) -> None:
        self._start = start
        self._watches = False
        self._calls: dict[object, int] = {}
        """Those under way, with the thread that has each, which is 0 until it has begun."""

    def start(self, fn: Callable[[], Any], deliver: Callable[[Any], object], name: str | None = None) -> None:
        if not self._watches:
            self._watches = True
            trio.lowlevel.add_instrument(self)
        call = object()
        self._calls[call] = 0

        def run() -> Any:
            self._calls[call] = threading.get_ident()
            return fn()

        def tell(result: Any) -> None:
            deliver(result)
            del self._calls[call]  # the loop has been woken by now

        self._start(run, tell, name)

    def before_io_wait(self, timeout: float) -> None:
        end = time.monotonic() + _MOST_S
        while timeout and self._at_work() and time.monotonic() < end:
            time.sleep(0.0002)

    def _at_work(self) -> bool:
        return any(not hangs(thread) for thread in list(self._calls.values()))


@contextmanager
def thread_clock() -> Iterator[trio.testing.MockClock]:
    """Yield a clock for one run. It stands still while a thread of that run works, unless a disk is told to hold it."""
    with pytest.MonkeyPatch.context() as patch:
        # By the module that calls it: there is no public place where the thread of a call is begun.
        patch.setattr("trio._threads.start_thread_soon", _Threads(trio.lowlevel.start_thread_soon).start)
        yield virtual_clock(_IDLE_S)
