"""Sockets that take a connection, refuse it, or swallow what asks for one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lambdamu.resolver import SocketAddress

PATIENCE_S = 30.0
GRID_S = 0.01
"""Of the pollers."""


def ipv4(host: str, port: int) -> SocketAddress:
    return socket.AF_INET, (host, port)


@contextmanager
def bound(host: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    """A socket that has an address and does not listen: who connects there is refused."""
    with socket.socket() as sock:
        sock.bind((host, port))
        yield sock


@contextmanager
def listener(host: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    with bound(host, port) as sock:
        sock.listen(16)
        sock.settimeout(PATIENCE_S)
        yield sock


@contextmanager
def deaf_listener() -> Iterator[socket.socket]:
    """A listener with a full backlog: the kernel drops what asks for a connection, as a host that is off does."""
    with ExitStack() as stack:
        sock = stack.enter_context(bound())
        sock.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(sock.getsockname())
        yield sock
