"""What operators are shown of the cache, as values for JSON.

In what is shown of it as a whole there are no ids of clients, sessions or devices. Where one is looked up by its id,
values are shown by their size, and ids of sessions, which are as good as a password, by a few of their letters; all of
it where that is asked for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lambdamu.breaker import State
from lambdamu.messages import WARM
from master.answer_log import hash_of
from master.cache.rows import Row, Table
from master.config_words import count
from master.web.cache_minute import LastMinute
from master.web.desk import wall
from master.web.views import Json, dumps, finite, rows_of

if TYPE_CHECKING:
    from master.cache.house import CacheHouse
    from master.cache.warm import Warmer

MOST_KEYS: Final = 20
MOST_ROWS: Final = 100
"""Of each kind, where one is looked up."""
SHOWN_BYTES: Final = 16384
"""Of one value."""
_LOOKED_AT_BYTES: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LETTERS: Final = 4
_HASH_DIGITS: Final = 12


def cache_summary(house: CacheHouse | None, now: float, minute: LastMinute) -> Json | None:
    """Return in a few words how the cache stands; None where there is none."""
    if house is None:
        return None
    trouble = [*troubles(house, now), *minute.troubles()]
    return {"sessions": house.store.counts(Table.SESSION).rows, "trouble": trouble}


def cache_verdict(summary: Mapping[str, Any]) -> str:
    """Return how a node stands that has nothing but the cache, in one line."""
    well = ", and not all is well" if summary["trouble"] else ""
    return f"the cache has {count(summary['sessions'], 'session')}{well}"


def troubles(house: CacheHouse, now: float) -> Iterator[str]:
    """Yield a line for each thing that is not as it should be."""
    kept = house.keeper
    if kept is not None and kept.failing:
        file = house.config.file
        why = kept.error.removeprefix(f"{file}: ")
        yield f"{file} is not written, {count(kept.unwritten, 'change')} would end with the process: {why}"
    peers = house.upstream.peers if house.upstream is not None else []
    failing = [str(peer.address) for peer in peers if peer.breaker.state(now) is not State.CLOSED]
    if failing:
        yield f"the upstream fails at {', '.join(failing)}"
    most = house.store.policy.max_bytes
    if house.store.counts(Table.SESSION).bytes > 0.8 * most:
        yield f"sessions alone take more than 80 % of {most} bytes"


def cache_overview(house: CacheHouse, now: float, minute: LastMinute) -> bytes:
    """Return what is said of the cache as a whole."""
    store, kept, port = house.store, house.keeper, house.port
    return dumps(
        {
            "at": finite(wall(now)),
            **(cache_summary(house, now, minute) or {}),
            "bytes": store.bytes,
            "max_bytes": store.policy.max_bytes,
            "tables": [_table_row(house, table) for table in reversed(Table)],
            "last_minute": minute.row(),
            "warm": None if house.warm is None else _warm_row(house.warm),
            **_broker_rows(house, now),
            "upstream": _peer_rows(house, now),
            "store": None
            if kept is None or not house.config.file
            else {
                "failing": kept.failing,
                "unwritten": kept.unwritten,
                "written_s_ago": finite(now - kept.written_at),
            },
            "connections": {
                "open": port.connections if port is not None else 0,
                "max": house.config.connections,
                "refused": house.turned_away,
            },
            "keys": _key_rows(house, now),
        }
    )


def _table_row(house: CacheHouse, table: Table) -> Json:
    counts = house.store.counts(table)
    return {
        "table": table.name.lower(),
        "rows": counts.rows,
        "bytes": counts.bytes,
        "evicted": counts.evicted,
        "expired": counts.expired,
        "refused": counts.refused,
    }


def _warm_row(warm: Warmer) -> Json:
    """Return what has become of warm data since the start."""
    counts, fetches = warm.counts, warm.fetches.counts
    return {
        "asks": counts.asks,
        "hits": counts.hits,
        "joined": fetches.joined,
        "missed": counts.misses - fetches.joined,
        "refused": counts.asks - counts.served,
        "stale": fetches.stale,
        "hit_rate": finite(counts.hits / counts.served) if counts.served else None,
        "saved": warm.saved,
        "calls": fetches.calls,
        "failures": fetches.failures,
        "app_starts": counts.app_starts,
        "warmed": counts.warmed,
        "flights": len(warm.fetches.flights),
        "max_flights": warm.policy.flights,
    }


def _broker_rows(house: CacheHouse, now: float) -> Json:
    broker, core = house.broker, house.broker.core
    policy = core.policy
    return {
        "queue": {
            "length": core.length,
            "max_length": policy.length,
            "oldest_s": finite(core.oldest_s(now)),
            "waiting": core.parked,
            "max_waiting": policy.most_parked,
            "refused": core.refused,
            "put_out": core.put_out,
            "expired": core.expired,
            "cut": broker.cut,
            "dropped": broker.dropped,
        },
        "workers": {
            "busy": core.working,
            "max": policy.workers,
            "kinds": [
                {"kind": kind, "busy": core.busy.get(kind, 0), "max": most} for kind, most in policy.per_kind.items()
            ],
        },
    }


def _peer_rows(house: CacheHouse, now: float) -> list[Json]:
    if house.upstream is None:
        return []
    return [{"peer": str(peer.address), "breaker": peer.breaker.state(now).value} for peer in house.upstream.peers]


def _key_rows(house: CacheHouse, now: float) -> list[Json]:
    named = {str(each.type): each.kind for each in house.config.warm}
    rows = []
    for hot in house.hot.top(now, MOST_KEYS):
        of, key = hot.name
        name = named.get(key, f"type {key}") if of == WARM else key
        rows.append({"table": of.lower(), "name": name, "asks": hot.asks, "over": hot.over})
    return rows


# One of them, looked up.


def hash12(known: str) -> str:
    """Return the digits of a hash by which people know an id that they are not told."""
    return hash_of(known)[:_HASH_DIGITS]


async def session_body(house: CacheHouse, session: str, now: float, *, values: bool) -> bytes | None:
    """Return a session and the data kept with it, None where it is gone. It lives no longer for that."""
    row = house.store.get(now, Table.SESSION, (session,))
    if row is None:
        return None
    entries = house.store.entries_of(now, session, MOST_ROWS + 1)
    shown = {"session": session, "hash": hash12(session), "client": row.client} | _row(row, now, values=values)
    head = dumps({"at": finite(wall(now)), **shown, "more": len(entries) > MOST_ROWS})
    rows = await rows_of(entries[:MOST_ROWS], lambda each: {"key": each.key[1]} | _row(each, now, values=values))
    return head[:-1] + b',"entries":' + rows + b"}"


async def device_body(house: CacheHouse, device: str, now: float, *, values: bool) -> bytes | None:  # noqa: ARG001 - none are kept of a device
    """Return who uses a device, the last one first; None where nobody does."""
    store = house.store
    clients = store.clients_of(now, device, MOST_ROWS + 1)
    found = [(client, store.get(now, Table.DEVICE, (device, client))) for client in clients[:MOST_ROWS]]
    rows = [{"client": client} | _times(row, now) for client, row in found if row is not None]
    told = {"at": finite(wall(now)), "device": device, "clients": rows, "more": len(clients) > MOST_ROWS}
    return dumps(told) if rows else None


async def client_body(house: CacheHouse, client: str, now: float, *, values: bool) -> bytes | None:
    """Return the sessions of a client, its devices and its warm data, the last ones first; None where it has none."""
    tables = (Table.SESSION, Table.DEVICE, Table.WARM)
    found = {table: house.store.by_client(now, table, client, MOST_ROWS + 1) for table in tables}
    if not any(found.values()):
        return None
    head = dumps(
        {
            "at": finite(wall(now)),
            "client": client,
            "more": any(len(rows) > MOST_ROWS for rows in found.values()),
            "devices": [{"device": str(row.key[0])} | _times(row, now) for row in found[Table.DEVICE][:MOST_ROWS]],
        }
    )
    sessions = await rows_of(
        found[Table.SESSION][:MOST_ROWS],
        lambda row: {
            "session": row.session if values else row.session[:_LETTERS] + "…",
            "hash": hash12(row.session),
            **_row(row, now, values=values),
        },
    )
    warm = await rows_of(found[Table.WARM][:MOST_ROWS], lambda row: _row(row, now, values=values))
    return head[:-1] + b',"sessions":' + sessions + b',"warm":' + warm + b"}"


def _times(row: Row, now: float) -> Json:
    return {"renewed_at": finite(wall(row.updated_at)), "ends_in_s": finite(max(0.0, row.until - now))}


def _row(row: Row, now: float, *, values: bool) -> Json:
    return {
        "type": row.type,
        "version": row.version,
        **_times(row, now),
        "ttl_s": finite(row.ttl_s),
        "value": value_row(row.value, shown=values),
    }


def value_row(value: bytes, *, shown: bool) -> Json:
    """Return a value by its size and what it looks like; where `shown`, its first bytes as well, as text or Base64."""
    looks = "empty" if not value else "bytes" if _text_of(value, _LOOKED_AT_BYTES) is None else "text"
    told: Json = {"bytes": len(value), "looks": looks, "text": None, "base64": None}
    if shown:
        text = _text_of(value, SHOWN_BYTES)
        part = base64.b64encode(value[:SHOWN_BYTES]).decode()
        told |= {"base64": part} if text is None else {"text": text}
    return told


def _text_of(value: bytes, most: int) -> str | None:
    """Return the first `most` bytes as text, None where they are none; the last character may have been cut."""
    part = value[:most]
    try:
        text = part.decode()
    except UnicodeDecodeError as exc:
        if len(value) <= most or exc.start < most - 3:
            return None
        text = part[: exc.start].decode()
    return None if _CONTROL.search(text) else text
