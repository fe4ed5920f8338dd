"""What is read of the requests of operators."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException

MOST_REASON: Final = 200


def read_reason(reason: object) -> str:
    """Return why an operator wants something, a text of 1 to 200 whole characters. Raise HTTPException."""
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= len(reason) <= MOST_REASON:
        raise HTTPException(400, f"reason must be a text of 1 to {MOST_REASON} characters")
    if any("\ud800" <= character <= "\udfff" for character in reason):  # JSON may bring halves of characters
        raise HTTPException(400, "reason must be a text of whole characters")
    return reason
