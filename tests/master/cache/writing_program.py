"""Writes to a cache as fast as it can, until it is killed: a session, an entry of it, and a count, all in one moment.

Says to standard output what is kept for sure: after each commit, the highest number in it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import structlog
import trio

from master.cache.bounds import StorePolicy
from master.cache.keeper import CacheKeeper
from master.cache.rows import Changes, Row, Table
from master.cache.store import CacheStore
from master.store import SqliteCache

TTL_S = 1e6
COUNT = ("count",)


class Noting(SqliteCache):
    def write(self, parts: Sequence[Changes], epoch_s: float) -> None:
        super().write(parts, epoch_s)
        numbers = [row.version for part in parts for row in part.rows]
        os.write(1, f"{max(numbers, default=0)}\n".encode())


def rows_of(number: int) -> list[Row]:
    name = f"{number:032x}"
    value = number.to_bytes(8, "big") * 12
    return [
        Row(Table.SESSION, (name,), value, "ann", name, number, 0, 0.0, TTL_S),
        Row(Table.CACHE, (name, "key"), value, "ann", name, number, 0, 0.0, TTL_S),
        Row(Table.DEVICE, ("count", "ann"), value, "ann", "", number, 0, 0.0, TTL_S),
    ]


async def main(file: str) -> None:
    store = CacheStore(StorePolicy(max_bytes=2**31))
    log: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    keeper = CacheKeeper(
        store, Noting(file), 0.1, log, lambda kind, text: None, epoch_s=time.time() - trio.current_time()
    )
    await keeper.restore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        number = 0
        while True:
            for _ in range(20):
                number += 1
                for row in rows_of(number):
                    store.put(trio.current_time(), row)
            await trio.sleep(0.005)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
