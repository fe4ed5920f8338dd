"""What can go wrong, split by whose fault it is (after h11).

What is expected to happen, such as no backend being free, is a value and not an error.
"""

from __future__ import annotations


class LambdaMuError(Exception):
    """The base of every error this project raises on purpose."""


class ProtocolError(LambdaMuError):
    """The conversation broke the rules of the wire."""


class LocalProtocolError(ProtocolError):
    """We were about to break them: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer broke them; its connection ends, nothing else does.

    `code` is the word for the wire and the metrics, `text` one line that says what was wrong.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class LinkError(LambdaMuError):
    """A peer could not be reached, went away or stayed silent; `why` is one word, the same in logs and metrics."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why
