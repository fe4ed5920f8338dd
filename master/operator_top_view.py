"""What `lambdamu top` shows, as lines. Pure but for the time zone of this machine, by which moments are told.

All text from outside is made printable, and stands in `rich.text.Text`, where markup is no markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import attrs
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lambdamu.address import printable
from master.operator_client import Json
from master.operator_commands import notices

BAR: Final = 10
"""So many characters wide is a bar that is full."""
_EVENTS: Final = 5
_EVENTS_SHARE: Final = 3
"""A third of the lines below the head is for events at most."""
_LEAST_NAME: Final = 8
_GAP: Final = "  "
_HEADS: Final = ("BACKEND", "STATE", "USERS", "REPORT", "ASKS/S", "P50", "P99", "FAILED")
_LEFT: Final = 3
"""So many columns are of words, at the left; figures stand at the right."""
_STYLES: Final[Mapping[str, str]] = MappingProxyType(
    {"ready": "green", "full": "yellow", "unprobed": "yellow", "drain": "cyan", "maint": "cyan", "no_weight": "cyan"}
)
_BAD: Final = "red"


class Sort(StrEnum):
    """What the rows are ordered by: names from A, figures from the highest."""

    NAME = "name"
    USERS = "users"
    LOAD = "load"
    ASKS = "asks"


@attrs.frozen
class Row:
    """A backend. `detail`: why it stands as it does, and who wanted it; empty where there is nothing to say."""

    name: str
    state: str
    users: int
    capacity: int | None
    load: float | None
    age_s: float | None
    asks_per_s: float | None
    p50_s: float | None
    p99_s: float | None
    failures: int
    detail: str


@attrs.frozen
class Look:
    """What one look at a master has found, at Unix seconds `at`. `lost`: why nothing newer is known, empty when it is.

    `told` is what the master said, as JSON.
    """

    url: str
    at: float
    told: Json
    verdict: str
    notices: tuple[str, ...]
    asks: str
    """Empty where there is no pool."""
    rows: tuple[Row, ...]
    events: tuple[str, ...]
    lost: str = ""


def read_look(url: str, at: float, told: Json) -> Look:
    """Return what a master told: the answer of `/api/v1/backends` with the `events` of `/api/v1/log`.

    Raise LookupError, TypeError, ValueError, AttributeError, ArithmeticError or OSError where it is something else.
    """
    return Look(
        url=url,
        at=at,
        told=told,
        verdict=str(told["verdict"]),
        notices=tuple(notices(told)),
        asks="" if told.get("alone") else _asks(told),
        rows=tuple(map(_read_row, told["backends"])),
        events=tuple(map(_event, told["events"][:_EVENTS])),
    )


def block(look: Look, sort: Sort) -> list[str]:
    """Return a look as plain lines of any length, with all its rows."""
    return [line.plain.rstrip() for line in lines(look, sort)]


def lines(look: Look, sort: Sort, width: int | None = None, height: int | None = None) -> list[Text]:
    """Return a look as lines: at most `height`, where names leave room for all else in `width` characters."""
    head = [*_head(look), Text()]
    room = None if height is None else max(0, height - len(head) - 1)
    events = look.events if room is None else look.events[: max(0, room // _EVENTS_SHARE - 1)]
    foot = [Text(), *map(_plain, events)] if events else []
    rows = _rows(look.rows, sort, width, None if room is None else room - len(foot)) if look.asks else []
    return [*head, *rows, *foot][:height]


def _head(look: Look) -> Iterator[Text]:
    yield _plain(f"{look.url}{_GAP}{_clock(look.at)}")
    if look.lost:
        yield _plain(f"LOST: {look.lost}; tried again and again, what stands here is old", "bold red")
    yield _plain(look.verdict, "bold")
    yield from (_plain(each, "bold yellow") for each in look.notices)
    if look.asks:
        yield _plain(look.asks)


def _rows(rows: Sequence[Row], sort: Sort, width: int | None, room: int | None) -> list[Text]:
    """Return the heads, and as many rows as there is room for below them, each with its detail."""
    ordered = sorted(rows, key=_ORDERS[sort])
    shown = [(row, cells(row)) for row in ordered[:room]]
    widths = _widths([_HEADS, *(each for _, each in shown)], width)
    told = [_plain(_line(_HEADS, widths), "dim")]
    for number, (row, each) in enumerate(shown):
        entry = [_state_line(row, each, widths)] + ([_plain(f"{_GAP}{row.detail}")] if row.detail else [])
        last = number == len(rows) - 1
        if room is not None and len(told) - 1 + len(entry) > room - (not last):
            return [*told, _plain(f"{len(rows) - number} more")]
        told += entry
    return told


def cells(row: Row) -> tuple[str, ...]:
    """Return what stands in the columns."""
    limit = "-" if row.capacity is None else str(row.capacity)
    return (
        printable(row.name),
        printable(row.state),
        f"{bar(row.users, row.capacity)} {row.users}/{limit}",
        _figure(row.age_s, "{:.1f} s"),
        _figure(row.asks_per_s, "{:.1f}"),
        _milliseconds(row.p50_s),
        _milliseconds(row.p99_s),
        str(row.failures),
    )


def bar(users: int, capacity: int | None) -> str:
    """Return how full a backend is: `[####------]`, or as many spaces where it has no limit."""
    if capacity is None:
        return " " * (BAR + 2)
    full = BAR if users >= capacity else min(BAR - 1, max(round(BAR * users / capacity), int(users > 0)))
    return f"[{'#' * full}{'-' * (BAR - full)}]"


def _read_row(row: Json) -> Row:
    return Row(
        name=str(row["name"]),
        state=str(row["state"]),
        users=int(row["users"]),
        capacity=_maybe(int, row["capacity"]),
        load=_maybe(float, row["load"]),
        age_s=_maybe(float, row["report_age_s"]),
        asks_per_s=_maybe(float, row["assignments_per_s"]),
        p50_s=_maybe(float, row.get("probe_p50_s")),
        p99_s=_maybe(float, row.get("probe_p99_s")),
        failures=int(row["probe_failures"]),
        detail="; ".join(_details(row)),
    )


def _details(row: Json) -> Iterator[str]:
    if row["why"]:
        yield row["why"]
    admin = row["admin"]
    if admin and admin["state"] != "ready":
        until = f", until {_clock(admin['until'])}" if admin["until"] is not None else ""
        yield f"{admin['state']} by {admin['who']}: {admin['reason']}{until}"
    if row["state"] == "ready":
        return
    if failures := row.get("failures"):
        yield "failed: " + ", ".join(f"{why} {count}" for why, count in failures.items())
    if ejections := row.get("ejections"):
        yield f"ejected {ejections} times"


def _asks(told: Json) -> str:
    rates = told.get("asks_per_s") or {}
    shown = _GAP.join(f"{result} {float(per_s):.1f}" for result, per_s in rates.items()) or "-"
    return f"asks/s: {shown}{_GAP}connections: {told['connections']}"


def _event(row: Json) -> str:
    return _GAP.join(filter(None, (_clock(row["at"]), row["kind"], row["backend"], row["text"])))


def _maybe(kind: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else kind(value)


_ORDERS: Final[Mapping[Sort, Callable[[Row], Any]]] = MappingProxyType(
    {
        Sort.NAME: lambda row: row.name,
        Sort.USERS: lambda row: (-row.users, row.name),
        Sort.LOAD: lambda row: (row.load is None, -(row.load or 0.0), row.name),
        Sort.ASKS: lambda row: (-(row.asks_per_s or 0.0), row.name),
    }
)


def _widths(table: Sequence[Sequence[str]], width: int | None) -> list[int]:
    name, *others = (max(map(cell_len, column)) for column in zip(*table, strict=True))
    if width is not None:
        name = max(_LEAST_NAME, min(name, width - sum(others) - len(_GAP) * len(others)))
    return [name, *others]


def _line(texts: Iterable[str], widths: Sequence[int]) -> str:
    return _GAP.join(_cell(*each, left=i < _LEFT) for i, each in enumerate(zip(texts, widths, strict=True)))


def _cell(text: str, width: int, *, left: bool) -> str:
    """Return a cell that is so many characters wide as a terminal counts them."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "~"
    return text + " " * (width - length) if left else " " * (width - length) + text


def _state_line(row: Row, texts: Sequence[str], widths: Sequence[int]) -> Text:
    line = _plain(_line(texts, widths))
    begin = len(_cell(texts[0], widths[0], left=True)) + len(_GAP)
    line.stylize(_STYLES.get(row.state, _BAD), begin, begin + len(texts[1]))
    return line


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="crop")


def _clock(at: float) -> str:
    """Return the time of day here, with the date where it is another day."""
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"
