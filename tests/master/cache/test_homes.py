"""Which backend a device belongs to, as its sessions say; nothing lives longer for having been asked."""

from __future__ import annotations

import pytest

from lambdamu.messages import BACKEND
from master.cache.homes import Homes
from master.cache.rows import Row, Table
from master.cache.store import CacheStore, StorePolicy

NOW = 1000.0


class Cache:
    def __init__(self) -> None:
        self.store = CacheStore(StorePolicy())
        self.homes = Homes(self.store, 3)

    def log_in(self, client: str, at: float = NOW, backend: bytes | None = b"b1", device: str = "d") -> str:
        session = f"{client} at {at}"
        rows = [
            Row(Table.SESSION, (session,), b"", client, session, 0, 0, at, 100.0),
            Row(Table.DEVICE, (device, client), b"", client, "", 0, 0, at, 1e6),
        ]
        if backend is not None:
            rows.append(Row(Table.CACHE, (session, BACKEND), backend, client, session, 0, 0, at, 100.0))
        for row in rows:
            assert self.store.put(at, row) is None
        return session


def test_it_is_the_one_that_the_session_used_last_names() -> None:
    cache = Cache()
    first = cache.log_in("ann", NOW, b"b1")
    cache.log_in("bob", NOW + 1, b"b2")
    cache.log_in("ann", NOW + 2, None)
    assert cache.homes.find(NOW + 3, "d") == "b2"
    cache.store.touch(NOW + 4, Table.SESSION, (first,))
    assert cache.homes.find(NOW + 5, "d") == "b1"


@pytest.mark.parametrize("name", [b"\xff", b"", None])
def test_what_is_no_name_is_none(name: bytes | None) -> None:
    cache = Cache()
    cache.log_in("ann", backend=name)
    assert cache.homes.find(NOW, "d") == ""


def test_nobody_knows_a_device_that_nobody_uses() -> None:
    cache = Cache()
    cache.log_in("ann")
    assert cache.homes.find(NOW, "another") == ""


def test_a_session_lives_no_longer_for_it_and_a_dead_one_names_nobody() -> None:
    cache = Cache()
    session = cache.log_in("ann", NOW)
    assert cache.homes.find(NOW + 99.9, "d") == "b1"
    for table, key in ((Table.SESSION, (session,)), (Table.CACHE, (session, BACKEND)), (Table.DEVICE, ("d", "ann"))):
        row = cache.store.get(NOW + 99.9, table, key)
        assert row is not None
        assert row.updated_at == NOW
    assert cache.homes.find(NOW + 100.1, "d") == ""


def test_a_device_of_many_clients_with_many_sessions_costs_no_more_than_some() -> None:
    cache, looks = Cache(), []
    for number in range(40):
        cache.log_in(f"client {number % 10}", NOW + number, None)
    get = cache.store.get
    cache.store.get = lambda now, table, key: looks.append(key) or get(now, table, key)  # type: ignore[method-assign, func-returns-value]
    assert cache.homes.find(NOW + 50, "d") == ""
    assert 0 < len(looks) <= 3 * 8


def test_who_used_a_device_last_is_looked_at_however_long_it_is_known_of_him() -> None:
    cache = Cache()
    for number, client in enumerate(["ann", "bob", "cy", "dee", "ann"]):
        cache.log_in(client, NOW + number, f"of {client}".encode() if client == "ann" else None)
    assert cache.store.clients_of(NOW + 5, "d", 3) == ["ann", "dee", "cy"]
    assert cache.homes.find(NOW + 5, "d") == "of ann"
