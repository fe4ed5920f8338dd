"""What a master does for a client that says its device: its data are warmed, and it goes back to its session.

To tell the cache is a call where it is on this node, and a place in the queue of a connection where it is on another
one; neither waits. Only a cache on this node is asked for the session: an answer from elsewhere would be late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from lambdamu.networks import Networks
from master.ask_data import spelled
from master.core.answers import Ask

Tell = Callable[[str, bytes | None], object]
"""Hears of a device, and the network that it is in; None: of one that does not count."""


class Seeker(Protocol):
    """Who knows where sessions are."""

    def find(self, now: float, device: str) -> str:
        """Return the name of the backend that has the session of a device; "" where none is known."""
        ...


class Devices:
    """`tell`: None where nothing is warmed; `homes`: None where nobody is sent back."""

    def __init__(self, tell: Tell | None, networks: Networks, homes: Seeker | None = None) -> None:
        self._tell = tell
        self._networks = networks
        self._homes = homes

    def home(self, now: float, device: str) -> str:
        """Return the name of the backend that has the session of a device; "" where none is known."""
        return self._homes.find(now, device) if self._homes is not None and device else ""

    def seek(self, now: float, ask: Ask, data: Mapping[str, Any]) -> Ask:
        """Return an ask with the backend that has the session of its device, and where it could not connect."""
        name = self.home(now, data.get("Device", ""))
        if not name:
            return ask
        failed = frozenset((spelled(ip), port) for ip, port, _ in data.get("Failed", ()))
        return attrs.evolve(ask, prefer=name, failed=failed)

    def sent(self, host: str, data: Mapping[str, Any]) -> None:
        """Hear that a client at the address `host` was sent to a backend."""
        device = data.get("Device")
        if device and self._tell is not None:
            self._tell(device, self._networks.of(host))
