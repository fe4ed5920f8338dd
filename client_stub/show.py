"""What a person or a program gets to see: results on standard output, all else on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any, Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lambdamu.address import printable
from lambdamu.answers import Place

_LONGEST_S: Final = 365 * 86400.0


def complain(text: str) -> None:
    """Write one line for a person."""
    print(f"lambdamu client: {printable(text)}", file=sys.stderr, flush=True)


class Status:
    """What goes on now, on standard error: one line that changes on a terminal, a line per change elsewhere.

    `with` it; on a terminal the line is gone at its end.
    """

    def __init__(self) -> None:
        self._said: str | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Drawn by who calls: by itself it would start a thread beside the loop.
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        if text == self._said:
            return
        self._said = text
        if self._live is not None:
            self._live.update(Text(printable(text), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            complain(text)


def place_text(place: Place) -> str:
    """Return in one line where somebody stands in a queue."""
    parts = [] if place.position is None else ["next" if place.position == 0 else f"{place.position} ahead"]
    if place.eta_s is not None:
        parts.append(f"about {span(place.eta_s)}")
    if place.eta90_s is not None:
        parts.append(f"most likely within {span(place.eta90_s)}")
    if place.reason:
        parts.append(place.reason)
    return "waiting: " + (", ".join(parts) or "nobody knows how long")


def span(seconds: float) -> str:
    """Return a duration as people say it: `8 s`, `2 min 10 s`, `3 h 5 min`, `2 d`."""
    if seconds > _LONGEST_S:
        return "more than a year"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{math.ceil(seconds / 86400)} d"


def put_json(value: Any) -> None:
    """Write one JSON object on a line of its own."""
    _write(json.dumps(value) + "\n")


def put_line(text: Text) -> None:
    """Write one line, in colour where the output is a terminal; it is not broken, however long it is."""
    _print(text, soft_wrap=True)


def put_table(table: Table) -> None:
    _print(table)


def _print(what: RenderableType, *, soft_wrap: bool = False) -> None:
    console = Console()
    with console.capture() as captured:
        console.print(what, soft_wrap=soft_wrap)
    _write(captured.get())


def _write(text: str) -> None:
    encoding = sys.stdout.encoding
    try:
        # What the terminal has no letters for is shown by its number.
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has left. What Python still wants to flush at its end must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
