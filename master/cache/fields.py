"""The `Data` of a question to the cache service: which keys count, and what their values may be.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lambdamu.messages import VALUE, as_count, as_map, as_text

TEXT_BYTES: Final[Mapping[str, int]] = {"Client": 128, "Device": 128, "Session": 128, "Key": 256}
"""The texts there are, and the most bytes of each; none of them may be empty."""
MOST_TTL_S: Final = 366 * 86400.0


class BadFieldError(ValueError):
    """A value of `Data` is wrong, or missing; the text names the key."""


class Fields:
    """The Data of one question. Each reader raises BadFieldError; unknown keys belong to versions to come."""

    def __init__(self, data: Any) -> None:
        fields = as_map(data)
        if fields is None:
            raise BadFieldError("Data must be a map")
        self._fields = fields

    def text(self, key: str) -> str:
        """Return a text that has to be there."""
        text = self.optional_text(key)
        if text is None:
            raise BadFieldError(f"{key} is missing")
        return text

    def optional_text(self, key: str) -> str | None:
        value, most = self._fields.get(key), TEXT_BYTES[key]
        if value is None:
            return None
        text = as_text(value)
        if text is None:
            raise BadFieldError(f"{key} must be a text")
        if not text or (len(text) * 4 > most and len(text.encode()) > most):
            raise BadFieldError(f"{key} must be from 1 to {most} bytes long")
        return text

    def number(self, key: str, absent: int) -> int:
        """Return a whole number from 0 to below 2^53, `absent` where there is none."""
        value = self._fields.get(key)
        if value is None:
            return absent
        count = as_count(value)
        if count is None:
            raise BadFieldError(f"{key} must be a whole number from 0 to below 2^53")
        return count

    def data_type(self) -> int:
        """Return the Type, which has to be there."""
        if self._fields.get("Type") is None:
            raise BadFieldError("Type is missing")
        return self.number("Type", 0)

    def ttl_s(self) -> float | None:
        """Return a time to live in seconds; None where the usual one is meant."""
        value = self._fields.get("TTL")
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < value <= MOST_TTL_S:  # which no NaN is
            raise BadFieldError(f"TTL must be a number of seconds, above 0 and at most {MOST_TTL_S:.0f}")
        return float(value)

    def value(self) -> bytes:
        """Return the bytes to be stored, which have to be there; they may be none."""
        value = self.optional_value()
        if value is None:
            raise BadFieldError("Value is missing")
        return value

    def optional_value(self) -> bytes | None:
        value = self._fields.get(VALUE)
        if value is not None and type(value) is not bytes:
            raise BadFieldError("Value must be bin: bytes, and no text")
        return value
