"""The configuration by environment: LAMBDAMU_MASTER__LISTEN is `listen` of `[master]`, and beats the file. Pure.

What a variable holds becomes what tomllib would have given for its key, and is laid over what stands in the file; then
the same rules judge both. Only what cannot be told from a text is read here: numbers, true and false, and arrays.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Mapping
from typing import Any, Final, Union, get_args, get_origin

import attrs

from master.config import ARRAYS, KEYS, TABLES
from master.config_values import TYPES

Environment = Mapping[str, str]
"""The variables of a process, or some of them, by name."""

_PREFIX: Final = "LAMBDAMU_"
_BETWEEN: Final = "__"
_PATHS: Final = {tuple(table.upper().split(".")): table for table in TABLES}
"""The tables by what stands for them in a variable."""
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,6}")
_ARRAY: Final = re.compile(r"""\s*\[\s*["'\]]""")
"""How an array begins; an IPv6 address in brackets begins otherwise."""
_ENTRY: Final = re.compile(r"\[\[(?P<array>[\w.]+)\]\] (?P<number>\d+)|\[(?P<table>\w+)\]")


def variables(environment: Environment) -> list[str]:
    """Return the names of those that are meant as configuration: LAMBDAMU_ before, and two underscores in them."""
    return sorted(name for name in environment if name.startswith(_PREFIX) and _BETWEEN in name)


def misspelt(environment: Environment) -> list[str]:
    """Return a line for each variable that would be configuration if all its underscores were two where they should.

    No more than that: Kubernetes sets LAMBDAMU_MASTER_PORT and the like, where a service is called so.
    """
    meant = {
        "_".join(filter(None, (*path, number, key.upper()))): _BETWEEN.join(filter(None, (*path, number, key.upper())))
        for path, table in _PATHS.items()
        for key in KEYS[TABLES[table]]
        for number in (("0", "1", "2") if table in ARRAYS else ("",))
    }
    given = (name.removeprefix(_PREFIX) for name in sorted(environment) if name.startswith(_PREFIX))
    return [
        f"{_PREFIX}{name} is no configuration; did you mean {_PREFIX}{meant[name]}?" for name in given if name in meant
    ]


def lay_over(raw: Mapping[str, Any], environment: Environment) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return `raw`, what tomllib gave, with the variables over it; and the name of each bad one with what is wrong."""
    merged, faults, places = dict(raw), [], []
    for name in variables(environment):
        try:
            places.append(_find_place(name))
        except ValueError as exc:
            faults.append((name, str(exc)))
    gaps = set[str]()
    for place in sorted(places):
        if place.table in gaps:
            continue
        try:
            _put(merged, place, _read(place, environment[place.variable]))
        except _GapError as exc:  # all that follow stand behind it: it is one fault
            gaps.add(place.table)
            faults.append((place.variable, str(exc)))
        except ValueError as exc:
            faults.append((place.variable, str(exc)))
    return merged, faults


def name_culprits(entry: str, keys: tuple[str, ...], environment: Environment, *, missing: bool) -> str:
    """Return the variables behind a fault of `keys` in a table, as `[probe]` or `[[backend]] 2`; "" when none is.

    `missing`: the keys stand nowhere; they are to be given by variable where something of that table is.
    """
    found = _ENTRY.match(entry)
    if found is None:
        return ""
    number = found["number"]
    before = _variable(found["array"], int(number) - 1, "") if number else _variable(found["table"], None, "")
    given = variables(environment)
    if missing and any(name.startswith(before) for name in given):
        return ", ".join(before + key.upper() for key in keys)
    return ", ".join(name for name in (before + key.upper() for key in keys) if name in given)


class _GapError(ValueError):
    """A number in an array is left out."""


@attrs.frozen(order=True)
class _Place:
    table: str
    number: int
    """In an array of tables, from 0; else -1."""
    key: str
    variable: str


def _variable(table: str, number: int | None, key: str) -> str:
    numbers = [] if number is None else [str(number)]
    return _PREFIX + _BETWEEN.join([*table.split("."), *numbers, key]).upper()


def _find_place(name: str) -> _Place:
    *path, key = name.removeprefix(_PREFIX).split(_BETWEEN)
    number = int(path.pop()) if path and _NUMBER.fullmatch(path[-1]) else -1
    table = _PATHS.get(tuple(path), "")
    fits = table and (number >= 0) == (table in ARRAYS) and name.isupper() and name.isascii()
    if not fits or key.lower() not in KEYS[TABLES[table]]:
        raise ValueError(_explain_unknown(name, max(number, 0)))
    return _Place(table, number, key.lower(), name)


def _explain_unknown(name: str, number: int) -> str:
    known = [
        _variable(table, number if table in ARRAYS else None, key).removeprefix(_PREFIX)
        for table, cls in TABLES.items()
        for key in KEYS[cls]
    ]
    close = difflib.get_close_matches(name.removeprefix(_PREFIX)[:128].upper(), known, 1)
    return f"is not known; did you mean {_PREFIX}{close[0]}?" if close else "is not known"


def _put(merged: dict[str, Any], place: _Place, value: object) -> None:
    """Lay one value over; what is no table there is left as it is, and is told as a fault of the file."""
    *outer, name = place.table.split(".")
    within = merged
    for each in outer:
        within[each] = _copy(within.get(each, {}))
        within = within[each]
        if not isinstance(within, dict):
            return
    if place.table in ARRAYS:
        rows = within[name] = _copy(within.get(name, []))
        if not isinstance(rows, list):
            return
        if place.number > len(rows):
            raise _GapError(f"there is no {name} {len(rows)} before it: they are numbered from 0 without a gap")
        if place.number == len(rows):
            rows.append({})
        table = rows[place.number] = _copy(rows[place.number])
    else:
        table = within[name] = _copy(within.get(name, {}))
    if isinstance(table, dict):
        table[place.key] = value


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list)) else value


def _read(place: _Place, text: str) -> object:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    kind = TYPES[TABLES[place.table]][place.key]
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if any(get_origin(each) is tuple for each in kinds):
        return _read_array(text)
    return _read_scalar(text) if {int, float, bool} & {*kinds} else text


def _read_array(text: str) -> object:
    if not _ARRAY.match(text):
        return [item.strip() for item in text.split(",")] if text.strip() else []
    try:
        return _read_toml(text)
    except (ValueError, RecursionError):
        raise ValueError('is not an array of TOML, such as ["a", "b"]; a, b is fine too') from None


def _read_scalar(text: str) -> object:
    """Return what TOML takes the text for, or the text itself, which is then refused as such."""
    try:
        return _read_toml(text)
    except (ValueError, RecursionError):
        return text


def _read_toml(text: str) -> object:
    # What ends a line or begins a comment would let more than one value in.
    if re.search(r"[\n\r#]", text):
        raise ValueError("more than a value")
    return tomllib.loads(f"value = {text}")["value"]
