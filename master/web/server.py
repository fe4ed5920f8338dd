"""HTTP on sockets of our own: hypercorn speaks it, and everything that a peer may take of us is bounded here.

Hypercorn shields what it sends from cancellation, so a reader that has stopped to read could hold up a stop. Here each
send has a deadline, the kernel gives up on a peer that takes nothing (TCP_USER_TIMEOUT), and at the end the sockets are
closed under whoever still waits for them.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import hypercorn.config
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from lambdamu.address import Address
from lambdamu.listeners import bound_addresses, open_listeners

_LEAVE_S: Final = 0.5
"""A peer that has left, or has said that it says no more, gets what it asked for in this time."""
_BEGIN_S: Final = 0.02
"""When nothing seems to be asked for, it may still be on its way to whoever answers it."""
_HEAD_BYTES: Final = 16384
_HTTP_2: Final = b"PRI "
CONNECTION: Final = "connection"
"""Where the state of a request holds its connection."""


@attrs.frozen
class Deadlines:
    """`head_s`: a request must have its head in this time, and a connection that is kept its next request. `send_s`:
    what is sent must be taken in this time, a piece at a time.
    """

    head_s: float = 10.0
    send_s: float = 10.0


DEADLINES: Final = Deadlines()

App = Callable[[Any, Any, Any], Awaitable[None]]
Logger = structlog.typing.FilteringBoundLogger


def open_http_listeners(listen: Address, deadlines: Deadlines = DEADLINES) -> list[socket.socket]:
    """Return listening sockets whose connections end when the peer takes nothing for a while. Raise OSError."""
    listeners = open_listeners(listen)
    if sys.platform == "linux":
        for listener in listeners:  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(deadlines.send_s * 1000))
    return listeners


class Connection:
    """The stream that hypercorn reads and writes, with a deadline for each send and a way to end it from outside."""

    def __init__(self, stream: trio.SocketStream, send_s: float) -> None:
        self.socket = stream.socket
        self.scope = trio.CancelScope()
        self._stream = stream
        self._send_s = send_s
        self._begun = False
        self._requests = 0
        self._leaving = False

    async def send_all(self, data: bytes) -> None:
        with trio.move_on_after(self._send_s) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the peer takes nothing")

    async def receive_some(self, most: int) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(most))
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self._end_soon()
        elif not self._begun and _HTTP_2.startswith(data[: len(_HTTP_2)]):
            data = b""  # what HTTP/2 would need of deadlines is not here
            self.abort()
        self._begun = True
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self._end_soon()
        await self._stream.aclose()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """While inside, a request is being answered."""
        self._requests += 1
        if self._leaving:
            self.scope.deadline = trio.current_time() + _LEAVE_S
        try:
            yield
        finally:
            self._requests -= 1
            if self._leaving and not self._requests:
                self.scope.cancel()

    def _end_soon(self) -> None:
        """Let go of a peer that has left; hypercorn would let its idle deadline pass first."""
        if not self._leaving:
            self._leaving = True
            self.scope.deadline = trio.current_time() + (_LEAVE_S if self._requests else _BEGIN_S)

    def abort(self) -> None:
        """End it at once, whoever waits for it and however shielded."""
        self.scope.cancel()
        self.socket.close()


class HttpServer:
    """Serves `app` until cancelled, to `connections` at most."""

    def __init__(self, app: App, connections: int, log: Logger, deadlines: Deadlines = DEADLINES) -> None:
        self.limit = connections
        self.refused = 0
        self._app = ASGIWrapper(app)
        self._log = log
        self._deadlines = deadlines
        self._open: set[Connection] = set()
        self._context = WorkerContext(None)
        self._config = hypercorn.config.Config()
        self._config.errorlog = self._config.accesslog = None
        self._config.keep_alive_timeout = deadlines.head_s
        self._config.h11_max_incomplete_size = _HEAD_BYTES
        self._config.include_server_header = False
        self._config.max_app_queue_size = 64

    @property
    def connections(self) -> int:
        return len(self._open)

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        doors = [trio.SocketListener(trio.socket.from_stdlib_socket(listener)) for listener in listeners]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_at_the_end)
            task_status.started(bound_addresses(listeners))
            await trio.serve_listeners(self._serve_one, doors, handler_nursery=nursery)

    async def _close_at_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            for connection in list(self._open):
                connection.abort()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if len(self._open) >= self.limit:
            self.refused += 1
            stream.socket.close()
            return
        connection = Connection(stream, self._deadlines.send_s)
        self._open.add(connection)
        try:
            with connection.scope:
                state = ConnectionState({CONNECTION: connection})
                await TCPServer(self._app, self._config, self._context, state, connection)  # type: ignore[arg-type]
        except Exception as exc:  # noqa: BLE001 - a page that goes wrong must not stop the master
            self._log.error("http_failed", error=repr(exc))
        finally:
            self._open.discard(connection)
            with contextlib.suppress(OSError):
                connection.socket.close()
