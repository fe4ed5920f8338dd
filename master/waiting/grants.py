"""What somebody was let in with, as his ticket remembers it. Pure."""

from __future__ import annotations

import json

import attrs


@attrs.frozen
class Grant:
    """The backend `name`, and the Turn to it, if one was signed; `until`: Unix seconds, for how long either holds."""

    name: str
    turn: str | None = None
    until: float = 0.0

    def write(self) -> str:
        return json.dumps([self.name, self.turn, self.until], separators=(",", ":"))

    @classmethod
    def read(cls, text: str | None) -> Grant | None:
        """Return what a ticket remembers; None for what another version has written."""
        try:
            name, turn, until = json.loads(text or "")
        except (ValueError, TypeError):
            return None
        good = isinstance(name, str) and (turn is None or isinstance(turn, str)) and isinstance(until, (int, float))
        return cls(name, turn, until) if good else None
