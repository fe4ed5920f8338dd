"""What a client is told: of the backend that it is sent to, and when to ask again. Pure."""

from __future__ import annotations

import random
from collections.abc import Set
from typing import Any

import attrs

from lambdamu.messages import TURN
from master.core.pool import Assignment, Place


@attrs.frozen
class AnswerPolicy:
    """`ttl_s`: for how long a client may use an answer. `retry_after_s`: when to ask again, jittered by half of it."""

    ttl_s: float
    retry_after_s: float

    def again_s(self, rng: random.Random) -> float:
        """Return when to ask again, so that those who were turned away together do not come back together."""
        return self.retry_after_s * rng.uniform(0.5, 1.5)


def describe(assignment: Assignment, wants: Set[str], ttl_s: float, turn: str | None = None) -> dict[str, Any]:
    """Return the `Data` of an OK: the address, and of the rest what is wanted. A Turn is for one backend alone."""
    answer = address(assignment.place)
    if "Name" in wants:
        answer["Name"] = assignment.place.name
    if "Alternates" in wants and turn is None:
        answer["Alternates"] = [{**address(place), "Name": place.name} for place in assignment.alternates]
    if "TTL" in wants:
        answer["TTL"] = ttl_s
    if turn is not None:
        answer[TURN] = turn
    return answer


def address(place: Place) -> dict[str, Any]:
    ip, port = place.endpoint
    return {"IP": ip, "Port": port}
