"""Names to addresses, each name on a thread of its own.

The system's look-up blocks, and a thread that runs one cannot be stopped. With a common limit, look-ups of dead names
use it up and the good names starve; so a name has one thread at most, whoever asks for it meanwhile gets the same
answer, and a slow name only ever holds up itself.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import attrs
import trio

from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault

_LOOK_UPS: Final = 256
"""Names that may be looked up at once. A thread that waits for a name server costs a few ten KiB."""

SocketAddress = tuple[socket.AddressFamily, tuple[Any, ...]]


@attrs.define(eq=False)
class _LookUp:
    """A look-up that runs, and then what came of it."""

    over: trio.Event = attrs.field(factory=trio.Event)
    found: list[SocketAddress] | Exception = attrs.field(factory=list)


class Resolver:
    """Looks names up, anew each time; addresses in text form need no look-up."""

    def __init__(self, look_ups: int = _LOOK_UPS) -> None:
        self._look_ups = look_ups
        self._running: dict[str, _LookUp] = {}

    def known(self, host: str, port: int) -> list[SocketAddress]:
        """Return the address that `host` is in text form; none when it is a name, or nothing that could be one."""
        try:
            return _with_port(_addresses(host, socket.AI_NUMERICHOST), port)
        except (OSError, UnicodeError):
            return []

    async def resolve(self, host: str, port: int) -> list[SocketAddress]:
        """Return at least one address of `host`. Raise LinkError (no_address). The caller sets the deadline."""
        if known := self.known(host, port):
            return known
        look_up = self._running.get(host) or self._start(host)
        await look_up.over.wait()
        if isinstance(look_up.found, Exception):
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} has no address: {look_up.found}") from look_up.found
        return _with_port(look_up.found, port)

    def _start(self, host: str) -> _LookUp:
        if len(self._running) >= self._look_ups:
            raise LinkError(LinkFault.NO_ADDRESS, f"{host} was not looked up: {self._look_ups} look-ups hang already")
        look_up = self._running[host] = _LookUp()
        # It outlives who began it: others may wait for it, and the thread cannot be called back.
        trio.lowlevel.spawn_system_task(self._look_up, host, look_up)
        return look_up

    async def _look_up(self, host: str, look_up: _LookUp) -> None:
        limiter = trio.CapacityLimiter(1)
        try:
            look_up.found = await trio.to_thread.run_sync(_addresses, host, 0, abandon_on_cancel=True, limiter=limiter)
        except (OSError, UnicodeError) as exc:
            look_up.found = exc
        finally:
            del self._running[host]
            look_up.over.set()


def _addresses(host: str, flags: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _with_port(found: list[SocketAddress], port: int) -> list[SocketAddress]:
    return [(family, (address[0], port, *address[2:])) for family, address in found]
