"""Calls back when a socket has something to say, or a moment has come: for many peers that are quiet mostly.

A wait of a task costs some 40 us: a scope with a deadline, calls of the kernel, two turns of the scheduler. Whoever
asks ten thousand backends once a second would pay that several times a probe. Here all of them are waited for in one
place, by one task, and moments that lie close together are one moment.

What is called works without waiting. An exception out of it is a bug, and ends `run`.
"""

from __future__ import annotations

import heapq
import math
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

_ROUNDING: Final = 1e-6
"""A moment on the grid stays there, though the quotient differs from a whole number in its last bits."""
_SLICE_S: Final = 0.004
"""It works for about so long, then lets the rest of the program run."""
_EVENTS: Final = 64

Call = Callable[[float], None]
"""Is given the time, in seconds of `trio.current_time()`."""


class Poller(Protocol):
    @property
    def grid_s(self) -> float:
        """Moments are rounded up to whole multiples of it; 0 when they are not."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. Nothing may be asked of the others before this has started."""

    def at(self, moment: float, call: Call) -> None:
        """Call once when the moment, of `trio.current_time()`, has come. It cannot be taken back."""

    def watch(self, sock: socket.socket, call: Call, *, writes: bool) -> None:
        """Call whenever there is something to read, its end included, and with `writes` when there is room to write.

        Again for the same socket: from now on so. A call may come in vain: for a socket that had the same number.
        """

    def forget(self, sock: socket.socket) -> None:
        """Watch it no more; it is closed next."""


class EpollPoller:
    """For Linux: one epoll, nested in trio's."""

    def __init__(self, grid_s: float, slice_s: float = _SLICE_S) -> None:
        self.grid_s = grid_s
        self._slice_s = slice_s
        self._epoll = select.epoll()
        self._calls: dict[int, Call] = {}
        """Who is called, by descriptor."""
        self._moments: dict[int, list[Call]] = {}
        """Who is called when, in multiples of the grid."""
        self._order: list[int] = []
        """The moments: a heap, each stands in it once."""
        self._due: deque[Call] = deque()
        """Their moment has come; they are called in slices."""
        self._scope: trio.CancelScope | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                with trio.CancelScope(deadline=self._next_moment()) as self._scope:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._scope = None
                self._turn(trio.current_time())
        finally:
            self._epoll.close()

    def at(self, moment: float, call: Call) -> None:
        step = math.ceil(moment / self.grid_s - _ROUNDING)
        if step * self.grid_s < moment:
            step += 1  # whoever is called a breath too early would take the call for an outdated one
        calls = self._moments.get(step)
        if calls is not None:
            calls.append(call)
            return
        self._moments[step] = [call]
        heapq.heappush(self._order, step)
        if self._scope is not None and self._order[0] == step:
            self._scope.deadline = step * self.grid_s

    def watch(self, sock: socket.socket, call: Call, *, writes: bool) -> None:
        fd = sock.fileno()
        mask = select.EPOLLIN | select.EPOLLOUT if writes else select.EPOLLIN
        if fd in self._calls:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._calls[fd] = call

    def forget(self, sock: socket.socket) -> None:
        self._calls.pop(sock.fileno(), None)  # closing it takes it out of the epoll

    def _next_moment(self) -> float:
        if self._due:
            return -math.inf
        return self._order[0] * self.grid_s if self._order else math.inf

    def _turn(self, now: float) -> None:
        """Call those for whom something has happened, and those whose moment has come, for a slice of time."""
        end = time.perf_counter() + self._slice_s
        for fd, _ in self._epoll.poll(0, _EVENTS):
            call = self._calls.get(fd)
            if call is not None:  # else it was forgotten in this turn
                call(now)
        while self._order and self._order[0] * self.grid_s <= now:
            self._due += self._moments.pop(heapq.heappop(self._order))
        while self._due:
            self._due.popleft()(now)
            if time.perf_counter() >= end:
                return


class TrioPoller:
    """For other systems, and for virtual time: a task for each."""

    grid_s = 0.0

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[int, list[trio.CancelScope]] = {}
        """Of the tasks that wait for a socket, by descriptor."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def at(self, moment: float, call: Call) -> None:
        self._start(self._call_at, moment, call)

    def watch(self, sock: socket.socket, call: Call, *, writes: bool) -> None:
        self.forget(sock)
        waits = [trio.lowlevel.wait_readable, trio.lowlevel.wait_writable] if writes else [trio.lowlevel.wait_readable]
        scopes = self._scopes[sock.fileno()] = [trio.CancelScope() for _ in waits]
        for scope, wait in zip(scopes, waits, strict=True):
            self._start(self._call_on, scope, wait, sock, call)

    def forget(self, sock: socket.socket) -> None:
        for scope in self._scopes.pop(sock.fileno(), ()):
            scope.cancel()

    def _start(self, *task: object) -> None:
        assert self._nursery is not None  # noqa: S101 - `run` comes first
        self._nursery.start_soon(*task)  # type: ignore[arg-type]

    async def _call_at(self, moment: float, call: Call) -> None:
        await trio.sleep_until(moment)
        call(trio.current_time())

    async def _call_on(
        self, scope: trio.CancelScope, wait: Callable[[socket.socket], Awaitable[None]], sock: socket.socket, call: Call
    ) -> None:
        with scope:
            # Who has been woken and is then forgotten, or forgets itself in the call, does not hear of it from trio.
            while not scope.cancel_called:
                await wait(sock)
                if not scope.cancel_called:
                    call(trio.current_time())


def make_poller(grid_s: float) -> Poller:
    """Return the one for this system."""
    return EpollPoller(grid_s) if sys.platform == "linux" else TrioPoller()
