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


class ConnectError(LambdaMuError):
    """No connection to a backend could be had. The text is one line for a person.

    `retry_after_s`: seconds after which to try again, where somebody said so; None: nobody knows.
    """

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class NoServerError(ConnectError):
    """A master answered, and sent nowhere, until the time was up.

    `result`: NoServer, Wait, Closed or Denied, as on the wire; `reason`: a word of the master, None where it gave none.
    """

    def __init__(self, text: str, result: str, reason: str | None, retry_after_s: float | None) -> None:
        super().__init__(text, retry_after_s)
        self.result = result
        self.reason = reason


class DeniedError(NoServerError):
    """A master said no for good: it is of no use to try again."""


class UnreachableError(ConnectError):
    """No master answered, or no backend that they named could be used, until the time or the retries were used up."""


class CacheError(LambdaMuError):
    """The cache service did not do what it was asked. The text is one line for a person."""


class CacheUnavailableError(CacheError):
    """It could not be asked, or could not deal with the question: that says nothing of any session.

    `retry_after_s`: seconds after which to ask again, where it said so; None: nobody knows.
    """

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class CacheRefusedError(CacheError):
    """It said no, and would again. `code`: its word, such as NotFound, NotYours, Upstream or TooBig."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SessionGoneError(CacheRefusedError):
    """There is no such session, any more or ever: its client has to log in."""
