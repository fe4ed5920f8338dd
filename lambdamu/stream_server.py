"""The port on trio's streams: portable, and ready for whatever stream stands between, such as TLS.

Each connection is one task that reads, has the handler answer, and writes; batches are answered in order. A bad peer
ends its own connection and nothing else. An error in a handler is our bug: it ends the server, loudly.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from lambdamu.address import Address
from lambdamu.connection import Connection
from lambdamu.listeners import NOT_A_LISTENER, OUT_OF_RESOURCES, bound_addresses
from lambdamu.objects import Peer
from lambdamu.port import (
    ACCEPT_PAUSE_S,
    ACCEPTS_A_TURN,
    ACCEPTS_AT_STOP,
    TOO_MANY,
    TOO_MANY_FROM_THERE,
    Ending,
    Port,
)


class StreamServer(Port):
    """Serves `handler` on listening sockets until `stop`; `pack` turns an answer into bytes."""

    def _set_up(self) -> None:
        super()._set_up()
        self._connections = 0
        self._accept_at = -float("inf")
        """When to accept again, on any listener, after a resource was short."""
        self._waits: set[trio.CancelScope] = set()

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return self._connections

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop`, then until each connection has its answers; close the listeners in any case."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept, listener, nursery)
                task_status.started(bound_addresses(listeners))
        finally:
            for listener in listeners:
                listener.close()

    def stop(self) -> None:
        """Let nobody in any more, answer what was asked, and close; `serve` returns when that is done."""
        if self.stopped_at is None:
            self.stopped_at = trio.current_time()
            for scope in list(self._waits):
                scope.cancel()

    @contextmanager
    def waiting(self, deadline: float) -> Iterator[trio.CancelScope]:
        """Bound a wait by `deadline` and end it at `stop`."""
        with trio.CancelScope(deadline=deadline) as scope:
            self._waits.add(scope)
            try:
                yield scope
            finally:
                self._waits.discard(scope)

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        while self.stopped_at is None:
            with self.waiting(float("inf")):
                await trio.lowlevel.wait_readable(listener)
                if trio.current_time() < self._accept_at:
                    await trio.sleep_until(self._accept_at)
            while self.stopped_at is None and self._accept_some(listener, nursery):
                await trio.lowlevel.checkpoint()
        # At a stop, take in those whom the kernel has let in already; but not those who go on coming.
        for _ in range(0, ACCEPTS_AT_STOP, ACCEPTS_A_TURN):
            if not self._accept_some(listener, nursery):
                break
            await trio.lowlevel.checkpoint()
        listener.close()

    def _accept_some(self, listener: socket.socket, nursery: trio.Nursery) -> bool:
        """Accept a bounded number of connections; return whether more may be waiting."""
        if trio.current_time() < self._accept_at:
            return False
        for _ in range(ACCEPTS_A_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return False
            except OSError as exc:
                if exc.errno in NOT_A_LISTENER:
                    raise
                if exc.errno not in OUT_OF_RESOURCES:
                    continue  # this one was gone before it was let in
                self._accept_at = trio.current_time() + ACCEPT_PAUSE_S
                self.observer.cannot_accept(exc)
                return False
            self._let_in(connection, Peer.from_address(*address[:2]), nursery)
        return True

    def _let_in(self, connection: socket.socket, peer: Peer, nursery: trio.Nursery) -> None:
        connection.setblocking(False)
        if self._connections >= self.limits.connections:
            self._refuse(connection, TOO_MANY)
            return
        if not self._cap.enter(peer.host):
            self._refuse(connection, TOO_MANY_FROM_THERE)
            return
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:  # pragma: no cover - some systems refuse it on a connection that was reset already
            self._cap.leave(peer.host)
            connection.close()
            return
        stream = self._make_stream(connection)
        # Counted here and not in the task, so that a burst cannot pass the limit before the tasks begin.
        self._connections += 1
        nursery.start_soon(self._serve_counted, stream, peer)

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> None:
        """Serve one connection, of any kind of stream, to its end."""
        self._connections += 1
        self._cap.enter(peer.host)
        await self._serve_counted(stream, peer)

    async def _serve_counted(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> None:
        self.observer.opened()
        how = Ending.STOPPED
        try:
            how = await self._converse(stream, peer)
        except trio.BrokenResourceError:
            how = Ending.RESET
        finally:
            self._connections -= 1
            self._cap.leave(peer.host)
            self.observer.ended(how)
            self.handler.disconnected(peer)
            await trio.aclose_forcefully(stream)

    def _make_stream(self, connection: socket.socket) -> trio.abc.HalfCloseableStream:
        return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    async def _converse(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> Ending:
        """Talk with one peer to the end; return how it ended."""
        return await Connection(self, stream, peer).converse()
