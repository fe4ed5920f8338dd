"""What a crowd met with: how far each came, how long it waited, in which order, and which estimates came true. Pure."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from typing import Any, Final

import attrs

from client_stub.tally import FAILED, NO_BACKEND, OK, TOO_LATE, BackendTally, quantiles, sorted_backends
from lambdamu.address import Address

_SAMPLE: Final = 10_000
_WORDS: Final = 100


class Sample:
    """Some of many values, each with the same chance (Vitter, 1985), and the largest of all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._values: list[float] = []
        self._seen = 0
        self._most: float | None = None

    def add(self, value: float) -> None:
        self._seen += 1
        if self._most is None or value > self._most:
            self._most = value
        if len(self._values) < _SAMPLE:
            self._values.append(value)
        elif (at := int(self._rng.random() * self._seen)) < _SAMPLE:
            self._values[at] = value

    def quantiles(self) -> dict[str, float | None]:
        return quantiles(self._values) | {"max": self._most}


@attrs.define(eq=False)
class Promise:
    """Of all `ETA90` that one client was told, one is kept, each with the same chance: when it is to be in by."""

    by: float = math.inf
    told: int = 0

    def show(self, by: float, rng: random.Random) -> None:
        self.told += 1
        if rng.random() * self.told < 1.0:
            self.by = by


class Front:
    """Who was let in up to each moment, and how late the last of them had set out."""

    def __init__(self) -> None:
        self._entered_at: list[float] = []
        self._latest: list[float] = []
        """For each of these moments; it rises."""

    def entered(self, now: float, joined_at: float) -> None:
        if not self._latest or joined_at > self._latest[-1]:
            self._entered_at.append(now)
            self._latest.append(joined_at)

    def latest(self, before: float) -> float:
        """Return when the last to set out, of those who were in before that moment, had done so; -infinity: nobody."""
        at = bisect_left(self._entered_at, before)
        return self._latest[at - 1] if at else -math.inf


class CrowdTally:
    """Right at any moment. `joined` were given a place, or let in at once; `waiting` and `staying` do so now.

    `ended` counts each client once, by how. `let_in` counts clients, `sent` of the backends how often they were let in;
    `lost`: stays that a backend has ended.
    """

    def __init__(self, clients: int, rng: random.Random) -> None:
        self.clients = clients
        self.set_out = 0
        self.joined = 0
        self.waiting = 0
        self.let_in = 0
        self.staying = 0
        self.lost = 0
        self.overtaken = 0
        self.promises = 0
        self.kept = 0
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Of calls and of answers that were no place, by their word."""
        self.backends: dict[Address, BackendTally] = {}
        self.wait_s: list[float] = []
        """From the first ask of a client to the answer that let it in."""
        self.answer_s = Sample(rng)
        self.late_s = Sample(rng)
        """How long after it was due an ask went out: what the crowd itself is late."""

    def note(self, word: str) -> None:
        self.errors[word if word in self.errors or len(self.errors) < _WORDS else "others"] += 1

    def sent_to(self, backend: Address) -> None:
        self.backends.setdefault(backend, BackendTally()).sent += 1

    def judge(self, promise: Promise | None, now: float, *, came: bool) -> None:
        """Judge what a client was told that is in now, or will not come in; in time it would have been true or not."""
        if promise is not None and (came or now > promise.by):
            self.promises += 1
            self.kept += now <= promise.by

    def exit_code(self) -> int:
        """Return 0 when every client got in, and to its backend if it was to; 3 or 4 when none did; otherwise 1.

        4: all have left the queue, tired of waiting.
        """
        if self.ended["done"] == self.clients:
            return OK
        if self.ended["left"] == self.clients:
            return TOO_LATE
        return FAILED if self.let_in or self.ended["failed"] or self.waiting else NO_BACKEND

    def line(self) -> str:
        """Return how it stands, in one line."""
        ended = [f"{how} {self.ended[how]}" for how in ("no_server", "closed", "denied", "left", "failed")]
        told = [each.replace("_", " ") for each in ended if not each.endswith(" 0")]
        parts = [f"set out {self.set_out} of {self.clients}", f"waiting {self.waiting}", f"let in {self.let_in}"]
        if self.staying or self.lost:
            parts.append(f"at a backend {self.staying}")
        return ", ".join(parts + told)

    def to_json(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "set_out": self.set_out,
            "joined": self.joined,
            "waiting": self.waiting,
            "let_in": self.let_in,
            "lost": self.lost,
            **{how: self.ended[how] for how in ("left", "no_server", "closed", "denied", "failed")},
            "in_order": not self.overtaken,
            "overtaken": self.overtaken,
            "wait_s": quantiles(self.wait_s),
            "promises": self.promises,
            "promises_kept": self.kept,
            "answer_s": self.answer_s.quantiles(),
            "late_s": self.late_s.quantiles(),
            "errors": dict(self.errors.most_common()),
            "backends": {str(each): attrs.asdict(tally) for each, tally in sorted_backends(self.backends)},
        }
