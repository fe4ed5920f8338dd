"""A configuration as JSON, as a running master tells it, and back.  Pure.

A secret is told by nobody: it is null in JSON and its key stands under `hidden`, unless it is the default, which
anybody can read in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

import attrs

from master.config import SECRETS, TABLES, Config
from master.config_values import read_value

UNKNOWN: Final = ""
"""What stands in a configuration for a secret that was not told; no file can say that."""
_BACKEND: Final = "backend"
_WRITTEN: Final = "as_written"
_HIDDEN: Final = "hidden"
_KINDS: Final = {bool: "boolean", int: "integer", float: "number"}
_SINGLE: Final = {name: cls for name, cls in TABLES.items() if name != _BACKEND}


def tables_of(config: Config) -> dict[str, Any]:
    """Return all tables but the backends, and what stands in the file where another value is at work."""
    tables: dict[str, Any] = {name: values_of(getattr(config, name)) for name in _SINGLE}
    hidden = [each for each in sorted(SECRETS) if getattr(getattr(config, each[0]), each[1]) != default_of(*each)]
    for name, key in hidden:
        tables[name][key] = None
    written: dict[str, dict[str, Any]] = {}
    for (name, key), value in config.as_written.items():
        written.setdefault(name, {})[key] = _plain(value)
    return tables | {_WRITTEN: written, _HIDDEN: [f"{name}.{key}" for name, key in hidden]}


def values_of(table: attrs.AttrsInstance) -> dict[str, Any]:
    """Return the values of one table, by key, as JSON has them."""
    return {field.name: _plain(getattr(table, field.name)) for field in attrs.fields(type(table))}


def default_of(table: str, key: str) -> Any:
    """Return the default of a key."""
    return attrs.fields_dict(TABLES[table])[key].default


def schema_of(table: str) -> dict[str, Any]:
    """Return the JSON Schema of a table."""
    hints = get_type_hints(TABLES[table])
    keys = {key: _schema(hint, nullable=(table, key) in SECRETS) for key, hint in hints.items()}
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def read_config(got: Mapping[str, Any]) -> Config:
    """Return the configuration that `tables_of`, with its backends, made `got` of; a secret not told is UNKNOWN.

    Raise ValueError, or an ExceptionGroup of such, where it was made by anything else.
    """
    if got.keys() != {*_SINGLE, _BACKEND, _WRITTEN, _HIDDEN}:
        raise ValueError("has other tables than this version")
    hidden = frozenset(got[_HIDDEN])
    config = Config(
        **{name: _read(name, got[name], hidden) for name in _SINGLE},
        backends=tuple(_read(_BACKEND, row, hidden) for row in got[_BACKEND]),
    )
    written = {(name, key): value for name, table in got[_WRITTEN].items() for key, value in table.items()}
    return attrs.evolve(config, as_written=written)


def _read(name: str, row: Mapping[str, Any], hidden: frozenset[str]) -> Any:
    cls = TABLES[name]
    if row.keys() != attrs.fields_dict(cls).keys():
        raise ValueError(f"{name} has other keys than this version")
    return cls(**{key: UNKNOWN if f"{name}.{key}" in hidden else _value(cls, key, value) for key, value in row.items()})


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
        case None | bool() | int() | float():
            return value
        case _:  # a text, a word of several, an address or a network
            return str(value)
