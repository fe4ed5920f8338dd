"""The limit on connections of one network."""

from __future__ import annotations

import ipaddress

import pytest

from lambdamu.port import AddressCap, PortLimits


def cap(most: int, *exempt: str) -> AddressCap:
    networks = tuple(ipaddress.ip_network(network) for network in exempt)
    return AddressCap(PortLimits(connections_per_address=most, exempt=networks))


def test_without_a_limit_there_is_none() -> None:
    unlimited = cap(0)
    assert all(unlimited.enter("192.0.2.1") for _ in range(1000))


def test_one_more_than_allowed_is_refused_until_another_leaves() -> None:
    limited = cap(2)
    assert [limited.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert limited.enter("192.0.2.2")
    limited.leave("192.0.2.1")
    assert [limited.enter("192.0.2.1") for _ in range(2)] == [True, False]


def test_an_address_mapped_into_ipv6_is_the_ipv4_one() -> None:
    limited = cap(1)
    assert limited.enter("::ffff:192.0.2.1")
    assert not limited.enter("192.0.2.1")
    limited.leave("192.0.2.1")
    assert limited.enter("192.0.2.1")


def test_a_network_is_as_wide_as_it_is_set_and_64_bits_of_ipv6() -> None:
    limited = cap(2)
    assert [limited.enter(host) for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1")] == [
        True,
        True,
        False,
        True,
    ]
    limited.leave("2001:db8::1")
    assert limited.enter("2001:db8::9")
    wide = AddressCap(PortLimits(connections_per_address=1, ipv4_prefix=24))
    assert [wide.enter(host) for host in ("192.0.2.1", "192.0.2.200", "192.0.3.1")] == [True, False, True]


@pytest.mark.parametrize("host", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "fe80::1%lo"])
def test_exempt_networks_have_no_limit(host: str) -> None:
    limited = cap(1, "10.0.0.0/8", "2001:db8::/32", "fe80::/10")
    assert all(limited.enter(host) for _ in range(500))
    for _ in range(500):
        limited.leave(host)
    assert limited._open == {}
