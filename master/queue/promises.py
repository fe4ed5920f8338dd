"""Whether what was promised came true: of the 90 % points shown, the share in which the wait was over in time.

Nobody's every poll is remembered: of the points that one person was shown, one is kept, each with the same chance
(reservoir sampling, Vitter, 1985), so the share is that of all that were shown to him. Memory: three numbers a
ticket, two in all.
"""

from __future__ import annotations

import math
import random

import attrs


@attrs.define(eq=False, weakref_slot=False)
class Promise:
    """What one person was promised. `due`: when his wait should be over, seconds on the master's clock. `polls`: how
    often he was told when to come again. `called_at`: when he was called last.
    """

    called_at: float = attrs.field(default=math.inf, init=False)
    polls: int = attrs.field(default=0, init=False)
    shown: int = attrs.field(default=0, init=False)
    due: float = attrs.field(default=math.inf, init=False)

    def show(self, now: float, rng: random.Random, point90_s: float) -> None:
        """Note that he is shown a point; one that is unknown is not shown."""
        self.shown += 1
        if rng.random() * self.shown < 1.0:
            self.due = now + point90_s


@attrs.define(eq=False)
class Score:
    """Counts only, from the start."""

    kept: int = attrs.field(default=0, init=False)
    broken: int = attrs.field(default=0, init=False)

    @property
    def share(self) -> float | None:
        """The part that came true; None when none is known."""
        ended = self.kept + self.broken
        return self.kept / ended if ended else None

    def ended(self, now: float, promise: Promise, *, claimed: bool) -> None:
        """Hear that a wait is over. Who leaves before his time is up says nothing of what would have been."""
        if promise.shown and now > promise.due:
            self.broken += 1
        elif promise.shown and claimed:
            self.kept += 1
