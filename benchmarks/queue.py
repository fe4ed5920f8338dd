"""`queue`: what a call of the virtual queue costs, without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.figures import Sample, Samples
from benchmarks.report import Benchmark, Column
from benchmarks.stage import Stage

_WITHIN_S: Final = 300.0
_SIZES: Final = (10_000, 100_000, 1_000_000)
_CALLS: Final = ("join", "poll", "leave", "next")


def _measure(stage: Stage, _seconds: float) -> Samples:
    for size in _SIZES:  # each in a process of its own, or it would have the memory of the one before
        command: list[str | Path] = [stage.tools.python, "-m", "benchmarks.queue_calls", str(size)]
        told = stage.start(f"queue{size}", command, stage.cores.server).line(_WITHIN_S)
        yield Sample(f"{size:,} waiting", "ours", told, ours=True)


QUEUE: Final = Benchmark(
    "queue",
    "a call of the virtual queue",
    (
        *(Column(f"{call}_p50_us", f"{call} us", 1) for call in _CALLS),
        *(Column(f"{call}_p999_us", "p99.9", 0) for call in _CALLS),
        Column("max_us", "longest us"),
        Column("bytes_each", "bytes each"),
    ),
    _measure,
    notes=(
        "CPU of 100,000 calls each (of a fourth of those who wait, where that is less), garbage collection included",
        "next: a place is free, the next one is called, asks, and is let in: three calls",
        "bytes each: what the process grows by, everyone with an id and a network of their own",
    ),
)
