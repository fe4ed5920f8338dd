"""What a backend says of its own load, where it is asked for it.

It is asked after a good probe and never with one, so a backend that does not know the question is none the worse. An
Error, a wrong answer, silence until the next probe or a close ends the asking for good.
"""

from __future__ import annotations

from typing import Any, Final

from lambdamu.datapack import encode
from lambdamu.messages import LOAD, SYSTEM, Batch, Command, Message, as_count, as_map, as_text
from master.core.health import NOTHING_SAID, Said
from master.probing import Probing

_QUESTION: Final = encode([Message(SYSTEM, Command.GET, LOAD)])


class LoadTalk:
    """The talk of one monitor with its backend. `wanted`: whether the configuration says to ask."""

    def __init__(self, name: str, probing: Probing, *, wanted: bool) -> None:
        self.owed = False
        """An answer is owed."""
        self._name = name
        self._pool = probing.pool
        self._observer = probing.observer
        self._wanted = wanted
        self._asks = wanted
        self._said = NOTHING_SAID

    def begin(self, now: float, *, wanted: bool | None = None) -> None:
        """Begin anew with a backend that may be another process; or from now on with `wanted`."""
        self._wanted = self._wanted if wanted is None else wanted
        self._asks, self.owed = self._wanted, False
        self._hear(now, NOTHING_SAID)

    def question(self) -> bytes | None:
        """Return what to ask now, and take the answer for owed; None where nothing is asked."""
        self.owed = self._asks
        return _QUESTION if self._asks else None

    def end(self, now: float) -> None:
        """Ask no more, where an answer is owed that will not come."""
        if self.owed:
            self._asks = self.owed = False
            self._hear(now, NOTHING_SAID)

    def listen(self, now: float, batch: Batch) -> Batch:
        """Take in what is said of the load, and return the rest. What was never asked for goes through."""
        if not self._wanted:
            return batch
        about: list[Message] = []
        rest: list[Message] = []
        for message in batch:
            (about if (message.object, message.name) == (SYSTEM, LOAD) else rest).append(message)
        if about and self.owed:
            said = read_load(about[0])
            if said is None:
                self.end(now)
            else:
                self.owed = False
                self._hear(now, said)
        return rest

    def _hear(self, now: float, said: Said) -> None:
        if said != self._said:
            self._said = said
            self._pool.record_said(now, self._name, said)
            self._observer.said(self._name, said)


def read_load(message: Message) -> Said | None:
    """Return what an answer says, None for an Error and what is no answer. Keys may be absent."""
    fields = as_map(message.data) if message.command == Command.VALUE else None
    if fields is None:
        return None
    state, capacity, cpu = (fields.get(key) for key in ("State", "Capacity", "CPU"))
    word = as_text(state) if state is not None else "ready"
    good = word in ("ready", "drain") and (capacity is None or as_count(capacity) is not None) and _is_share(cpu)
    return Said(drain=word == "drain", capacity=capacity, cpu=cpu) if good else None


def _is_share(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)
