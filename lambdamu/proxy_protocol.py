"""The PROXY protocol, version 2: what a balancer in front says of who has connected, before all else.  Pure.

Source: "The PROXY protocol", versions 1 and 2, by Willy Tarreau (HAProxy), section 2.2. A header is 12 bytes that no
other protocol begins with, version and command, family and transport, a length, and so many bytes: addresses and ports,
then extensions, which are passed over. Only those whom the configuration trusts may send one, and they must.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Code

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD_BYTES: Final = 16
_MOST_BYTES: Final = 4096
"""Of addresses and extensions; those that balancers send have a few hundred."""
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""By family and transport: TCP over IPv4 and IPv6. Of all others no address is taken."""


def missing(header: bytes) -> int:
    """Return how many bytes more there must be of a header that begins so, 0 when it is whole.

    Raise RemoteProtocolError as soon as it can be none.
    """
    if not SIGNATURE.startswith(header[: len(SIGNATURE)]):
        raise RemoteProtocolError(Code.BAD_MESSAGE, "a header of the PROXY protocol, version 2, must come first")
    if len(header) < _HEAD_BYTES:
        return _HEAD_BYTES - len(header)
    if header[12] not in (_LOCAL, _PROXY):
        raise RemoteProtocolError(
            Code.BAD_MESSAGE, "the header of the PROXY protocol has an unknown version or command"
        )
    length = int.from_bytes(header[14:16], "big")
    if length > _MOST_BYTES:
        raise RemoteProtocolError(Code.LIMIT, f"the header of the PROXY protocol is longer than {_MOST_BYTES} bytes")
    return max(0, _HEAD_BYTES + length - len(header))


def told_address(header: bytes) -> tuple[str, int] | None:
    """Return the address and port of who has connected, by a whole header; None where it tells of nobody.

    A balancer tells of nobody when it looks by itself whether we live, or when its client came by no TCP.
    """
    size = _ADDRESS_BYTES.get(header[13])
    if header[12] == _LOCAL or size is None:
        return None
    told = header[_HEAD_BYTES : _HEAD_BYTES + 2 * size + 4]
    if len(told) < 2 * size + 4:
        raise RemoteProtocolError(Code.BAD_MESSAGE, "the header of the PROXY protocol is too short for its addresses")
    return str(ipaddress.ip_address(told[:size])), int.from_bytes(told[2 * size : 2 * size + 2], "big")
