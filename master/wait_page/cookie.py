"""What a browser keeps of its place: `CLIENT.TICKET.FIRST` in a cookie of its own for each queue.  Pure."""

from __future__ import annotations

import re
from typing import Final

import attrs

from master.queue.ticket_text import queue_hash

PATH: Final = "/wait/"
_KEEP_S: Final = 86400
"""Longer than any place is kept. After it the browser is somebody else."""
_VALUE: Final = re.compile(r"([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{0,200})\.(0|[1-9][0-9]{0,9})", re.ASCII)
_CRUMB: Final = re.compile(r"[;,]")
"""Between cookies; a comma, where the header has come more than once."""


@attrs.frozen
class Held:
    """`client`: 22 characters of base64url. `ticket`: "" for none. `first`: people ahead when it came."""

    client: str = attrs.field(repr=False)
    ticket: str = attrs.field(default="", repr=False)
    first: int = 0


def cookie_name(queue: str) -> str:
    return f"lambdamu-{queue_hash(queue).hex()}"


def read_cookie(header: str, queue: str) -> Held | None:
    """Return what the header `Cookie` says of a queue; None where that is nothing, or nothing that we have written."""
    name = cookie_name(queue)
    for crumb in _CRUMB.split(header):
        key, _, value = crumb.strip().partition("=")
        if key == name:
            match = _VALUE.fullmatch(value)
            return Held(match[1], match[2], int(match[3])) if match else None
    return None


def write_cookie(queue: str, held: Held, *, secure: bool) -> str:
    """Return the value of `Set-Cookie`. A ticket that no cookie can hold is left out."""
    value = f"{held.client}.{held.ticket}.{held.first}"
    if not _VALUE.fullmatch(value):
        value = f"{held.client}..0"
    return _set(queue, value, _KEEP_S, secure=secure)


def clear_cookie(queue: str, *, secure: bool) -> str:
    """Return the value of `Set-Cookie` by which the browser forgets its place."""
    return _set(queue, "", 0, secure=secure)


def _set(queue: str, value: str, seconds: int, *, secure: bool) -> str:
    attributes = f"Max-Age={seconds}; Path={PATH}; HttpOnly; SameSite=Lax{'; Secure' * secure}"
    return f"{cookie_name(queue)}={value}; {attributes}"
