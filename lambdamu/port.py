"""What a port promises, whichever way it is built: its limits, who answers, who hears of it, how connections end."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import attrs

from lambdamu.datapack import WireLimits
from lambdamu.messages import Message
from lambdamu.objects import Peer, Reply


@attrs.frozen
class PortLimits(WireLimits):
    """What one peer may take of the port."""

    message_s: float = 5.0
    """A batch must be whole so long after its first byte."""
    idle_s: float = 60.0
    """A connection on which nothing is said ends; the clock rests while an answer is owed."""
    send_s: float = 5.0
    """A reply must be taken in this time."""
    connections: int = 10000
    """Open at once; one more is told so and closed."""


class Ending(StrEnum):
    """How a connection ended."""

    LEFT = "left"
    RESET = "reset"
    IDLE = "idle"
    MESSAGE_DEADLINE = "message_deadline"
    SEND_DEADLINE = "send_deadline"
    PROTOCOL = "protocol"
    STOPPED = "stopped"


class Handler(Protocol):
    """Whoever answers the messages of a port, such as a logical machine."""

    def handle(self, message: Message, now: float, peer: Peer) -> Reply: ...

    def disconnected(self, peer: Peer) -> None: ...


class PortObserver:
    """Hears what happens at a port; this one does nothing with it."""

    def opened(self) -> None:
        """A connection was let in."""

    def ended(self, how: Ending) -> None:
        """A connection that was let in is gone."""

    def refused(self) -> None:
        """A connection was turned away, because as many as allowed were open."""

    def broke_protocol(self, code: str) -> None:
        """A peer was sent an Error and lost its connection."""

    def cannot_accept(self, error: OSError) -> None:
        """No connection can be accepted for want of a resource; told at most ten times a second."""
