"""One post against real sockets: what counts as delivered, and what else there is."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import h11
import pytest
import trio
import trustme

from lambdamu.address import Address
from lambdamu.tcp_server import open_listeners
from master.alerts.webhook import Webhook, WebhookError
from master.webhook_url import WebhookURL

SECRET = "/T0/B0/hush?key=hush"


class Receiver:
    """Answers each connection with the same bytes, or none, and keeps what it was sent."""

    def __init__(self, answer: bytes, *, hangs: bool = False) -> None:
        self.answer = answer
        self.hangs = hangs
        self.requests: list[h11.Request] = []
        self.bodies: list[bytes] = []
        self.port = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection, body = h11.Connection(h11.SERVER), b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    self.requests.append(event)
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    connection.receive_data(bytes(await stream.receive_some(4096)))
            self.bodies.append(body)
            await stream.send_all(self.answer)
            if self.hangs:
                await trio.sleep_forever()
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def receiver(answer: bytes, context: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Receiver]:
    here = Receiver(answer, **options)

    async def handle(stream: trio.SocketStream) -> None:
        if context is None:
            await here.serve(stream)
        else:
            await here.serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(open_listeners(Address("127.0.0.1", 0))[0]))
    here.port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield here
        nursery.cancel_scope.cancel()


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 0", "", ""]).encode()


async def post(port: int, *, scheme: str = "http", within_s: float = 5.0, webhook: Webhook | None = None) -> None:
    url = WebhookURL.parse(f"{scheme}://127.0.0.1:{port}{SECRET}")
    with trio.fail_after(10):
        await (webhook or Webhook()).post(url, b'{"text":"x"}', within_s=within_s)


async def failure(port: int, **options: Any) -> WebhookError:
    with pytest.raises(WebhookError) as caught:
        await post(port, **options)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("line", ["200 OK", "204 No Content", "202 Accepted"])
async def test_what_is_posted_and_what_counts_as_delivered(line: str) -> None:
    async with receiver(status(line)) as here:
        await post(here.port)
        (request,) = here.requests
        headers = dict(request.headers)
        assert (request.method, request.target) == (b"POST", SECRET.encode())
        assert headers[b"host"] == f"127.0.0.1:{here.port}".encode()
        assert headers[b"content-type"] == b"application/json"
        assert here.bodies == [b'{"text":"x"}']


async def test_an_answer_counts_when_its_head_is_there_however_long_the_rest_takes() -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    async with receiver(head, hangs=True) as here:
        await post(here.port)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (status("500 Oops"), "it answered 500"),
        (status("404 Not Found"), "it answered 404"),
        (status("302 Found", "Location: http://127.0.0.1:1/"), "it answered 302, and redirects are not followed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "it does not answer in HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "it does not answer in HTTP/1.1"),
        (b"", "it has closed the connection"),
        (b"HTTP/1.1 2", "it has closed the connection"),
    ],
)
async def test_anything_else_is_a_failure_in_one_line(answer: bytes, said: str) -> None:
    async with receiver(answer) as here:
        failed = await failure(here.port)
        assert (str(failed), failed.retry_after_s) == (said, 0.0)
        assert len(here.requests) == 1  # and nobody was asked a second time


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [("30", 30, 30), ("in an hour", 1, 3601), ("Mon, 01 Jan 2001 00:00:00 GMT", 0, 0), ("soon", 0, 0), ("-5", 0, 0)],
)
async def test_a_receiver_may_say_when_to_come_back(value: str, least: float, most: float) -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    given = in_an_hour if value == "in an hour" else value
    async with receiver(status("429 Too Many", f"Retry-After: {given}")) as here:
        assert least <= (await failure(here.port)).retry_after_s <= most


async def test_a_receiver_that_hangs_is_left_after_the_deadline() -> None:
    async with receiver(b"", hangs=True) as here:
        assert str(await failure(here.port, within_s=0.05)) == "no answer within 0.05 s"


async def test_nobody_there_is_a_failure_too(nobody: Address) -> None:
    assert str(await failure(nobody.port)) == f"{nobody}: Connection refused"


async def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(WebhookError, match=r"^nowhere\.invalid has no address"):
        await Webhook().post(WebhookURL.parse(f"http://nowhere.invalid{SECRET}"), b"", within_s=30.0)


def contexts(name: str) -> tuple[ssl.SSLContext, Callable[[], ssl.SSLContext]]:
    """Return a server's context for `name`, and what makes one that trusts it."""
    ca, server, client = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert(name).configure_cert(server)
    ca.configure_trust(client)
    return server, lambda: client


async def test_over_tls_a_certificate_that_is_trusted_is_good() -> None:
    server, trust = contexts("127.0.0.1")
    async with receiver(status("200 OK"), server) as here:
        webhook = Webhook(trust)
        for _ in range(2):
            await post(here.port, scheme="https", webhook=webhook)
        assert len(here.bodies) == 2


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_certificate_of_somebody_else_or_that_nobody_trusts_is_refused(trusted: bool) -> None:
    server, trust = contexts("127.0.0.2" if trusted else "127.0.0.1")
    async with receiver(status("200 OK"), server) as here:
        webhook = Webhook(trust) if trusted else Webhook()
        failed = await failure(here.port, scheme="https", webhook=webhook)
        assert str(failed).startswith("its certificate is not good: ")
        assert here.requests == []


async def test_a_receiver_that_speaks_no_tls_is_told_of_as_such() -> None:
    async with receiver(status("200 OK")) as here:
        assert str(await failure(here.port, scheme="https")).startswith(("TLS has failed", "it has closed"))
