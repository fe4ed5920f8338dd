"""A client of Redis by redis-py; run as a module with what it is to do, as JSON. Prints {figure: value}."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.tally import Tally

_VALUE: Final = bytes(range(100))
_KEYS: Final = 10_000


def main() -> None:
    job = json.loads(sys.argv[1])
    sys.path.append(job.pop("library"))
    ask, tally = _JOBS[job.pop("job")], Tally()
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        return
    ask(tally, **job)
    print(json.dumps(tally.figures(tally.seconds)), flush=True)


def one_by_one(tally: Tally, port: int, seconds: float) -> None:
    """Set and get 100 bytes, one after the other on one connection."""
    from redis import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - a path of its own

    with Redis(port=port) as redis:
        redis.ping()
        end = _begin(tally, seconds)
        for key in _keys():
            if (began := time.perf_counter()) >= end:
                return
            redis.set(key, _VALUE)
            middle = time.perf_counter()
            tally.add(middle - began)
            wrong = redis.get(key) != _VALUE
            tally.add(time.perf_counter() - middle, wrong)


def at_once(tally: Tally, port: int, window: int, seconds: float) -> None:
    """The same by `window` tasks, each with a connection: the library has one question on each at a time."""
    from redis.asyncio import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    async def task(redis: Any, end: float) -> None:
        for key in _keys():
            if (began := time.perf_counter()) >= end:
                return
            await redis.set(key, _VALUE)
            middle = time.perf_counter()
            tally.add(middle - began)
            wrong = await redis.get(key) != _VALUE
            tally.add(time.perf_counter() - middle, wrong)

    async def everybody() -> None:
        async with Redis(port=port, max_connections=window) as redis:
            await asyncio.gather(*(redis.ping() for _ in range(window)))
            end = _begin(tally, seconds)
            await asyncio.gather(*(task(redis, end) for _ in range(window)))

    asyncio.run(everybody())


def pipelined(tally: Tally, port: int, window: int, seconds: float) -> None:
    """The same, `window` of them in one write."""
    from redis import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    keys = _keys()
    with Redis(port=port) as redis:
        redis.ping()
        end = _begin(tally, seconds)
        while (began := time.perf_counter()) < end:
            pipeline = redis.pipeline(transaction=False)
            for _ in range(window // 2):
                key = next(keys)
                pipeline.set(key, _VALUE).get(key)
            answers = pipeline.execute()
            took_s = time.perf_counter() - began
            tally.add(took_s, sum(answer != _VALUE for answer in answers[1::2]), len(answers))


_JOBS: Final[dict[str, Callable[..., None]]] = {
    "one_by_one": one_by_one,
    "at_once": at_once,
    "pipelined": pipelined,
}


def _begin(tally: Tally, seconds: float) -> float:
    """Count from now on, when all is connected; return when to end."""
    tally.begin()
    return time.perf_counter() + seconds


def _keys() -> Iterator[str]:
    while True:
        for number in random.choices(range(_KEYS), k=1000):
            yield f"session:{number:012d}"


if __name__ == "__main__":
    main()
