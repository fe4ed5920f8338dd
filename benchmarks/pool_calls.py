"""Times `Pool.assign` and `Pool.record_report`; run by the interpreter under test. Prints {size: {figure: us}}."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from typing import Final

from master.core.backend import Backend
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Pool

_SIZES: Final = (10, 100, 1000, 10000)
_RUNS: Final = 15
_CALLS: Final = 5000
_STEP_S: Final = 20e-6
"""Of the pool's clock, between two asks: a port that is as busy as it can be."""
_PROBED: Final = ("127.0.0.1", 9000)


def main() -> None:
    print(json.dumps({str(size): measure(size) for size in _SIZES}), flush=True)


def measure(size: int) -> dict[str, float]:
    """Return the median microseconds of a call, at `size` backends with some users each."""
    rng = random.Random(size)
    pool = Pool([Backend(f"b{i}") for i in range(size)], HealthPolicy(), LoadPolicy())
    assigns, reports, now = [], [], 1000.0
    report_all(pool, rng, now)
    for _ in range(_RUNS):
        now += 1.0
        report_all(pool, rng, now)
        assigns.append(time_assigns(pool, rng, now))
        now += 1.0
        reports.append(time_reports(pool, rng, now))
    return {"assign_us": statistics.median(assigns), "record_report_us": statistics.median(reports)}


def report_all(pool: Pool, rng: random.Random, now: float) -> None:
    for member in pool:
        pool.record_report(now, rng, member.backend.name, rng.randrange(1000), now, _PROBED)


def time_assigns(pool: Pool, rng: random.Random, now: float) -> float:
    ask = Ask()
    assign = pool.assign
    began = time.perf_counter()
    for _ in range(_CALLS):
        now += _STEP_S
        assign(now, rng, ask)
    return (time.perf_counter() - began) / _CALLS * 1e6


def time_reports(pool: Pool, rng: random.Random, now: float) -> float:
    names = list(itertools.islice(itertools.cycle(member.backend.name for member in pool), _CALLS))
    record = pool.record_report
    began = time.perf_counter()
    for count, name in enumerate(names):
        now += _STEP_S
        record(now, rng, name, count, now, _PROBED)
    return (time.perf_counter() - began) / _CALLS * 1e6


if __name__ == "__main__":
    main()
