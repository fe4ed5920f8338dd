"""What can be asked of sessions, the data kept with them, and devices: fields in, an outcome out.  Pure.

All of it is done at once, by a store that is in memory. Whatever is asked by a session renews it: its time runs from
the last question. One that is gone is not brought back by that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from lambdamu.messages import CACHE, DEVICE, SESSION, VALUE, Code, Transport
from master.cache.fields import Fields
from master.cache.hot_keys import HotKeys, name_of
from master.cache.rows import Row, Table
from master.cache.store import CacheStore, Why

_ID_BYTES: Final = 16
"""128 bits of chance: nobody guesses the session of another."""
_MOST_LISTED: Final = 100
"""Sessions of one client in one answer."""


@attrs.frozen
class Wrong:
    """There are no data, and why: a word and a line."""

    code: Code
    text: str


@attrs.frozen
class Failed:
    """The question was not dealt with. `retry_after_s`: None where nobody knows when it is of use to ask again."""

    error: Transport
    text: str
    retry_after_s: float | None = None


Outcome = Mapping[str, Any] | Wrong | Failed
Operation = Callable[[float, Fields], Outcome]
GONE: Final = Wrong(Code.SESSION_GONE, "there is no such session, any more or ever: its client has to log in")
NOT_YOURS: Final = Wrong(Code.NOT_YOURS, "the session is that of another client")
_FULL: Final = Failed(Transport.FULL, "the store has no room for it")
_REFUSED: Final[Mapping[Why, Failed | Wrong]] = MappingProxyType(
    {
        Why.FULL: _FULL,
        Why.TOO_BIG: Failed(Transport.TOO_BIG, "it is longer than the store takes"),
        Why.NO_SESSION: GONE,
    }
)


@attrs.frozen
class Times:
    """How long rows live for which no TTL is given, seconds."""

    session_s: float = 1800.0
    cache_s: float = 1800.0
    device_s: float = 30 * 86400.0


def new_id() -> str:
    """Return the id of a session: 128 bits of chance, in 22 characters of base64url with a dot for the dash.

    What begins with a dash is an option where an operator gives it to a command.
    """
    return secrets.token_urlsafe(_ID_BYTES).replace("-", ".")


class Objects:
    """The operations by object and name. `value_bytes`: a longer value is not taken: its answer would be too long."""

    def __init__(self, store: CacheStore, times: Times, value_bytes: int, make_id: Callable[[], str] = new_id) -> None:
        self._store = store
        self._times = times
        self._value_bytes = value_bytes
        self._make_id = make_id
        self.hot: Final = HotKeys()
        """Which data are asked for most; whose, nobody sees there."""
        self.operations: Mapping[tuple[str, str], Operation] = MappingProxyType(
            {
                (SESSION, "Create"): self._create,
                (SESSION, "Get"): self._get_session,
                (SESSION, "Touch"): self._touch,
                (SESSION, "Set"): self._set,
                (SESSION, "Drop"): self._drop_session,
                (SESSION, "List"): self._list,
                (CACHE, "Put"): self._put,
                (CACHE, "Get"): self._get,
                (CACHE, "Drop"): self._drop,
                (DEVICE, "Bind"): self._bind,
                (DEVICE, "Unbind"): self._unbind,
            }
        )

    def find_session(self, now: float, fields: Fields, ttl_s: float | None = None) -> Row | Wrong:
        """Return the session that is meant, renewed. Where Data names the Client, it has to be his."""
        key, client = (fields.text("Session"),), fields.optional_text("Client")
        if client is not None:
            row = self._store.get(now, Table.SESSION, key)
            if row is not None and row.client != client:
                return NOT_YOURS
        return self._store.touch(now, Table.SESSION, key, ttl_s) or GONE

    def _create(self, now: float, fields: Fields) -> Outcome:
        session, ttl_s = self._make_id(), fields.ttl_s() or self._times.session_s
        client, version, data_type = fields.text("Client"), fields.number("Version", 0), fields.number("Type", 0)
        value = fields.optional_value() or b""
        row = Row(Table.SESSION, (session,), value, client, session, version, data_type, now, ttl_s)
        return self._keep(now, row) or {"Session": session, "TTL": ttl_s}

    def _get_session(self, now: float, fields: Fields) -> Outcome:
        row = self.find_session(now, fields)
        return row if isinstance(row, Wrong) else {"Session": row.session, "Client": row.client} | _shown(row)

    def _touch(self, now: float, fields: Fields) -> Outcome:
        row = self.find_session(now, fields, fields.ttl_s())
        return row if isinstance(row, Wrong) else {"Session": row.session, "TTL": row.ttl_s}

    def _set(self, now: float, fields: Fields) -> Outcome:
        value, ttl_s = fields.value(), fields.ttl_s()
        version, data_type = fields.number("Version", -1), fields.number("Type", -1)
        if too_big := self._too_big(value):
            return too_big
        row = self.find_session(now, fields)
        if isinstance(row, Wrong):
            return row
        row = row._replace(
            value=value,
            ttl_s=ttl_s or row.ttl_s,
            version=row.version if version < 0 else version,
            type=row.type if data_type < 0 else data_type,
        )
        return self._keep(now, row) or {"Session": row.session, "TTL": row.ttl_s}

    def _drop_session(self, now: float, fields: Fields) -> Outcome:
        session, client = fields.text("Session"), fields.optional_text("Client")
        row = self._store.get(now, Table.SESSION, (session,)) if client is not None else None
        if row is not None and row.client != client:
            return NOT_YOURS
        return {"Dropped": self._store.drop_session(now, session)}

    def _list(self, now: float, fields: Fields) -> Outcome:
        rows = self._store.by_client(now, Table.SESSION, fields.text("Client"), _MOST_LISTED + 1)
        return {"Sessions": [row.session for row in rows[:_MOST_LISTED]], "More": len(rows) > _MOST_LISTED}

    def _put(self, now: float, fields: Fields) -> Outcome:
        key, value, ttl_s = fields.text("Key"), fields.value(), fields.ttl_s() or self._times.cache_s
        data_type, version = fields.number("Type", 0), fields.number("Version", 0)
        if too_big := self._too_big(value):
            return too_big
        owner = self._find_owner(now, fields, key)
        if isinstance(owner, Wrong):
            return owner
        session = owner.session
        row = Row(Table.CACHE, (session, key), value, owner.client, session, version, data_type, now, ttl_s)
        return self._keep(now, row) or {"Key": key, "TTL": ttl_s}

    def _get(self, now: float, fields: Fields) -> Outcome:
        key = fields.text("Key")
        owner = self._find_owner(now, fields, key)
        if isinstance(owner, Wrong):
            return owner
        row = self._store.get(now, Table.CACHE, (owner.session, key))
        if row is None:
            return Wrong(Code.NOT_FOUND, "the session has nothing under this Key, any more or ever")
        return {"Key": key} | _shown(row, now)

    def _drop(self, now: float, fields: Fields) -> Outcome:
        key = fields.text("Key")
        owner = self._find_owner(now, fields, key)
        if isinstance(owner, Wrong):
            return owner
        return {"Dropped": self._store.delete(now, Table.CACHE, (owner.session, key))}

    def _bind(self, now: float, fields: Fields) -> Outcome:
        device, ttl_s = fields.text("Device"), fields.ttl_s() or self._times.device_s
        owner = self.find_session(now, fields)
        if isinstance(owner, Wrong):
            return owner
        row = Row(Table.DEVICE, (device, owner.client), b"", owner.client, "", 0, 0, now, ttl_s)
        return self._keep(now, row) or {"Device": device, "Client": owner.client, "TTL": ttl_s}

    def _unbind(self, now: float, fields: Fields) -> Outcome:
        device = fields.text("Device")
        owner = self.find_session(now, fields)
        if isinstance(owner, Wrong):
            return owner
        return {"Dropped": self._store.delete(now, Table.DEVICE, (device, owner.client))}

    def _find_owner(self, now: float, fields: Fields, key: str) -> Row | Wrong:
        """Return the session whose `key` is meant, renewed."""
        owner = self.find_session(now, fields)
        if not isinstance(owner, Wrong):
            self.hot.note(now, (CACHE, name_of(key, owner.session, owner.client)))
        return owner

    def _keep(self, now: float, row: Row) -> Failed | Wrong | None:
        """Have a row kept; return why that cannot be."""
        if too_big := self._too_big(row.value):
            return too_big
        refused = self._store.put(now, row)
        return None if refused is None else _REFUSED.get(refused.why, _FULL)

    def _too_big(self, value: bytes) -> Failed | None:
        if len(value) <= self._value_bytes:
            return None
        return Failed(Transport.TOO_BIG, f"a value has at most {self._value_bytes} bytes")


def _shown(row: Row, now: float | None = None) -> dict[str, Any]:
    """Return what is told of a row; its TTL is what is left at `now`, or all of it where it begins anew."""
    ttl_s = row.ttl_s if now is None else row.until - now
    return {"Type": row.type, "Version": row.version, "TTL": ttl_s, VALUE: row.value}
