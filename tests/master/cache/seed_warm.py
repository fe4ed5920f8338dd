"""The service as the document before this one had it, cut down to what its tests need.

Workers take asks from a queue. Data have a state, idle or updating, without owner, deadline or fence; a worker that
finds updating waits in a loop. Who names a client gets his data; AppStart makes its messages, as many as come.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from master.cache.flights import Key
from master.cache.warm_types import WarmType

_LOOP_S = 0.05
_UPSTREAM_S = 30.0


class SeedStore:
    def __init__(self) -> None:
        self.updating: set[Key] = set()
        self.values: dict[Key, bytes] = {}
        self.clients: dict[str, list[str]] = {}


class SeedService:
    def __init__(self, store: SeedStore, upstream: Any, kinds: list[WarmType], workers: int) -> None:
        self._store = store
        self._upstream = upstream
        self._kinds = {kind.type: kind for kind in kinds}
        self._workers = workers
        self._send, self._receive = trio.open_memory_channel[tuple[Key, list[bytes | None], trio.Event]](math.inf)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._workers):
                nursery.start_soon(self._work)
            task_status.started()

    async def get(self, client: str, number: int) -> bytes | None:
        """Return the data of whoever is named; None when the time is up."""
        answers: list[bytes | None] = []
        over = trio.Event()
        self._send.send_nowait(((client, number, 1), answers, over))
        await over.wait()
        return answers[0]

    def app_start(self, device: str) -> None:
        for client in self._store.clients.get(device, []):
            for number in self._kinds:
                self._send.send_nowait(((client, number, 1), [], trio.Event()))

    async def _work(self) -> None:
        async for key, answers, over in self._receive:
            answers.append(await self._serve(key))
            over.set()

    async def _serve(self, key: Key) -> bytes | None:
        store = self._store
        with trio.move_on_after(_UPSTREAM_S):
            while key in store.updating:  # noqa: ASYNC110 - that is how it was
                await trio.sleep(_LOOP_S)
            if key not in store.values:
                store.updating.add(key)
                store.values[key] = await self._upstream.fetch(self._kinds[key[1]], key, None, _UPSTREAM_S)
                store.updating.discard(key)
            return store.values[key]
        return None


@asynccontextmanager
async def seed(store: SeedStore, upstream: Any, kinds: list[WarmType], workers: int) -> AsyncIterator[SeedService]:
    service = SeedService(store, upstream, kinds, workers)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()
