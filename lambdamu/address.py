"""Addresses as people write them: `host:port` and `[v6]:port`, where a host is an IP address or a name.

Only one reading of a text is possible, or the text is refused: an address whose last group could be taken for a port,
and a row of digits that some resolvers take for an IPv4 address, are errors here and not guesses.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal

import attrs

MAX_PORT: Final = 65535

_ADDRESS: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*):(?P<port>0|[1-9][0-9]*)")
_HOST_AND_PORT: Final = re.compile(r"(\[[^\]]*\]|[^:]*):[^:]*")
# A resolver reads a name that ends so as an IPv4 address, in ways that differ: 127.1, 2130706433, 0x7f.1.
_NUMERIC_END: Final = re.compile(r"(^|\.)([0-9]+|0[xX][0-9a-fA-F]*)\.?$")
# RFC 1123, and the underscore that service names and containers use.
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
# Linux: at most 15 characters name an interface.
_SCOPE: Final = re.compile(r"[A-Za-z0-9._-]{1,15}")


@attrs.frozen
class Address:
    """Where to connect or to listen; made from text by `parse`.

    `host` is an IP address in its shortest form, without brackets, or a name as it was written. `port` is 0 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def family(self) -> Literal[4, 6] | None:
        """4 or 6; None for a name."""
        return family(self.host)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `[v6]:port`. Raise ValueError with one line that says what is wrong."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(f"{quoted(text)} is not host:port{_address_hint(text)}")
        host, port = match["host"], match["port"]
        if len(port) > 5 or int(port) > MAX_PORT:
            raise ValueError(f"the port of {quoted(text)} is above {MAX_PORT}")
        if not host:
            raise ValueError(f"{quoted(text)} names no host; all addresses of this machine are 0.0.0.0:{port}")
        return cls(parse_host(host), int(port))


def parse_host(text: str) -> str:
    """Return the host that `text` writes, an IP address in its shortest form or a name as it is.

    `[::1]` is taken for `::1`, and an IPv4 address that is mapped into IPv6 for the IPv4 one. A name follows RFC 1123,
    with underscores, and may end with a dot. Raise ValueError with one line that says what is wrong.
    """
    if not text:
        raise ValueError("a host must not be empty")
    if _HOST_AND_PORT.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not a host alone: write its port under the key port")
    if ":" in text or "[" in text:
        return _parse_ipv6(text)
    return _parse_ipv4(text) if _NUMERIC_END.search(text) else _parse_name(text)


def family(host: str) -> Literal[4, 6] | None:
    """Return 4 or 6 for a host that `parse_host` made of an address, None for a name."""
    if ":" in host:
        return 6
    return 4 if _NUMERIC_END.search(host) else None


def places(host: str) -> frozenset[str]:
    """Return what a host that `parse_host` made stands for, however it is spelt.

    Two hosts whose places meet are one machine. `localhost` and the names below it are both loopback addresses
    (RFC 6761); what other names resolve to is not looked up.
    """
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return frozenset({"127.0.0.1", "::1"})
    return frozenset({name})


def is_loopback(host: str) -> bool:
    """Return whether a host that `parse_host` made is reached from this machine alone; of a name, only localhost is."""
    return all(family(place) is not None and ipaddress.ip_address(place).is_loopback for place in places(host))


def quoted(text: str, most: int = 80) -> str:
    """Return `text` in double quotes, cut to `most` characters, each character that does not print as an escape."""
    short = text if len(text) <= most else text[: most - 3] + "..."
    return '"' + printable(short.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def printable(text: str) -> str:
    """Return `text` with an escape for each character that does not print, so that it stays one line anywhere."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _parse_ipv6(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.IPv6Address(bare)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not an IPv6 address") from None
    if address.scope_id is not None and not (address.is_link_local and _SCOPE.fullmatch(address.scope_id)):
        raise ValueError(f"{quoted(text)}: only a link-local address names a network interface behind %")
    return str(address.ipv4_mapped or address)


def _parse_ipv4(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{quoted(text)} is neither an IPv4 address of four numbers nor a host name") from None


def _parse_name(text: str) -> str:
    if not text.isascii():
        raise ValueError(f"{quoted(text)} is not ASCII: write the host name in its xn-- form")
    name = text.removesuffix(".")
    if len(name) > 253:
        raise ValueError(f"{quoted(text)} is longer than a host name may be, 253 characters")
    if not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{quoted(text)} is neither an address nor a host name")
    return text


def _address_hint(text: str) -> str:
    if "//" in text:
        return ", without anything before or behind it"
    if text.count(":") > 1 and not text.startswith("["):
        return ": an IPv6 address stands in brackets, as in [::1]:7000"
    return ""
