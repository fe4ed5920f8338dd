"""The upstream: who has the data that are kept warm. Any peer that speaks our wire and answers a Get with a text.

    {Object, Command: "Get", Name, Data: {Client, Session, Type, Version}}  ->  {Object, Command: "Value", Name, Data}

A call takes a connection that is idle, or makes one; each carries one question at a time, so that a slow answer holds
up no other. Every peer has a breaker: one that fails is left alone, and its calls go to the next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, Protocol

import trio

from lambdamu.address import Address
from lambdamu.breaker import Breaker, BreakerPolicy, Fault, Permit, Refused, State
from lambdamu.client_tls import Tls
from lambdamu.datapack import WireLimits, encode
from lambdamu.errors import LambdaMuError, LinkError, RemoteProtocolError
from lambdamu.messages import Batch, Command, LinkFault, Message, as_map, as_text
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient
from master.cache.flights import Key
from master.cache.warm_types import WarmType

_LIMITS: Final = WireLimits(batch_bytes=2**20)
_TRIAL_SHARE: Final = 0.5
"""Of its time, for a call that finds out whether a peer is back: an answer that was lost is not waited for so long that
those who come meanwhile, and are refused, come again for nothing."""
_IDLE: Final = 100
"""So many connections to one peer are kept while nobody uses them."""


class UpstreamError(LambdaMuError):
    """There are no data to be had; the text is one line for people."""


class Upstream(Protocol):
    """Where data come from."""

    async def fetch(self, kind: WarmType, key: Key, session: str | None, within_s: float) -> bytes:
        """Return the data, at least one byte, within so many seconds. Raise UpstreamError."""
        ...


class _Peer:
    """One address: its breaker, and its connections that are idle, the one used last at the end."""

    def __init__(self, address: Address, policy: BreakerPolicy) -> None:
        self.address = address
        self.breaker = Breaker(policy)
        self.idle: list[TCPClient] = []


class WireUpstream:
    """Calls peers by our wire; `peers` are tried in turn, each call at most once each. `value_bytes`: longer data count
    as none, since neither an answer of ours nor the store has room for them.
    """

    def __init__(
        self,
        peers: Sequence[Address],
        *,
        policy: BreakerPolicy | None = None,
        resolver: Resolver | None = None,
        tls: Tls | None = None,
        rng: random.Random | None = None,
        value_bytes: int = _LIMITS.batch_bytes,
    ) -> None:
        if not peers:
            raise ValueError("an upstream needs at least one address")
        self.peers: Final = [_Peer(address, policy or BreakerPolicy()) for address in peers]
        self._resolver = resolver or Resolver()
        self._tls = tls
        self._rng = rng or random.Random()
        self.value_bytes: Final = value_bytes
        self._turn = 0

    async def fetch(self, kind: WarmType, key: Key, session: str | None, within_s: float) -> bytes:
        """Return the data, at least one byte, within so many seconds. Raise UpstreamError."""
        client, number, version = key
        data = {"Client": client, "Type": number, "Version": version} | ({"Session": session} if session else {})
        question = Message(kind.object, Command.GET, kind.name, data)
        deadline = trio.current_time() + within_s
        self._turn += 1
        why = "none of its peers may be called now"
        for i in range(len(self.peers)):
            peer = self.peers[(self._turn + i) % len(self.peers)]
            permit = peer.breaker.acquire(trio.current_time(), self._rng)
            if isinstance(permit, Refused):
                continue
            try:
                # The time left is shared out, so that one peer that is silent does not spend it all.
                share_s = (deadline - trio.current_time()) / (len(self.peers) - i)
                if peer.breaker.state(trio.current_time()) is State.HALF_OPEN:
                    share_s *= _TRIAL_SHARE
                return await self._call(peer, permit, question, share_s)
            except LinkError as exc:
                why = str(exc)
            finally:
                permit.ignored(trio.current_time())
        await trio.lowlevel.checkpoint()  # a whole queue may be refused at once: everybody else has a turn between
        raise UpstreamError(f"{kind.kind}: {why}")

    async def aclose(self) -> None:
        """Close all connections that are idle."""
        for peer in self.peers:
            while peer.idle:
                await peer.idle.pop().aclose()

    async def _call(self, peer: _Peer, permit: Permit, question: Message, within_s: float) -> bytes:
        """Ask one peer. Raise LinkError where it was not there, and UpstreamError where it said no."""
        try:
            with trio.move_on_after(within_s):
                batch = await self._ask(peer, encode([question]), within_s)
                try:
                    value = _read(question, batch, self.value_bytes)
                except UpstreamError:
                    permit.failed(trio.current_time(), Fault.LOGIC)
                    raise
                permit.succeeded(trio.current_time())
                return value
            raise LinkError(LinkFault.TIMEOUT, f"{peer.address} did not answer within {within_s:g} s")
        except RemoteProtocolError as exc:
            permit.failed(trio.current_time())
            raise LinkError(LinkFault.NOT_THE_PROTOCOL, f"{peer.address} does not speak the protocol: {exc}") from exc
        except LinkError:
            permit.failed(trio.current_time())
            raise

    async def _ask(self, peer: _Peer, question: bytes, within_s: float) -> Batch:
        """Return the answer of a peer. What came on an idle connection is no answer: it may be somebody else's."""
        while peer.idle:
            client = peer.idle.pop()
            try:
                quiet = await client.is_quiet()
            except BaseException:
                await client.aclose()
                raise
            if quiet:
                return await self._converse(peer, client, question)
            await client.aclose()
        client = await TCPClient.connect(
            self._resolver, peer.address.host, peer.address.port, within_s=within_s, limits=_LIMITS, tls=self._tls
        )
        return await self._converse(peer, client, question)

    async def _converse(self, peer: _Peer, client: TCPClient, question: bytes) -> Batch:
        try:
            await client.send_now(question)
            batch = await client.next_batch()
        except BaseException:
            await client.aclose()
            raise
        if len(peer.idle) < _IDLE:
            peer.idle.append(client)
        else:
            await client.aclose()
        return batch


def _read(question: Message, batch: Batch, most_bytes: int) -> bytes:
    """Return the data of an answer. Raise UpstreamError where it has none."""
    asked = f"{question.object}.{question.name}"
    for message in batch:
        if (message.object, message.name) != (question.object, question.name):
            continue
        if message.command == Command.ERROR:
            raise UpstreamError(f"{asked}: the upstream says {_told(message.data)}")
        value = message.data.encode() if isinstance(message.data, str) else message.data
        if isinstance(value, bytes) and len(value) > most_bytes:
            raise UpstreamError(f"{asked}: the upstream sent {len(value)} bytes, and a value has at most {most_bytes}")
        if message.command == Command.VALUE and isinstance(value, bytes) and value:
            return value
    raise UpstreamError(f"{asked}: the upstream sent no text with its answer")


def _told(data: Any) -> str:
    """Return what an Error says, in one short line."""
    fields = as_map(data) or {}
    words = [as_text(fields.get(key)) for key in ("Code", "Text")]
    text = ": ".join(word for word in words if word) or "no, and not why"
    return "".join(char if char.isprintable() else " " for char in text[:200])
