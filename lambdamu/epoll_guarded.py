"""A port with something before the conversation or under it: the word of a trusted balancer, and TLS.

What comes before a conversation is done at the end of a turn, one connection after another for a bounded time: a
handshake takes some sixty times what an ask does, and those who have one behind them come first. A port that needs
neither is an `EpollServer`, and pays nothing for this.

Whoever floods the port with handshakes that come to nothing must not keep out those who mean it. So those who go on
with theirs come before those who begin, who cost more; of a crowd of these the newest comes first, because with more
than can be done the oldest have given up by the time that all would take; and one too many puts out the one that began
first, not itself.

The file is long because reading, writing, watching and ending each have a part for TLS, and one for before it.
"""

from __future__ import annotations

import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import attrs
import trio

from lambdamu.epoll_connection import UNREGISTERED, Connection
from lambdamu.epoll_conversation import BROKEN, IN, OUT
from lambdamu.epoll_server import EpollServer
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Code
from lambdamu.networks import Network, Networks
from lambdamu.objects import Peer, family_of
from lambdamu.port import READ_BYTES, TOO_MANY_FROM_THERE, Ending, Handler, PortLimits, PortObserver
from lambdamu.proxy_protocol import missing, told_address
from lambdamu.tls import TlsDoor, subject_of
from lambdamu.wire import Wire

_ENTER_S: Final = 0.002
"""So long at the end of a turn people are let in, and at least one is."""
_CROWD: Final = 128
"""With more who want to begin than this, some 50 ms of work, it is no longer first come, first served."""


class _Entering:
    """Stands for the reader of a connection whose conversation has not begun: it has a deadline, and nothing to say."""

    frame = b""
    pending = True
    buffered = 0
    last = False

    def feed(self, data: bytes) -> None:
        raise NotImplementedError

    def next_batch(self) -> None:
        return None


_ENTERING: Final = _Entering()


@attrs.define(eq=False)
class _Entry:
    """`header`: what has come of the word of a balancer, None when there is none to come. `tls`: None without it."""

    header: bytes | None = None
    tls: ssl.SSLSocket | None = None
    closed: bool = False
    """Whether the descriptor is closed already."""
    waits_to_write: bool = False
    goes_on: bool = False
    """Whether a handshake was begun, and its next part has come."""
    open: bool = False
    """Whether the conversation has begun."""


class GuardedServer(EpollServer):
    """An `EpollServer` whose connections may come by a balancer that says whose they are, and by TLS."""

    def __init__(
        self,
        handler: Handler,
        limits: PortLimits,
        *,
        observer: PortObserver | None = None,
        wire: Wire | None = None,
        tls: TlsDoor | None = None,
        proxies: Iterable[Network] = (),
    ) -> None:
        """`proxies`: who must say whose connection it is, by the PROXY protocol, version 2; nobody else may."""
        self.tls = tls
        proxies = tuple(proxies)
        self._proxies = Networks(exempt=proxies)
        limits = attrs.evolve(limits, exempt=(*limits.exempt, *proxies))
        super().__init__(handler, limits, observer=observer, wire=wire)

    def _set_up(self) -> None:
        super()._set_up()
        self._going_on: OrderedDict[int, Connection] = OrderedDict()
        """Those that have begun before, by descriptor, and can go on now."""
        self._beginning: OrderedDict[int, Connection] = OrderedDict()
        """Those that have not; of a crowd the last one comes first."""
        self._entering: OrderedDict[int, Connection] = OrderedDict()
        """All whose conversation has not begun, by descriptor, in the order in which they came."""

    @property
    def entering(self) -> int:
        """How many connections there are whose conversation has not begun."""
        return len(self._entering)

    # Letting in

    def _welcome(self, connection: Connection) -> None:
        proxied = self._proxies.exempts(connection.address[0])
        if not proxied and self.tls is None:
            super()._welcome(connection)
            return
        connection.entry = _Entry(header=b"" if proxied else None)
        connection.decoder, connection.began = _ENTERING, self._now
        if self.entering >= self._most_entering():
            self._end(next(iter(self._entering.values())), Ending.HANDSHAKE)
        self._entering[connection.fd] = connection
        self.observer.opened()
        self._all.partial(connection, self._now)
        self._enter_later(connection)

    def _most_entering(self) -> int:
        return self.tls.policy.handshakes if self.tls is not None else self.limits.connections

    def _turn_away(self, fd: int, why: str) -> None:
        if self.tls is None:
            super()._turn_away(fd, why)
            return
        self.observer.refused()  # who expects TLS cannot be told why
        os.close(fd)

    def _enter_later(self, connection: Connection) -> None:
        """Have it go on at the end of the turn; the kernel need not tell of it again meanwhile."""
        if not connection.queued:
            connection.queued = True
            if connection.mask != UNREGISTERED:
                self._watch(connection)
            queue = self._going_on if connection.entry.goes_on else self._beginning
            queue[connection.fd] = connection

    def _more_to_do(self) -> bool:
        return bool(self._going_on or self._beginning)

    def _end_turn(self) -> None:
        end = time.perf_counter() + _ENTER_S
        while self._more_to_do():
            connection = self._next_entering()
            connection.queued = False
            self._enter(connection, connection.entry)
            if time.perf_counter() >= end:
                break
        self._send_answered()
        self._tell_replied(trio.current_time())

    def _next_entering(self) -> Connection:
        if self._going_on:
            return self._going_on.popitem(last=False)[1]
        return self._beginning.popitem(last=len(self._beginning) > _CROWD)[1]

    def _enter(self, connection: Connection, entry: _Entry) -> None:
        """Go as far as it can be gone without waiting; then the conversation begins, or the kernel is to watch."""
        try:
            done = self._hear_proxy(connection, entry) and self._shake_hands(connection, entry)
        except RemoteProtocolError as exc:
            self._turn_out(connection, entry, exc)
            return
        except ssl.SSLError:
            self._end(connection, Ending.HANDSHAKE)
            return
        except OSError:
            self._end(connection, Ending.RESET)
            return
        if connection.fd < 0:
            return
        if done:
            self._open(connection, entry)
            self._all.whole(connection)
            connection.decoder = None
            self._all.touch(connection, self._now)
            self._read(connection)
        self._watch(connection)

    def _open(self, connection: Connection, entry: _Entry) -> None:
        entry.open = True
        del self._entering[connection.fd]

    def _turn_out(self, connection: Connection, entry: _Entry, fault: RemoteProtocolError) -> None:
        """End with a word why; under TLS there is nobody yet to say it to."""
        if self.tls is None:
            self._open(connection, entry)
            self._break_off(connection, fault, [])
        else:
            self.observer.broke_protocol(fault.code)
            self._end(connection, Ending.PROTOCOL)

    def _hear_proxy(self, connection: Connection, entry: _Entry) -> bool:
        """Read the word of a balancer, and not a byte more; return whether it is whole, or none is to come."""
        if entry.header is None:
            return True
        while wanted := missing(entry.header):
            try:
                data = os.read(connection.fd, wanted)
            except BlockingIOError:
                return False
            if not data:
                self._end(connection, Ending.LEFT)
                return False
            entry.header += data
        told, entry.header = told_address(entry.header), None
        if told is not None:
            if not self._cap.enter(told[0]):
                raise RemoteProtocolError(Code.LIMIT, TOO_MANY_FROM_THERE)
            self._cap.leave(connection.address[0])
            connection.address, connection.family = told, family_of(told[0])
        return True

    def _shake_hands(self, connection: Connection, entry: _Entry) -> bool:
        """Return whether there is nothing more to be shaken. Raise ssl.SSLError when it comes to nothing."""
        if self.tls is None:
            return True
        if entry.tls is None:
            entry.closed = True  # if this fails
            entry.tls = self.tls.wrap(connection.fd)
            entry.closed = False
        entry.goes_on, entry.waits_to_write = True, False
        try:
            entry.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            entry.waits_to_write = True
            return False
        return True

    # Reading and writing

    def _happened(self, connection: Connection, event: int) -> None:
        entry: _Entry | None = connection.entry
        if entry is None or entry.open:
            super()._happened(connection, event)
        elif event & BROKEN:
            self._end(connection, Ending.RESET)
        else:
            self._enter_later(connection)

    def _read(self, connection: Connection) -> None:
        entry: _Entry | None = connection.entry
        if entry is None or (entry.open and entry.tls is None):
            super()._read(connection)
        elif not entry.open or entry.tls is None:
            self._enter_later(connection)
        else:
            self._read_tls(connection, entry.tls)

    def _read_tls(self, connection: Connection, tls: ssl.SSLSocket) -> None:
        # A record holds 16 KiB at most, so one read takes all that was decrypted: nothing hides from the kernel's word.
        try:
            data = tls.read(READ_BYTES)
        except ssl.SSLWantReadError:
            return
        # It wants to write to a peer that takes nothing; or, ValueError, both have said goodbye already.
        except (OSError, ValueError):
            self._end(connection, connection.ending or Ending.RESET)
            return
        self._take(connection, data)

    def _offer(self, connection: Connection, data: bytes | bytearray) -> int:
        tls = _tls_of(connection)
        if tls is None:
            return super()._offer(connection, data)
        sent = 0
        try:
            while sent < len(data):
                sent += tls.write(memoryview(data)[sent:])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # what was not taken is offered again, the same bytes first, as OpenSSL wants it
        except OSError:
            self._end(connection, Ending.RESET)
            return 0
        return sent

    def _send_answered(self) -> None:
        answered, self._answered = self._answered, []
        self._replied += len(answered)
        for connection, data in answered:
            if connection.fd >= 0:
                self._send(connection, data)

    def _wanted(self, connection: Connection) -> int:
        entry: _Entry | None = connection.entry
        if entry is None or entry.open:
            return super()._wanted(connection)
        return 0 if connection.queued else OUT if entry.waits_to_write else IN

    # Ending

    def _say_goodbye(self, connection: Connection) -> None:
        tls = _tls_of(connection)
        if tls is not None:
            with suppress(ssl.SSLError, ValueError):  # it waits for the other side's goodbye; ours is out
                tls.unwrap()
        super()._say_goodbye(connection)

    def _close(self, connection: Connection, fd: int) -> None:
        entry: _Entry | None = connection.entry
        if entry is not None and not entry.open:
            del self._entering[fd]
            self._going_on.pop(fd, None)
            self._beginning.pop(fd, None)
        if entry is not None and entry.tls is not None:
            entry.tls.close()  # which closes the descriptor
        elif entry is None or not entry.closed:
            super()._close(connection, fd)

    def _peer_of(self, connection: Connection) -> Peer:
        tls = _tls_of(connection)
        subject = subject_of(tls) if tls is not None else ""
        return Peer.from_address(*connection.address[:2], subject)


def _tls_of(connection: Connection) -> ssl.SSLSocket | None:
    return connection.entry.tls if connection.entry is not None else None
