"""TLS of a client over a stream; what it hears and says is in the clear on this side."""

from __future__ import annotations

import ssl
from contextlib import suppress

import trio

from lambdamu.address import Address
from lambdamu.client_tls import TlsConversation
from lambdamu.errors import LinkError
from lambdamu.link_fault import link_error
from lambdamu.messages import LinkFault


class TlsStream(trio.abc.Stream):
    """Bytes both ways, after `shake_hands`. `shown`: whom errors name. What is not right by TLS is a LinkError.

    It ends without a goodbye: a batch that was cut off is none, and no session of it is resumed.
    """

    def __init__(self, stream: trio.abc.Stream, conversation: TlsConversation, shown: Address) -> None:
        self._stream = stream
        self._conversation = conversation
        self.shown = shown

    async def shake_hands(self) -> None:
        """Make sure who the peer is. Raise LinkError: certificate, tls, closed. The caller sets the deadline."""
        try:
            while not self._conversation.shake_hands():
                await self._stream.send_all(self._conversation.outgoing())
                await self._take()
            await self._stream.send_all(self._conversation.outgoing())
        except ssl.SSLError as exc:
            with suppress(trio.BrokenResourceError):  # the peer is told why, as far as TLS has a word for it
                await self._stream.send_all(self._conversation.outgoing())
            raise link_error(exc, self.shown) from exc
        except trio.BrokenResourceError as exc:
            raise self._closed() from exc

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            hidden = self._conversation.write(bytes(data))
        except ssl.SSLError as exc:
            raise link_error(exc, self.shown) from exc
        await self._stream.send_all(hidden)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 - a record at most, or a few small ones
        """Return what the peer has said, none at the end. What TLS has to say to it goes with the next `send_all`."""
        try:
            while not (said := self._conversation.read()) and not self._conversation.ended:
                data = await self._stream.receive_some()
                if not data:
                    return b""
                self._conversation.take(bytes(data))
        except ssl.SSLError as exc:
            raise link_error(exc, self.shown) from exc
        return said

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _take(self) -> None:
        data = await self._stream.receive_some()
        if not data:
            raise self._closed()
        self._conversation.take(bytes(data))

    def _closed(self) -> LinkError:
        return LinkError(LinkFault.CLOSED, f"{self.shown} has closed the connection in the TLS handshake")
