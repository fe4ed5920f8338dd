"""A configuration as JSON, as a running master tells it, and back.  Pure.

A secret is told by nobody: it is null in JSON and its key stands under `hidden`, unless it is the default, which
anybody can read in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

import attrs

from master.config import ARRAYS, KEYS, SECRETS, SWITCHES, TABLES, WITHIN, Config
from master.config_values import read_value
from master.queue.ticket import Lane

UNKNOWN: Final = ""
"""What stands in a configuration for a secret that was not told; no file can say that."""
_BACKEND: Final = "backend"
_ALONE: Final = "alone"
_WRITTEN: Final = "as_written"
_HIDDEN: Final = "hidden"
_KINDS: Final = {bool: "boolean", int: "integer", float: "number"}
_SINGLE: Final = {name: cls for name, cls in TABLES.items() if name not in ARRAYS}


def tables_of(config: Config) -> dict[str, Any]:
    """Return all tables but the backends, and what stands in the file where another value is at work.

    A table that is not there, and whose absence means something, is None.
    """
    tables: dict[str, Any] = {name: _values_of(getattr(config, name)) for name in _SINGLE}
    hidden = [each for each in sorted(SECRETS) if getattr(getattr(config, each[0]), each[1]) != default_of(*each)]
    for name, key in hidden:
        tables[name][key] = None
    written: dict[str, dict[str, Any]] = {}
    for (name, key), value in config.as_written.items():
        written.setdefault(name, {})[key] = _plain(value)
    return tables | {_ALONE: config.alone, _WRITTEN: written, _HIDDEN: [f"{name}.{key}" for name, key in hidden]}


def values_of(table: attrs.AttrsInstance) -> dict[str, Any]:
    """Return the values of one table, by key, as JSON has them, and the array of tables that is within."""
    values = {key: _plain(getattr(table, key)) for key in KEYS[type(table)]}
    if type(table) in WITHIN:
        array, field = WITHIN[type(table)]
        values[_last(array)] = [values_of(each) for each in getattr(table, field)]
    return values


def _last(array: str) -> str:
    """Return the key of an array of tables within its table."""
    return array.rpartition(".")[2]


def _values_of(table: attrs.AttrsInstance | None) -> dict[str, Any] | None:
    return None if table is None else values_of(table)


def default_of(table: str, key: str) -> Any:
    """Return the default of a key."""
    return attrs.fields_dict(TABLES[table])[key].default


def schema_of(table: str) -> dict[str, Any]:
    """Return the JSON Schema of a table."""
    cls = TABLES[table]
    hints = get_type_hints(cls)
    keys = {key: _schema(hints[key], nullable=(table, key) in SECRETS) for key in KEYS[cls]}
    if cls in WITHIN:
        array, _ = WITHIN[cls]
        keys[_last(array)] = {"type": "array", "items": schema_of(array)}
    schema = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    return {"anyOf": [schema, {"type": "null"}]} if table in SWITCHES else schema


def read_config(got: Mapping[str, Any]) -> Config:
    """Return the configuration that `tables_of`, with its backends, made `got` of; a secret not told is UNKNOWN.

    Raise ValueError, or an ExceptionGroup of such, where it was made by anything else.
    """
    if got.keys() != {*_SINGLE, _BACKEND, _ALONE, _WRITTEN, _HIDDEN}:
        raise ValueError("has other tables than this version")
    hidden = frozenset(got[_HIDDEN])
    config = Config(
        **{name: _read(name, got[name], hidden) for name in _SINGLE if not (name in SWITCHES and got[name] is None)},
        backends=tuple(_read(_BACKEND, row, hidden) for row in got[_BACKEND]),
        alone=bool(got[_ALONE]),
    )
    written = {(name, key): value for name, table in got[_WRITTEN].items() for key, value in table.items()}
    return attrs.evolve(config, as_written=written)


def _read(name: str, row: Mapping[str, Any], hidden: frozenset[str]) -> Any:
    cls, within = TABLES[name], {}
    if cls in WITHIN:
        array, field = WITHIN[cls]
        within[field] = tuple(_read(array, each, hidden) for each in row[_last(array)])
        row = {key: value for key, value in row.items() if key != _last(array)}
    if row.keys() != KEYS[cls].keys():
        raise ValueError(f"{name} has other keys than this version")
    values = {key: UNKNOWN if f"{name}.{key}" in hidden else _value(cls, key, value) for key, value in row.items()}
    return cls(**values, **within)


def _value(cls: type[Any], key: str, value: Any) -> Any:
    return None if value is None else read_value(cls, key, value)


def _schema(hint: Any, *, nullable: bool = False) -> dict[str, Any]:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if nullable or len(kinds) > 1:
        return {"anyOf": [_schema(kinds[0]), {"type": "null"}]}
    if getattr(hint, "__origin__", None) is tuple:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": _KINDS.get(hint, "string")}


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case Lane():
            return value.name.lower()
        case None | bool() | int() | float():
            return value
        case _:  # a text, a word of several, an address or a network
            return str(value)
