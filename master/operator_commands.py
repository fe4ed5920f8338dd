"""`lambdamu status`, `why` and `explain`: what a running master tells, for people or as JSON."""

from __future__ import annotations

import contextlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

from lambdamu.address import printable
from master.operator_client import TOKEN_VARIABLE, CallError, Json, get

_URL: Final = "http://127.0.0.1:7080"
_NO_BACKEND: Final = 3
Command = Callable[..., Any]
_LOOK_S: Final = 1.0
Answer = TypeVar("Answer")


def common(command: Command) -> Command:
    """Give a command what all of them take."""
    options = (
        click.option(
            "--url",
            default=_URL,
            show_default=True,
            envvar="LAMBDAMU_URL",
            show_envvar=True,
            help="The master's [http] listen.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the answer as it is, one JSON object."),
    )
    for option in options:
        command = option(command)
    return command


def hint_at_token(command: click.Command) -> None:
    """Say at the end of its help where a token comes from."""
    hint = f"A token, where one is needed, comes from the variable {TOKEN_VARIABLE}."
    # Without the indentation of the docstring, which would be shown where one line has none.
    command.help = f"{inspect.cleandoc(command.help or '')}\n\n{hint}"


@click.command(epilog="\b\nExample:\n  lambdamu status --url http://127.0.0.1:7080")
@common
def status(url: str, as_json: bool) -> int:
    """Say how the pool of a master stands, or a cache alone. Exit code 3: no backend takes clients."""
    got = ask(lambda: get(url, "/api/v1/backends"))
    show(got, _status(got), as_json=as_json)
    return 0 if got["takers"] or got.get("alone") else _NO_BACKEND


@click.command(epilog="\b\nExample:\n  lambdamu why 203.0.113.7")
@click.argument("client")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="So many answers at most, the latest."
)
@common
def why(client: str, limit: int, url: str, as_json: bool) -> int:
    """Say what CLIENT was answered lately, and why.

    CLIENT is the id that it sends, the first 8 or more digits of its hash, its address or its network.
    """
    got = ask(lambda: get(url, "/api/v1/answers", client=client))
    place = got.get("place")
    show(got, [*answer_lines(got["answers"], limit), *_place(place)], as_json=as_json)
    if not got["answers"] and not as_json:
        click.echo("no answer to such a client is kept", err=True)
    return 0 if got["answers"] or place else 1


@click.command(epilog="\b\nExample:\n  lambdamu explain --zone a")
@click.option("--zone", default="", help="The zone that the client says it is in.")
@click.option("--client", default="", help="The id that the client sends, or its hash.")
@click.option("--device", default="", help="The device that the client says: its session may be at a backend.")
@common
def explain(zone: str, client: str, device: str, url: str, as_json: bool) -> int:
    """Say what a client would be answered now, and how each backend stands. Exit code 3: it would get none."""
    got = ask(lambda: get(url, "/api/v1/explain", zone=zone, client=client, device=device))
    show(got, _explanation(got), as_json=as_json)
    return 0 if got["chosen"] is not None else _NO_BACKEND


for _each in (status, why, explain):
    hint_at_token(_each)
COMMANDS: Final = (status, why, explain)


def ask(call: Callable[[], Answer]) -> Answer:
    """Return what a call of the master gives; one that fails ends the command with one line."""
    try:
        return call()
    except CallError as exc:
        raise click.ClickException(str(exc)) from exc


def show(got: Json, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a master answered, or lines that tell it to people."""
    if as_json:
        click.echo(json.dumps(got))
        return
    for line in lines:
        click.echo(printable(line))


def keep_showing(
    take: Callable[[], Json], lines: Callable[[Json], Iterable[str]], *, watch: bool, as_json: bool
) -> None:
    """Show what a call of the master gives, by `lines`; with `watch` again each second, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            got = ask(take)
            if watch and not as_json:
                click.clear()  # does nothing where that is no terminal
            show(got, lines(got), as_json=as_json)
            if not watch:
                return
            time.sleep(_LOOK_S)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _status(got: Json) -> Iterator[str]:
    yield got["verdict"]
    yield from notices(got)
    if got.get("alone"):
        return
    yield from table(("BACKEND", "STATE", "USERS", "REPORT", "SENT", "FAILED", ""), map(_backend, got["backends"]))


def notices(got: Json) -> Iterator[str]:
    """Yield a line for each thing that is not as it should be with a master, beside its backends."""
    if not got["ready"]:
        yield f"this master is not ready: {got['unready']}"
    if got.get("panic"):
        yield "panic: too few backends work"
    queue = got.get("queue")
    if queue and (queue["waiting"] or queue["mode"] != "auto"):
        yield f"queue: {queue['waiting']} wait, {queue['called']} called, mode {queue['mode']} ({queue['reason']})"
    cache = got.get("cache")
    if cache:
        yield from (f"cache: {line}" for line in cache["trouble"])
    node = got.get("cache_node")
    if node and node["trouble"]:
        yield f"cache node {node['address']}: no data are warmed: {node['trouble']}"
    reload = got.get("reload")
    if reload and not reload["ok"]:
        first, *others = reload["faults"] or ["it is not said why"]
        more = f" (and {len(others)} more)" if others else ""
        yield f"the last reload was refused at {moment(reload['at'])} by {reload['who']}: {first}{more}"


def moment(at: float) -> str:
    """Return Unix seconds as the date and the time of day here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _backend(row: Json) -> Sequence[str]:
    admin = row["admin"]
    wish = f"{admin['state']} by {admin['who']}: {admin['reason']}" if admin else ""
    return (
        row["name"],
        row["state"],
        f"{row['users']}/{'-' if row['capacity'] is None else row['capacity']}",
        _seconds(row["report_age_s"]),
        f"{row['assignments']}",
        f"{row['probe_failures']}/{row['probes'] + row['probe_failures']}",
        "; ".join(filter(None, (row["why"], wish))),
    )


def _explanation(got: Json) -> Iterator[str]:
    if got.get("alone"):
        yield "no pool here: this node has the cache alone"
        return
    yield f"{got['chosen'] or 'no backend'}: {got['reason']}"
    rows = (
        (
            row["name"],
            row["reason"],
            _number(row["load"]),
            _number(row["reported"]),
            _number(row["own"]),
            _seconds(row["report_age_s"]),
        )
        for row in got["backends"]
    )
    yield from table(("BACKEND", "REASON", "LOAD", "REPORTED", "SENT SINCE", "REPORT"), rows)


def answer_lines(rows: Sequence[Json], limit: int) -> Iterator[str]:
    """Yield the latest of `rows`, which come newest first, in the order of time."""
    if len(rows) > limit:
        yield f"{len(rows) - limit} more before these: --limit {len(rows)}"
    yield from map(_answer, reversed(rows[:limit]))


def _answer(row: Json) -> str:
    who = row["client"][:12] if row["client"] else "no id"
    came = f"{who} from {row['network']}"
    what = f"sent to {row['backend']}" if row["backend"] else row["result"]
    zone = f"zone {row['zone']}" if row["zone"] else ""
    loads = ", ".join(f"{each['name']} {_number(each['load'])}" for each in row["loads"])
    return "  ".join(filter(None, (moment(row["at"]), came, zone, what, row["reason"], loads and f"loads: {loads}")))


def _place(place: Json | None) -> Iterator[str]:
    if place is None:
        return
    ahead = "" if place["ahead"] is None else f", {place['ahead']} before it"
    since = f"joined at {moment(place['joined_at'])}"
    ends = "" if place["ends_in_s"] is None else f", ends in {place['ends_in_s']:.0f} s if it does not ask again"
    held = ", waits on its connection" if place["held"] else ends
    yield f"its place in queue {place['queue']}: {place['stage']} in the {place['lane']} lane{ahead}; {since}{held}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, the heads first."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
