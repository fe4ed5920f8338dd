"""TCPLink: a connection to a peer that is made and remade, driven by events: for a monitor, which holds many.

Nothing here waits but the look-up of a name, which has the task of `run` for it. It is long because connecting, talking
and TLS take turns on one socket, and each may break in the middle of another.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
from contextlib import suppress
from typing import Final

import trio

from lambdamu.address import Address
from lambdamu.client_tls import TlsConversation, TlsPeer
from lambdamu.errors import LinkError
from lambdamu.link import LinkUser
from lambdamu.link_fault import link_error, refuse_self
from lambdamu.messages import LinkFault
from lambdamu.poller import Poller
from lambdamu.resolver import Resolver, SocketAddress

_READ_BYTES: Final = 16384
_NONBLOCKING: Final = getattr(socket, "SOCK_NONBLOCK", 0)
"""Saves a call of the kernel where there is such a thing."""
_UNDERWAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class TCPLink:
    """A link by TCP to `host`, an address in text form or a name that is looked up at each `open`; with TLS or without.

    With TLS it is connected when the handshake is done; where that fails, the next address is tried.
    """

    user: LinkUser

    def __init__(self, host: str, port: int, *, resolver: Resolver, poller: Poller, tls: TlsPeer | None = None) -> None:
        self.tls = tls
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
        self._conversation: TlsConversation | None = None
        """With TLS: that of the connection which is there or shakes hands."""
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
        if self._conversation is not None:
            data = self._encrypt(self._conversation, data)
        if self._unsent:
            self._unsent += data  # its turn comes after what waits already
        else:
            self._send(data)

    def close(self) -> None:
        if self._conversation is not None:
            self._say_goodbye(self._conversation)
        self.address = None
        self._looking_up = False
        self._others = []
        self._drop_socket()

    def why_not_connected(self) -> LinkError:
        if self._looking_up:
            return LinkError(LinkFault.NO_ADDRESS, f"{self._host} was not looked up in time")
        what = "shake hands by TLS" if self._conversation is not None else "take the connection"
        return LinkError(LinkFault.CONNECT_TIMEOUT, f"{self._target} did not {what} in time")

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
                self._share_time(now, sock)
            return False
        if code and code not in _UNDERWAY:
            raise OSError(code, os.strerror(code))
        return self._established(now, sock)

    def _share_time(self, now: float, sock: socket.socket) -> None:
        """Share out the time left, so that one address that swallows packets does not spend it all."""
        share = (self._deadline - now) / (1 + len(self._others))
        self._poller.at(now + share, lambda now: self._try_next(now, sock))

    def _decided(self, now: float) -> None:
        """Hear that the connection is made, or cannot be."""
        assert self._socket is not None  # noqa: S101 - it is on its way
        assert self._target is not None  # noqa: S101 - and so is this
        try:
            if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
            if not _is_connected(self._socket):
                return  # the event was meant for a socket that had the same number
            there = self._established(now, self._socket)
        except OSError as exc:
            self._fail(now, link_error(exc, self._target))
        except LinkError as exc:
            self._fail(now, exc)
        else:
            if there:
                self.user.connected(now)

    def _established(self, now: float, sock: socket.socket) -> bool:
        """Take the connection that is made; return whether it is of use at once. Raise OSError, LinkError."""
        assert self._target is not None  # noqa: S101 - it is the one
        refuse_self(sock, self._target)
        self._poller.watch(sock, self._readable, writes=False)
        if self.tls is not None:
            self._begin_tls(now, sock, self.tls)
            return False
        self.address = self._target
        self._others = []
        return True

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
        self._conversation = None
        self._unsent = b""

    def _readable(self, now: float) -> None:
        assert self._socket is not None  # noqa: S101 - else nobody would call
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            self._fail(now, self._gone(exc))
            return
        if not data:
            self._fail(now, self._closed())
        elif self._conversation is None:
            self.user.received(now, data)
        else:
            self._hear(now, self._conversation, data)

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
            self._fail(now, exc)
            return
        if not self._unsent:
            self._poller.watch(self._socket, self._readable, writes=False)
        self._readable(now)

    def _gone(self, exc: OSError) -> LinkError:
        return LinkError(LinkFault.CLOSED, f"{self._target}: {os.strerror(exc.errno) if exc.errno else exc}")

    def _closed(self) -> LinkError:
        shaking = self._conversation is not None and self.address is None
        return LinkError(
            LinkFault.CLOSED, f"{self._target} has closed the connection{' in the TLS handshake' * shaking}"
        )

    # TLS

    def _begin_tls(self, now: float, sock: socket.socket, tls: TlsPeer) -> None:
        """Say hello. Raise OSError, LinkError."""
        if self._others:
            self._share_time(now, sock)
        self._conversation = tls.begin(now)
        self._conversation.shake_hands()
        self._send_out(self._conversation)

    def _hear(self, now: float, conversation: TlsConversation, data: bytes) -> None:
        """Take in bytes of the peer: of the handshake, or what it says."""
        conversation.take(data)
        try:
            if not conversation.established and not self._shake_hands(now, conversation):
                return
            said = conversation.read()
            self._send_out(conversation)
        except (ssl.SSLError, LinkError) as exc:
            self._fail_tls(now, conversation, exc)
            return
        if said:
            self.user.received(now, said)
        if conversation.ended and conversation is self._conversation:
            self._fail(now, self._closed())

    def _shake_hands(self, now: float, conversation: TlsConversation) -> bool:
        """Go on with it; return whether there is something to read. Raise ssl.SSLError, LinkError."""
        done = conversation.shake_hands()
        self._send_out(conversation)
        if done:
            self.address = self._target
            self._others = []
            self.user.connected(now)
        return done and conversation is self._conversation

    def _fail_tls(self, now: float, conversation: TlsConversation, exc: ssl.SSLError | LinkError) -> None:
        """Fail, and tell the peer why, as far as TLS has a word for it."""
        assert self._target is not None  # noqa: S101 - it is there
        if isinstance(exc, LinkError):
            self._fail(now, exc)
            return
        with suppress(LinkError):
            self._send_out(conversation)
        self._fail(now, link_error(exc, self._target))

    def _encrypt(self, conversation: TlsConversation, data: bytes) -> bytes:
        assert self._target is not None  # noqa: S101 - it is there
        try:
            return conversation.write(data)
        except ssl.SSLError as exc:
            raise link_error(exc, self._target) from exc

    def _send_out(self, conversation: TlsConversation) -> None:
        """Send what TLS itself has to say. Raise LinkError."""
        data = conversation.outgoing()
        if self._unsent:
            self._unsent += data
        elif data:
            self._send(data)

    def _say_goodbye(self, conversation: TlsConversation) -> None:
        goodbye = conversation.end()
        if goodbye and not self._unsent and self._socket is not None:
            with suppress(OSError):
                self._socket.send(goodbye)


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
