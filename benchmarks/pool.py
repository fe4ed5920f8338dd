"""`pool`: what a decision costs, without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.figures import Sample, Samples
from benchmarks.report import Benchmark, Column
from benchmarks.stage import Stage

_WITHIN_S: Final = 300.0


def _measure(stage: Stage, _seconds: float) -> Samples:
    command: list[str | Path] = [stage.tools.python, "-m", "benchmarks.pool_calls"]
    told = stage.start("pool", command, stage.cores.server).line(_WITHIN_S)
    for size, figures in told.items():
        yield Sample(f"{int(size):,} backends", "ours", figures, ours=True)


POOL: Final = Benchmark(
    "pool",
    "a call of the pool",
    (Column("assign_us", "assign us", 2), Column("record_report_us", "record_report us", 2)),
    _measure,
    notes=("each is the median of 15 runs of 5,000 calls, the loop around them included",),
)
