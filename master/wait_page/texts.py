"""What the waiting page says, by language: files within the package, and those of the operator over them.

A file `de.json` is a map of texts by key. The keys, and the fields that each may have in braces, are those of
`en.json`; a key that a language lacks is said in English.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

import attrs

from lambdamu.address import quoted
from lambdamu.line_file import LineFileError, read_line_file

FALLBACK: Final = "en"
_BUILT_IN: Final = (FALLBACK, "de", "ru")
_MOST_BYTES: Final = 65536
_MOST_FILES: Final = 200
_MOST_CHARACTERS: Final = 1000
_MOST_RANGES: Final = 32
"""So many wishes of a browser are heard."""
_FILE: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}\.json")
_FIELD: Final = re.compile(r"\{([a-z]+)\}")
_RANGE: Final = re.compile(
    r"\s*([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*|\*)\s*(?:;\s*[qQ]=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*)?", re.ASCII
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_HOUR_MINUTES: Final = 60
_DAY_HOURS: Final = 24

Words = Mapping[str, str]


@attrs.frozen
class Language:
    """`tag`: as in the header `Content-Language`. `words`: every key that there is."""

    tag: str
    words: Words = attrs.field(repr=False)

    def say(self, key: str, **fields: str) -> str:
        """Return a text with its fields filled in."""
        return _FIELD.sub(lambda match: fields.get(match[1], ""), self.words[key])

    def number(self, number: int) -> str:
        return f"{number:,}".replace(",", self.words["thousands"])

    def duration(self, seconds: float) -> str:
        """Return a time in minutes, in hours and minutes, or in days and hours, rounded up."""
        if seconds < 60:
            return self.say("time_short")
        minutes = math.ceil(seconds / 60)
        if minutes < _HOUR_MINUTES:
            return self.say("time_minutes", minutes=str(minutes))
        hours, minutes = divmod(minutes, _HOUR_MINUTES)
        if hours < 2 * _DAY_HOURS:
            return self.say("time_hours", hours=str(hours), minutes=str(minutes))
        days, hours = divmod(hours + bool(minutes), _DAY_HOURS)
        return self.say("time_days", days=self.number(days), hours=str(hours))


@attrs.frozen
class Texts:
    """`languages`: by tag in lower case; English is always among them."""

    languages: Mapping[str, Language]

    def choose(self, wishes: str) -> Language:
        """Return the language for the header `Accept-Language`, by lookup as in RFC 4647, 3.4."""
        for wish in _by_wish(wishes):
            parts = wish.split("-")
            for count in range(len(parts), 0, -1):
                found = self.languages.get("-".join(parts[:count]))
                if found is not None:
                    return found
        return self.languages[FALLBACK]


def load_texts(folder: str = "") -> Texts:
    """Return the texts within the package, with those of a folder over them.

    Raise LineFileError, which names the file, and the key where there is one, when a file is not right.
    """
    words: dict[str, tuple[str, dict[str, str]]] = {tag: (tag, dict(_built_in(tag))) for tag in _BUILT_IN}
    for name in _names(folder) if folder else ():
        tag = name.removesuffix(".json")
        words.setdefault(tag.lower(), (tag, {}))[1].update(_read(os.path.join(folder, name)))
    english = words[FALLBACK][1]
    return Texts(
        MappingProxyType({key: Language(tag, MappingProxyType(english | own)) for key, (tag, own) in words.items()})
    )


def _by_wish(wishes: str) -> Iterator[str]:
    """Yield the tags that a browser wishes for, in lower case, the dearest first; what is not to the rules is none."""
    found = []
    for wish in wishes.split(",")[:_MOST_RANGES]:
        match = _RANGE.fullmatch(wish)
        weight = float(match[2] or 1) if match else 0.0
        if match and weight:
            found.append((weight, FALLBACK if match[1] == "*" else match[1].lower()))
    # The order is kept where weights are the same.
    yield from (tag for _, tag in sorted(found, key=lambda wish: -wish[0]))


@cache
def _built_in(tag: str) -> Words:
    words: dict[str, str] = json.loads((files("master.wait_page") / "texts" / f"{tag}.json").read_text("utf-8"))
    return MappingProxyType(words)


def _names(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or "it is no path"
        raise LineFileError(f"{folder} cannot be read: {why}") from exc
    names = [name for name in names if name.endswith(".json") and not name.startswith(".")]
    if not names:
        raise LineFileError(f"{folder} holds no file such as de.json")
    if len(names) > _MOST_FILES:
        raise LineFileError(f"{folder} holds more than {_MOST_FILES} files")
    tags: dict[str, str] = {}
    for name in names:
        if not _FILE.fullmatch(name):
            raise LineFileError(f"{os.path.join(folder, name)} is not named after a language, as de.json or pt-BR.json")
        if tags.setdefault(name.lower(), name) != name:
            raise LineFileError(f"{os.path.join(folder, name)} is for the same language as {tags[name.lower()]}")
    return names


def _read(path: str) -> Words:
    text = read_line_file(path, _MOST_BYTES).text
    try:
        words = json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
    except json.JSONDecodeError as exc:
        raise LineFileError(f"{path} is no JSON: {exc}") from exc
    except (RecursionError, ValueError) as exc:
        raise LineFileError(f"{path} is no map of texts") from exc
    if not isinstance(words, dict):
        raise LineFileError(f"{path} is no map of texts")
    for key, said in words.items():
        if fault := _fault(key, said):
            raise LineFileError(f"{path}: {quoted(key)}: {fault}")
    return words


def _once(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise LineFileError(f"{path}: {quoted(twice)}: stands there twice")
    return found


def _fault(key: str, said: Any) -> str:
    """Return what is wrong with a text; "" for nothing."""
    english = _built_in(FALLBACK)
    if key not in english:
        near = difflib.get_close_matches(key, english, 1)
        return f"is not known{f'; did you mean {near[0]}?' if near else ''}"
    if not isinstance(said, str):
        return "must be a text"
    if len(said) > _MOST_CHARACTERS:
        return f"must be at most {_MOST_CHARACTERS} characters long"
    if _CONTROL.search(said):
        return "must be one line of whole characters"
    if key == "direction" and said not in {"ltr", "rtl"}:
        return 'must be "ltr" or "rtl"'
    fields = set(_FIELD.findall(english[key]))
    if strange := next((field for field in _FIELD.findall(said) if field not in fields), None):
        return f"has no field {{{strange}}}"
    if "{" in _FIELD.sub("", said) or "}" in _FIELD.sub("", said):
        return "has a brace that is part of no field"
    return ""
