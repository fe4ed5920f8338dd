"""base64url without padding (RFC 4648, 5), with one text for each value and no other taken."""

from __future__ import annotations

import base64
import binascii


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes | None:
    """Return the bytes, or None where `text` is not what `to_base64url` gives for any."""
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if to_base64url(data) == text else None
