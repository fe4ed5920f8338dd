"""TCPServer: the port. Thousands of short and long connections, with a deadline on everything that may wait.

Each connection is one task that reads, has the handler answer, and writes; batches are answered in order. A bad peer
ends its own connection and nothing else. An error in a handler is our bug: it ends the server, loudly.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from lambdamu.address import Address
from lambdamu.connection import Connection
from lambdamu.datapack import encode
from lambdamu.messages import Code, Message, fatal_error
from lambdamu.objects import Peer
from lambdamu.port import Ending, Handler, PortLimits, PortObserver

__all__ = ["Ending", "Handler", "PortLimits", "PortObserver", "TCPServer", "bound_addresses", "open_listeners"]


_READ_BYTES: Final = 16384
_ACCEPTS_A_TURN: Final = 64
_LISTEN_BACKLOG: Final = 4096
_ACCEPT_PAUSE_S: Final = 0.1

_NOT_ON_THIS_MACHINE: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_NOT_A_LISTENER: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def open_listeners(listen: Address) -> list[socket.socket]:
    """Return listening sockets, one for each address that the host stands for. Raise OSError when one cannot be had.

    The port can be taken again at once after a stop, but never shared with a process that still listens.
    """
    found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    port = listen.port
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            listeners.append(_open_listener(family, (address[0], port, *address[2:])))
        except OSError as exc:
            missing = exc
            if exc.errno not in _NOT_ON_THIS_MACHINE:
                break
        else:
            port = listeners[-1].getsockname()[1]
    if missing is not None and (not listeners or missing.errno not in _NOT_ON_THIS_MACHINE):
        for listener in listeners:
            listener.close()
        raise missing
    return listeners


def _open_listener(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "[::]" takes IPv4 too
        listener.bind(address)
        listener.listen(_LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def bound_addresses(listeners: Iterable[socket.socket]) -> list[Address]:
    return [Address(*listener.getsockname()[:2]) for listener in listeners]


class TCPServer:
    """Serves `handler` on listening sockets until `stop`; `pack` turns an answer into bytes."""

    def __init__(
        self,
        handler: Handler,
        limits: PortLimits,
        *,
        observer: PortObserver | None = None,
        pack: Callable[[Sequence[Message]], bytes] = encode,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.observer = observer or PortObserver()
        self.pack = pack
        self.stopped_at: float | None = None
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
    def waiting(self, deadline: float) -> Iterator[None]:
        """Bound a wait by `deadline` and end it at `stop`."""
        with trio.CancelScope(deadline=deadline) as scope:
            self._waits.add(scope)
            try:
                yield
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
        for _ in range(0, _LISTEN_BACKLOG, _ACCEPTS_A_TURN):
            if not self._accept_some(listener, nursery):
                break
            await trio.lowlevel.checkpoint()
        listener.close()

    def _accept_some(self, listener: socket.socket, nursery: trio.Nursery) -> bool:
        """Accept a bounded number of connections; return whether more may be waiting."""
        if trio.current_time() < self._accept_at:
            return False
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return False
            except OSError as exc:
                if exc.errno in _NOT_A_LISTENER:
                    raise
                if exc.errno not in _OUT_OF_RESOURCES:
                    continue  # this one was gone before it was let in
                self._accept_at = trio.current_time() + _ACCEPT_PAUSE_S
                self.observer.cannot_accept(exc)
                return False
            self._let_in(connection, Peer.from_address(*address[:2]), nursery)
        return True

    def _let_in(self, connection: socket.socket, peer: Peer, nursery: trio.Nursery) -> None:
        connection.setblocking(False)
        if self._connections >= self.limits.connections:
            self.observer.refused()
            _turn_away(connection, self.pack)
            return
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:  # pragma: no cover - some systems refuse it on a connection that was reset already
            connection.close()
            return
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        # Counted here and not in the task, so that a burst cannot pass the limit before the tasks begin.
        self._connections += 1
        nursery.start_soon(self._serve_counted, stream, peer)

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> None:
        """Serve one connection, of any kind of stream, to its end."""
        self._connections += 1
        await self._serve_counted(stream, peer)

    async def _serve_counted(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> None:
        self.observer.opened()
        how = Ending.STOPPED
        try:
            how = await Connection(self, stream, peer).converse()
        except trio.BrokenResourceError:
            how = Ending.RESET
        finally:
            self._connections -= 1
            self.observer.ended(how)
            self.handler.disconnected(peer)
            await trio.aclose_forcefully(stream)


def _turn_away(connection: socket.socket, pack: Callable[[Sequence[Message]], bytes]) -> None:
    """Tell one too many that it is, without waiting for anything, and close."""
    try:
        connection.send(pack([fatal_error(Code.LIMIT, "too many connections are open")]))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(_READ_BYTES)  # unread bytes would turn the close into a reset
    except OSError:
        pass
    finally:
        connection.close()
