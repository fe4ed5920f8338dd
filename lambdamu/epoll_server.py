"""The port on Linux: one task and one epoll for all connections; no task, no await and no timer for any of them.

The kernel says which connections have something to say. Each is read, answered and written to without blocking, in
slices that are bounded, so that the rest of the program runs on time while the port is busy. Connections stand in the
order of their deadlines, so a sweep looks at those alone that are due. Here are the doors and the turns; what is said
on a connection is the business of `lambdamu.epoll_conversation`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Final

import trio

from lambdamu.address import Address
from lambdamu.epoll_connection import UNREGISTERED, Connection
from lambdamu.epoll_conversation import IN, Conversations
from lambdamu.listeners import NOT_A_LISTENER, OUT_OF_RESOURCES, bound_addresses
from lambdamu.port import (
    ACCEPT_PAUSE_S,
    ACCEPTS_A_TURN,
    ACCEPTS_AT_STOP,
    LAST_CALL_S,
    REST_S,
    TOO_MANY,
    TOO_MANY_FROM_THERE,
    Ending,
)

_SLICE_S: Final = 0.004
"""The port works for about so long, then lets the rest of the program run."""
_EVENTS: Final = 32
"""Between two looks at the time: one event may bring hundreds of questions in one read, a millisecond's work."""


class EpollServer(Conversations):
    """Serves `handler` on listening sockets until `stop`; `pack` turns an answer into bytes."""

    defer_accept_s = 1
    """The kernel keeps a new connection to itself until it has said something, or this time has passed."""

    def _set_up(self) -> None:
        super()._set_up()
        self._listeners: dict[int, socket.socket] = {}
        self._fresh: list[Connection] = []
        """Answered when they were let in. Most of them leave before the kernel has to be told of them."""
        self._accept_again_at = float("inf")

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop`, then until each connection has its answers; close the listeners in any case."""
        try:
            for listener in listeners:
                # These hold for each connection that comes of it.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, self.defer_accept_s)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._listeners[listener.fileno()] = listener
            self._listen()
            task_status.started(bound_addresses(listeners))
            while self._listeners or len(self._all):
                await self._wait()
                self._turn()
        finally:
            for connection in self._all.everyone():
                self._end(connection, Ending.STOPPED)
            self._epoll.close()
            for listener in listeners:
                listener.close()

    def stop(self) -> None:
        """Let nobody in any more, answer what was asked, and close; `serve` returns when that is done."""
        if self.stopped_at is None:
            self.stopped_at = trio.current_time()
            self._all.rest_until = self.stopped_at + LAST_CALL_S + REST_S
            self._wake()

    async def _wait(self) -> None:
        """Wait until the kernel has something, something is due, or somebody wakes us; in any case, let others run."""
        due = min(self._all.next_due(), self._accept_again_at)
        if self.stopped_at is not None and not self._all.last_call_over:
            due = min(due, self.stopped_at + (LAST_CALL_S if not self._listeners else 0.0))
        if self._ready or self._more_to_do():
            due = -float("inf")
        with trio.CancelScope(deadline=due) as self._wait_scope:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        self._wait_scope = None

    def _turn(self) -> None:
        """Work for a slice of time at most, and end those whose time is over."""
        self._now = trio.current_time()
        end = time.perf_counter() + _SLICE_S
        self._go_on_with_ready(end)
        find, read = self._all.get, self._read
        while events := self._epoll.poll(0, _EVENTS):
            for fd, event in events:
                peer = find(fd)
                if peer is None:
                    self._knocked(fd)
                elif event == IN:
                    read(peer)
                else:
                    self._happened(peer, event)
            self._send_answered()
            self._look_again()
            now = trio.current_time()
            self._tell_replied(now)
            if time.perf_counter() >= end:
                break
            self._now = now
        self._end_turn()
        self._sweep()

    def _go_on_with_ready(self, end: float) -> None:
        """Go on with those who have more to be answered; when time is up, the rest come first in the next turn."""
        ready, self._ready = self._ready, []
        for count, connection in enumerate(ready, 1):
            connection.queued = False
            if connection.fd >= 0:
                self._go_on(connection)
            self._tell_replied(trio.current_time())
            if time.perf_counter() >= end:
                self._ready = ready[count:] + self._ready
                break

    def _more_to_do(self) -> bool:
        """Whether there is work that the kernel does not tell of."""
        return False

    def _end_turn(self) -> None:
        """Do a part of such work."""

    def _tell_replied(self, now: float) -> None:
        if self._replied:
            self.observer.replied(self._replied, now - self._now)
            self._replied = 0

    # Letting in

    def _listen(self) -> None:
        self._accept_again_at = float("inf")
        for fd in self._listeners:
            self._epoll.register(fd, IN)

    def _knocked(self, fd: int) -> None:
        listener = self._listeners.get(fd)
        if listener is not None:  # else it is a connection that ended earlier in this turn
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> int:
        """Let in those who wait, a bounded number of them; return how many."""
        # The public `accept` makes an object around the descriptor that costs more than all else done here.
        accept = listener._accept  # type: ignore[attr-defined]
        for count in range(ACCEPTS_A_TURN):
            try:
                fd, address = accept()
            except BlockingIOError:
                return count
            except OSError as exc:
                if exc.errno in NOT_A_LISTENER:
                    raise
                if exc.errno not in OUT_OF_RESOURCES:
                    continue  # this one was gone before it was let in
                self._pause_accepting(exc)
                return count
            self._let_in(fd, address)
        return ACCEPTS_A_TURN

    def _let_in(self, fd: int, address: tuple[str, int]) -> None:
        os.set_blocking(fd, False)
        if len(self._all) >= self.limits.connections:
            self._turn_away(fd, TOO_MANY)
        elif not self._cap.enter(address[0]):
            self._turn_away(fd, TOO_MANY_FROM_THERE)
        else:
            self._welcome(self._all.add(fd, address, self._now))

    def _turn_away(self, fd: int, why: str) -> None:
        self._refuse(socket.socket(fileno=fd), why)

    def _welcome(self, connection: Connection) -> None:
        """Begin the conversation with one who was let in."""
        self.observer.opened()
        self._read(connection)
        self._send_answered()  # at once: most of them have left then when they are looked at again
        if connection.mask == UNREGISTERED and connection.fd >= 0:
            self._fresh.append(connection)

    def _pause_accepting(self, exc: OSError) -> None:
        """While a resource is short, leave those who wait to the kernel, on every listener."""
        if self._now < self._accept_again_at < float("inf"):
            return  # another listener has met the same in this turn
        self.observer.cannot_accept(exc)
        for fd in self._listeners:
            self._epoll.unregister(fd)
        self._accept_again_at = self._now + ACCEPT_PAUSE_S

    def _look_again(self) -> None:
        """Ask those who were let in once more before the kernel is told to watch them."""
        fresh, self._fresh = self._fresh, []
        for connection in fresh:
            if connection.mask == UNREGISTERED and connection.fd >= 0:
                self._read(connection)
                self._watch(connection)
        self._send_answered()

    def _sweep(self) -> None:
        now = self._now
        for connection, how in self._all.due(now):
            self._end(connection, how)
        if now >= self._accept_again_at:
            self._listen()
        if self.stopped_at is not None:
            self._sweep_at_stop(self.stopped_at)

    def _sweep_at_stop(self, stopped_at: float) -> None:
        """Take in whom the kernel has let in already, close the door, and after a last call end those who are idle."""
        if self._listeners:
            self._close_the_door()
        if not self._all.last_call_over and self._now >= stopped_at + LAST_CALL_S:
            self._all.last_call_over = True
            for connection in self._all.everyone():
                if not connection.busy and connection.decoder is None and connection.ending is None:
                    self._finish(connection, Ending.STOPPED)

    def _close_the_door(self) -> None:
        for listener in self._listeners.values():
            for _ in range(0, ACCEPTS_AT_STOP, ACCEPTS_A_TURN):
                if self._accept(listener) < ACCEPTS_A_TURN:
                    break
        for listener in self._listeners.values():  # not before all were asked: a shortage takes each out of the epoll
            listener.close()  # which takes it out of the epoll too
        self._listeners.clear()
        self._accept_again_at = float("inf")
        self._look_again()
