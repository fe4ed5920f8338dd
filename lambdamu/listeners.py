"""Listening sockets, and those who cannot be let in."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Any, Final

from lambdamu.address import Address

_BACKLOG: Final = 4096
_NOT_ON_THIS_MACHINE: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
NOT_A_LISTENER: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


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
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def bound_addresses(listeners: Iterable[socket.socket]) -> list[Address]:
    return [Address(*listener.getsockname()[:2]) for listener in listeners]


def turn_away(connection: socket.socket, last_word: bytes) -> None:
    """Tell one too many that it is, without waiting for anything, and close."""
    try:
        connection.setblocking(False)
        connection.send(last_word)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)  # unread bytes would turn the close into a reset
    except OSError:
        pass
    finally:
        connection.close()
