"""Warm data as they are put together, with an upstream to order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from master.cache.broker import Broker
from master.cache.broker_core import BrokerPolicy
from master.cache.flights import Key
from master.cache.rows import Row, Table
from master.cache.store import CacheStore, StorePolicy
from master.cache.upstream import UpstreamError
from master.cache.warm import Warmer
from master.cache.warm_types import WarmPolicy, WarmType

NAMES = ("Accounts", "Cards", "Deposits", "Loans", "Packages")
NETWORK = bytes([192, 0, 2, 1])


def kinds(**changes: Any) -> list[WarmType]:
    """Five types, as a bank has them."""
    plain = {"ttl_s": 60.0, "refresh_s": 10.0, "lifetime_s": 10.0}
    return [WarmType(number, name, "Products", **{**plain, **changes}) for number, name in enumerate(NAMES, 1)]


class SlowUpstream:
    """Answers after `delay_s`, each time with another value, as often as it is not told to fail."""

    def __init__(self, delay_s: float = 0.2) -> None:
        self.delay_s = delay_s
        self.calls: Counter[Key] = Counter()
        self.at: list[float] = []
        self.answers: list[bytes | str] = []
        """What the next calls are answered with: bytes, or the text of an error."""
        self.shielded = False
        """Whether it goes on after its time, as a process does that was paused."""

    async def fetch(self, kind: WarmType, key: Key, session: str | None, within_s: float) -> bytes:
        self.calls[key] += 1
        self.at.append(trio.current_time())
        number, delay_s = self.total, self.delay_s
        answer = self.answers.pop(0) if self.answers else f"{key[0]} {kind.name} {number}".encode()
        with trio.CancelScope(shield=self.shielded):
            await trio.sleep(delay_s)
        if isinstance(answer, str):
            raise UpstreamError(answer)
        return answer

    @property
    def total(self) -> int:
        return self.calls.total()


@attrs.define
class House:
    store: CacheStore
    upstream: Any
    warmers: list[Warmer]
    brokers: list[Broker]

    @property
    def warmer(self) -> Warmer:
        return self.warmers[0]

    def log_in(self, client: str, device: str | None = None, ttl_s: float = 1e6) -> str:
        """Return the session of a client who has logged in."""
        now = trio.current_time()
        session = f"session of {client}"
        assert self.store.put(now, Row(Table.SESSION, (session,), b"", client, session, 1, 0, now, ttl_s)) is None
        if device is not None:
            assert self.store.put(now, Row(Table.DEVICE, (device, client), b"", client, "", 1, 0, now, 1e6)) is None
        return session

    def value(self, client: str, number: int) -> bytes | None:
        row = self.store.get(trio.current_time(), Table.WARM, (client, number, 1))
        return None if row is None else row.value


@asynccontextmanager
async def house(
    upstream: Any = None,
    instances: int = 1,
    workers: int = 100,
    types: list[WarmType] | None = None,
    policy: WarmPolicy | None = None,
    store: CacheStore | None = None,
    length: int = 3000,
) -> AsyncIterator[House]:
    """Instances that share a store and an upstream."""
    made = House(CacheStore(StorePolicy()) if store is None else store, upstream or SlowUpstream(), [], [])
    async with trio.open_nursery() as nursery:
        for number in range(instances):
            broker = Broker(BrokerPolicy(length=length, workers=workers))
            rng = random.Random(number)
            warmer = Warmer(
                made.store, broker, made.upstream, types or kinds(), f"instance {number}", policy or WarmPolicy(), rng
            )
            await nursery.start(broker.run)
            await nursery.start(warmer.run)
            made.brokers.append(broker)
            made.warmers.append(warmer)
        yield made
        nursery.cancel_scope.cancel()
