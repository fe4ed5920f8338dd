"""What an answer of the cache service says (docs/cache.md): its Data, or why there are none.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lambdamu.errors import CacheError, CacheRefusedError, CacheUnavailableError, SessionGoneError
from lambdamu.messages import Code, Message, Transport, as_count, as_map, as_text

_NO_BETTER: Final = frozenset({Transport.TOO_BIG, Transport.VERSION})
"""Failures of the transport that the same question meets with each time."""


def read_answer(answer: Message) -> Mapping[Any, Any]:
    """Return the Data of an answer. Raise CacheError where it says no."""
    header, data = as_map(answer.header) or {}, as_map(answer.data) or {}
    number, text = as_count(header.get("Error")), as_text(data.get("Text")) or "it did not say why"
    if number is None:
        raise CacheUnavailableError("the cache gave an answer without an Error in its Header")
    if number:
        raise _failure(number, text, data.get("RetryAfter"))
    if not header.get("DataError"):
        return data
    code = as_text(data.get("Code")) or "Error"
    raise (SessionGoneError if code == Code.SESSION_GONE else CacheRefusedError)(code, text)


def _failure(number: int, text: str, retry_after_s: Any) -> CacheError:
    known = number in list(Transport)
    word = Transport(number).word if known else f"Error {number}"
    if known and Transport(number) in _NO_BETTER:
        return CacheRefusedError(word, text)
    told = type(retry_after_s) in (int, float) and 0 <= retry_after_s < math.inf
    after_s = float(retry_after_s) if told else None
    return CacheUnavailableError(f"{word}: {text}", after_s)
