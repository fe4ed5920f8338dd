"""The body of a post: one JSON object, whose form is documented and stays.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import attrs

from master.alerts.matters import Change
from master.alerts.outbox import Post

_IN_TEXT: Final = 5
"""So many changes stand in the line for people."""
_TAMED: Final = str.maketrans({"<": "‹", ">": "›", "@": "＠"})  # noqa: RUF001 - meant to look alike
"""Chats take these for links and for calling everybody, and a backend has a part in what is said of it."""


@attrs.frozen
class About:
    """Who posts: the address at which the master listens to clients, and its version."""

    master: str
    version: str


def make_body(post: Post, about: About, wall: Callable[[float], float]) -> bytes:
    """Return the body. `wall` gives Unix seconds for a moment of the monotonic clock."""
    body = {
        "text": _line(post, about).translate(_TAMED),
        "master": about.master,
        "version": about.version,
        "at": _time(wall(post.at)),
        "changes": [_change(change, wall) for change in post.changes],
        "left_out": post.left_out,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _line(post: Post, about: About) -> str:
    told = [_with_count(change) for change in post.changes[:_IN_TEXT]]
    more = len(post.changes) - len(told) + post.left_out
    return f"lambdamu {about.master}: {'; '.join(told)}" + f"; and {more} more" * bool(more)


def _with_count(change: Change) -> str:
    return f"{change.text} (after {change.times} changes)" if change.times > 1 else change.text


def _change(change: Change, wall: Callable[[float], float]) -> dict[str, object]:
    return {
        "kind": change.kind,
        "backend": change.backend,
        "text": change.text,
        "at": _time(wall(change.at)),
        "severity": change.severity.value,
        "times": change.times,
    }


def _time(seconds: float) -> str:
    """Return a moment as RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
