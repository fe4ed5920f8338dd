"""A connection by socket that costs little: it waits only where the kernel has it wait, and gives no turn in vain.

`trio.SocketStream` gives other tasks a turn at every call, which is right for a program at large. A client that asks
once makes two calls and waits in one of them anyway: with thousands of clients in a process the turns are most of the
cost.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Final

import trio

_READ_BYTES: Final = 16384


class LeanStream(trio.abc.HalfCloseableStream):
    """Bytes both ways over a socket that does not block."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    @classmethod
    async def connect(cls, family: socket.AddressFamily, target: tuple[Any, ...]) -> LeanStream:
        """Connect to a socket address, numbers and no name. Raise OSError. The caller sets the deadline."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(target)
            if code == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it; without a wait where the socket takes it at once. Raise BrokenResourceError."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
            except OSError as exc:
                raise trio.BrokenResourceError(str(exc)) from exc

    def send_some(self, data: bytes) -> int:
        """Send what the socket takes at once; return how many bytes that are. Raise BrokenResourceError."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise trio.BrokenResourceError(str(exc)) from exc

    async def send_eof(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as exc:
            raise trio.BrokenResourceError(str(exc)) from exc
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self.socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what is there, waiting only when nothing is; none at the end. Raise BrokenResourceError."""
        most = max_bytes or _READ_BYTES
        while True:
            try:
                data = self.socket.recv(most)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.socket)
            except OSError as exc:
                raise trio.BrokenResourceError(str(exc)) from exc
            else:
                if len(data) == most:  # there may be no end of it: others get their turn in between
                    await trio.lowlevel.checkpoint()
                return data

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()
