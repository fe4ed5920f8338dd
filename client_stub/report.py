"""A load from its beginning to its report: the bar while it runs, the table or the JSON at its end."""

from __future__ import annotations

import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from client_stub.interrupt import until_signal
from client_stub.load import Load, file_slots
from client_stub.options import ClientOptions
from client_stub.show import complain, put_json, put_line, put_table
from client_stub.tally import FAILED, BackendTally, Tally, quantiles, sorted_backends
from lambdamu.address import Address
from lambdamu.caller import Caller

_REFRESH_S: Final = 0.1
_ERRORS_SHOWN: Final = 5


async def run_load(options: ClientOptions, caller: Caller, rng: random.Random) -> int:
    """Run a load, report what came of it, also when a signal ends it, and return the exit code."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    load = Load(options, caller, rng, file_slots(soft), complain)

    async def work() -> bool:
        await _run_with_bar(load, options.clients)
        return True

    through = await until_signal(work)
    put_report(load.tally.reasons, load.tally.to_json, load.tally.backends, _lines(load.tally), json=options.json)
    if not through:
        complain(f"stopped by a signal after {load.tally.done} of {options.clients} clients")
        return FAILED
    return load.tally.exit_code()


async def _run_with_bar(load: Load, clients: int) -> None:
    async with trio.open_nursery() as nursery:
        if sys.stderr.isatty():
            nursery.start_soon(_show_bar, load.tally, clients)
        await load.run()
        nursery.cancel_scope.cancel()


async def _show_bar(tally: Tally, clients: int) -> None:
    columns = (TextColumn("clients"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn by this task: by itself the bar would start a thread beside the loop.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("clients", total=clients)
        while True:
            progress.update(bar, completed=tally.done, refresh=True)
            await trio.sleep(_REFRESH_S)


def _lines(tally: Tally) -> Iterator[str]:
    yield f"asked {tally.asked}, no server {tally.no_server}, failed {tally.failed}"
    if tally.answer_s:
        yield f"answered in {milliseconds(quantiles(tally.answer_s))}"


def put_report(
    errors: Counter[str],
    figures: Callable[[], dict[str, Any]],
    backends: Mapping[Address, BackendTally],
    lines: Iterable[str],
    *,
    json: bool,
) -> None:
    """Say what went wrong most often, and then the figures: as JSON, or backends in a table and the rest in lines."""
    for word, count in errors.most_common(_ERRORS_SHOWN):
        complain(f"{count} x {word}")
    if json:
        put_json(figures())
        return
    if backends:
        put_table(_backend_table(backends))
    for line in lines:
        put_line(Text(line))


def _backend_table(backends: Mapping[Address, BackendTally]) -> Table:
    table = Table("backend")
    for heading in ("sent", "connected", "failed"):
        table.add_column(heading, justify="right")
    for endpoint, backend in sorted_backends(backends):
        table.add_row(str(endpoint), str(backend.sent), str(backend.connected), str(backend.failed))
    return table


def milliseconds(times: Mapping[str, float | None]) -> str:
    """Return times in milliseconds, as in `p50 1.2 ms, p90 2.0 ms`, without those that are not known."""
    return ", ".join(f"{name} {time_s * 1000:.1f} ms" for name, time_s in times.items() if time_s is not None)
