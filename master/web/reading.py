"""What is read of the requests of operators, and how they are answered."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from master.tokens import Caller
from master.web.gate import CALLER
from master.web.views import dumps

MOST_REASON: Final = 200


def read_reason(reason: object) -> str:
    """Return why an operator wants something, a text of 1 to 200 whole characters. Raise HTTPException."""
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= len(reason) <= MOST_REASON:
        raise HTTPException(400, f"reason must be a text of 1 to {MOST_REASON} characters")
    if any("\ud800" <= character <= "\udfff" for character in reason):  # JSON may bring halves of characters
        raise HTTPException(400, "reason must be a text of whole characters")
    return reason


def read_object(body: bytes, having: str) -> dict[str, Any]:
    """Return the object of JSON that a body is; `having`: what it is to have, in words. Raise HTTPException."""
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise HTTPException(400, f"the body must be an object with {having}")
    return given


def caller_of(request: Request) -> Caller:
    """Return who asks, as the gate has found."""
    caller: Caller = request.scope["state"][CALLER]
    return caller


def answer_json(value: object) -> Response:
    """Answer with a value, or with bytes that are JSON already."""
    return Response(value if isinstance(value, bytes) else dumps(value), media_type="application/json")
