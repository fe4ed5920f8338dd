"""Where a browser is sent whose turn it is: one URL that the operator has written, with a few fields.  Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import attrs

from lambdamu.address import quoted

FIELDS: Final = ("ip", "port", "name", "turn", "queue")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_IN_THE_BROWSER: Final = frozenset(
    {"about", "blob", "data", "file", "filesystem", "javascript", "vbscript", "view-source", "ws", "wss"}
)
"""Schemes that lead to no game, and some of them into the page itself."""
_NO_URL: Final = re.compile(r"[^!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]|%(?![0-9A-Fa-f]{2})")
_WEB: Final = re.compile(r"https?:(?!//[^/?#])", re.IGNORECASE)


@attrs.frozen
class Redirect:
    """`pieces`: what stands as it is, and between each two the name of a field."""

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Redirect:
        """Read `game://{ip}:{port}/?turn={turn}`. Raise ValueError with one line that says what is wrong."""
        scheme = _SCHEME.match(text)
        if scheme is None:
            raise ValueError(f"{quoted(text)} is no URL that begins with its scheme, as https://game.example/ does")
        if scheme[1].lower() in _IN_THE_BROWSER:
            raise ValueError(f"{quoted(text)} would lead to nowhere outside the page: {scheme[1]}: is not allowed")
        if _WEB.match(text):
            raise ValueError(f"{quoted(text)} names no host behind {scheme[1]}:")
        pieces = tuple(_FIELD.split(text))
        for name in pieces[1::2]:
            if name not in FIELDS:
                known = ", ".join(f"{{{field}}}" for field in FIELDS)
                raise ValueError(f"{quoted('{' + name + '}')} is no field; there are {known}")
        for literal in pieces[::2]:
            if wrong := _NO_URL.search(literal):
                raise ValueError(f"{quoted(text)}: {quoted(wrong[0])} must be percent-encoded in a URL")
        if any(name == "ip" and before.endswith("[") for before, name in zip(pieces[::2], pieces[1::2], strict=False)):
            raise ValueError(f"{quoted(text)}: {{ip}} gets its brackets by itself")
        return cls(pieces)

    def to(self, *, ip: str, port: int, name: str = "", turn: str = "", queue: str = "") -> str:
        """Return the URL, ASCII alone; what is not known is empty."""
        values = {"port": str(port), "name": name, "turn": turn, "queue": queue}
        url = [self.pieces[0]]
        for at in range(1, len(self.pieces), 2):
            field, literal = self.pieces[at], self.pieces[at + 1]
            if field == "ip":
                is_host = literal.startswith(":") or self.pieces[at - 1].endswith("//")
                url.append(f"[{quote(ip, safe=':')}]" if ":" in ip and is_host else quote(ip, safe=""))
            else:
                url.append(quote(values[field], safe=""))
            url.append(literal)
        return "".join(url)
