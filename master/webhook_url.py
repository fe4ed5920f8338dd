"""The URL of a webhook.  Whoever knows all of it may write there, so no message shows more than where it is.  Pure."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

import attrs

from lambdamu.address import parse_host

_PORTS = {"http": 80, "https": 443}
_MOST_CHARACTERS = 2048


@attrs.frozen
class WebhookURL:
    """`target` is the path with the query, as on the wire. str() and repr() leave it out: it may be a secret."""

    scheme: str
    host: str
    port: int
    target: str = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> WebhookURL:
        """Read a URL. Raise ValueError with one line that says what is wrong and repeats nothing of it."""
        # urlsplit would drop line breaks without a word.
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("is no URL: it may hold printable ASCII characters only, and no space")
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"must be at most {_MOST_CHARACTERS} characters long, not {len(text)}")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("is no URL: its host or its port is none") from None
        _check(parts)
        try:
            host = parse_host(parts.hostname or "")
        except ValueError:
            raise ValueError("is no URL: its host is neither an address nor a name") from None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, target)

    @property
    def authority(self) -> str:
        """The host as a `Host` header has it: with its port where that is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/..."


def _check(parts: SplitResult) -> None:
    if parts.scheme not in _PORTS:
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must hold no user and no password")
    if parts.fragment:
        raise ValueError("must hold no #: nothing behind it would be sent")
    if parts.port == 0:
        raise ValueError("is no URL: its host or its port is none")
