"""Times the store of the cache with its keeper beside it; run as a module, with the file to keep, a rate, and seconds.

A rate of 0: as fast as it goes.

Sessions of 100 bytes are put and read, in slices between which the loop turns, as a port does it. Prints {figure:
value}: pairs a second of wall time, and of CPU, threads included; the longest slice; what the keeper did.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from typing import Final

import structlog
import trio

from benchmarks.tally import cpu_s
from master.cache.bounds import StorePolicy
from master.cache.keeper import CacheKeeper
from master.cache.rows import Row, Table
from master.cache.store import CacheStore
from master.store import SqliteCache

_SESSIONS: Final = 100_000
_SLICE: Final = 50
"""Pairs between two turns of the loop."""
_VALUE: Final = bytes(range(100))
_COMMIT_S: Final = 0.1


def main() -> None:
    file, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(trio.run(measure, file, rate, seconds)), flush=True)


async def measure(file: str, rate: float, seconds: float) -> dict[str, float]:
    """Return pairs a second over `_SESSIONS` sessions, after each was put once; no more than `rate`, if not 0."""
    store = CacheStore(StorePolicy(max_bytes=2**30))
    keeper = CacheKeeper(
        store,
        SqliteCache(file),
        _COMMIT_S,
        structlog.get_logger(),
        lambda kind, text: print(kind, text, file=sys.stderr),
        epoch_s=time.time() - trio.current_time(),
    )
    await keeper.restore()
    rng = random.Random(1)
    names = [f"{rng.getrandbits(128):032x}" for _ in range(_SESSIONS)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        for first in range(0, _SESSIONS, _SLICE):
            _pairs(store, names[first : first + _SLICE])
            await trio.lowlevel.checkpoint()
        while keeper.unwritten:  # noqa: ASYNC110 - the keeper tells nobody
            await trio.sleep(_COMMIT_S)
        figures = await _run(store, keeper, names, rng, rate, seconds)
        nursery.cancel_scope.cancel()
    await keeper.finish()
    return figures


async def _run(
    store: CacheStore, keeper: CacheKeeper, names: list[str], rng: random.Random, rate: float, seconds: float
) -> dict[str, float]:
    pairs, longest_s, most_unwritten, commits = 0, 0.0, 0, keeper.commits
    began, cpu = time.perf_counter(), cpu_s()
    end = began + seconds
    while (at := time.perf_counter()) < end:
        _pairs(store, rng.choices(names, k=_SLICE))
        longest_s = max(longest_s, time.perf_counter() - at)
        pairs += _SLICE
        most_unwritten = max(most_unwritten, keeper.unwritten)
        if rate:
            await trio.sleep(max(began + pairs / rate - time.perf_counter(), 0.0))
        else:
            await trio.lowlevel.checkpoint()
    took_s, used_s = time.perf_counter() - began, cpu_s() - cpu
    return {
        "pairs_per_s": pairs / took_s,
        "pairs_per_cpu_s": pairs / used_s,
        "commits_per_s": (keeper.commits - commits) / took_s,
        "most_unwritten": most_unwritten,
        "slice_max_ms": 1e3 * longest_s,
        "failures": keeper.failures,
        "counted_bytes": store.bytes,
        "resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _pairs(store: CacheStore, names: list[str]) -> None:
    for name in names:
        now = trio.current_time()
        store.put(now, Row(Table.SESSION, (name,), _VALUE, name, name, 1, 0, now, 1800.0))
        if store.get(now, Table.SESSION, (name,)) is None:
            raise KeyError(name)


if __name__ == "__main__":
    main()
