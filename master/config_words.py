"""Words that the notes on a configuration, and what operators are told, are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lambdamu.address import quoted

if TYPE_CHECKING:
    from master.config import BackendConfig


def takes(backend: BackendConfig) -> bool:
    return backend.weight > 0 and backend.capacity != 0


def names(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(map(quoted, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
