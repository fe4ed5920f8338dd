"""`lambdamu cache`: how the cache of a running node stands, who is who in it, and the end of a session."""

from __future__ import annotations

import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click

from master.config_words import count
from master.operator_client import Json, delete, get
from master.operator_commands import ask, common, hint_at_token, keep_showing, moment, percent, show, table

_PATH: Final = "/api/v1/cache"


@click.command(
    epilog="""
\b
Examples:
  lambdamu cache
  lambdamu cache --watch
  lambdamu cache client ann
  lambdamu cache device 0f3a-77
  lambdamu cache session y0Vw1cSbXq2Yk3nJZl8u4A --values
  lambdamu cache session - < id.txt
  lambdamu cache session y0Vw1cSbXq2Yk3nJZl8u4A --end --why "it was stolen"
"""
)
@click.argument(
    "what", metavar="[session|device|client]", type=click.Choice(["session", "device", "client"]), required=False
)
@click.argument("wanted", metavar="[ID]", required=False)
@click.option("--values", is_flag=True, help="Show values, and the ids of sessions in whole.")
@click.option("--end", is_flag=True, help="End the session ID: its client has to log in again.")
@click.option("--why", "--reason", "reason", help="Why, for those who look at it; needed for an end.")
@click.option("--watch", is_flag=True, help="Look again each second, until Ctrl-C.")
@common
def cache(
    what: str | None,
    wanted: str | None,
    values: bool,
    end: bool,
    reason: str | None,
    watch: bool,
    url: str,
    as_json: bool,
) -> int:
    """Say how the cache stands; or what it has of a session, who uses a device, or what a client has there.

    A look-up needs a token that may write, and is noted. It prolongs nothing. The ID - is read from standard input.
    """
    if what is not None and not wanted:
        raise click.UsageError(f"which {what}? It has an id")
    if end and what != "session":
        raise click.UsageError("--end is for a session")
    if (reason is not None) != end:
        raise click.UsageError("an end needs --why" if end else "--why goes with --end")
    if watch and what is not None:
        raise click.UsageError("--watch is for the cache as a whole: each look-up is noted")
    if what is None or wanted is None:
        keep_showing(lambda: get(url, _PATH), _whole, watch=watch, as_json=as_json)
        return 0
    known = sys.stdin.readline().strip() if wanted == "-" and sys.stdin is not None else wanted
    # Bytes that are no text go as they were given: the node says so.
    path = f"{_PATH}/{what}/{urllib.parse.quote(known, safe='', errors='surrogateescape')}"
    if end:
        ended = ask(lambda: delete(url, path, {"reason": reason}))
        show(ended, [f"session {ended['session']} has ended"], as_json=as_json)
        return 0
    found = ask(lambda: get(url, path, values="1" if values else ""))
    show(found, _TELLERS[what](found), as_json=as_json)
    return 0


hint_at_token(cache)


def _whole(got: Json) -> Iterator[str]:
    """Yield what a node says of its cache, for people."""
    yield f"{count(got['sessions'], 'session')}; {_size(got['bytes'])} of {_size(got['max_bytes'])}"
    yield from (f"! {line}" for line in got["trouble"])
    yield _minute(got["last_minute"])
    if got["warm"] is not None:
        yield _warm(got["warm"])
    yield from _broker(got["queue"], got["workers"])
    if got["upstream"]:
        yield "upstream: " + ", ".join(f"{each['peer']} {each['breaker']}" for each in got["upstream"])
    yield _store(got["store"])
    connections = got["connections"]
    yield f"connections: {connections['open']} of {connections['max']}, {connections['refused']} refused"
    heads = ("TABLE", "ROWS", "BYTES", "EVICTED", "EXPIRED", "REFUSED")
    yield from table(heads, ([str(row[head.lower()]) for head in heads] for row in got["tables"]))
    if got["keys"]:
        keys = ((row["name"], row["table"], _asks(row)) for row in got["keys"])
        yield from table(("ASKED FOR MOST", "TABLE", "LATELY"), keys)


def _minute(row: Json) -> str:
    if row["seconds"] is None:
        return "the last minute: not known yet"
    return (
        f"the last minute: {_rate(row['asks_per_s'])} asks, {percent(row['hit_rate'])} hits, "
        f"{_rate(row['saved_per_s'])} calls saved, {_rate(row['calls_per_s'])} calls made, "
        f"{_rate(row['failed_per_s'])} failed, {_rate(row['refused_per_s'])} refused"
    )


def _warm(row: Json) -> str:
    return (
        f"warm data since the start: {row['asks']} asks, {percent(row['hit_rate'])} hits, {row['saved']} calls saved, "
        f"{row['calls']} made, {row['failures']} failed; {row['app_starts']} AppStarts began {row['warmed']} of them"
    )


def _broker(queue: Json, workers: Json) -> Iterator[str]:
    kinds = ", ".join(f"{row['kind']} {row['busy']} of {row['max']}" for row in workers["kinds"])
    yield f"workers: {workers['busy']} of {workers['max']} are busy" + (f" ({kinds})" if kinds else "")
    yield (
        f"queue: {queue['length']} of {queue['max_length']} fetches wait, the first for {queue['oldest_s']:.1f} s; "
        f"{queue['waiting']} of {queue['max_waiting']} asks wait for one"
    )
    yield (
        f"since the start: {queue['refused']} refused, {queue['put_out']} put out, {queue['expired']} expired, "
        f"{queue['cut']} cut off, {queue['dropped']} dropped"
    )


def _store(store: Json | None) -> str:
    if store is None:
        return "store: none, all of it ends with the process"
    how = f"cannot be written for {store['written_s_ago']:.0f} s" if store["failing"] else "is written"
    return f"store: {how}, {store['unwritten']} changes are not in it"


def _asks(row: Json) -> str:
    return f"{row['asks']}" if not row["over"] else f"{row['asks'] - row['over']} to {row['asks']}"


def _session(got: Json) -> Iterator[str]:
    yield f"a session of client {got['client']}, {got['hash']} by its hash; used last at {moment(got['renewed_at'])}"
    yield f"ends in {_seconds(got['ends_in_s'])}, or {_seconds(got['ttl_s'])} after it is used"
    yield f"type {got['type']}, version {got['version']}, {_value(got['value'])}"
    if got["entries"]:
        yield from table(("KEY", *_HEADS), ((row["key"], *_row(row)) for row in got["entries"]))
    yield from _more(got)


def _device(got: Json) -> Iterator[str]:
    rows = ((row["client"], moment(row["renewed_at"]), _seconds(row["ends_in_s"])) for row in got["clients"])
    yield from table(("CLIENT", "BOUND", "ENDS IN"), rows)
    yield from _more(got)


def _client(got: Json) -> Iterator[str]:
    if got["sessions"]:
        yield from table(
            ("SESSION", "HASH", *_HEADS), ((row["session"], row["hash"], *_row(row)) for row in got["sessions"])
        )
    if got["devices"]:
        rows = ((row["device"], moment(row["renewed_at"]), _seconds(row["ends_in_s"])) for row in got["devices"])
        yield from table(("DEVICE", "BOUND", "ENDS IN"), rows)
    if got["warm"]:
        yield from table(("WARM DATA", *_HEADS), (("", *_row(row)) for row in got["warm"]))
    yield from _more(got)


_HEADS: Final = ("TYPE", "VERSION", "WRITTEN OR USED", "ENDS IN", "VALUE")


def _row(row: Json) -> Sequence[str]:
    when, ends = moment(row["renewed_at"]), _seconds(row["ends_in_s"])
    return (str(row["type"]), str(row["version"]), when, ends, _value(row["value"]))


def _value(value: Json) -> str:
    told = value["text"] if value["text"] is not None else value["base64"]
    size = f"{count(value['bytes'], 'byte')}, {value['looks']}" if value["bytes"] else "empty"
    return f"{size}: {told}" if told else size


def _more(got: Json) -> Iterator[str]:
    if got["more"]:
        yield "there are more, which are not shown"


_TELLERS: Final[dict[str, Callable[[Json], Iterator[str]]]] = {
    "session": _session,
    "device": _device,
    "client": _client,
}


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}/s"


def _seconds(value: float) -> str:
    for most, unit_s, unit in ((600, 1, "s"), (36_000, 60, "min"), (864_000, 3600, "h")):
        if value < most:
            return f"{value / unit_s:.0f} {unit}"
    return f"{value / 86400:.0f} days"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
