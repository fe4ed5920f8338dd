"""`lambdamu queue`: how the virtual queue of a running master stands, and what an operator changes of it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import click

from master.operator_client import Json, get, post
from master.operator_commands import ask, common, hint_at_token, keep_showing, moment, percent, show, table
from master.operator_completion import complete_queue

_MODES: Final = ("auto", "queue_all", "pass", "hold", "closed")
_PATH: Final = "/api/v1/queue"
_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nobody": "nobody waits",
        "mode": "an operator holds or has closed the queue",
        "places": "no place is free",
        "calls": "as many are called as may be at a time, and have not come yet",
        "rate": "as many are let in as may be in a minute",
        "queue_rate": "each queue in which people wait is given what its own rate allows",
        "turn": "they are being called",
    }
)


def _read_rate(_context: click.Context, _option: click.Parameter, value: str | None) -> float | str | None:
    if value is None or value == "none":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor none") from None


@click.command(
    epilog="""
\b
Examples:
  lambdamu queue
  lambdamu queue --watch
  lambdamu queue --mode hold --why "the store is down"
  lambdamu queue --mode closed --text "Back at 18:00" --why "new version"
  lambdamu queue match-7 --per-minute 300 --why "a small server"
  lambdamu queue --reset --why "over"
"""
)
@click.argument("queue", metavar="[ID]", required=False, shell_complete=complete_queue)
@click.option("--mode", type=click.Choice(_MODES), help="When people wait.")
@click.option("--text", help="What those are told who find it closed.")
@click.option(
    "--per-minute", metavar="N|none", callback=_read_rate, help="So many are let in, of ID or of all together."
)
@click.option("--load", "target_load", type=float, help="Which part of the capacity is to be used, 0.01 to 1.")
@click.option("--reset", is_flag=True, help="As configured again.")
@click.option("--why", "--reason", "reason", help="Why, for those who look at it; needed for a change.")
@click.option("--watch", is_flag=True, help="Look again each second, until Ctrl-C.")
@common
def queue(queue: str | None, reason: str | None, watch: bool, url: str, as_json: bool, **given: Any) -> int:
    """Say how the virtual queue stands, all of it or the queue ID, or change it until somebody changes it again."""
    if queue == "":
        raise click.UsageError("a queue has a name; leave it out for the queue as a whole")
    wanted: Json = {key: value for key, value in given.items() if value is not None and value is not False}
    if (reason is not None) != bool(wanted):
        raise click.UsageError("a change needs --why" if wanted else "--why goes with a change")
    path = _PATH if queue is None else f"{_PATH}/{urllib.parse.quote(queue, safe='')}"
    if wanted:
        changed = ask(lambda: post(url, path, wanted | {"reason": reason}))
        if queue is not None:  # which need not be open
            show(changed, [f"queue {queue}: {changed['wanted']}"], as_json=as_json)
            return 0
    keep_showing(lambda: get(url, path), _whole if queue is None else _one, watch=watch, as_json=as_json)
    return 0


hint_at_token(queue)


def _whole(got: Json) -> Iterator[str]:
    """Yield what a master says of its queue, for people."""
    yield f"{got['waiting']} wait, {got['called']} called, {got['held']} held on their connections; mode {got['mode']}"
    limit = got["limit"]
    yield f"nobody more is called: {_LIMITS.get(limit, limit)} ({got['reason']})"
    yield from _orders(got["orders"])
    yield _load(got["load"])
    yield _loop(got["loop"])
    yield _bounds(got)
    promises, gone = got["promises"], got["gone"]
    told = promises["kept"] + promises["broken"]
    yield f"promises: {percent(promises['share'])} of {told} came true"
    yield (
        f"gone: {percent(gone['share'])} (left {gone['left']}, lapsed {gone['lapsed']}, missed their call "
        f"{gone['missed']}, came back {gone['returned']}); let in {got['counts']['claimed']}"
    )
    store = got["store"]
    if store is not None:
        how = f"cannot be written for {_seconds(store['written_s_ago'])}" if store["failing"] else "is written"
        yield f"store: {how}, {store['unwritten']} changes are not in it"
    yield from table(_HEADS, map(_line, got["queues"]))
    if got["count"] > len(got["queues"]):
        yield f"{got['count'] - len(got['queues'])} more, in which fewer wait"


_HEADS: Final = ("QUEUE", "WAIT", "RESUME", "VIP", "PLAIN", "LET IN", "PLANNED", "WHO JOINS WAITS", "9 IN 10", "LIMIT")


def _one(row: Json) -> Iterator[str]:
    """Yield what a master says of one queue."""
    return table(_HEADS, [_line(row)])


def _line(row: Json) -> Sequence[str]:
    lanes = row["lanes"]
    return (
        row["queue"],
        str(row["waiting"]),
        *(str(lanes[lane]) for lane in ("resume", "vip", "plain")),
        _rate(row["drain_per_s"]),
        _rate(row["planned_per_s"]),
        "not at all" if row["at_once"] else _seconds(row["eta_s"]),
        _seconds(row["eta90_s"]),
        "-" if row["per_minute"] is None else f"{row['per_minute']:g}/min",
    )


def _orders(orders: Sequence[Json]) -> Iterator[str]:
    for order in orders:
        wanted = ", ".join(
            f"{key} {order[key]}" for key in ("mode", "text", "per_minute", "target_load") if order[key] is not None
        )
        which = f"queue {order['queue']}: " if order["queue"] else ""
        yield f"{which}{wanted} by {order['who']} at {moment(order['at'])}: {order['reason']}"


def _load(load: Json) -> str:
    places = "no limit" if load["places"] is None else f"{load['places']} places"
    cpu = "" if load["cpu"] is None else f", CPU {100 * load['cpu']:.0f} %"
    return (
        f"load: {load['users']} users, {places} at a target load of {load['target_load']:g}{cpu}; "
        f"{load['serving']} of {load['wanted']} backends serve"
    )


def _loop(loop: Json) -> str:
    if loop["by"] == "manual":
        pace = f"{_rate(loop['per_s'])} by hand"
    elif loop["per_s"] is None:
        pace = "only the places set it"
    else:
        pace = f"{_rate(loop['per_s'])} by the control loop"
    frozen = "; it is frozen, the news of the backends is too old" if loop["by"] == "frozen" else ""
    return f"pace: {pace}; the loop, {loop['control']}, plans {_rate(loop['planned_per_s'])}{frozen}"


def _bounds(got: Json) -> str:
    limits = got["limits"]
    free = "no limit of places" if limits["free_places"] is None else f"{limits['free_places']} free places"
    rate = "no rate" if limits["per_minute"] is None else f"{limits['per_minute']:g}/min"
    return f"limits: {free}, {got['called']} of {limits['max_calls']} calls, {rate}"


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{60 * per_s:.1f}/min"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"
