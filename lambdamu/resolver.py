"""Names to addresses, each name on a thread of its own.

The system's look-up blocks, and a thread that runs one cannot be stopped. With a shared limit, look-ups of dead names
use it up and the good names starve; so a name has one thread at most, and a slow name only ever waits for itself.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import trio

from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault

_LOOK_UPS: Final = 256
"""Threads that may be looking names up at once. One that waits for a name server costs a few ten KiB."""

SocketAddress = tuple[socket.AddressFamily, tuple[Any, ...]]


class Resolver:
    """Looks names up, anew each time; addresses in text form need no look-up."""

    def __init__(self, look_ups: int = _LOOK_UPS) -> None:
        self._look_ups = look_ups
        self._busy: dict[str, trio.CapacityLimiter] = {}

    async def resolve(self, host: str, port: int) -> list[SocketAddress]:
        """Return at least one address of `host`. Raise LinkError (no_address). The caller sets the deadline."""
        try:
            return _addresses(host, port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # a name, or nothing that could be one
        try:
            limiter = self._limiter(host)
            return await trio.to_thread.run_sync(_addresses, host, port, 0, abandon_on_cancel=True, limiter=limiter)
        except (OSError, UnicodeError) as exc:
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} has no address: {exc}") from exc

    def _limiter(self, host: str) -> trio.CapacityLimiter:
        """Return the limiter of a name; a look-up that was given up holds it until its thread is really done."""
        limiter = self._busy.get(host)
        if limiter is not None:
            return limiter
        if len(self._busy) >= self._look_ups:
            self._busy = {name: limiter for name, limiter in self._busy.items() if limiter.borrowed_tokens}
        if len(self._busy) >= self._look_ups:
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} was not looked up: {self._look_ups} look-ups hang already")
        limiter = self._busy[host] = trio.CapacityLimiter(1)
        return limiter


def _addresses(host: str, port: int, flags: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))
