"""base64url without padding (RFC 4648, 5), with one text for each value and no other taken."""

from __future__ import annotations

import base64
import binascii
from typing import Final

_TO_URL: Final = bytes.maketrans(b"+/", b"-_")


def to_base64url(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL, b"=").decode()


def from_base64url(text: str) -> bytes | None:
    """Return the bytes, or None where `text` is not what `to_base64url` gives for any."""
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if to_base64url(data) == text else None
