"""Who comes to the desk, and what he is told there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from lambdamu.messages import QUEUE_WAITS, QueueReason, Reason, Result
from master.core.answers import Ask, Assignment

TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Reason.LEFT: "the client has left",
        QueueReason.FULL: "the queue is full",
        QueueReason.CLOSED: "the door is closed",
    }
)
"""Where the operator has no word for it."""
TOLD: Final[tuple[tuple[Result, str], ...]] = (
    *((Result.WAIT, reason) for reason in QUEUE_WAITS),
    *((Result.NO_SERVER, reason) for reason in (*QUEUE_WAITS, QueueReason.FULL)),
    *((Result.CLOSED, reason) for reason in (QueueReason.FULL, QueueReason.CLOSED, Reason.LEFT)),
    *((Result.DENIED, reason) for reason in (QueueReason.NO_QUEUE, QueueReason.USED)),
)
"""All that the queue tells but for OK."""


@attrs.frozen
class Visit:
    """Who asks, from the address `host`. `data`: the known keys of its ask; `rights`: those that its Pass gives.

    `plain`: it says nothing of itself. `hold`: it waits on its connection.
    """

    ask: Ask
    host: str
    data: Mapping[str, Any]
    rights: tuple[str, ...] = ()
    plain: bool = False
    hold: bool = False

    @property
    def wants(self) -> frozenset[str]:
        wants: frozenset[str] = self.data.get("Want", frozenset())
        return wants


@attrs.frozen
class Outcome:
    """What somebody is told: `data` of the `result`, and why. `assignment`: where it was sent, if it was."""

    result: Result
    data: Mapping[str, Any]
    reason: str
    assignment: Assignment | None = None


@attrs.frozen
class Held:
    """It is owed an answer: `number` is its place."""

    number: int
