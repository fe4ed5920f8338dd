"""Work that a signal ends in good order."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def until_signal(work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `work` returns, or None when SIGINT or SIGTERM ends it before."""
    result = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
            result = await work()
            nursery.cancel_scope.cancel()
    return result


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()
