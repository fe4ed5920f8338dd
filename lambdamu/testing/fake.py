"""The fake backend, and a fleet of them, inside the process of the test.

It speaks the two exchanges between a master and a backend, well or badly, as its `Script` says. It stands on trio's
own streams and not on `lambdamu.tcp_server`: a fake does not share the faults of what it tests.
"""

from __future__ import annotations

import resource
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from lambdamu.testing.script import Script
from lambdamu.testing.session import Session
from lambdamu.testing.stats import Stats, Tally


class _Served(ABC):
    """`async with` for backends. An error of the body comes out as it is, not in a group."""

    _running: AbstractAsyncContextManager[trio.Nursery]
    _scope: trio.CancelScope

    @abstractmethod
    def _all(self) -> list[FakeBackend]: ...

    async def __aenter__(self) -> Self:
        listeners: list[tuple[FakeBackend, trio.SocketListener]] = []
        try:
            listeners.extend((backend, backend.listen()) for backend in self._all())
        except OSError:
            for _, listener in listeners:
                listener.socket.close()
            raise
        self._running = trio.open_nursery()
        nursery = await self._running.__aenter__()
        self._scope = nursery.cancel_scope
        for backend, listener in listeners:
            nursery.start_soon(backend.serve_listener, listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.cancel()
        await self._running.__aexit__(None, None, None)


class FakeBackend(_Served):
    """One backend; started by `async with`, or by `await nursery.start(backend.serve)`.

    Port 0 takes a free one. Started again after it has ended, it takes the address it had.
    `clock` gives the times in `stats().asked_at`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._host = host
        self._port = port
        self._script = script or Script()
        self._clock = clock
        self._tally = Tally()
        self._sessions: set[Session] = set()

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    def script(self, **changes: Any) -> None:
        """Change fields of the script, from the next answer on; raise TypeError or ValueError on a bad one."""
        self._script = attrs.evolve(self._script, **changes)

    def stats(self) -> Stats:
        return self._tally.stats()

    async def until(self, holds: Callable[[Stats], bool]) -> Stats:
        """Wait until `holds(stats)`, and return these; bound it by a cancel scope."""
        await trio.lowlevel.checkpoint()
        while not holds(stats := self.stats()):
            await self._tally.changed.park()
        return stats

    def hang_up(self, *, reset: bool = False) -> None:
        """End every open connection from this side; new ones are welcome."""
        for session in self._sessions:
            session.hang_up(reset=reset)

    def listen(self) -> trio.SocketListener:
        """Take the address; raise OSError when it cannot be had."""
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self._port))
            sock.listen(1024)
            self._port = sock.getsockname()[1]
            return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        except OSError:
            sock.close()
            raise

    async def serve(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve until cancelled; started, with the backend itself, once it listens."""
        listener = self.listen()
        task_status.started(self)
        await self.serve_listener(listener)

    async def serve_listener(self, listener: trio.SocketListener) -> None:
        """Serve what `listen` returned until cancelled."""
        await trio.serve_listeners(self._meet, [listener])

    async def _meet(self, stream: trio.SocketStream) -> None:
        session = Session(stream, lambda: self._script, self._tally, self._clock)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    def _all(self) -> list[FakeBackend]:
        return [self]


class FakeFleet(_Served):
    """`size` backends in one loop, each on a free port of its own, all with the same script to begin with.

    Raises the process's soft limit of descriptors where they and their clients would not fit.
    """

    def __init__(
        self,
        size: int,
        script: Script | None = None,
        *,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._backends = [FakeBackend(script, host=host, clock=clock) for _ in range(size)]

    def __len__(self) -> int:
        return len(self._backends)

    def __iter__(self) -> Iterator[FakeBackend]:
        return iter(self._backends)

    def __getitem__(self, index: int) -> FakeBackend:
        return self._backends[index]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [backend.address for backend in self._backends]

    def script(self, **changes: Any) -> None:
        """Change fields of every script."""
        for backend in self._backends:
            backend.script(**changes)

    def _all(self) -> list[FakeBackend]:
        _allow_descriptors(3 * len(self._backends) + 256)
        return self._backends


def _allow_descriptors(count: int) -> None:
    """A listener, a connection and the client's end of it: three for each backend, and some to spare."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
