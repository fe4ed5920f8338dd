"""Handlers that stand before an honest one and put a fault into what it answers."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from lambdamu.datapack import encode
from lambdamu.messages import Batch, Message
from lambdamu.objects import Later, Peer, Quick, Reply
from lambdamu.tcp_server import Handler
from server_stub.faults import Fault, Kind, Pack, packer, tamper


def with_fault(fault: Fault, handler: Handler, nursery: trio.Nursery) -> tuple[Handler, Pack]:
    """Return the handler and the packing of a port that has `fault`; late answers are given by tasks of `nursery`."""
    if fault.kind is Kind.SLOW:
        return Slow(handler, fault.delay_s, nursery), encode
    if fault.kind is Kind.HALF:
        half = Half(handler)
        return half, half.pack
    return Tampered(handler, fault), packer(fault)


class _NoShortcut:
    """Has every question answered one by one, since the fault lies in that."""

    def prepare(self, batch: Batch) -> Quick | None:  # noqa: ARG002 - the same for all
        return None


@attrs.define(eq=False)
class Tampered(_NoShortcut):
    """Leaves answers out, or changes them."""

    _handler: Handler
    _fault: Fault

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        reply = self._handler.handle(message, now, peer)
        return reply if isinstance(reply, Later) else tamper(self._fault, reply)

    def disconnected(self, peer: Peer) -> None:
        self._handler.disconnected(peer)


@attrs.define(eq=False)
class Slow(_NoShortcut):
    """Gives each answer late. A connection has its answers in order, so what one has to wait for, the next does too."""

    _handler: Handler
    _delay_s: float
    _nursery: trio.Nursery

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        reply = self._handler.handle(message, now, peer)
        return self._delayed(reply) if reply and not isinstance(reply, Later) else reply

    def disconnected(self, peer: Peer) -> None:
        self._handler.disconnected(peer)

    def _delayed(self, answers: Sequence[Message]) -> Later:
        scope = trio.CancelScope()
        later = Later(cancelled=scope.cancel)
        self._nursery.start_soon(self._answer, later, answers, scope)
        return later

    async def _answer(self, later: Later, answers: Sequence[Message], scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._delay_s)
            later.answer(answers)


class Half(_NoShortcut):
    """Lets half of the bytes of a connection's first answer through, and nothing after it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._answering: Peer | None = None
        """Whose answer is packed next: nothing is awaited between `handle` and `pack`."""
        self._silent: set[Peer] = set()

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        reply = self._handler.handle(message, now, peer)
        if reply:
            self._answering = peer
        return reply

    def disconnected(self, peer: Peer) -> None:
        self._silent.discard(peer)
        self._handler.disconnected(peer)

    def pack(self, answers: Sequence[Message]) -> bytes:
        peer, self._answering = self._answering, None
        if peer in self._silent:
            return b""
        if peer is not None:  # an Error about bytes that are no message follows no `handle`
            self._silent.add(peer)
        whole = encode(answers)
        return whole[: len(whole) // 2]
