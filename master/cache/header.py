"""The Header that every question and answer of the cache service carries, and answers by it.  Pure."""

from __future__ import annotations

from typing import Any, Final

import attrs

from lambdamu.messages import CACHE, Command, Message, Transport, as_count, as_map, as_text

VERSION: Final = 1
"""Of the Header. A question that names none is of this one."""
_REQUEST_BYTES: Final = 128
_SESSION_BYTES: Final = 128


@attrs.frozen
class Header:
    """What a question says of itself: `request` names it, `type` and `session` go back as they came and mean nothing.

    `version` is None where what came as one is none.
    """

    request: str
    version: int | None = VERSION
    type: int = 0
    session: str = ""

    def answer(
        self, message: Message, data: Any, error: Transport = Transport.OK, *, data_error: bool = False
    ) -> Message:
        """Return the answer to `message`, whose Header this is."""
        header = {
            "Version": VERSION,
            "System": CACHE,
            "Type": self.type,
            "Error": int(error),
            "Request": self.request,
            "Session": self.session,
            "DataError": data_error,
        }
        return Message(message.object, Command.VALUE, message.name, data, header)

    def wrong(self, message: Message, code: str, text: str) -> Message:
        """Return the answer that tells why there are no data."""
        return self.answer(message, {"Code": code, "Text": text}, data_error=True)

    def failed(self, message: Message, error: Transport, text: str, retry_after_s: float | None) -> Message:
        """Return the answer that tells why the question was not dealt with. `retry_after_s`: None when nobody knows."""
        return self.answer(message, {"Text": text, "RetryAfter": retry_after_s}, error)


def read_header(value: Any) -> Header | None:
    """Return the Header of a question; None where it is none that an answer could name."""
    fields = as_map(value)
    if fields is None:
        return None
    request = as_text(fields.get("Request"))
    if not request or _is_longer(request, _REQUEST_BYTES):
        return None
    version, session = fields.get("Version"), as_text(fields.get("Session"))
    return Header(
        request,
        VERSION if version is None else as_count(version),
        as_count(fields.get("Type")) or 0,
        "" if session is None or _is_longer(session, _SESSION_BYTES) else session,
    )


def _is_longer(text: str, most_bytes: int) -> bool:
    # Four bytes is the most a character takes: a short text need not be encoded to be measured.
    return len(text) * 4 > most_bytes and len(text.encode()) > most_bytes
