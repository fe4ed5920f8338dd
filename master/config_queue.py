"""The virtual queue as an operator sets it: `[queue]`, which switches it on by being there, and its templates."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import attrs

from master.queue.policy import QueuePolicy
from master.queue.ticket import Lane

LANES: Final[Mapping[str, Lane]] = MappingProxyType({lane.name.lower(): lane for lane in Lane})
"""The lanes by the words for them."""
MOST_TEMPLATES: Final = 256
"""Each is compared with the id of a queue that is asked for; Python keeps so many patterns compiled."""
_FITS_NOTHING: Final = "(?!)"
"""What fnmatch makes of a range that runs backwards; the same in a pattern is escaped."""


class Control(StrEnum):
    """What comes of the rate that the load of the backends asks for."""

    ON = "on"
    """It binds."""
    SHADOW = "shadow"
    """It is planned and shown, and binds nobody."""
    OFF = "off"
    """There is none."""


@attrs.frozen
class QueueConfig(QueuePolicy):
    """The policy of the queue, and what the master has around it."""

    keys_file: str = ""
    """A private key, which signs turns and tickets; from the folder of the configuration. Empty: there are no turns."""
    turn_s: float = 10.0
    """A Turn holds for so long."""
    control: Control = Control.ON
    max_held: int = 10_000
    """Plain clients whose answers are owed at once; one more is told NoServer."""


def pattern_fault(pattern: str) -> str | None:
    """Say what is wrong with a pattern of shell style; None where nothing is. fnmatch takes anything, in its way."""
    at = pattern.find("[")
    while at >= 0:
        first = at + 1 + pattern.startswith("!", at + 1)
        end = pattern.find("]", first + 1)  # the first character is one of those that fit, also a bracket
        if end < 0:
            return "opens a [ that no ] closes; a [ itself is written [[]"
        at = pattern.find("[", end)
    if _FITS_NOTHING in fnmatch.translate(pattern):
        return "holds a range that runs backwards, so that it fits nothing"
    return None
