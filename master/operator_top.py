"""`lambdamu top`: a live view of a running master, on a terminal, as plain text, or as JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from lambdamu.address import printable
from master.operator_client import CallError, Json, get
from master.operator_commands import common, hint_at_token

if TYPE_CHECKING:
    from master.operator_top_view import Look, Sort

_LEAST_INTERVAL_S: Final = 0.2
_WITHIN_S: Final = 2.0
"""A master that does not answer within this is lost, as far as can be seen."""
_SORTS: Final = ("name", "users", "load", "asks")
_TERMINATED: Final = 128 + signal.SIGTERM
"""What a shell says of a program that this signal has ended."""


def _finite(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to work with")
    return value


@click.command(epilog="\b\nExample:\n  lambdamu top --sort users --interval 2")
@click.option(
    "--interval",
    type=click.FloatRange(min=_LEAST_INTERVAL_S),
    callback=_finite,
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(min=0), default=0, help="So many looks.  [default: until Ctrl-C]")
@click.option("--sort", type=click.Choice(_SORTS), default="name", show_default=True, help="What the rows go by.")
@common
def top(interval: float, count: int, sort: str, url: str, as_json: bool) -> int:
    """Show how the pool of a master stands, again and again, until Ctrl-C.

    Where that is no terminal, each look is lines of plain text, with an empty one between two; with --json it is one
    object on one line, which has only `error` while the master cannot be asked.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that the terminal is left as it was
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _show(_looks(partial(_ask, url), interval, count), sort, as_json=as_json)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


hint_at_token(top)


def _looks(take: Callable[[], Look], interval_s: float, count: int) -> Iterator[Look]:
    """Yield a look at each tick; where one fails, the last good one and why. A first one that fails ends it all."""
    seen: Look | None = None
    due = time.monotonic()
    for number in itertools.count(1):
        try:
            seen = take()
        except CallError as exc:
            if seen is None:
                raise click.ClickException(str(exc)) from exc
            seen = attrs.evolve(seen, lost=str(exc))
        yield seen
        if number == count:
            return
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _ask(url: str) -> Look:
    from master.operator_top_view import read_look  # noqa: PLC0415 - other commands start faster without it

    told = get(url, "/api/v1/backends", within_s=_WITHIN_S)
    log = get(url, "/api/v1/log", within_s=_WITHIN_S)
    try:
        return read_look(url, time.time(), told | {"events": log["events"]})
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as exc:
        raise CallError(f"{printable(url)} is no master of this version") from exc


def _show(looks: Iterator[Look], sort: str, *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - other commands start faster without it

    from master.operator_top_view import Sort  # noqa: PLC0415

    if as_json:
        for look in looks:
            click.echo(json.dumps(_object(look)))
        return
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        _show_live(looks, Sort(sort), console)
    else:
        _show_blocks(looks, Sort(sort))


def _object(look: Look) -> Json:
    return {"error": look.lost} if look.lost else look.told


def _show_blocks(looks: Iterator[Look], sort: Sort) -> None:
    from master.operator_top_view import block  # noqa: PLC0415

    for number, look in enumerate(looks):
        lines = [f"LOST: {printable(look.lost)}"] if look.lost else block(look, sort)
        click.echo("\n".join(([""] if number else []) + lines))


def _show_live(looks: Iterator[Look], sort: Sort, console: Any) -> None:
    from rich.console import Group  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from master.operator_top_view import lines  # noqa: PLC0415

    first = next(looks)  # before the screen is taken: a master that cannot be asked is one line
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for look in itertools.chain([first], looks):
            width, height = console.size
            live.update(Group(*lines(look, sort, width, height)), refresh=True)
