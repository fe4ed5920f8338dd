"""Virtual time: it stands still while anything can run, then jumps to the next deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio
import trio.testing

Args = TypeVarTuple("Args")
T = TypeVar("T")


def virtual_clock(settle_s: float = 0.0) -> trio.testing.MockClock:
    """Return a clock that jumps once every task has been blocked for `settle_s` real seconds.

    Zero is right for tasks alone and for sockets between tasks of one loop. What another thread or process does (the
    look-up of a name) takes no virtual time, so the clock may jump over it: give `settle_s` more than it takes.
    """
    return trio.testing.MockClock(autojump_threshold=settle_s)


def run_virtual(async_fn: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run `async_fn(*args)` in virtual time, from second 0, and return its result."""
    return trio.run(async_fn, *args, clock=virtual_clock())
