"""The network of an address."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.networks import Networks


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("not an address", "not an address", True),
        ("not an address", "another", False),
    ],
)
def test_a_network_is_one_ipv4_address_and_64_bits_of_ipv6(one: str, other: str, same: bool) -> None:
    networks = Networks()
    assert (networks.of(one) == networks.of(other)) is same


@given(st.ip_addresses(), st.integers(0, 32), st.integers(0, 128))
def test_it_is_what_the_library_says(address: ipaddress.IPv4Address | ipaddress.IPv6Address, v4: int, v6: int) -> None:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    wanted = ipaddress.ip_network((plain, v4 if plain.version == 4 else v6), strict=False).network_address.packed
    assert Networks(v4, v6).of(str(address)) == wanted


@given(
    st.ip_addresses(),
    st.lists(
        st.ip_addresses().flatmap(
            lambda address: st.integers(0, address.max_prefixlen).map(
                lambda bits: ipaddress.ip_network((address, bits), strict=False)
            )
        ),
        max_size=3,
    ),
)
def test_exempt_networks_have_none(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    exempt: list[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> None:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    assert (Networks(exempt=exempt).of(str(address)) is None) == any(plain in network for network in exempt)
