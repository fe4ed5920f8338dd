"""Whose request it is, by the word of the balancers in front: X-Forwarded-For, or Forwarded (RFC 7239).  Pure.

Each balancer writes behind what others have written whom it got the request from. So the list is read from its end, as
far as those are trusted who wrote it; the first one who is not is the client, whatever stands before. Only the header
that the balancers are known to write is read: most pass on all others as the client has sent them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from lambdamu.networks import Networks
from lambdamu.objects import unmapped


class ClientHeader(StrEnum):
    """The header in which balancers say whose request it is."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"


_PAIR: Final = re.compile(r'\s*([!#$%&\'*+.^_`|~\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*))\s*', re.ASCII)
_MOST: Final = 32
"""So many entries are read, from the end."""


def client_of(headers: Mapping[str, str], host: str, trusted: Networks, header: ClientHeader) -> str:
    """Return the address of the client of a request that came from `host`: one of the header, or `host` itself.

    `trusted`: exempts those whose word counts.

    An entry that is no address ends the reading: who wrote it does not say whom it got the request from.
    """
    client = unmapped(host)
    if header not in headers or not trusted.exempts(client):
        return client
    entries = _forwarded(headers[header]) if header is ClientHeader.FORWARDED else _last(headers[header].split(","))
    for told in entries:
        address = _address(told.strip())
        if address is None:
            return client
        client = address
        if not trusted.exempts(client):
            return client
    return client


def _forwarded(text: str) -> Iterator[str]:
    """Yield the `for` of each element, the last one first; nothing of a header that is not to the rules anywhere.

    Quotes count: a comma or a semicolon between them is text, and may be the client's, as in the name of the host.
    """
    elements: list[str] = [""]
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            return
        if pair[1].lower() == "for":
            elements[-1] = pair[2] if pair[2] is not None else pair[3]
        at = pair.end()
        if at < len(text):
            if text[at] not in ",;":
                return
            if text[at] == ",":
                elements.append("")
            at += 1
    yield from _last(elements)


def _last(entries: Sequence[str]) -> Sequence[str]:
    return entries[: -_MOST - 1 : -1]


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
