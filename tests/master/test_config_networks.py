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
