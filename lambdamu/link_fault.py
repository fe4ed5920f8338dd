"""What went wrong at a connection by socket, in the words of the project."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Final

from lambdamu.address import Address
from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, on, for 0 seconds."""


def link_error(exc: OSError, shown: Address) -> LinkError:
    """Return an error of the system at a connection to `shown`, with the system's words alone."""
    return LinkError(link_fault(exc), f"{shown}: {os.strerror(exc.errno) if exc.errno else str(exc)}")


def link_fault(exc: OSError) -> LinkFault:
    """Return the word for an error of the system at a connection."""
    if exc.errno == errno.ECONNREFUSED:
        return LinkFault.REFUSED
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return LinkFault.NO_DESCRIPTOR
    if exc.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE):
        return LinkFault.CLOSED  # taken, and reset at once
    if exc.errno == errno.ETIMEDOUT:
        return LinkFault.CONNECT_TIMEOUT
    return LinkFault.UNREACHABLE


def refuse_self(sock: socket.socket, shown: Address) -> None:
    """Refuse a connection to oneself: a closed port, in the range that connections go out from, can make one.

    The reset leaves the port free for its owner; an orderly close would keep it for a minute. Raise OSError,
    LinkError; the socket is the caller's to close.
    """
    if sock.getsockname() == sock.getpeername():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        raise LinkError(LinkFault.REFUSED, f"{shown} refused the connection")
