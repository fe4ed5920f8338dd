"""The network that an address belongs to, for limits that hold for a whole network.

A site or a phone holds a whole /64 of IPv6 (RFC 6177, RFC 7278), so a limit for each address would be none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from socket import AF_INET, AF_INET6, inet_pton
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED: Final = bytes(10) + b"\xff\xff"


class Networks:
    """Gives the network of an address, by length of prefix; addresses in `exempt` have none."""

    def __init__(self, ipv4_prefix: int = 32, ipv6_prefix: int = 64, exempt: Iterable[Network] = ()) -> None:
        self._shifts = {4: 32 - ipv4_prefix, 16: 128 - ipv6_prefix}
        self._exempt: dict[int, list[tuple[int, int]]] = {4: [], 16: []}
        for network in exempt:
            shift = network.max_prefixlen - network.prefixlen
            self._exempt[network.max_prefixlen // 8].append((shift, int(network.network_address) >> shift))

    def exempts(self, host: str) -> bool:
        """Whether an address lies in one of those networks that are exempt."""
        return self.of(host) is None

    def of(self, host: str) -> bytes | None:
        """Return the first address of the network, 4 or 16 bytes; None where `host` is exempt.

        An IPv4 address that came mapped into IPv6 is the IPv4 one. What is no address is a network of its own.
        """
        try:
            packed = inet_pton(AF_INET6, host.partition("%")[0]) if ":" in host else inet_pton(AF_INET, host)
        except (OSError, ValueError):
            return host.encode(errors="replace")
        if packed.startswith(_MAPPED):
            packed = packed[12:]
        size, number = len(packed), int.from_bytes(packed)
        for bits, network in self._exempt[size]:
            if number >> bits == network:
                return None
        shift = self._shifts[size]
        return (number >> shift << shift).to_bytes(size) if shift else packed
