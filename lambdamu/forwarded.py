"""Whose request it is, by the word of the balancers in front: Forwarded (RFC 7239) or X-Forwarded-For.  Pure.

Each balancer writes behind what others have written whom it got the request from. So the list is read from its end, as
far as those are trusted who wrote it; the first one who is not is the client, whatever stands before.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lambdamu.networks import Network
from lambdamu.objects import unmapped

FORWARDED, X_FORWARDED_FOR = "forwarded", "x-forwarded-for"
HEADERS: Final = (FORWARDED, X_FORWARDED_FOR)
_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;"]*))', re.IGNORECASE)
_MOST: Final = 32
"""So many entries are read, from the end."""


def client_of(headers: Mapping[str, str], host: str, trusted: Sequence[Network]) -> str:
    """Return the address of the client of a request that came from `host`: one of the headers, or `host` itself.

    An entry that is no address ends the reading: who wrote it does not say whom it got the request from.
    """
    client = unmapped(host)
    if not trusted or not is_in(client, trusted):
        return client
    for told in _entries(headers):
        address = _address(told)
        if address is None:
            return client
        client = address
        if not is_in(client, trusted):
            return client
    return client


def is_in(host: str, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of some networks; an IPv4 address mapped into IPv6 is the IPv4 one."""
    address = ipaddress.ip_address(unmapped(host.partition("%")[0]))
    return any(address in network for network in networks)


def _entries(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield what the balancers say, the last one first."""
    if FORWARDED in headers:
        for part in _last(headers[FORWARDED]):
            found = _FOR.search(part)
            yield (found[1] or found[2] or "").strip() if found else ""
    elif X_FORWARDED_FOR in headers:
        for part in _last(headers[X_FORWARDED_FOR]):
            yield part.strip()


def _last(text: str) -> Sequence[str]:
    return text.rsplit(",", _MOST)[:0:-1] if text.count(",") > _MOST else text.split(",")[::-1]


def _address(told: str) -> str | None:
    """Return an address that stands alone or with a port: `1.2.3.4`, `1.2.3.4:5`, `2001:db8::1`, `[2001:db8::1]:5`."""
    host = told
    if told.startswith("["):
        host = told[1:].partition("]")[0]
    elif told.count(":") == 1:
        host = told.partition(":")[0]
    try:
        return unmapped(str(ipaddress.ip_address(host)))
    except ValueError:
        return None
