"""What a port promises, whichever way it is built: its limits, who answers, who hears of it, how connections end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import attrs

from lambdamu.datapack import WireLimits
from lambdamu.errors import RemoteProtocolError
from lambdamu.listeners import turn_away
from lambdamu.messages import Code
from lambdamu.networks import Network, Networks
from lambdamu.objects import Later, Peer, Quick
from lambdamu.wire import MessagePackWire, Wire

READ_BYTES: Final = 16384
FLUSH_BYTES: Final = 65536
"""Answers to pipelined batches gather up to this size before they are sent."""
BATCHES_A_TURN: Final = 16
"""After so many batches of one connection others get their turn."""
BATCHES_OF_ALL: Final = 32
"""After so many batches between two looks at the time the others get two each, and whoever had no more than one is
done with: some questions take 0.1 ms."""
ACCEPTS_A_TURN: Final = 64
ACCEPTS_AT_STOP: Final = 4096
"""Those whom the kernel has let in before a stop are let in still, so many at most: others go on coming."""
ACCEPT_PAUSE_S: Final = 0.1
"""While a resource is short, it is tried so often to let somebody in."""
LAST_CALL_S: Final = 0.1
"""At a stop, a question that is on its way is still answered when it comes within this time."""
REST_S: Final = 1.0
"""At a stop, the rest of a question that has begun is waited for so long at most."""
LINGER_S: Final = 0.5
LINGER_BYTES: Final = 262144
"""A socket closed with bytes unread resets the connection, and the peer may lose our last message. So they are read
and thrown away first, within these bounds."""
TOO_MANY: Final = "too many connections are open"
TOO_MANY_FROM_THERE: Final = "too many connections are open from this network"


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
    connections_per_address: int = 0
    """Open at once from one network; 0 for no such limit."""
    asks_per_network_per_s: float = 0.0
    """Asks a second of one network in the long run; 0 for no such limit."""
    asks_burst: int = 20
    """Asks of one network at once, after a pause."""
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64
    """What one network is: addresses that are the same up to here."""
    exempt: tuple[Network, ...] = ()
    """Networks whose addresses may take as much as they like, such as those of a balancer or a carrier."""

    def networks(self) -> Networks:
        """Return what tells the network of an address."""
        return Networks(self.ipv4_prefix, self.ipv6_prefix, self.exempt)


class Ending(StrEnum):
    """How a connection ended."""

    LEFT = "left"
    RESET = "reset"
    IDLE = "idle"
    MESSAGE_DEADLINE = "message_deadline"
    SEND_DEADLINE = "send_deadline"
    PROTOCOL = "protocol"
    HANDSHAKE = "handshake"
    """Of TLS: it came to nothing."""
    REFUSED = "refused"
    """By what was answered: a farewell."""
    STOPPED = "stopped"


class Handler(Protocol):
    """Whoever answers what the wire of a port makes of bytes, such as a logical machine, which answers messages."""

    def handle(self, message: Any, now: float, peer: Peer) -> Sequence[Any] | Later: ...

    def prepare(self, batch: Any) -> Quick | None:
        """Return what answers a batch of the same bytes from now on, where that hangs on no more than the moment."""
        ...

    def disconnected(self, peer: Peer) -> None:
        """Hear that the connection of `peer` is gone, when it has asked anything."""
        ...


class PortObserver:
    """Hears what happens at a port; this one does nothing with it."""

    def opened(self) -> None:
        """A connection was let in."""

    def ended(self, how: Ending) -> None:
        """A connection that was let in is gone."""

    def refused(self) -> None:
        """A connection was turned away, because as many as allowed were open."""

    def replied(self, batches: int, took_s: float) -> None:
        """So many batches were answered together: read at one moment, and sent so many seconds later."""

    def broke_protocol(self, code: str) -> None:
        """A peer was sent an Error and lost its connection."""

    def cannot_accept(self, error: OSError) -> None:
        """No connection can be accepted for want of a resource; told at most ten times a second."""


class AddressCap:
    """Counts the connections of each network, where there is a limit on them."""

    def __init__(self, limits: PortLimits) -> None:
        self._most = limits.connections_per_address
        self._networks = limits.networks()
        self._open: dict[bytes, int] = {}

    def enter(self, host: str) -> bool:
        """Count one more; False when that is one too many. An IPv4 address mapped into IPv6 is the IPv4 one."""
        network = self._networks.of(host) if self._most else None
        if network is None:
            return True
        count = self._open.get(network, 0)
        if count >= self._most:
            return False
        self._open[network] = count + 1
        return True

    def leave(self, host: str) -> None:
        """Count one less of those that entered."""
        network = self._networks.of(host) if self._most else None
        if network is not None:
            self._open[network] -= 1
            if not self._open[network]:
                del self._open[network]


class Port:
    """What both ports hold, and how they turn somebody away."""

    def __init__(
        self,
        handler: Handler,
        limits: PortLimits,
        *,
        observer: PortObserver | None = None,
        wire: Wire | None = None,
    ) -> None:
        """`wire`: what is spoken here, MessagePack where nothing is said."""
        self.handler = handler
        self.limits = limits
        self.observer = observer or PortObserver()
        self.wire = wire or MessagePackWire()
        self.stopped_at: float | None = None
        self._cap = AddressCap(limits)
        self._set_up()

    def _set_up(self) -> None:
        """Make what a port of one kind holds beside this; each calls that of its base."""

    def _refuse(self, connection: socket.socket, why: str) -> None:
        self.observer.refused()
        turn_away(connection, self.wire.last_word(RemoteProtocolError(Code.LIMIT, why)))
