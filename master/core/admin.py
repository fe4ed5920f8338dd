"""What an operator wants of a backend. It says nothing of how the backend is, and what is found changes nothing here.

A backend that is set aside is no outage: it stands outside of the sum by which it is judged whether too few work, or
all have failed. Only the operator, or the end of the time
that he has set, brings it back; then it is judged by its probes.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import attrs


class Wish(StrEnum):
    READY = "ready"
    DRAIN = "drain"
    """It gets no new clients, and is still probed."""
    MAINT = "maint"
    """It is not probed either; afterwards it waits for a good probe, as if it were new."""


@attrs.frozen
class Admin:
    """`who` wants it, and `why`; `until`: when it ends by itself, seconds of the pool's clock."""

    wish: Wish = Wish.READY
    who: str = ""
    why: str = ""
    until: float = math.inf

    def at(self, now: float) -> Admin:
        """Return what is wanted at `now`."""
        return READY if now >= self.until else self


READY: Final = Admin()
"""Nobody has asked for anything."""
