"""`python -m benchmarks [NAME ...]`: runs the benchmarks named, or all, and prints what they gave."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Final

import click
from rich.console import Console

from benchmarks.accident import ACCIDENT
from benchmarks.asks import KEPT, SHORT
from benchmarks.cache import CACHE
from benchmarks.crowd import CROWD
from benchmarks.figures import Sample
from benchmarks.flood import FLOOD
from benchmarks.gateway import GATEWAY
from benchmarks.idle import IDLE
from benchmarks.machine import Cores, describe, find_program
from benchmarks.mixed import MIXED
from benchmarks.operators import OPERATORS
from benchmarks.pool import POOL
from benchmarks.probes import PROBES
from benchmarks.queue import QUEUE
from benchmarks.report import Benchmark, Outcome, as_json, print_machine, print_outcome
from benchmarks.stage import Stage
from benchmarks.tls import TLS
from benchmarks.warm import WARM
from benchmarks.workshop import CannotMeasureError, Tools, make_tools

_EACH: Final = (
    SHORT,
    KEPT,
    IDLE,
    PROBES,
    POOL,
    QUEUE,
    MIXED,
    OPERATORS,
    GATEWAY,
    TLS,
    FLOOD,
    CROWD,
    CACHE,
    WARM,
    ACCIDENT,
)
ALL: Final = {benchmark.name: benchmark for benchmark in _EACH}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)), metavar="[NAME ...]")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="How often each is run.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 120),
    default=5.0,
    show_default=True,
    help="How long one measurement takes.",
)
@click.option("--python", default="/usr/bin/python3", show_default=True, help="The interpreter that runs ours.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON document instead of tables.")
def main(names: tuple[str, ...], rounds: int, seconds: float, python: str, json_wanted: bool) -> None:
    """Measure ours beside HAProxy, nginx, a bare C loop and Redis.

    NAME: short, kept, idle, probes, pool, queue, mixed, operators, gateway, tls, flood, crowd, cache, warm,
    accident; all of them without one.
    """
    chosen = [ALL[name] for name in dict.fromkeys(names or ALL)]
    try:
        tools, cores = make_tools(python), Cores.of_this_machine()
        os.sched_setaffinity(0, {cores.load})  # the server's core is for the server
        facts = describe(tools.python, tools.packages, cores)
        outcomes = [run(benchmark, tools, cores, rounds, seconds) for benchmark in chosen]
    except CannotMeasureError as exc:
        raise click.ClickException(str(exc)) from exc
    if json_wanted:
        click.echo(json.dumps(as_json(facts, outcomes), indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False)
    print_machine(console, facts)
    for outcome in outcomes:
        print_outcome(console, outcome)


def run(benchmark: Benchmark, tools: Tools, cores: Cores, rounds: int, seconds: float) -> Outcome:
    """Run all rounds of one benchmark: ours and the peers in turn within each, so that all see the same minutes."""
    missing = [name for name in benchmark.peers if find_program(name) is None]
    samples: list[Sample] = []
    for number in range(rounds):
        for sample in run_round(benchmark, tools, cores, seconds):
            progress = f"{benchmark.name} {number + 1}/{rounds}: {sample.case}: {sample.who}"
            click.echo(progress + (f": failed: {sample.failed}" if sample.failed else ""), err=True)
            samples.append(sample)
    return Outcome(benchmark, samples, missing)


def run_round(benchmark: Benchmark, tools: Tools, cores: Cores, seconds: float) -> Iterator[Sample]:
    """Take the samples of one round. What every sample of it needs may fail too; the next round goes on."""
    try:
        with Stage(tools, cores) as stage, contextlib.closing(benchmark.measure(stage, seconds)) as taken:
            yield from taken
    except CannotMeasureError as exc:
        yield Sample("the round", "ours", {}, ours=True, failed=str(exc))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
