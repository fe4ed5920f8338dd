"""HTTP/1.1 on a port: requests in, responses out, so far as a service that answers at once needs it.  Pure.

The head of a request is found by its empty line and parsed by llhttp (`httptools`), which is strict; so is this: a body
has a Content-Length, what is ambiguous is refused, and a connection whose request cannot be read is at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs
import httptools

from lambdamu.datapack import WireLimits
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Code

HEAD_BYTES: Final = 16384
_END: Final = b"\r\n\r\n"


class HttpError(RemoteProtocolError):
    """A request that ends its connection; `status` is what the peer is told."""

    def __init__(self, status: HTTPStatus, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.status = status


@attrs.frozen
class Request:
    """One request. Names of `headers` are in lower case; those that came more than once are joined by commas."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    keep_alive: bool = True


@attrs.frozen
class Response:
    """One response, whole. `headers` are those beside Content-Length and Connection."""

    status: HTTPStatus
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    head_only: bool = False
    """The answer to HEAD: with the length of the body, and without it."""
    keep_alive: bool = True

    def to_bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.status is not HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {len(self.body)}")
        if not self.keep_alive:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if self.head_only else self.body)


class HttpWire:
    """A batch is one request; its answer is one response."""

    def reader(self, limits: WireLimits) -> HttpReader:
        return HttpReader(limits)

    def pack(self, answers: Sequence[Response]) -> bytes:
        return b"".join([answer.to_bytes() for answer in answers])

    def last_word(self, fault: RemoteProtocolError) -> bytes:
        status = fault.status if isinstance(fault, HttpError) else HTTPStatus.SERVICE_UNAVAILABLE
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        return Response(status, headers, f"{fault.text}\n".encode(), keep_alive=False).to_bytes()


class HttpReader:
    """Bytes in, requests out. `limits.batch_bytes` is the most that a body may have."""

    def __init__(self, limits: WireLimits) -> None:
        self._most = limits.batch_bytes
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._head_bytes = 0
        self._looked = 0
        """So far there is no end of a head."""
        self._failure: HttpError | None = None
        self.last = False
        self.frame = b""

    @property
    def pending(self) -> bool:
        return bool(self._buffer)

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        if not self.last:  # what comes after the last request is nobody's
            self._buffer += data

    def next_batch(self) -> Sequence[Request] | None:
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except HttpError as fault:
            self._failure = fault
            self._buffer.clear()
            raise

    def _next(self) -> Sequence[Request] | None:
        if self._head is None and not self._find_head():
            return None
        head = self._head
        assert head is not None  # noqa: S101 - just found
        end = self._head_bytes + head.length
        if len(self._buffer) < end:
            return None
        self.frame = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._head, self._looked = None, 0
        request = head.request(self.frame[self._head_bytes :])
        if not request.keep_alive:
            self.last = True
            self._buffer.clear()
        return [request]

    def _find_head(self) -> bool:
        while self._buffer[:2] == b"\r\n":  # an empty line before a request is passed over (RFC 9112, 2.2)
            del self._buffer[:2]
        at = self._buffer.find(_END, max(0, self._looked - len(_END)))
        if (at if at >= 0 else len(self._buffer)) > HEAD_BYTES:
            text = f"the head of the request is longer than {HEAD_BYTES} bytes"
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, Code.LIMIT, text)
        if at < 0:
            self._looked = len(self._buffer)
            return False
        self._head_bytes = at + len(_END)
        self._head = _Head(bytes(self._buffer[: self._head_bytes]), self._most)
        return True


class _Head:
    """The head of one request, parsed and found to be one that can be answered."""

    def __init__(self, data: bytes, most: int) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._keep_alive = False
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to another protocol, which nobody has to go over to
        except httptools.HttpParserError as exc:
            raise HttpError(HTTPStatus.BAD_REQUEST, Code.BAD_MESSAGE, f"this is no request of HTTP: {exc}") from exc
        finally:
            del self._parser  # it holds us
        self._method = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            text = f"HTTP/1.1 is spoken here, and not HTTP/{version}"
            raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, Code.BAD_MESSAGE, text)
        self._keep_alive = self._keep_alive and version == "1.1"
        self.length = self._length(most)

    def on_url(self, data: bytes) -> None:
        self._target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        before = self._headers.get(key)
        self._headers[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        # Afterwards the parser has begun with the next request, and says yes again.
        self._keep_alive = self._parser.should_keep_alive()

    def request(self, body: bytes) -> Request:
        return Request(self._method, self._target.decode("latin-1"), self._headers, body, self._keep_alive)

    def _length(self, most: int) -> int:
        if "transfer-encoding" in self._headers:
            text = "a body must come with its Content-Length, in one piece"
            raise HttpError(HTTPStatus.LENGTH_REQUIRED, Code.BAD_MESSAGE, text)
        if "expect" in self._headers:
            raise HttpError(HTTPStatus.EXPECTATION_FAILED, Code.BAD_MESSAGE, "send the body without asking first")
        length = int(self._headers.get("content-length", "0"))  # digits alone, or the parser had refused it
        if length > most:
            text = f"the body is longer than {most} bytes"
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, Code.LIMIT, text)
        return length
