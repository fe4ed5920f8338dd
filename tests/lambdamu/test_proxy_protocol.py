"""The PROXY protocol, version 2: whom a header tells of, and what is none."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.errors import RemoteProtocolError
from lambdamu.proxy_protocol import SIGNATURE, missing, told_address

LOCAL, PROXY = 0x20, 0x21
TCP4, TCP6, UDP4, UNIX, UNSPECIFIED = 0x11, 0x21, 0x12, 0x31, 0x00


def header(
    source: str = "203.0.113.7", port: int = 4711, command: int = PROXY, kind: int | None = None, more: bytes = b""
) -> bytes:
    address = ipaddress.ip_address(source)
    kind = kind if kind is not None else TCP4 if address.version == 4 else TCP6
    body = address.packed + address.packed + port.to_bytes(2, "big") + (443).to_bytes(2, "big") + more
    return SIGNATURE + bytes([command, kind]) + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("told", "address"),
    [
        (header(), ("203.0.113.7", 4711)),
        (header("2001:db8::9", 1), ("2001:db8::9", 1)),
        (header(more=b"\x04\x00\x01x"), ("203.0.113.7", 4711)),
        (header(command=LOCAL), None),
        (SIGNATURE + bytes([LOCAL, UNSPECIFIED, 0, 0]), None),
        (SIGNATURE + bytes([PROXY, UNSPECIFIED, 0, 0]), None),
        (header(kind=UDP4), None),
        (header(kind=UNIX), None),
    ],
)
def test_a_whole_header_tells_who_has_connected(told: bytes, address: tuple[str, int] | None) -> None:
    assert missing(told) == 0
    assert told_address(told) == address


@given(st.integers(0, 27))
def test_a_header_in_pieces_wants_no_byte_too_many(size: int) -> None:
    whole = header()
    assert len(whole) == 28
    wanted = missing(whole[:size])
    assert 0 < wanted <= len(whole) - size


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PROXY TCP4 203.0.113.7", "must come first"),
        (b"\x91", "must come first"),
        (b"\r\n\r\n\x00\r\nQUIX", "must come first"),
        (SIGNATURE + bytes([0x11, TCP4, 0, 12]), "unknown version"),
        (SIGNATURE + bytes([0x22, TCP4, 0, 12]), "unknown version"),
        (SIGNATURE + bytes([PROXY, TCP4, 0xFF, 0xFF]), "longer than 4096"),
    ],
)
def test_what_is_no_header_is_refused_as_soon_as_that_is_clear(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        missing(data)


def test_a_header_too_short_for_its_addresses_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="too short"):
        told_address(SIGNATURE + bytes([PROXY, TCP6, 0, 12]) + bytes(12))


@given(st.binary(max_size=64), st.booleans())
def test_no_bytes_raise_anything_else(data: bytes, signed: bool) -> None:
    data = SIGNATURE + data if signed else data
    try:
        if missing(data) == 0:
            told_address(data)
    except RemoteProtocolError:
        pass
