"""TCPClient: one connection to a peer that speaks our wire, with a deadline on every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import trio

from lambdamu.address import Address
from lambdamu.client_tls import Tls, TlsConversation
from lambdamu.datapack import DEFAULT_LIMITS, Decoder, WireLimits
from lambdamu.errors import LinkError
from lambdamu.lean_stream import LeanStream
from lambdamu.link_fault import link_error, refuse_self
from lambdamu.messages import Batch, LinkFault
from lambdamu.resolver import Resolver, SocketAddress
from lambdamu.tls_stream import TlsStream

_READ_BYTES: Final = 16384


class TCPClient:
    """A connection that is open; `address` is the one it really goes to.

    `send` and `receive` raise LinkError when the peer is gone or the deadline has passed, and `receive` raises
    RemoteProtocolError when it does not speak the wire; after either the connection is of no more use.
    """

    def __init__(self, stream: trio.abc.Stream, address: Address, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self.address = address
        self._stream = stream
        self._decoder = Decoder(limits)
        self._batches: Iterator[Batch] = iter(())

    @classmethod
    async def connect(
        cls,
        resolver: Resolver,
        host: str,
        port: int,
        *,
        within_s: float,
        limits: WireLimits = DEFAULT_LIMITS,
        tls: Tls | None = None,
    ) -> TCPClient:
        """Connect to the first address of `host` that takes it, look-up and handshake included in `within_s` seconds.

        Raise LinkError: no_address, refused, unreachable, no_descriptor, connect_timeout; with `tls` also certificate,
        tls, closed.
        """
        deadline = trio.current_time() + within_s
        with trio.CancelScope(deadline=deadline) as scope:
            addresses = await resolver.resolve(host, port)
        if scope.cancelled_caught:
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} was not looked up within {within_s:g} s")
        failure: LinkError | None = None
        for i, address in enumerate(addresses):
            # The time left is shared out, so that one address that swallows packets does not spend it all.
            share = max(0.0, deadline - trio.current_time()) / (len(addresses) - i)
            try:
                stream = await (
                    _connect(address, share) if tls is None else _connect_tls(address, share, tls.begin(host))
                )
            except LinkError as exc:
                failure = exc
            else:
                return cls(stream, Address(*address[1][:2]), limits)
        raise failure or LinkError(LinkFault.NO_ADDRESS, f"{host} has no address")

    async def send(self, data: bytes, *, within_s: float) -> None:
        """Send the bytes of batches, all of them within `within_s` seconds."""
        with trio.move_on_after(within_s):
            await self.send_now(data)
            return
        raise LinkError(LinkFault.TIMEOUT, f"{self.address} took no bytes for {within_s:g} s")

    async def send_now(self, data: bytes) -> None:
        """Send, under the deadline that the caller has set."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as exc:
            raise LinkError(LinkFault.CLOSED, f"{self.address} has closed the connection") from exc

    async def receive(self, *, within_s: float) -> Batch:
        """Return the next batch, when it is whole within `within_s` seconds."""
        with trio.move_on_after(within_s):
            return await self.next_batch()
        raise LinkError(LinkFault.TIMEOUT, f"{self.address} did not answer within {within_s:g} s")

    async def next_batch(self) -> Batch:
        """Return the next batch, under the deadline that the caller has set."""
        while True:
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except trio.BrokenResourceError as exc:
                raise LinkError(LinkFault.CLOSED, f"{self.address} has reset the connection") from exc
            if not data:
                raise LinkError(LinkFault.CLOSED, f"{self.address} has closed the connection")
            self._batches = self._decoder.feed(bytes(data))

    async def is_quiet(self) -> bool:
        """Return whether it is open and nothing has come since the last batch; where not, it is of no more use."""
        if self._decoder.pending:
            return False
        with trio.move_on_after(0):
            with suppress(trio.BrokenResourceError, LinkError):
                await self._stream.receive_some(_READ_BYTES)
            return False
        return True

    async def aclose(self) -> None:
        """Close without waiting for the peer."""
        await trio.aclose_forcefully(self._stream)


async def _connect(address: SocketAddress, within_s: float) -> LeanStream:
    shown = Address(*address[1][:2])
    try:
        with trio.move_on_after(within_s) as scope:
            stream = await LeanStream.connect(*address)
        if scope.cancelled_caught:
            raise LinkError(LinkFault.CONNECT_TIMEOUT, f"{shown} did not take the connection within {within_s:g} s")
    except OSError as exc:
        raise link_error(exc, shown) from exc
    try:
        refuse_self(stream.socket, shown)
    except OSError as exc:
        stream.socket.close()
        raise link_error(exc, shown) from exc
    except LinkError:
        stream.socket.close()
        raise
    return stream


async def _connect_tls(address: SocketAddress, within_s: float, conversation: TlsConversation) -> TlsStream:
    """Connect and shake hands."""
    deadline = trio.current_time() + within_s
    plain = await _connect(address, within_s)
    stream = TlsStream(plain, conversation, Address(*address[1][:2]))
    try:
        with trio.CancelScope(deadline=deadline) as scope:
            await stream.shake_hands()
        if scope.cancelled_caught:
            text = f"{stream.shown} did not shake hands by TLS within {within_s:g} s"
            raise LinkError(LinkFault.CONNECT_TIMEOUT, text)
    except BaseException:
        plain.socket.close()
        raise
    return stream
