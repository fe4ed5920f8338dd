"""What a client says of itself when it asks a master, and what it keeps of the answers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import attrs

from lambdamu.address import Address
from lambdamu.answers import Answer, Place
from lambdamu.messages import TURN, QueueReason, Reason, Result

_FAILED: Final = 8
"""So many backends that failed are told to a master, the newest."""
_RECENT_S: Final = 60.0
"""What is older is no news to a master: longer than it remembers whom it sent where."""
_NO_MORE: Final = frozenset({Reason.LEFT, QueueReason.USED})
"""After these a ticket is worth nothing."""


@attrs.frozen(eq=False)
class FailedPlace:
    """A backend that could not be used at `at`, and one word that says why."""

    ip: str
    port: int
    why: str
    at: float


@attrs.define(eq=False)
class Identity:
    """`queue`: which one it waits in where it has to, None: the default one. All but these five change as it goes."""

    client_id: str
    device: str | None = None
    zone: str | None = None
    queue: str | None = None
    pass_text: str | None = attrs.field(default=None, repr=False)

    ticket: str | None = attrs.field(default=None, repr=False)
    """The place that it has or had, as a master last wrote it."""
    turn: str | None = attrs.field(default=None, repr=False)
    """What it was let in with the last time. It proves that it was in, and is shown in the place of the ticket."""
    session: str | None = attrs.field(default=None, repr=False)
    """Its session at the backends, "" while it has none and wants one, None where it wants none."""
    place: Place | None = None
    """Where it stands, while it waits."""
    away: bool = False
    """The application is in the background."""
    failed: deque[FailedPlace] = attrs.field(factory=lambda: deque(maxlen=_FAILED))
    """Backends that it was sent to and could not use."""

    master: Address | None = None
    answered_at: float = 0.0
    """Who answered last, and when."""

    def forget(self, now: float) -> None:
        """Forget what is old news."""
        # While it waits it was told how long to be silent, and that may be long.
        told_s = 0.0 if self.place is None else self.place.retry_after_s
        if self.answered_at + told_s <= now - _RECENT_S:
            self.master = None
        while self.failed and self.failed[0].at <= now - _RECENT_S:
            self.failed.popleft()

    def data(self) -> dict[str, Any]:
        """Return the `Data` of an ask."""
        said: dict[str, Any] = {"Client": self.client_id, "Want": ["Name", "Alternates", "TTL", TURN]}
        said |= {
            key: value
            for key, value in (
                ("Device", self.device),
                ("Zone", self.zone),
                ("Queue", self.queue),
                ("Ticket", self.turn or self.ticket),
                ("Pass", self.pass_text),
                ("Away", self.away or None),
            )
            if value is not None
        }
        if self.failed:
            said["Failed"] = [{"IP": each.ip, "Port": each.port, "Why": each.why} for each in self.failed]
        return said

    def heard(self, now: float, master: Address, told: Iterable[FailedPlace], answer: Answer) -> None:
        """Take in that a master has heard what was said, and which failures it was told of, and has answered."""
        self.master, self.answered_at = master, now
        for failed in told:
            if failed in self.failed:
                self.failed.remove(failed)
        self.place = answer.place
        if answer.result is Result.OK:
            self.turn = answer.turn
        elif answer.result is Result.WAIT and answer.ticket is not None:
            self.ticket, self.turn = answer.ticket, None
        elif answer.reason in _NO_MORE:
            self.forget_place()

    def forget_place(self) -> None:
        self.ticket = self.turn = self.place = None
