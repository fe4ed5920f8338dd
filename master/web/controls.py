"""What an operator can change by HTTP, and the interface of whoever does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from lambdamu.errors import LambdaMuError
from master.core.admin import Wish
from master.waiting.orders import Order


@attrs.frozen
class Wanted:
    """What an operator wants of a backend, who, why, and until when in seconds of the wall clock, if not for good."""

    state: Wish
    who: str
    reason: str
    until: float | None


@attrs.frozen
class LastReload:
    """When the configuration was read last, in Unix seconds, by whom, and a line for each fault, if there was any."""

    at: float
    who: str
    faults: Sequence[str] = ()


class ControlError(LambdaMuError):
    """A change that cannot be made; str() is one line for the operator, and nothing has changed."""


class Controls(Protocol):
    """Changes a running master."""

    def set_admin(self, name: str, state: Wish, who: str, reason: str, until_s: float | None) -> None:
        """Have the backend `name`, which is there, be as an operator wants: for `until_s` seconds, None for good."""
        ...

    def wish(self, name: str) -> Wanted | None:
        """Return what was wanted last of a backend; None when nobody has wanted anything."""
        ...

    def order_queue(self, queue: str, order: Order | None, *, who: str, reason: str) -> None:
        """Have the queue as a whole, by `WHOLE`, or one queue be as an operator wants; None: as configured again."""
        ...

    def note_look_up(self, what: str, known: str, *, who: str, values: bool) -> None:
        """Hear that somebody looks up a session, a device or a client, `known` by its hash, before that is shown."""
        ...

    def end_session(self, session: str, *, who: str, reason: str) -> bool:
        """End a session of the cache, and what belongs to it; return whether it was there."""
        ...

    def last_reload(self) -> LastReload | None:
        """Return what came of the last reload, whoever asked for it; None before the first."""
        ...

    async def reload(self, who: str) -> Sequence[str]:
        """Read the configuration again and switch to it, whole; return a line for each difference."""
        ...
