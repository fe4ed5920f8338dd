"""One POST to a webhook, with one deadline for all of it. Redirects are not followed; certificates are checked."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import h11
import trio

from lambdamu.address import Address
from lambdamu.errors import LambdaMuError, LinkError
from lambdamu.link_fault import link_error
from lambdamu.resolver import Resolver, SocketAddress
from master.webhook_url import WebhookURL

_READ_BYTES: Final = 4096


class WebhookError(LambdaMuError):
    """A post has not come to its receiver; str() is one line without the URL. `retry_after_s`: 0 for none."""

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(text)


class Webhook:
    """Posts. `trust` makes the TLS context, once: by default that of the system's certificates."""

    def __init__(self, trust: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        self._resolver = Resolver()
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def post(self, url: WebhookURL, body: bytes, *, within_s: float) -> None:
        """Post `body`. Raise WebhookError when the answer is not 2xx, or none has come `within_s` seconds."""
        with trio.move_on_after(within_s):
            stream = await self._connect(url)
            try:
                response = await _exchange(stream, url, body)
            except trio.BrokenResourceError as exc:
                raise WebhookError(_why_broken(exc)) from exc
            except h11.RemoteProtocolError as exc:
                raise WebhookError("it does not answer in HTTP/1.1") from exc
            finally:
                await trio.aclose_forcefully(stream)
            _judge(response)
            return
        raise WebhookError(f"no answer within {within_s:g} s")

    async def _connect(self, url: WebhookURL) -> trio.abc.Stream:
        try:
            addresses = await self._resolver.resolve(url.host, url.port)
        except LinkError as exc:
            raise WebhookError(str(exc)) from exc
        stream = await _connect_to_one(addresses)
        if url.scheme == "http":
            return stream
        if self._context is None:
            # In a thread: reading the system's certificates takes some ten ms.
            self._context = await trio.to_thread.run_sync(self._trust, abandon_on_cancel=True)
        return trio.SSLStream(stream, self._context, server_hostname=url.host, https_compatible=True)


async def _connect_to_one(addresses: list[SocketAddress]) -> trio.SocketStream:
    failure = "no address took the connection in time"
    for i, (family, address) in enumerate(addresses):
        # The time left is shared out, so that one address that swallows packets does not spend it all.
        share_s = (trio.current_effective_deadline() - trio.current_time()) / (len(addresses) - i)
        sock = trio.socket.socket(family)
        try:
            with trio.move_on_after(max(0.0, share_s)):
                await sock.connect(address)
                return trio.SocketStream(sock)
        except OSError as exc:
            failure = str(link_error(exc, Address(*address[:2])))
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise WebhookError(failure)


async def _exchange(stream: trio.abc.Stream, url: WebhookURL, body: bytes) -> h11.Response:
    """Send the request and return the head of the answer; what follows is not read."""
    connection = h11.Connection(h11.CLIENT)
    headers = [
        ("Host", url.authority),
        ("User-Agent", "lambdamu"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    request = h11.Request(method="POST", target=url.target, headers=headers)
    sent = [connection.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
    await stream.send_all(b"".join(piece for piece in sent if piece is not None))
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            return event
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise WebhookError("it has closed the connection")
            connection.receive_data(bytes(data))


def _judge(response: h11.Response) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    redirect = ", and redirects are not followed" * (300 <= status < 400)
    given = next((value for name, value in response.headers if name == b"retry-after"), b"")
    raise WebhookError(f"it answered {status}{redirect}", _retry_after_s(given.decode("latin-1")))


def _retry_after_s(text: str) -> float:
    """Return the seconds of a `Retry-After`, which may be a date; 0 for what is neither."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (at - datetime.now(UTC)).total_seconds()) if at.tzinfo is not None else 0.0


def _why_broken(exc: trio.BrokenResourceError) -> str:
    match exc.__cause__:
        case ssl.SSLCertVerificationError() as cause:
            return f"its certificate is not good: {cause.verify_message}"
        case ssl.SSLError() as cause:
            return f"TLS has failed: {cause.reason}"
        case _:
            return "it has closed the connection"
