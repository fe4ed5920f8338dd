"""The `Data` of an ask: which keys count, and what their values may be.  Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from lambdamu.messages import as_array, as_map, as_text
from lambdamu.objects import unmapped

_TEXT_KEYS: Final = {"Client": 128, "Device": 128, "Zone": 128, "Queue": 128, "Ticket": 200, "Pass": 512}
"""The texts a client may send with its ask, and the most bytes of each."""
_BOOL_KEYS: Final = ("Away", "Leave")
_MOST_FAILED: Final = 64
"""So many failed places are looked at, the last: a batch of thousands would keep everybody else waiting."""
_EXTRAS: Final = frozenset({"Name", "Alternates", "TTL", "Turn"})


class BadDataError(ValueError):
    """The `Data` of an ask has a wrong value; the text names the key."""


def read_ask(data: Any) -> dict[str, Any]:
    """Return the known keys of an ask's `Data`, texts as str and `Want` as a set. Raise BadDataError on a wrong value.

    Unknown keys, and unknown words in `Want`, are left out: they belong to versions to come.
    """
    given = as_map(data)
    if given is None:
        raise BadDataError("Data must be a map")
    known: dict[str, Any] = {}
    for key, limit in _TEXT_KEYS.items():
        value = given.get(key)
        if value is not None:
            # What is ASCII has as many bytes as characters.
            plain = type(value) is str and value.isascii() and len(value) <= limit
            known[key] = value if plain else _text(value, key, limit)
    for key in _BOOL_KEYS:
        if given.get(key) is not None:
            known[key] = _bool(given[key], key)
    known["Want"] = _wants(given.get("Want"))
    if given.get("Failed") is not None:
        known["Failed"] = _failures(given["Failed"])[-_MOST_FAILED:]
    return known


def spelled(ip: str) -> str:
    """Return an address as it is told to clients. What is no address was told to nobody, and so is nobody's."""
    try:
        return unmapped(str(ipaddress.ip_address(ip)))
    except ValueError:
        return ""


def _text(value: Any, key: str, limit: int) -> str:
    text = as_text(value)
    if text is None:
        raise BadDataError(f"{key} must be a text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:  # JSON may bring halves of characters
        raise BadDataError(f"{key} must be a text of whole characters") from exc
    if size > limit:
        raise BadDataError(f"{key} must be at most {limit} bytes long")
    return text


def _bool(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise BadDataError(f"{key} must be true or false")
    return value


def _wants(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    words = [as_text(word) for word in _array(value, "Want")]
    if None in words:
        raise BadDataError("Want must be an array of texts")
    return _EXTRAS.intersection(word for word in words if word)


def _failures(value: Any) -> list[tuple[str, int, str]]:
    failures = []
    for item in _array(value, "Failed"):
        fields = as_map(item)
        port = fields.get("Port") if fields is not None else None
        if fields is None or type(port) is not int or not 0 < port < 65536:
            raise BadDataError(
                "Failed must be an array of maps with a text IP, a Port from 1 to 65535 and, if any, a text Why"
            )
        why = fields.get("Why")
        why = "" if why is None else _text(why, "Failed.Why", 128)
        failures.append((_text(fields.get("IP"), "Failed.IP", 64), port, why))
    return failures


def _array(value: Any, key: str) -> Sequence[Any]:
    array = as_array(value)
    if array is None:
        raise BadDataError(f"{key} must be an array")
    return array
