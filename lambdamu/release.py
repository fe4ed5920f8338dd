"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

UNKNOWN: Final = "unknown"


def find_version() -> str:
    """Return the version that is installed; `unknown` where the code runs from its folder, and nothing is installed."""
    try:
        return version("lambdamu")
    except PackageNotFoundError:
        return UNKNOWN
