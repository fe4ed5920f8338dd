"""Which backend a device belongs to: the one that its latest session names.  Pure; nothing lives longer for it.

A backend puts its name, as it stands in the configuration of the masters, under the Key `Backend` of each session that
is at it. What is read is bounded: some clients of the device, some sessions of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from lambdamu.messages import BACKEND, as_text
from master.cache.rows import Row, Table
from master.cache.store import CacheStore

_SESSIONS: Final = 8
"""Of one client, those that were made last. More are a sign that nobody drops them."""


def latest_sessions(store: CacheStore, now: float, clients: Iterable[str]) -> list[Row]:
    """Return the living sessions of some clients, the one that was used last first."""
    rows = [row for client in clients for row in store.by_client(now, Table.SESSION, client, _SESSIONS)]
    return sorted(rows, key=attrgetter("updated_at"), reverse=True)


class Homes:
    """`clients`: so many of one device are looked at, those who came last."""

    def __init__(self, store: CacheStore, clients: int) -> None:
        self._store = store
        self._clients = clients

    def find(self, now: float, device: str) -> str:
        """Return the name that a backend has left in the session of a device; "" where there is none."""
        clients = self._store.clients_of(now, device, self._clients)
        for session in latest_sessions(self._store, now, clients):
            entry = self._store.get(now, Table.CACHE, (session.session, BACKEND))
            if entry is not None:
                return as_text(entry.value) or ""
        return ""
