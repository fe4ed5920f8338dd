"""What happened at this master, for people: the last events, in a ring of fixed length.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

_KEPT: Final = 256


@attrs.frozen
class Event:
    """`number` counts from 1 and never repeats. `at`: seconds of the monotonic clock. `backend` is empty for all."""

    number: int
    at: float
    kind: str
    backend: str
    text: str


class EventLog:
    """The last events. Each new one is told to those that listen, at once: they must not wait, nor fail."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._events: deque[Event] = deque(maxlen=kept)
        self._number = 0
        self._listeners: list[Callable[[Event], None]] = []

    def listen(self, hear: Callable[[Event], None]) -> None:
        """Have `hear` called with each new event from now on."""
        self._listeners.append(hear)

    def add(self, at: float, kind: str, text: str, backend: str = "") -> None:
        self._number += 1
        event = Event(self._number, at, kind, backend, text)
        self._events.append(event)
        for hear in self._listeners:
            hear(event)

    def last(self, most: int) -> list[Event]:
        """Return up to `most`, oldest first."""
        return list(self._events)[-most:]
