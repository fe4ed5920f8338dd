"""One connection of a port: bytes in, answers out, in order, with a deadline on everything that may wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

import trio

from lambdamu.datapack import Decoder
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Batch, Message
from lambdamu.objects import Farewell, Later, Peer
from lambdamu.port import (
    BATCHES_A_TURN,
    FLUSH_BYTES,
    LAST_CALL_S,
    LINGER_BYTES,
    LINGER_S,
    READ_BYTES,
    REST_S,
    Ending,
    Handler,
    PortLimits,
    PortObserver,
)
from lambdamu.wire import Wire


class Server(Protocol):
    """What a connection needs of the server it belongs to."""

    handler: Handler
    limits: PortLimits
    observer: PortObserver
    wire: Wire
    stopped_at: float | None
    """When the stop began, or None."""

    def waiting(self, deadline: float) -> AbstractContextManager[object]:
        """Bound a wait by `deadline` and end it at the stop."""
        ...


class _Gone(Exception):  # noqa: N818 - it ends a conversation, and that is no error
    """The peer is gone, or has to go, while batches are being answered."""

    def __init__(self, how: Ending) -> None:
        self.how = how


class _Parted(Exception):  # noqa: N818 - it ends a conversation, and that is no error
    """The peer was answered for the last time."""


class Connection:
    """One connection: what was read and not yet served, what was answered and not yet sent, and since when."""

    def __init__(self, server: Server, stream: trio.abc.HalfCloseableStream, peer: Peer) -> None:
        self._server = server
        self._limits = server.limits
        self._stream = stream
        self._peer = peer
        self._decoder = Decoder(server.limits)
        self._out = bytearray()
        self._ahead = bytearray()
        self._half_closed = False
        self._active_at = trio.current_time()
        self._batch_began = self._active_at
        self._last_call = float("inf")
        self._replied = 0
        """Batches answered since bytes came last."""
        self._owed_s = 0.0
        """How long answers were owed since bytes came last: a wait of theirs, and not of ours."""

    async def converse(self) -> Ending:
        """Read, answer and write until one side has had enough."""
        while True:
            received = await self._receive()
            if isinstance(received, Ending):
                return await self._end(received)
            if not received:
                return Ending.LEFT
            began = trio.current_time()
            try:
                try:
                    await self._serve(received)
                except RemoteProtocolError as exc:
                    return await self._break_off(exc)
                except _Parted:
                    await self._flush()
                    return await self._end(Ending.REFUSED)
                await self._flush()
            except _Gone as gone:
                return gone.how
            self._active_at = trio.current_time()
            if self._replied:
                self._server.observer.replied(self._replied, self._active_at - began - self._owed_s)
            # While we did not read, the peer could not end the batch that it has begun.
            self._batch_began += self._active_at - began

    async def _receive(self) -> bytes | Ending:
        """Return bytes, none at a FIN, or why no more are waited for."""
        if self._ahead:
            received = bytes(self._ahead)
            self._ahead.clear()
            return received
        if self._half_closed:
            return b""
        while True:
            deadline, why = self._deadline()
            with self._server.waiting(deadline):
                return bytes(await self._stream.receive_some(READ_BYTES))
            if trio.current_time() >= deadline:
                return why

    def _deadline(self) -> tuple[float, Ending]:
        if self._server.stopped_at is not None:
            self._last_call = min(self._last_call, trio.current_time() + LAST_CALL_S)
        if self._decoder.pending:
            due = min(self._batch_began + self._limits.message_s, self._last_call + REST_S)
            return due, Ending.MESSAGE_DEADLINE
        if self._server.stopped_at is not None:
            return self._last_call, Ending.STOPPED
        return self._active_at + self._limits.idle_s, Ending.IDLE

    async def _serve(self, received: bytes) -> None:
        now, self._replied, self._owed_s = trio.current_time(), 0, 0.0
        if not self._decoder.pending:
            self._batch_began = now
        for served, batch in enumerate(self._decoder.feed(received), 1):
            await self._answer(batch)
            # What is left, if anything, is the beginning of the next batch, and came with these bytes.
            self._batch_began = now
            if len(self._out) > FLUSH_BYTES:
                await self._flush()
            if served % BATCHES_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _answer(self, batch: Batch) -> None:
        now = trio.current_time()
        answers: list[Message] = []
        for message in batch:
            reply = self._server.handler.handle(message, now, self._peer)
            if isinstance(reply, Later):
                reply = await self._owed(reply)
                now, asked_at = trio.current_time(), now
                self._owed_s += now - asked_at
            answers += reply
            if type(reply) is Farewell:
                self._out += self._server.wire.pack(answers)
                raise _Parted
        if answers:
            self._out += self._server.wire.pack(answers)
            self._replied += 1

    async def _owed(self, later: Later) -> Sequence[Message]:
        """Wait for an answer that is owed, reading ahead meanwhile, since only so a peer that leaves is noticed."""
        answers: Sequence[Message] = ()
        answered = trio.Event()

        def take(messages: Sequence[Message]) -> None:
            nonlocal answers
            answers = messages
            answered.set()

        later.attach(take)
        if answered.is_set():
            return answers
        try:
            await self._flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_ahead, later, nursery.cancel_scope)
                await answered.wait()
                nursery.cancel_scope.cancel()
        finally:
            later.cancel()
        if not answered.is_set():
            raise _Gone(Ending.LEFT if self._half_closed else Ending.RESET)
        return answers

    async def _read_ahead(self, later: Later, owed: trio.CancelScope) -> None:
        while len(self._ahead) < self._limits.batch_bytes and not self._half_closed:
            try:
                received = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                owed.cancel()
                return
            self._ahead += received
            self._half_closed = not received
        if self._half_closed and later.fin_cancels:
            owed.cancel()

    async def _flush(self) -> None:
        """Send what was answered; raise _Gone when the peer does not take it in time."""
        if not self._out:
            return
        out = bytes(self._out)
        self._out.clear()
        with trio.move_on_after(self._limits.send_s) as scope:
            await self._stream.send_all(out)
        if scope.cancelled_caught:
            raise _Gone(Ending.SEND_DEADLINE)

    async def _break_off(self, exc: RemoteProtocolError) -> Ending:
        self._server.observer.broke_protocol(exc.code)
        self._out += self._server.wire.last_word(exc)
        await self._flush()
        return await self._end(Ending.PROTOCOL)

    async def _end(self, how: Ending) -> Ending:
        if how in (Ending.PROTOCOL, Ending.REFUSED, Ending.STOPPED):
            await linger(self._stream)
        return how


async def linger(stream: trio.abc.HalfCloseableStream) -> None:
    """Have the peer hear our last word before the socket is closed."""
    with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError):
        await stream.send_eof()
        thrown_away = 0
        while thrown_away < LINGER_BYTES and (received := await stream.receive_some(READ_BYTES)):
            thrown_away += len(received)
