"""The conversations of the port on Linux: reading, answering, writing, waiting and ending, for any connection.

No task, no await and no timer for any of them: each is gone on with when the kernel says that it has something to say
or takes something, in slices that are bounded. Whose door they came in by, and when a turn is over, is the business of
`lambdamu.epoll_server`.

The class is longer than a page because it is one state machine over one table of connections; what a connection
holds, and the bookkeeping of its deadlines, stand in `lambdamu.epoll_connection`.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from typing import Any, Final, Literal

import trio

from lambdamu.epoll_connection import UNREGISTERED, Connection, Deadlines
from lambdamu.errors import RemoteProtocolError
from lambdamu.objects import Farewell, Later, Peer, Quick
from lambdamu.port import (
    BATCHES_A_TURN,
    BATCHES_OF_ALL,
    FLUSH_BYTES,
    LINGER_BYTES,
    READ_BYTES,
    Ending,
    Port,
)

_KNOWN_QUESTIONS: Final = 64
"""So many spellings of questions are known by their bytes. Full, the table begins anew: whoever fills it with spellings
of his own costs the others one decoding each."""

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP


def _no_answer(_now: float, _family: Literal[4, 6], _address: tuple[str, int]) -> bytes:
    return b""


class Conversations(Port):
    """All connections of a port, and what is said on them."""

    def _set_up(self) -> None:
        super()._set_up()
        self._epoll = select.epoll()
        self._now = 0.0
        self._all = Deadlines(self.limits)
        self._moved = self._all.moved
        self._ready: list[Connection] = []
        """Those with more to be answered in the next turn."""
        self._answered: list[tuple[Connection, bytes]] = []
        """Answers that go out together: then those who get them are not woken one by one, while we read."""
        self._replied = 0
        """Batches answered since the moment `_now`."""
        self._known: dict[bytes, Quick] = {}
        self._frequent = bytes(READ_BYTES + 1)
        """The question that was known last; at first one that is longer than all that is ever read at once."""
        self._frequently: Quick = _no_answer
        self._wait_scope: trio.CancelScope | None = None

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._all)

    def _wake(self) -> None:
        """Have the next turn begin at once."""
        if self._wait_scope is not None:
            self._wait_scope.cancel()

    # Reading

    def _happened(self, connection: Connection, event: int) -> None:
        if event & OUT:
            self._write(connection)
        elif event & IN:
            self._read(connection)
        elif event & BROKEN:
            self._end(connection, connection.ending or Ending.RESET)

    def _read(self, connection: Connection) -> None:
        try:
            data = os.read(connection.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._end(connection, connection.ending or Ending.RESET)
            return
        if data == self._frequent and connection.decoder is None and connection.ending is None:
            # Most of all asks end here: what `_answer_frequent` does, in one piece.
            now = connection.active_at = self._now
            answer = self._frequently(now, connection.family, connection.address)
            if answer is None:
                self._read_anew(connection, data)
            else:
                self._moved(connection.fd)
                self._answered.append((connection, answer))
        else:
            self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        """Go on with what was read."""
        if connection.ending is not None:
            self._throw_away(connection, len(data))
        elif not data:
            self._half_close(connection)
        elif connection.decoder is None and data.startswith(self._frequent):
            self._answer_frequent(connection, data)
        else:
            self._feed(connection, data)

    def _answer_frequent(self, connection: Connection, data: bytes) -> None:
        """Answer a question that is known by its bytes, or a row of them; a value ends where its bytes do."""
        question, quick, now = self._frequent, self._frequently, self._now
        self._all.touch(connection, now)
        answers: list[bytes] = []
        at, answer = 0, None
        while data.startswith(question, at):
            answer = quick(now, connection.family, connection.address)
            if answer is None:
                break
            answers.append(answer)
            at += len(question)
        self._replied += len(answers)
        if answers:
            self._send(connection, b"".join(answers))
        if at < len(data) and connection.fd >= 0:
            (self._feed if answer is not None else self._read_anew)(connection, data[at:])

    def _read_anew(self, connection: Connection, data: bytes) -> None:
        """Read a question that is known, and cannot be answered as usual now."""
        connection.decoder = self.wire.reader(self.limits)
        self._feed(connection, data)

    def _feed(self, connection: Connection, data: bytes) -> None:
        """Take in bytes; answer what is whole, unless something before it waits still."""
        decoder = connection.decoder
        if decoder is None:
            quick = self._known.get(data)
            if quick is not None:
                self._frequent, self._frequently = data, quick
                self._answer_frequent(connection, data)
                return
            decoder = connection.decoder = self.wire.reader(self.limits)
        if not decoder.pending:
            connection.began = self._now
        decoder.feed(data)
        if connection.busy:
            self._watch(connection)
        else:
            self._work(connection)

    def _half_close(self, connection: Connection) -> None:
        connection.half_closed = True
        owed = connection.owed
        if not connection.busy or (owed is not None and owed.fin_cancels):
            self._end(connection, Ending.LEFT)
        else:
            self._watch(connection)

    # Answering

    def _work(self, connection: Connection) -> None:
        """Answer batches until none is whole, an answer is owed, the peer does not keep up, or others have a turn."""
        gathered: list[bytes] = []
        for _ in range(BATCHES_A_TURN if self._replied < BATCHES_OF_ALL else 2):
            if connection.rest is None and not self._take_batch(connection, gathered):
                return
            if not self._answer(connection, gathered):
                return
            if sum(map(len, gathered)) > FLUSH_BYTES and not self._flush(connection, gathered):
                return
        if self._flush(connection, gathered):
            self._go_on_later(connection)

    def _take_batch(self, connection: Connection, gathered: list[bytes]) -> bool:
        """Begin the next batch; return False when there is none, and then all that follows is done."""
        assert connection.decoder is not None  # noqa: S101 - fed before
        try:
            batch = connection.decoder.next_batch()
        except RemoteProtocolError as exc:
            self._break_off(connection, exc, gathered)
            return False
        if batch is None:
            if self._flush(connection, gathered):
                self._settle(connection)
            return False
        connection.began = self._now
        self._all.whole(connection)
        connection.rest, connection.answers = iter(batch), []
        self._learn(connection, batch)
        return True

    def _learn(self, connection: Connection, batch: Sequence[Any]) -> None:
        """Know a question by its bytes from now on, when its answer hangs on nothing but the moment and the family."""
        quick = self.handler.prepare(batch)
        if quick is not None and connection.decoder is not None:
            if len(self._known) >= _KNOWN_QUESTIONS:
                self._known.clear()
            self._frequent = connection.decoder.frame
            self._frequently = self._known[self._frequent] = quick

    def _answer(self, connection: Connection, gathered: list[bytes]) -> bool:
        """Have the rest of a batch answered; return False when an answer is owed first."""
        peer = connection.peer
        if peer is None:
            peer = connection.peer = self._peer_of(connection)
        assert connection.rest is not None  # noqa: S101 - a batch was begun
        if connection.parting is not None:
            self._part(connection, connection.parting, gathered)
            return False
        for message in connection.rest:
            reply = self.handler.handle(message, self._now, peer)
            if type(reply) is Farewell:
                self._part(connection, reply, gathered)
                return False
            if not isinstance(reply, Later):
                connection.answers += reply
            elif not self._owe(connection, reply, gathered):
                return False
        if connection.answers:
            gathered.append(self.wire.pack(connection.answers))
            self._replied += 1
        connection.rest, connection.answers = None, []
        return True

    def _part(self, connection: Connection, farewell: Farewell, gathered: list[bytes]) -> None:
        """Answer for the last time, and end the connection well."""
        gathered.append(self.wire.pack([*connection.answers, *farewell]))
        connection.rest, connection.answers = None, []
        self._replied += 1
        self._flush(connection, gathered)
        self._finish(connection, Ending.REFUSED)

    def _peer_of(self, connection: Connection) -> Peer:
        return Peer.from_address(*connection.address[:2])

    def _owe(self, connection: Connection, later: Later, gathered: list[bytes]) -> bool:
        """Wait for an answer that is owed; return True when it is there already."""
        connection.owed = later
        connection.queued = True  # an answer that is there already goes on here, and not in the next turn
        later.attach(lambda messages: self._paid(connection, later, messages))
        connection.queued = False
        if connection.owed is None:
            if connection.parting is not None:
                self._part(connection, connection.parting, gathered)
            return connection.parting is None
        if connection.half_closed and later.fin_cancels:
            self._flush(connection, gathered)
            self._end(connection, Ending.LEFT)
            return False
        if self._flush(connection, gathered):
            self._watch(connection)
        return False

    def _paid(self, connection: Connection, later: Later, messages: Sequence[Any]) -> None:
        """Take in an owed answer. It is sent in a turn of ours and not in the middle of somebody else's work."""
        if connection.owed is later:
            connection.owed = None
            if type(messages) is Farewell:
                connection.parting = messages
            else:
                connection.answers += messages
            if not connection.queued:
                self._go_on_later(connection)
                self._wake()

    def _go_on_later(self, connection: Connection) -> None:
        connection.queued = True
        self._ready.append(connection)
        self._watch(connection)

    def _go_on(self, connection: Connection) -> None:
        """Answer what has waited for us, or for the peer to take its answers: that time is not charged to the peer."""
        connection.began = self._now
        self._work(connection)

    # Writing

    def _flush(self, connection: Connection, gathered: list[bytes]) -> bool:
        """Send what was gathered; return whether the peer has taken it and may be answered more."""
        if gathered:
            data = b"".join(gathered)
            gathered.clear()
            self._send(connection, data)
        return connection.fd >= 0 and not connection.out

    def _send(self, connection: Connection, data: bytes) -> None:
        """Send at once as much as the peer takes, and keep the rest until it takes more."""
        if connection.out:
            connection.out += data
            return
        sent = self._offer(connection, data)
        if sent < len(data) and connection.fd >= 0:
            self._keep(connection, data, sent)

    def _offer(self, connection: Connection, data: bytes | bytearray) -> int:
        """Return how many bytes the peer takes now; one that is gone takes none, and has ended."""
        try:
            return os.write(connection.fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._end(connection, Ending.RESET)
            return 0

    def _send_answered(self) -> None:
        """Do what `_send` does for many, written out: here most of all answers go."""
        answered, self._answered = self._answered, []
        self._replied += len(answered)
        write = os.write
        for connection, data in answered:
            if connection.fd < 0:
                continue
            if connection.out:
                self._send(connection, data)
                continue
            try:
                sent = write(connection.fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end(connection, Ending.RESET)
                continue
            if sent < len(data):
                self._keep(connection, data, sent)

    def _keep(self, connection: Connection, data: bytes, sent: int) -> None:
        """Keep what the peer has not taken until it takes more."""
        connection.out = bytearray(data[sent:])
        self._all.sending(connection, self._now)
        self._watch(connection)

    def _write(self, connection: Connection) -> None:
        """Send more of what was kept; when that is all, go on where the answers stopped."""
        out, connection.out = connection.out, None
        if out:
            rest = out[self._offer(connection, out) :]
            if rest and connection.fd >= 0:
                connection.out = rest
        if connection.fd < 0 or connection.out:
            return
        self._all.sent(connection)
        if connection.ending is not None:
            self._linger(connection)
        elif connection.owed is not None or connection.queued:
            self._watch(connection)
        elif connection.decoder is not None:
            self._go_on(connection)
        else:
            self._settle(connection)

    # Waiting, and ending

    def _settle(self, connection: Connection) -> None:
        """All that came is answered: wait for more, unless nothing more is wanted."""
        decoder = connection.decoder
        self._all.touch(connection, self._now)
        if connection.half_closed:
            self._end(connection, Ending.LEFT)
        elif decoder is not None and decoder.pending:
            self._all.partial(connection, self._now)
            self._watch(connection)
        elif decoder is not None and decoder.last:
            self._finish(connection, Ending.LEFT)
        else:
            self._all.whole(connection)
            connection.decoder = None
            if self._all.last_call_over:
                self._finish(connection, Ending.STOPPED)
            elif connection.mask not in (IN, UNREGISTERED):
                self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Tell the kernel what to watch for, when that is another thing than before."""
        if connection.fd < 0:
            return
        mask = self._wanted(connection)
        if connection.mask == UNREGISTERED:
            self._epoll.register(connection.fd, mask)
        elif mask != connection.mask:
            self._epoll.modify(connection.fd, mask)
        connection.mask = mask

    def _wanted(self, connection: Connection) -> int:
        """Return what to watch for."""
        return (IN if connection.reads(self.limits.batch_bytes) else 0) | (OUT if connection.out else 0)

    def _break_off(self, connection: Connection, exc: RemoteProtocolError, gathered: list[bytes]) -> None:
        self.observer.broke_protocol(exc.code)
        gathered.append(self.wire.last_word(exc))
        self._flush(connection, gathered)
        self._finish(connection, Ending.PROTOCOL)

    def _finish(self, connection: Connection, how: Ending) -> None:
        """End well: send what is to be sent, say so, and let the peer read it before the socket goes."""
        if connection.fd >= 0:
            connection.ending = how
            if not connection.out:
                self._linger(connection)

    def _linger(self, connection: Connection) -> None:
        try:
            self._say_goodbye(connection)
        except OSError:
            self._end(connection, Ending.RESET)
            return
        connection.decoder = None
        self._all.linger(connection, self._now)
        self._watch(connection)

    def _say_goodbye(self, connection: Connection) -> None:
        """Tell the peer that no more comes."""
        sock = socket.socket(fileno=connection.fd)
        try:
            sock.shutdown(socket.SHUT_WR)
        finally:
            sock.detach()

    def _throw_away(self, connection: Connection, count: int) -> None:
        connection.thrown_away += count
        if not count or connection.thrown_away >= LINGER_BYTES:
            assert connection.ending is not None  # noqa: S101 - only who is ending lingers
            self._end(connection, connection.ending)

    def _end(self, connection: Connection, how: Ending) -> None:
        """Close, give up what is owed, and forget."""
        fd, connection.fd = connection.fd, -1
        if fd < 0:
            return
        self._all.remove(fd, connection)
        self._cap.leave(connection.address[0])
        self._close(connection, fd)
        self.observer.ended(how)
        owed, connection.owed = connection.owed, None
        if owed is not None:
            owed.cancel()
        if connection.peer is not None:
            self.handler.disconnected(connection.peer)

    def _close(self, connection: Connection, fd: int) -> None:  # noqa: ARG002 - others hold more than a descriptor
        os.close(fd)
