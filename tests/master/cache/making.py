"""Rows of each table, in few words."""

from __future__ import annotations

from typing import Any

from master.cache.rows import Row, Table


def session(name: str = "s", client: str = "ann", value: bytes = b"data", ttl_s: float = 30.0, **more: Any) -> Row:
    return _row(Table.SESSION, (name,), value, client, name, ttl_s, more)


def entry(key: str = "k", name: str = "s", value: bytes = b"data", ttl_s: float = 30.0, **more: Any) -> Row:
    return _row(Table.CACHE, (name, key), value, more.pop("client", "ann"), name, ttl_s, more)


def warm(
    client: str = "ann", kind: int = 1, value: bytes = b"data", ttl_s: float = 30.0, version: int = 1, **more: Any
) -> Row:
    return _row(
        Table.WARM, (client, kind, version), value, client, "", ttl_s, {"type": kind, "version": version, **more}
    )


def device(name: str = "phone", client: str = "ann", ttl_s: float = 30.0, **more: Any) -> Row:
    return _row(Table.DEVICE, (name, client), more.pop("value", b""), client, "", ttl_s, more)


def _row(table: Table, key: Any, value: bytes, client: str, name: str, ttl_s: float, more: dict[str, Any]) -> Row:
    fields = {"version": 1, "type": 0, "updated_at": 0.0, **more}
    return Row(table=table, key=key, value=value, client=client, session=name, ttl_s=ttl_s, **fields)
