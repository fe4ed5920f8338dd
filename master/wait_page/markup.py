"""A view as bytes: the page, or what the script of a page that is open puts into it.  Pure but for its files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final

from master.wait_page.texts import Language
from master.wait_page.view import View

_FOLDER: Final = files("master.wait_page") / "static"
_PARTS: Final = ("place", "eta", "note", "more", "address", "turn_label", "turn")
"""The texts that may be empty; in the page each has an element of this id."""

ASSETS: Final[Mapping[str, tuple[str, bytes]]] = MappingProxyType(
    {
        "page.js": ("text/javascript; charset=utf-8", (_FOLDER / "page.js").read_bytes()),
        "page.css": ("text/css; charset=utf-8", (_FOLDER / "page.css").read_bytes()),
    }
)
"""By name: the type and what it holds."""
_EDITION: Final = hashlib.blake2b(b"".join(data for _, data in ASSETS.values()), digest_size=6).hexdigest()
"""Stands behind the names of the assets, so that a browser takes no old ones for a new page."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PAGE: Final = Template((_FOLDER / "page.html").read_text("utf-8"))


def to_html(view: View, language: Language) -> bytes:
    parts = {name: getattr(view, name) for name in _PARTS}
    fields: dict[str, str] = {name: escape(text) for name, text in parts.items()}
    fields |= {f"{name}_hidden": _hidden(not text) for name, text in parts.items()}
    fields |= {name: escape(language.say(name)) for name in ("progress", "leave", "again", "go", "offline")}
    return _PAGE.substitute(
        fields,
        lang=escape(language.tag),
        direction=language.words["direction"],
        edition=_EDITION,
        kind=view.kind.value,
        title=escape(view.title),
        heading=escape(view.heading),
        link=escape(view.link),
        link_hidden=_hidden(not view.link),
        done=f"{view.done or 0:.4f}",
        done_hidden=_hidden(view.done is None),
        leave_hidden=_hidden(not view.leave),
        again_hidden=_hidden(not view.again),
        after="" if view.after_s is None else f"{view.after_s:.3f}",
        refresh=_refresh(view),
    ).encode()


def to_json(view: View) -> bytes:
    texts = {name: getattr(view, name) for name in ("title", "heading", *_PARTS, "link")}
    rest = {"kind": view.kind, "done": view.done, "after": view.after_s, "leave": view.leave, "again": view.again}
    return _ENCODER.encode(texts | rest).encode()


def whole_seconds(after_s: float) -> str:
    """Return when to come again in whole seconds: never too early, and never at once."""
    return str(max(1, math.ceil(after_s)))


def _hidden(hidden: bool) -> str:
    return " hidden" * hidden


def _refresh(view: View) -> str:
    """Return what has a browser without scripts come again."""
    if view.after_s is None:
        return ""
    return f'<noscript><meta http-equiv="refresh" content="{whole_seconds(view.after_s)}; url=?again"></noscript>'
