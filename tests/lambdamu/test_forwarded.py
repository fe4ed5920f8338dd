"""Whose request it is: the first one, from the end of the list, who is not trusted."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.forwarded import ClientHeader, client_of
from lambdamu.networks import Networks

TRUSTED = Networks(exempt=map(ipaddress.ip_network, ("10.0.0.0/8", "fd00::/8")))
PROXY = "10.0.0.1"


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({}, PROXY),
        ({"x-forwarded-for": "203.0.113.7"}, "203.0.113.7"),
        ({"x-forwarded-for": "203.0.113.7:4711"}, "203.0.113.7"),
        ({"x-forwarded-for": "::ffff:203.0.113.7"}, "203.0.113.7"),
        ({"x-forwarded-for": "1.2.3.4, 203.0.113.7"}, "203.0.113.7"),
        ({"x-forwarded-for": "1.2.3.4, 203.0.113.7, 10.9.9.9"}, "203.0.113.7"),
        ({"x-forwarded-for": "10.9.9.9"}, "10.9.9.9"),
        ({"x-forwarded-for": "unknown"}, PROXY),
        ({"x-forwarded-for": "1.2.3.4, nonsense, 10.9.9.9"}, "10.9.9.9"),
        ({"x-forwarded-for": ""}, PROXY),
        ({"forwarded": "for=203.0.113.7"}, "203.0.113.7"),
        ({"forwarded": 'For="[2001:db8::9]:4711";proto=https;by=10.0.0.1'}, "2001:db8::9"),
        ({"forwarded": "for=1.2.3.4, for=203.0.113.7;host=a, by=x;for=10.2.2.2"}, "203.0.113.7"),
        ({"forwarded": "for=_hidden"}, PROXY),
        ({"forwarded": "proto=https"}, PROXY),
        ({"forwarded": 'proto=http;host="a;for=6.6.6.6";for=203.0.113.7'}, "203.0.113.7"),
        ({"forwarded": 'proto=http;host="a, for=6.6.6.6";for=203.0.113.7'}, "203.0.113.7"),
        ({"forwarded": 'for=203.0.113.7;host="a, for=6.6.6.6"'}, "203.0.113.7"),
        ({"forwarded": r'for=203.0.113.7;host="a\", for=6.6.6.6"'}, "203.0.113.7"),
        ({"forwarded": 'for=203.0.113.7;host="a'}, PROXY),
        ({"forwarded": "for=203.0.113.7 for=6.6.6.6"}, PROXY),
        ({"x-forwarded-for": ", ".join(["1.2.3.4"] * 1000 + ["203.0.113.7"])}, "203.0.113.7"),
        ({"x-forwarded-for": ", ".join(["1.2.3.4"] + ["10.0.0.2"] * 1000)}, "10.0.0.2"),
    ],
)
def test_the_client_is_the_first_who_is_not_trusted(headers: dict[str, str], client: str) -> None:
    header = ClientHeader.FORWARDED if "forwarded" in headers else ClientHeader.X_FORWARDED_FOR
    assert client_of(headers, PROXY, TRUSTED, header) == client


@pytest.mark.parametrize("header", ClientHeader)
def test_the_header_that_balancers_do_not_write_is_not_read(header: ClientHeader) -> None:
    mine = "for=1.2.3.4" if header is ClientHeader.FORWARDED else "1.2.3.4"
    headers = {"x-forwarded-for": "203.0.113.7", "forwarded": "for=203.0.113.7", header.value: mine}
    assert client_of(headers, PROXY, TRUSTED, header) == "1.2.3.4"
    del headers[header]
    assert client_of(headers, PROXY, TRUSTED, header) == PROXY


@pytest.mark.parametrize("host", ["203.0.113.1", "::ffff:203.0.113.1"])
def test_nobody_else_may_claim_an_address(host: str) -> None:
    headers = {"x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4"}
    for header in ClientHeader:
        for trusted in (TRUSTED, Networks()):
            assert client_of(headers, host, trusted, header) == "203.0.113.1"


@given(st.text(max_size=200), st.sampled_from(ClientHeader))
def test_whatever_stands_there_an_address_comes_of_it(text: str, name: ClientHeader) -> None:
    ipaddress.ip_address(client_of({name: text}, PROXY, TRUSTED, name))
