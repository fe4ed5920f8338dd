"""Networks that are exempt from the limit on connections of one address."""

from __future__ import annotations

import ipaddress

import pytest

from master.config_file import ConfigError, parse


def exempt(written: str) -> object:
    return parse(f"[limits]\nexempt = {written}\n").limits.exempt


def test_networks_of_both_families_are_read() -> None:
    assert exempt('["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"]') == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("2001:db8::/32"),
        ipaddress.ip_network("192.0.2.1/32"),
    )


def test_an_ipv4_network_that_is_mapped_into_ipv6_is_the_ipv4_one() -> None:
    assert exempt('["::ffff:10.0.0.0/104", "::ffff:192.0.2.1", "::/64"]') == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("192.0.2.1/32"),
        ipaddress.ip_network("::/64"),
    )


@pytest.mark.parametrize(
    ("written", "culprit"),
    [
        ('"10.0.0.0/8"', "array of texts"),
        ("[5]", "text in quotes"),
        ('["10.0.0.1/8"]', "bits are set behind the prefix"),
        ('["carrier"]', "carrier"),
        ('["10.0.0.0/33"]', "10.0.0.0/33"),
    ],
)
def test_what_is_no_network_is_named(written: str, culprit: str) -> None:
    with pytest.raises(ConfigError, match="exempt") as caught:
        exempt(written)
    assert culprit in str(caught.value)
