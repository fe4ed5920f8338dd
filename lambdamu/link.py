"""What a monitor asks of a connection that is made and remade, and what it is told of it."""

from __future__ import annotations

from typing import Protocol

from lambdamu.address import Address
from lambdamu.client_tls import TlsPeer
from lambdamu.errors import LinkError


class LinkUser(Protocol):
    """Who is told what becomes of a link. `now` is seconds of `trio.current_time()`."""

    def connected(self, now: float) -> None:
        """What `open` had begun is done."""

    def received(self, now: float, data: bytes) -> None:
        """The peer says something."""

    def broken(self, now: float, why: LinkError) -> None:
        """It could not be made, or is gone; it is closed."""


class Link(Protocol):
    """One connection at a time. `address` is the one it really goes to, None while there is no connection."""

    address: Address | None
    user: LinkUser
    tls: TlsPeer | None
    """By what the next connection is made safe; None: by nothing."""

    async def run(self) -> None:
        """Do what takes a task, until cancelled."""

    def open(self, now: float, deadline: float) -> bool:
        """Begin a connection; return whether it is there already, else the user will be told. Raise LinkError.

        Whoever opens it closes it at the deadline. It serves to share out the time between several addresses.
        """

    def send(self, data: bytes) -> None:
        """Send all of it, what the peer does not take at once a little later. Raise LinkError."""

    def close(self) -> None:
        """Close, without waiting for the peer; nothing is told of it. Again does nothing."""

    def why_not_connected(self) -> LinkError:
        """Return what took too long, where `open` has not come to its end. Before it is closed."""
