"""`lambdamu drain`, `ready`, `maint` and `reload`: what an operator changes of a running master."""

from __future__ import annotations

import time
import urllib.parse
from typing import Final

import click

from lambdamu.address import printable
from master.operator_client import CallError, Json, get, post
from master.operator_commands import Command, ask, common, hint_at_token, show
from master.operator_completion import complete_name

_LOOK_S: Final = 1.0
_SILENT: Final = frozenset({"unprobed", "down", "lost", "stale"})
_SILENT_S: Final = 3.0
"""A backend that is started anew answers again within this."""
_TOO_LATE: Final = 4


def _wish(command: Command) -> Command:
    """Give a command what all of those take that say what is wanted of a backend."""
    options = (
        click.argument("name", shell_complete=complete_name),
        click.option("--reason", required=True, help="Why, for those who look at the page."),
        click.option("--for", "for_s", type=click.FloatRange(min=0), help="Seconds after which it ends by itself."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog='\b\nExample:\n  lambdamu drain b1 --reason "new kernel" --wait --to 0 --deadline 600')
@_wish
@click.option("--wait", is_flag=True, help="Wait until it has few enough users, and show how many there are.")
@click.option("--to", "most", type=click.IntRange(min=0), default=0, show_default=True, help="So few, with --wait.")
@click.option("--deadline", type=click.FloatRange(min=0), help="Wait for so many seconds at most.  [default: for ever]")
@common
def drain(
    name: str, reason: str, for_s: float | None, wait: bool, most: int, deadline: float | None, url: str, as_json: bool
) -> int:
    """Send no new clients to the backend NAME; it is still probed. Exit code 4: the deadline came before."""
    _change(url, name, "drain", reason, for_s)
    row = _row(url, name)
    if wait:
        row = _wait(url, row, most, None if deadline is None else time.monotonic() + deadline, quiet=as_json)
    show(row, [_line(row)], as_json=as_json)
    return _TOO_LATE if wait and row["users"] > most else 0


@click.command(epilog='\b\nExample:\n  lambdamu maint b1 --reason "disk" --for 3600')
@_wish
@common
def maint(name: str, reason: str, for_s: float | None, url: str, as_json: bool) -> int:
    """Send no new clients to the backend NAME, and do not probe it either."""
    return _set(url, name, "maint", reason, for_s, as_json=as_json)


@click.command(epilog='\b\nExample:\n  lambdamu ready b1 --reason "done"')
@_wish
@common
def ready(name: str, reason: str, for_s: float | None, url: str, as_json: bool) -> int:
    """Have the backend NAME in service again, if it works."""
    return _set(url, name, "ready", reason, for_s, as_json=as_json)


@click.command(epilog="\b\nExample:\n  lambdamu reload")
@common
def reload(url: str, as_json: bool) -> int:
    """Have a master read its configuration again: all of it counts, or nothing where anything is not right."""
    got = ask(lambda: post(url, "/api/v1/reload", {}))
    lines = got["changes"]
    show(got, lines or ["nothing has changed"], as_json=as_json)
    return 0


for _each in (drain, maint, ready, reload):
    hint_at_token(_each)
CHANGES: Final = (drain, maint, ready, reload)


def _set(url: str, name: str, word: str, reason: str, for_s: float | None, *, as_json: bool) -> int:
    _change(url, name, word, reason, for_s)
    row = _row(url, name)
    show(row, [_line(row)], as_json=as_json)
    return 0


def _change(url: str, name: str, word: str, reason: str, for_s: float | None) -> None:
    body: Json = {"reason": reason} | ({} if for_s is None else {"until_s": for_s})
    ask(lambda: post(url, f"/api/v1/backends/{urllib.parse.quote(name, safe='')}/{word}", body))


def _row(url: str, name: str) -> Json:
    rows: list[Json] = ask(lambda: get(url, "/api/v1/backends"))["backends"]
    for row in rows:
        if row["name"] == name:
            return row
    raise click.ClickException(str(CallError(f"there is no backend {printable(name)} any more")))


def _wait(url: str, row: Json, most: int, end: float | None, *, quiet: bool) -> Json:
    """Look once a second until there are few enough users, or the time is over; return the last look.

    Raise ClickException when it has not answered for a while: its users are those of before, and would never get fewer.
    """
    shown, heard_at = None, time.monotonic()
    while row["users"] > most and (end is None or time.monotonic() < end):
        if row["state"] not in _SILENT:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _SILENT_S:
            raise click.ClickException(f"{printable(row['name'])} is {row['state']}: its users are not known any more")
        if row["users"] != shown and not quiet:
            shown = row["users"]
            click.echo(f"{shown} users on {printable(row['name'])}", err=True)
        time.sleep(_LOOK_S if end is None else max(0.0, min(_LOOK_S, end - time.monotonic())))
        row = _row(url, row["name"])
    return row


def _line(row: Json) -> str:
    return f"{row['name']} is {row['state']}, {row['users']} users"
