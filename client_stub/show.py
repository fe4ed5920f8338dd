"""What a person or a program gets to see: results on standard output, all else on standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lambdamu.address import printable


def complain(text: str) -> None:
    """Write one line for a person."""
    print(f"lambdamu client: {printable(text)}", file=sys.stderr, flush=True)


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
