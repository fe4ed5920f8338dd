"""The cache's own port: each answer is sent alone, when it is ready, in whatever order.

A connection is one task that reads. What can be answered at once it sends itself; an answer that was owed is sent by a
task beside it, one at a time. Answers that are ready are kept as they are and packed when they are sent, so a peer that
does not read holds no copies; so many answers may be owed or unsent, then no more is read from that peer.

It is long because who is in, and who makes room, is told by the same port that a conversation is one of.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, cast

import attrs
import trio

from lambdamu.connection import linger
from lambdamu.datapack import DEFAULT_LIMITS, Decoder, encode_alone
from lambdamu.errors import RemoteProtocolError
from lambdamu.lean_stream import LeanStream
from lambdamu.messages import Code, Message
from lambdamu.objects import Farewell, Later, Peer
from lambdamu.port import BATCHES_A_TURN, FLUSH_BYTES, LAST_CALL_S, REST_S, Ending, Handler, PortLimits, PortObserver
from lambdamu.stream_server import StreamServer
from lambdamu.tls import TlsDoor, subject_of

_READ_BYTES: Final = 65536
_STRANGERS: Final = 16
"""So many may be there however few connections are allowed: after a restart all come at once."""


class CachePort(StreamServer):
    """Serves `handler`, each of whose answers is one message. `asks`: so many of one connection are unanswered at once.

    `tls`: what handshakes are made by; None: plain text. A certificate that a peer shows is its subject. `knows`:
    whether somebody may ask; `wanted`: what a stranger is to do for it. Who may not has the message deadline to become
    one who may, and batches as short as on other ports: the memory and the connections are for those who may. Strangers
    have a quarter of the connections; one more puts out the one who has been one for longest, so who says the secret at
    once gets in, whoever else comes.
    """

    def __init__(
        self,
        handler: Handler,
        limits: PortLimits,
        asks: int,
        *,
        observer: PortObserver | None = None,
        tls: TlsDoor | None = None,
        knows: Callable[[Peer], bool] = lambda _: True,
        wanted: str = "",
    ) -> None:
        super().__init__(handler, limits, observer=observer)
        self.knows = knows
        self.last_word = self.wire.last_word(RemoteProtocolError(Code.NOT_YOURS, wanted)) if wanted else b""
        """To a stranger whose time is over."""
        most = min(limits.batch_bytes, DEFAULT_LIMITS.batch_bytes)
        self.limits_of_strangers = attrs.evolve(limits, batch_bytes=most)
        self.asks = asks
        self.entering = 0
        """Connections that shake hands now."""
        self._tls = tls
        self.most_strangers = max(limits.connections // 4, min(limits.connections, _STRANGERS))
        if tls is not None:  # those who shake hands are among them
            self.most_strangers = max(1, min(self.most_strangers, tls.policy.handshakes // 2))
        self.put_out = 0
        """Strangers who made room for others."""
        self._strangers: dict[trio.CancelScope, None] = {}

    @property
    def strangers(self) -> int:
        """How many connections are open now of whom nobody knows yet whether they may ask."""
        return len(self._strangers)

    def _make_stream(self, connection: socket.socket) -> LeanStream:
        with suppress(OSError):  # it was reset already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return LeanStream(connection)

    async def _converse(self, stream: trio.abc.HalfCloseableStream, peer: Peer) -> Ending:
        if self._tls is None and self.knows(peer):
            return await self._converse_with(stream, peer, lambda: None)
        with trio.CancelScope() as stranger:
            self._strangers[stranger] = None
            if len(self._strangers) > self.most_strangers:
                self._put_out()
            try:
                return await self._converse_with(stream, peer, partial(self._strangers.pop, stranger, None))
            finally:
                self._strangers.pop(stranger, None)
        return Ending.REFUSED

    def _put_out(self) -> None:
        """End the connection of who has been a stranger for longest."""
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.cancel()
        self.put_out += 1

    async def _converse_with(
        self, stream: trio.abc.HalfCloseableStream, peer: Peer, is_known: Callable[[], object]
    ) -> Ending:
        """`is_known` is to be called once the peer may ask."""
        if self._tls is None:
            return await _Conversation(self, stream, stream, peer, is_known).converse()
        secret = await self._shake_hands(stream, self._tls)
        if secret is None:
            return Ending.HANDSHAKE
        known = attrs.evolve(peer, subject=subject_of(cast("ssl.SSLSocket", secret)))
        try:
            return await _Conversation(self, secret, stream, known, is_known).converse()
        finally:
            self.handler.disconnected(known)

    async def _shake_hands(self, stream: trio.abc.HalfCloseableStream, tls: TlsDoor) -> trio.abc.Stream | None:
        """Return the stream under TLS; None where nothing comes of it."""
        if self.entering >= tls.policy.handshakes:
            self.observer.refused()
            return None
        secret = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
        self.entering += 1
        try:
            with self.waiting(trio.current_time() + self.limits.message_s), suppress(trio.BrokenResourceError):
                await secret.do_handshake()
                return secret
        finally:
            self.entering -= 1
        return None


class _Conversation:
    """One connection: what is owed, what is ready to be sent, and since when nothing was said."""

    def __init__(
        self,
        port: CachePort,
        stream: trio.abc.Stream,
        below: trio.abc.HalfCloseableStream,
        peer: Peer,
        is_known: Callable[[], object],
    ) -> None:
        """`below`: the same in the clear, or what carries the TLS. `is_known`: is called once the peer may ask."""
        self._below = below
        self._port = port
        self._limits = port.limits
        self._stream = stream
        self._peer = peer
        self._is_known = is_known
        self._known = port.knows(peer)
        if self._known:
            is_known()
        self._decoder = Decoder(port.limits if self._known else port.limits_of_strangers)
        self._owed: set[Later] = set()
        self._ready: deque[Message | bytes] = deque()
        self._sending = False
        self._sent = trio.Event()
        """Set, and replaced, when something was sent."""
        self._wait = trio.CancelScope()
        """Bounds the wait for bytes that is on."""
        self._active_at = self._batch_began = began = trio.current_time()
        self._known_by = began + port.limits.message_s
        """When a stranger has to have said who it is."""
        self._last_call = float("inf")
        self._served = 0
        self._ended: Ending | None = None

    async def converse(self) -> Ending:
        """Talk until one of both ends it; return how."""
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    self._end(await self._talk())
                except trio.BrokenResourceError:
                    self._end(Ending.RESET)
        finally:
            self._give_up()
        assert self._ended is not None  # noqa: S101 - the nursery has not ended by itself
        return self._ended

    async def _talk(self) -> Ending:
        how = await self._hear()
        if how is Ending.PROTOCOL:
            self._give_up()
        elif how in (Ending.IDLE, Ending.MESSAGE_DEADLINE) and not self._known and self._port.last_word:
            self._ready.append(self._port.last_word)
        await self._say_all()
        if how in (Ending.PROTOCOL, Ending.REFUSED, Ending.STOPPED):
            await linger(self._below)
        return how

    async def _hear(self) -> Ending:
        """Read and answer until there is nothing more to be heard; return why."""
        while True:
            received = await self._receive()
            if isinstance(received, Ending):
                return received
            if not received:
                return Ending.LEFT
            began = trio.current_time()
            if not self._decoder.pending:
                self._batch_began = began
            try:
                parted = await self._answer_all(received)
            except RemoteProtocolError as exc:
                self._port.observer.broke_protocol(exc.code)
                self._ready.append(self._port.wire.last_word(exc))
                return Ending.PROTOCOL
            if parted:
                return Ending.REFUSED
            await self._make_room(1)
            self._active_at = trio.current_time()
            # While we did not read, the peer could not end the batch that it has begun.
            self._batch_began += self._active_at - began

    async def _receive(self) -> bytes | Ending:
        """Return bytes, none at a FIN, or why no more are waited for."""
        while True:
            deadline, why = self._deadline()
            with self._port.waiting(deadline) as self._wait:
                return bytes(await self._stream.receive_some(_READ_BYTES))
            if trio.current_time() >= self._deadline()[0]:
                return why

    def _deadline(self) -> tuple[float, Ending]:
        if self._port.stopped_at is not None:
            self._last_call = min(self._last_call, trio.current_time() + LAST_CALL_S)
        if self._decoder.pending:
            due = min(self._batch_began + self._limits.message_s, self._last_call + REST_S)
            return due if self._known else min(due, self._known_by), Ending.MESSAGE_DEADLINE
        if self._port.stopped_at is not None:
            return self._last_call, Ending.STOPPED
        if not self._known:
            return min(self._active_at + self._limits.idle_s, self._known_by), Ending.IDLE
        return float("inf") if self._owed else self._active_at + self._limits.idle_s, Ending.IDLE

    async def _answer_all(self, received: bytes) -> bool:
        """Answer what is whole now; return whether the peer was answered for the last time."""
        for batch in self._decoder.feed(received):
            now = trio.current_time()
            for message in batch:
                reply = self._port.handler.handle(message, now, self._peer)
                if isinstance(reply, Later):
                    self._owed.add(reply)
                    reply.attach(partial(self._take, reply))
                else:
                    self._ready.extend(reply)
                    if isinstance(reply, Farewell):
                        return True
            if not self._known and self._port.knows(self._peer):
                self._known = True
                self._is_known()
                self._decoder.allow(self._limits)
            self._batch_began = now
            await self._make_room(self._port.asks)
            self._served += 1
            if self._served % BATCHES_A_TURN == 0:  # counted on: there may be something to read each time
                await trio.lowlevel.checkpoint()
        return False

    def _take(self, later: Later, messages: Sequence[Message]) -> None:
        """Hear an answer that was owed."""
        self._owed.discard(later)
        self._ready.extend(messages)
        if not self._owed:
            self._active_at = trio.current_time()
            self._wait.deadline = self._deadline()[0]
        if not self._sending:
            self._sending = True
            self._nursery.start_soon(self._send_beside)

    async def _make_room(self, most: int) -> None:
        """Send until fewer than `most` are ready, and no more than allowed are owed."""
        while len(self._ready) >= most or len(self._ready) + len(self._owed) >= self._port.asks:
            if self._sending or not self._ready:
                if len(self._ready) + len(self._owed) < self._port.asks:
                    return  # another task sends them
                await self._sent.wait()
            else:
                await self._send()

    async def _say_all(self) -> None:
        """Wait until nothing is owed, and all is sent."""
        while self._owed or self._ready or self._sending:
            if self._ready and not self._sending:
                await self._send()
            else:
                await self._sent.wait()

    async def _send_beside(self) -> None:
        try:
            await self._send()
        except trio.BrokenResourceError:
            self._end(Ending.RESET)

    async def _send(self) -> None:
        """Send what is ready, until nothing is; end the connection when the peer does not take it in time."""
        self._sending = True
        try:
            while self._ready:
                out = self._pack()
                if isinstance(self._stream, LeanStream):  # most are taken at once, and a deadline has its cost
                    out = out[self._stream.send_some(out) :]
                    if not out:
                        continue
                with trio.move_on_after(self._limits.send_s) as scope:
                    await self._stream.send_all(out)
                if scope.cancelled_caught:
                    self._end(Ending.SEND_DEADLINE)
                    await trio.lowlevel.checkpoint()
        finally:
            self._sending = False
            self._sent.set()
            self._sent = trio.Event()

    def _pack(self) -> bytes:
        """Return as much of what is ready as is sent at once."""
        out, size = [], 0
        while self._ready and size < FLUSH_BYTES:
            answer = self._ready.popleft()
            packed = answer if isinstance(answer, bytes) else encode_alone(answer)
            out.append(packed)
            size += len(packed)
        return b"".join(out)

    def _give_up(self) -> None:
        owed, self._owed = self._owed, set()
        for later in owed:
            later.cancel()

    def _end(self, how: Ending) -> None:
        if self._ended is None:
            self._ended = how
        self._nursery.cancel_scope.cancel()
