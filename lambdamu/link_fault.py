"""What went wrong at a connection by socket, in the words of the project."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from typing import Final

from lambdamu.address import Address
from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, on, for 0 seconds."""
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What different versions of OpenSSL say where the first bytes are those of another protocol."""


def link_error(exc: OSError, shown: Address) -> LinkError:
    """Return an error of the system or of TLS at a connection to `shown`, with its words alone."""
    if isinstance(exc, ssl.SSLError):
        return LinkError(link_fault(exc), f"{shown}: {_tls_words(exc)}")
    return LinkError(link_fault(exc), f"{shown}: {os.strerror(exc.errno) if exc.errno else str(exc)}")


def link_fault(exc: OSError) -> LinkFault:
    """Return the word for an error of the system or of TLS at a connection."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return LinkFault.CERTIFICATE
    if isinstance(exc, ssl.SSLError):
        return LinkFault.TLS
    if exc.errno == errno.ECONNREFUSED:
        return LinkFault.REFUSED
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return LinkFault.NO_DESCRIPTOR
    if exc.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE):
        return LinkFault.CLOSED  # taken, and reset at once
    if exc.errno == errno.ETIMEDOUT:
        return LinkFault.CONNECT_TIMEOUT
    return LinkFault.UNREACHABLE


def _tls_words(exc: ssl.SSLError) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {exc.verify_message.rstrip('.')}"
    if exc.reason in _NOT_TLS:
        return "what it sends is not TLS"
    reason = (exc.reason or str(exc)).lower().replace("_", " ")
    _, alert, what = reason.partition(" alert ")
    return f"it ends TLS with the alert {what}" if alert else f"no TLS with it: {reason}"


def refuse_self(sock: socket.socket, shown: Address) -> None:
    """Refuse a connection to oneself: a closed port, in the range that connections go out from, can make one.

    The reset leaves the port free for its owner; an orderly close would keep it for a minute. Raise OSError,
    LinkError; the socket is the caller's to close.
    """
    if sock.getsockname() == sock.getpeername():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        raise LinkError(LinkFault.REFUSED, f"{shown} refused the connection")
