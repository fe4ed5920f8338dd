"""A client of Redis by redis-py; run as a module with what it is to do, as JSON. Prints {figure: value}."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

_VALUE: Final = bytes(range(100))
_KEYS: Final = 10_000


def main() -> None:
    job = json.loads(sys.argv[1])
    sys.path.append(job.pop("library"))
    ask = _JOBS[job.pop("job")]
    took_s: list[float] = []
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        return
    began, cpu_s = time.perf_counter(), _cpu_s()
    asks, wrong = ask(began + job.pop("seconds"), took_s, **job)
    seconds = time.perf_counter() - began
    took_s.sort()
    figures = {
        "asks": asks,
        "seconds": seconds,
        "errors": wrong,
        "p50_us": 1e6 * took_s[len(took_s) // 2],
        "p99_us": 1e6 * took_s[int(0.99 * len(took_s))],
        "load_cpu_s": _cpu_s() - cpu_s,
    }
    print(json.dumps(figures), flush=True)


def one_by_one(end: float, took_s: list[float], port: int) -> tuple[int, int]:
    """Set and get 100 bytes, one after the other on one connection."""
    from redis import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - a path of its own

    asks = wrong = 0
    with Redis(port=port) as redis:
        for key in _keys():
            if (began := time.perf_counter()) >= end:
                return asks, wrong
            redis.set(key, _VALUE)
            middle = time.perf_counter()
            wrong += redis.get(key) != _VALUE
            took_s += (middle - began, time.perf_counter() - middle)
            asks += 2
    return asks, wrong


def at_once(end: float, took_s: list[float], port: int, window: int) -> tuple[int, int]:
    """The same by `window` tasks, each with a connection: the library has one question on each at a time."""
    from redis.asyncio import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    async def task(redis: Any) -> tuple[int, int]:
        asks = wrong = 0
        for key in _keys():
            if (began := time.perf_counter()) >= end:
                break
            await redis.set(key, _VALUE)
            middle = time.perf_counter()
            wrong += await redis.get(key) != _VALUE
            took_s.extend((middle - began, time.perf_counter() - middle))
            asks += 2
        return asks, wrong

    async def everybody() -> tuple[int, int]:
        async with Redis(port=port, max_connections=window) as redis:
            done = await asyncio.gather(*(task(redis) for _ in range(window)))
        return sum(asks for asks, _ in done), sum(wrong for _, wrong in done)

    return asyncio.run(everybody())


def pipelined(end: float, took_s: list[float], port: int, window: int) -> tuple[int, int]:
    """The same, `window` of them in one write."""
    from redis import Redis  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    asks = wrong = 0
    keys = _keys()
    with Redis(port=port) as redis:
        while (began := time.perf_counter()) < end:
            pipeline = redis.pipeline(transaction=False)
            for _ in range(window // 2):
                key = next(keys)
                pipeline.set(key, _VALUE).get(key)
            answers = pipeline.execute()
            took_s.append(time.perf_counter() - began)
            wrong += sum(answer != _VALUE for answer in answers[1::2])
            asks += len(answers)
    return asks, wrong


_JOBS: Final[dict[str, Callable[..., tuple[int, int]]]] = {
    "one_by_one": one_by_one,
    "at_once": at_once,
    "pipelined": pipelined,
}


def _keys() -> Iterator[str]:
    while True:
        for number in random.choices(range(_KEYS), k=1000):
            yield f"session:{number:012d}"


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
