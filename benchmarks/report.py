"""What is printed: tables for people, or one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from benchmarks.figures import Row, Sample, Samples, medians, ratios
from benchmarks.stage import Stage
from benchmarks.workshop import CannotMeasureError

_WIDEST: Final = 10_000
"""Wide enough for a table to say how wide it has to be."""


@attrs.frozen
class Column:
    """A figure and how it is shown."""

    key: str
    heading: str
    digits: int = 0


@attrs.frozen
class Benchmark:
    """One benchmark. `measure` takes the samples of a round, each over about `seconds`.

    `compared` is the key of the figure whose ratios are shown; `peers`, the programs that it wants on the machine;
    `notes`, what a reader has to know of the table.
    """

    name: str
    title: str
    columns: Sequence[Column]
    measure: Callable[[Stage, float], Samples]
    compared: str | None = None
    peers: Sequence[str] = ()
    notes: Sequence[str] = ()


@attrs.frozen
class Outcome:
    """A benchmark that was run: every sample of every round; `missing`, the peers that are not on this machine."""

    benchmark: Benchmark
    samples: Sequence[Sample]
    missing: Sequence[str]


def attempt(case: str, who: str, ours: bool, measure: Callable[[], Mapping[str, float]]) -> Sample:
    """Take one sample; what cannot be measured is told in it, and the others go on."""
    try:
        return Sample(case, who, measure(), ours)
    except CannotMeasureError as exc:
        return Sample(case, who, {}, ours, failed=str(exc))


def print_machine(console: Console, facts: Mapping[str, str]) -> None:
    table = Table(title="the machine", show_header=False)
    for what, told in facts.items():
        table.add_row(what, told)
    console.print(table)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the medians, the ratios, and who was not there."""
    benchmark = outcome.benchmark
    rows = medians(outcome.samples)
    rounds = max((row.rounds for row in rows), default=0)
    title = f"{benchmark.name}: {benchmark.title} (median of {rounds})"
    table = _by_case(title, benchmark.columns, rows)
    if _width(console, table) > console.width:
        table = min(table, _by_figure(title, benchmark.columns, rows), key=partial(_width, console))
    console.print(table)
    _print_ratios(console, outcome)
    for sample in outcome.samples:
        if sample.failed:
            console.print(f"failed: {sample.case}: {sample.who}: {sample.failed}", markup=False)
    for name in outcome.missing:
        console.print(f"missing here, and not measured: {name}")
    for note in benchmark.notes:
        console.print(f"note: {note}")
    console.print()


def _width(console: Console, table: Table) -> int:
    """Return how many columns a table needs at least."""
    return Measurement.get(console, console.options.update(width=_WIDEST), table).minimum


def _by_case(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    table.add_column("case")
    table.add_column("who", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right")
    for row in rows:
        table.add_row(row.case, row.who, *(_shown(row.figures.get(column.key), column) for column in columns))
    return table


def _by_figure(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Return the table on its side: there are more figures than stand beside each other."""
    table = Table(title=title)
    table.add_column("figure")
    for row in rows:
        table.add_column(f"{row.case}: {row.who}", justify="right")
    for column in columns:
        table.add_row(column.heading, *(_shown(row.figures.get(column.key), column) for row in rows))
    return table


def _print_ratios(console: Console, outcome: Outcome) -> None:
    key = outcome.benchmark.compared
    if key is None:
        return
    heading = next(column.heading for column in outcome.benchmark.columns if column.key == key)
    for ratio in ratios(outcome.samples, key):
        spread = f"{ratio.least:.2f} to {ratio.most:.2f}"
        console.print(f"{heading}, {ratio.case}: {ratio.ours} / {ratio.other} = {ratio.median:.2f} ({spread})")


def _shown(value: float | None, column: Column) -> str:
    return "" if value is None else f"{value:,.{column.digits}f}"


def as_json(facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return all of it, the samples of each round included."""
    return {"machine": dict(facts), "benchmarks": {outcome.benchmark.name: _outcome(outcome) for outcome in outcomes}}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    key = outcome.benchmark.compared
    return {
        "title": outcome.benchmark.title,
        "rows": [attrs.asdict(row) for row in medians(outcome.samples)],
        "ratios": [attrs.asdict(ratio) for ratio in ratios(outcome.samples, key)] if key else [],
        "missing": list(outcome.missing),
        "notes": list(outcome.benchmark.notes),
        "samples": [attrs.asdict(sample) for sample in outcome.samples],
    }
