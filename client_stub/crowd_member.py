"""One client of a crowd, and what all of them are told to do. Pure."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final

import attrs

from client_stub.crowd_tally import Promise


class Stage(Enum):
    SETS_OUT = "sets out"
    WAITS = "waits"
    LEAVES = "leaves"
    """Its next ask says so."""
    IN = "in"
    OVER = "over"


NOT_IN: Final = frozenset({Stage.SETS_OUT, Stage.WAITS, Stage.LEAVES})


@attrs.define(eq=False)
class Member:
    """One client of the crowd. Times are seconds of the clock."""

    number: int
    client: str
    due: float
    master: int
    """Which one it asks, by its place in the list."""
    stage: Stage = Stage.SETS_OUT
    ticket: str | None = None
    turn: str | None = None
    failed: dict[str, Any] | None = None
    """The backend that it could not use, as it tells it."""
    away: bool = False
    away_left: bool = True
    """It has still to go away, if it is to."""
    joined: bool = False
    joined_at: float = math.inf
    """When its first ask went out."""
    placed_at: float = math.inf
    """When it was first told that it has a place."""
    asked_at: float = 0.0
    fails: int = 0
    """Calls of masters, in a row."""
    login_fails: int = 0
    counts: bool = True
    """Whether it says anything of the order: it came in time, and once."""
    overtaken: bool = False
    entered: bool = False
    stays_s: float = 0.0
    promise: Promise | None = None


@attrs.frozen
class CrowdPolicy:
    """`rate`: clients that set out each second, None: all at once. `wait_s`, `away_s`: as `--wait` and `--away`."""

    clients: int
    rate: float | None = None
    wait_s: float = math.inf
    away_s: float | None = None
    stay_s: float | None = None
    said: dict[str, Any] = attrs.field(factory=dict)
    """What each says besides, such as its Pass."""
