"""A load from its beginning to its report: the bar while it runs, the table or the JSON at its end."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Mapping
from typing import Final

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
_REASONS_SHOWN: Final = 5


async def run_load(options: ClientOptions, caller: Caller, rng: random.Random) -> int:
    """Run a load, report what came of it, also when a signal ends it, and return the exit code."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    load = Load(options, caller, rng, file_slots(soft), complain)

    async def work() -> bool:
        await _run_with_bar(load, options.clients)
        return True

    through = await until_signal(work)
    _report(load.tally, json=options.json)
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


def _report(tally: Tally, *, json: bool) -> None:
    for why, times in tally.reasons.most_common(_REASONS_SHOWN):
        complain(f"{times} x {why}")
    if json:
        put_json(tally.to_json())
        return
    if tally.backends:
        put_table(backend_table(tally.backends))
    put_line(Text(f"asked {tally.asked}, no server {tally.no_server}, failed {tally.failed}"))
    if tally.answer_s:
        put_line(Text(f"answered in {answer_times(tally)}"))


def backend_table(backends: Mapping[Address, BackendTally]) -> Table:
    table = Table("backend")
    for heading in ("sent", "connected", "failed"):
        table.add_column(heading, justify="right")
    for endpoint, backend in sorted_backends(backends):
        table.add_row(str(endpoint), str(backend.sent), str(backend.connected), str(backend.failed))
    return table


def answer_times(tally: Tally) -> str:
    """Return the quantiles of the answer times in milliseconds, as in `p50 1.2 ms, p90 2.0 ms`."""
    times = quantiles(tally.answer_s).items()
    return ", ".join(f"{name} {time_s * 1000:.1f} ms" for name, time_s in times if time_s is not None)
