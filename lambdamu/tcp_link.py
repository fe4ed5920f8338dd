"""TCPLink: a connection to a peer that is made and remade, driven by events: for a monitor, which holds many.

Nothing here waits but the look-up of a name, which has the task of `run` for it.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from typing import Final, Protocol

import trio

from lambdamu.address import Address
from lambdamu.errors import LinkError
from lambdamu.link_fault import link_error, refuse_self
from lambdamu.messages import LinkFault
from lambdamu.poller import Poller
from lambdamu.resolver import Resolver, SocketAddress

_READ_BYTES: Final = 16384
_NONBLOCKING: Final = getattr(socket, "SOCK_NONBLOCK", 0)
"""Saves a call of the kernel where there is such a thing."""
_UNDERWAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class LinkUser(Protocol):
    """Who is told what becomes of a link. `now` is seconds of `trio.current_time()`."""

    def connected(self, now: float) -> None:
        """What `open` had begun is done."""

    def received(self, now: float, data: bytes) -> None:
        """The peer says something."""

    def broken(self, now: float, why: LinkError) -> None:
        """It could not be made, or is gone; it is closed."""


class Link(Protocol):
    """One connection at a time. `address` is the one it really goes to, None while there is no connection."""

    address: Address | None
    user: LinkUser

    async def run(self) -> None:
        """Do what takes a task, until cancelled."""

    def open(self, now: float, deadline: float) -> bool:
        """Begin a connection; return whether it is there already, else the user will be told. Raise LinkError.

        Whoever opens it closes it at the deadline. It serves to share out the time between several addresses.
        """

    def send(self, data: bytes) -> None:
        """Send all of it, what the peer does not take at once a little later. Raise LinkError."""

    def close(self) -> None:
        """Close, without waiting for the peer; nothing is told of it. Again does nothing."""

    def why_not_connected(self) -> LinkError:
        """Return what took too long, where `open` has not come to its end. Before it is closed."""


class TCPLink:
    """A link by TCP to `host`, an address in text form or a name that is looked up at each `open`."""

    user: LinkUser

    def __init__(self, host: str, port: int, *, resolver: Resolver, poller: Poller) -> None:
        self.address: Address | None = None
        self._host = host
        self._port = port
        self._known = resolver.known(host, port)
        """Where it stands without a look-up; nothing for a name."""
        self._resolver = resolver
        self._poller = poller
        self._socket: socket.socket | None = None
        self._target: Address | None = None
        """Where the connection goes that is there or on its way."""
        self._others: list[SocketAddress] = []
        """Where else it can go when that fails."""
        self._unsent = b""
        self._deadline = math.inf
        self._looking_up = False
        self._name_wanted = trio.Event()

    async def run(self) -> None:
        """Look the name up, whenever it is wanted. A look-up that comes too late serves the next time."""
        while True:
            await self._name_wanted.wait()
            self._name_wanted = trio.Event()
            try:
                found: list[SocketAddress] | LinkError = await self._resolver.resolve(self._host, self._port)
            except LinkError as exc:
                found = exc
            # A name may be found at the moment at which all is stopped: the poller is gone then.
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._looking_up:
                self._looking_up = False
                self._go_on(trio.current_time(), found)

    def open(self, now: float, deadline: float) -> bool:
        self._deadline = deadline
        if self._known:
            self._others = list(self._known)
            return self._connect(now)
        self._looking_up = True
        self._name_wanted.set()
        return False

    def send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data  # its turn comes after what waits already
        else:
            self._send(data)

    def close(self) -> None:
        self.address = None
        self._looking_up = False
        self._others = []
        self._unsent = b""
        self._drop_socket()

    def why_not_connected(self) -> LinkError:
        if self._looking_up:
            return LinkError(LinkFault.NO_ADDRESS, f"{self._host} was not looked up in time")
        return LinkError(LinkFault.CONNECT_TIMEOUT, f"{self._target} did not take the connection in time")

    def _go_on(self, now: float, found: list[SocketAddress] | LinkError) -> None:
        """Connect after what takes its time, and tell what comes of it."""
        try:
            if isinstance(found, LinkError):
                raise found
            self._others = found
            if self._connect(now):
                self.user.connected(now)
        except LinkError as exc:
            self.close()
            self.user.broken(now, exc)

    def _connect(self, now: float) -> bool:
        """Connect to the first address that takes it; return whether it is there already. Raise the last failure."""
        failure = LinkError(LinkFault.NO_ADDRESS, f"{self._host} has no address")
        while self._others:
            family, target = self._others.pop(0)
            self._target = Address(*target[:2])
            try:
                self._socket = _socket(family)
                return self._begin(self._socket, target, now)
            except OSError as exc:
                failure = link_error(exc, self._target)
            except LinkError as exc:
                failure = exc
            self._drop_socket()
        raise failure

    def _begin(self, sock: socket.socket, target: object, now: float) -> bool:
        code = sock.connect_ex(target)  # type: ignore[arg-type]
        # To an address of this machine it is made by now, whatever the kernel says: no need to wait.
        if code in _UNDERWAY and not _is_connected(sock):
            self._poller.watch(sock, self._decided, writes=True)
            if self._others:
                # The time left is shared out, so that one address that swallows packets does not spend it all.
                share = (self._deadline - now) / (1 + len(self._others))
                self._poller.at(now + share, lambda now: self._try_next(now, sock))
            return False
        if code and code not in _UNDERWAY:
            raise OSError(code, os.strerror(code))
        self._established(sock)
        return True

    def _decided(self, now: float) -> None:
        """Hear that the connection is made, or cannot be."""
        assert self._socket is not None  # noqa: S101 - it is on its way
        assert self._target is not None  # noqa: S101 - and so is this
        try:
            if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
            if not _is_connected(self._socket):
                return  # the event was meant for a socket that had the same number
            self._established(self._socket)
        except OSError as exc:
            self._fail(now, link_error(exc, self._target))
        except LinkError as exc:
            self._fail(now, exc)
        else:
            self.user.connected(now)

    def _established(self, sock: socket.socket) -> None:
        assert self._target is not None  # noqa: S101 - it is the one
        refuse_self(sock, self._target)
        self.address = self._target
        self._others = []
        self._poller.watch(sock, self._readable, writes=False)

    def _fail(self, now: float, why: LinkError) -> None:
        """Try the next address, or tell why there is none left."""
        self._drop_socket()
        if self._others:
            self._go_on(now, self._others)
        else:
            self.close()
            self.user.broken(now, why)

    def _try_next(self, now: float, sock: socket.socket) -> None:
        if self._socket is sock and self.address is None:
            self._fail(now, self.why_not_connected())

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._poller.forget(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self, now: float) -> None:
        assert self._socket is not None  # noqa: S101 - else nobody would call
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            self._break(now, self._gone(exc))
            return
        if data:
            self.user.received(now, data)
        else:
            self._break(now, LinkError(LinkFault.CLOSED, f"{self.address} has closed the connection"))

    def _send(self, data: bytes) -> None:
        assert self._socket is not None  # noqa: S101 - it is open
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as exc:
            raise self._gone(exc) from exc
        self._unsent = data[sent:]
        if self._unsent:
            self._poller.watch(self._socket, self._writable, writes=True)

    def _writable(self, now: float) -> None:
        """Send what was left. The peer may speak, or leave, meanwhile: reading comes with it."""
        assert self._socket is not None  # noqa: S101 - else nobody would call
        try:
            self._send(self._unsent)
        except LinkError as exc:
            self._break(now, exc)
            return
        if not self._unsent:
            self._poller.watch(self._socket, self._readable, writes=False)
        self._readable(now)

    def _break(self, now: float, why: LinkError) -> None:
        self.close()
        self.user.broken(now, why)

    def _gone(self, exc: OSError) -> LinkError:
        return LinkError(LinkFault.CLOSED, f"{self.address}: {os.strerror(exc.errno) if exc.errno else exc}")


def _socket(family: socket.AddressFamily) -> socket.socket:
    """Return a socket that does not block. One question at a time, in one write, is never held back: no NODELAY."""
    sock = socket.socket(family, socket.SOCK_STREAM | _NONBLOCKING)
    if not _NONBLOCKING:
        sock.setblocking(False)
    return sock


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
