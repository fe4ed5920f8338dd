"""HTTP on a port: what is read of it however it is cut, what is refused, and what a response looks like."""

from __future__ import annotations

from http import HTTPStatus
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.datapack import WireLimits
from lambdamu.errors import RemoteProtocolError
from lambdamu.http_wire import HEAD_BYTES, HttpError, HttpReader, HttpWire, Request, Response
from lambdamu.messages import Code

LIMITS = WireLimits(batch_bytes=1000)
POST = b"POST /v1/server HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
GET = b"GET /v1/server?x=1 HTTP/1.1\r\nHost: a\r\nAccept: a\r\naccept: b\r\n\r\n"
OLD = b"GET / HTTP/1.0\r\n\r\n"


def read(*pieces: bytes) -> tuple[list[Request], HttpReader]:
    """Return all requests of some pieces, and the reader."""
    reader, requests = HttpReader(LIMITS), list[Request]()
    for piece in pieces:
        reader.feed(piece)
        while (batch := reader.next_batch()) is not None:
            requests += batch
    return requests, reader


def test_a_request_has_its_headers_and_its_body() -> None:
    requests, reader = read(GET + POST)
    assert requests == [
        Request("GET", "/v1/server?x=1", {"host": "a", "accept": "a, b"}),
        Request("POST", "/v1/server", {"host": "a", "content-length": "2"}, b"{}"),
    ]
    assert reader.frame == POST
    assert not reader.pending
    assert not reader.last


@given(st.lists(st.sampled_from([GET, POST, b"\r\n" + GET]), min_size=1, max_size=5), st.data())
def test_requests_are_the_same_however_they_are_cut(sent: list[bytes], data: Any) -> None:
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(*pieces)[0] == read(whole)[0]
    assert len(read(whole)[0]) == len(sent)


@pytest.mark.parametrize("last", [OLD, GET.replace(b"Host", b"Connection: close\r\nHost")])
def test_nothing_is_read_behind_the_last_request(last: bytes) -> None:
    requests, reader = read(last + GET, GET)
    assert [request.keep_alive for request in requests] == [False]
    assert reader.last
    assert reader.buffered == 0


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, Code.BAD_MESSAGE),
        (b"NONSENSE\r\n\r\n", 400, Code.BAD_MESSAGE),
        (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400, Code.BAD_MESSAGE),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, Code.BAD_MESSAGE),
        (b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400, Code.BAD_MESSAGE),
        (b"PRI * HTTP/2.0\r\n\r\n", 505, Code.BAD_MESSAGE),
        (POST.replace(b"2\r\n", b"2\r\nContent-Length: 3\r\n"), 400, Code.BAD_MESSAGE),
        (POST.replace(b"2\r\n", b"2\r\nTransfer-Encoding: chunked\r\n"), 400, Code.BAD_MESSAGE),
        (POST.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"), 411, Code.BAD_MESSAGE),
        (POST.replace(b"2\r\n", b"2\r\nExpect: 100-continue\r\n"), 417, Code.BAD_MESSAGE),
        (POST.replace(b": 2", b": 1001"), 413, Code.LIMIT),
        (POST.replace(b": 2", b": " + b"9" * 40), 400, Code.BAD_MESSAGE),
        (POST.replace(b": 2", b": -1"), 400, Code.BAD_MESSAGE),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * HEAD_BYTES, 431, Code.LIMIT),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * HEAD_BYTES + b"\r\n\r\n", 431, Code.LIMIT),
    ],
)
def test_what_cannot_be_answered_is_refused_and_stays_so(sent: bytes, status: int, code: Code) -> None:
    reader = HttpReader(LIMITS)
    reader.feed(sent)
    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            reader.next_batch()
        assert (caught.value.status, caught.value.code) == (status, code)
        reader.feed(GET)


@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", POST[:-6]]))
def test_any_bytes_give_requests_or_one_refusal(data: bytes, before: bytes) -> None:
    reader = HttpReader(LIMITS)
    reader.feed(before + data + b"\r\n\r\n")
    refused = None
    try:
        while (batch := reader.next_batch()) is not None:
            assert len(batch) == 1
    except HttpError as refusal:
        refused = refusal
    assert refused is None or HttpWire().last_word(refused).startswith(b"HTTP/1.1 %d " % refused.status)


class Sock:
    """What `HTTPResponse` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> BytesIO:
        return BytesIO(self._data)


def parsed(data: bytes, method: str = "GET") -> HTTPResponse:
    response = HTTPResponse(Sock(data), method=method)  # type: ignore[arg-type]
    response.begin()
    return response


def test_a_response_is_what_a_client_reads() -> None:
    data = HttpWire().pack([Response(HTTPStatus.OK, [("Content-Type", "application/json")], b"{}")])
    response = parsed(data)
    assert (response.status, response.getheader("content-type"), response.read()) == (200, "application/json", b"{}")
    assert not response.will_close
    assert parsed(Response(HTTPStatus.OK, (), b"{}", keep_alive=False).to_bytes()).will_close


def test_the_answer_to_head_has_the_length_and_not_the_body() -> None:
    response = parsed(Response(HTTPStatus.OK, (), b"{}", head_only=True).to_bytes(), "HEAD")
    assert (response.getheader("content-length"), response.read()) == ("2", b"")


def test_one_too_many_is_told_so() -> None:
    response = parsed(HttpWire().last_word(RemoteProtocolError(Code.LIMIT, "too many connections are open")))
    assert (response.status, response.read(), response.will_close) == (503, b"too many connections are open\n", True)
