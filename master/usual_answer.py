"""The answer that a backend usually gives: the same bytes as last time but for the count at their end. Pure.

Whoever is asked every second says the same each time, so it is compared, and only the count is read anew. What is at
all unusual goes the long way through the decoder.
"""

from __future__ import annotations

from typing import Final

import msgpack

from lambdamu.datapack import Decoder, WireLimits
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import MAX_COUNT, as_count
from master.probe import Probe

_TRIES: Final = 8
"""Who never says the same twice is not learnt from for ever."""
_OTHER_COUNTS: Final = (3, MAX_COUNT - 1)
"""One as short on the wire as can be and one as long."""


class UsualAnswer:
    """`needs_task`: whether it is the answer to a probe that asks for Auth too."""

    def __init__(self, *, needs_task: bool, limits: WireLimits) -> None:
        self._needs_task = needs_task
        self._limits = limits
        self._before_count = b""
        self._tries = _TRIES

    def count_in(self, data: bytes) -> int | None:
        """Return the count, when `data` is a usual answer and nothing else; None sends it the long way."""
        before = self._before_count
        if not before or not data.startswith(before):
            return None
        try:
            count = as_count(msgpack.unpackb(data[len(before) :]))
        except ValueError:  # nothing, not all of it, or more than one value
            return None
        self._tries = _TRIES
        return count

    def learn(self, data: bytes, count: int) -> None:
        """Take `data`, a good answer with `count` in it, for the usual one from now on, where its end is the count."""
        if not self._tries:
            return
        self._tries -= 1
        before = data.removesuffix(msgpack.packb(count))
        usual = len(before) < len(data) and all(self._reads(before, other) for other in _OTHER_COUNTS)
        self._before_count = before if usual else b""

    def _reads(self, before: bytes, count: int) -> bool:
        """Whether another count in that place makes a good answer with that count."""
        probe, decoder = Probe(self._needs_task), Decoder(self._limits)
        try:
            for batch in decoder.feed(before + msgpack.packb(count)):
                if probe.complete:
                    return False
                probe.take(batch)
        except (LinkError, RemoteProtocolError):
            return False
        return probe.complete and probe.count == count and not decoder.pending
