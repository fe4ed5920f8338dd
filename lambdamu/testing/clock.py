"""Virtual time: it stands still while anything can run, then jumps to the next deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, TypeVarTuple

import trio
import trio.testing

Args = TypeVarTuple("Args")
T = TypeVar("T")


SOCKET_SETTLE_S: Final = 0.01
"""Real seconds in which even a busy kernel has carried bytes from one socket of this machine to another."""


def virtual_clock(settle_s: float = 0.0) -> trio.testing.MockClock:
    """Return a clock that jumps once every task has been blocked for `settle_s` real seconds.

    Zero is right for tasks alone and streams in memory. What goes on outside of the loop (bytes between sockets, the
    look-up of a name in a thread) takes no virtual time, and the clock may jump over it: give `settle_s` more than it
    takes, for sockets SOCKET_SETTLE_S.
    """
    return trio.testing.MockClock(autojump_threshold=settle_s)


def run_virtual(async_fn: Callable[[*Args], Awaitable[T]], *args: *Args, settle_s: float = 0.0) -> T:
    """Run `async_fn(*args)` in virtual time, from second 0, and return its result."""
    return trio.run(async_fn, *args, clock=virtual_clock(settle_s))
