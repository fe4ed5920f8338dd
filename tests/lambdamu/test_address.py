"""Addresses as people write them: one reading, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.address import Address, family, parse_host, places, quoted

LONGEST = "a." * 126 + "a"


@pytest.mark.parametrize(
    ("written", "host", "of_family"),
    [
        ("10.0.0.11", "10.0.0.11", 4),
        ("2001:db8::3222", "2001:db8::3222", 6),
        ("2001:DB8:0:0::3222", "2001:db8::3222", 6),
        ("::1", "::1", 6),
        ("[::1]", "::1", 6),
        ("fe80::1%lo", "fe80::1%lo", 6),
        ("::ffff:10.0.0.11", "10.0.0.11", 4),
        ("localhost", "localhost", None),
        ("Chat-2.Internal.", "Chat-2.Internal.", None),
        ("_chat._tcp.example", "_chat._tcp.example", None),
        ("3com.example", "3com.example", None),
        ("1.2.3.4a", "1.2.3.4a", None),
        (LONGEST, LONGEST, None),
        (LONGEST + ".", LONGEST + ".", None),
    ],
)
def test_a_host_is_a_whole_address_or_a_name(written: str, host: str, of_family: int | None) -> None:
    assert parse_host(written) == host
    assert family(host) == of_family


@pytest.mark.parametrize(
    ("why", "hosts"),
    [
        ("must not be empty", [""]),
        ("is not a host alone", ["[::1]:3000", "host:3000", "10.0.0.1:80", ":3000", "host:", "[]:1"]),
        (
            "is not an IPv6 address",
            ["[::1", "::1]", "[10.0.0.1]", "[host]", "[]", "[[::1]]", "1:2:3:4:5:6:7:8:9", "fe80::1%"],
        ),
        ("only a link-local address", ["::1%lo", "2001:db8::1%1", "fe80::1%a b", "fe80::1%" + "e" * 16]),
        (
            "neither an IPv4 address",
            ["300.1.1.1", "127.1", "1", "2130706433", "0x7f.1", "0X7F000001", "010.0.0.1", "10.0.0.1."],
        ),
        ("neither an IPv4 address", ["1.2.3.4.5", "host.0x", "a.1"]),
        (
            "neither an address nor a host name",
            ["a..b", ".", "..", "-a", "a-", " ", "a b", "a/b", "a\nb", "a\n", "x" * 64, "*.a"],
        ),
        ("is not ASCII", ["é.example", "例え.jp", "\u200b"]),
        ("longer than a host name", [LONGEST + "a", "a." * 127 + "a"]),
    ],
)
def test_a_host_that_can_be_read_in_two_ways_or_none_is_refused(why: str, hosts: list[str]) -> None:
    for host in hosts:
        with pytest.raises(ValueError, match=why) as caught:
            parse_host(host)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7000", Address("127.0.0.1", 7000)),
        ("[::1]:0", Address("::1", 0)),
        ("[::ffff:10.0.0.1]:65535", Address("10.0.0.1", 65535)),
        ("[fe80::1%lo]:1", Address("fe80::1%lo", 1)),
        ("host.:80", Address("host.", 80)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize(
    ("why", "texts"),
    [
        (
            "is not host:port$",
            ["", "7000", "host", "host:", "host:-1", "host:+1", "h:07", "h:1 ", "h:1\n", "h:٣", "[::1]", "[::1:1"],
        ),
        ("stands in brackets", ["::1:7000", "2001:db8::3222", "a:b:1"]),
        ("is above 65535", ["h:65536", "h:700000", "h:" + "9" * 5000]),
        ("names no host", [":7000"]),
        ("not an IPv6 address", ["[]:1", "[host]:1", "[127.0.0.1]:1"]),
        ("nor a host name", ["127.1:1", " h:1", "http//a:1"]),
    ],
)
def test_an_address_that_leaves_something_open_is_refused(why: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=why) as caught:
            Address.parse(text)
        assert str(caught.value).isprintable()


HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z]([a-z0-9-]{0,9}[a-z])?(\.[a-z]{1,4}){0,3}\.?", fullmatch=True)


@given(HOSTS, st.integers(0, 65535))
def test_an_address_survives_being_written_and_read(host: str, port: int) -> None:
    address = Address(parse_host(host), port)
    assert Address.parse(str(address)) == address
    assert parse_host(address.host) == address.host
    assert address.family == family(address.host)


@given(st.text())
def test_any_text_is_an_address_or_a_line(text: str) -> None:
    for parse in (Address.parse, parse_host):
        try:
            parse(text)
        except ValueError as exc:
            line = str(exc)
            assert line.isprintable()


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("localhost", "127.0.0.1", True),
        ("::1", "LocalHost.", True),
        ("db.localhost", "localhost", True),
        ("HOST", "host.", True),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("a", "a.b", False),
        ("mylocalhost", "localhost", False),
    ],
)
def test_two_hosts_are_one_machine_when_their_places_meet(one: str, other: str, meet: bool) -> None:
    assert bool(places(one) & places(other)) is meet


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", '"a"'),
        ('a"\\', '"a\\"\\\\"'),
        ("a\nb\u2028", '"a\\nb\\u2028"'),
        ("é🐌", '"é🐌"'),
        ("x" * 99, '"' + "x" * 77 + '..."'),
    ],
)
def test_a_quoted_text_is_one_short_line(text: str, shown: str) -> None:
    assert quoted(text) == shown
