"""How many users each backend has when they are spread as evenly as capacities allow."""

from __future__ import annotations

from collections.abc import Sequence

from master.core.backend import Backend


def spread(users: int, backends: Sequence[Backend]) -> tuple[list[int], int]:
    """Return the users of each backend, by weight and level by level, and how many have no place."""
    counts, rest = [0] * len(backends), float(users)
    for priority in sorted({backend.priority for backend in backends}):
        level = {n: b for n, b in enumerate(backends) if b.priority == priority and b.weight > 0}
        while level and rest > 0:
            each = rest / sum(backend.weight for backend in level.values())
            full = {n: b.capacity for n, b in level.items() if b.capacity is not None and b.capacity <= each * b.weight}
            for number, count in (full or {n: round(each * b.weight) for n, b in level.items()}).items():
                counts[number] = count
                rest -= count
                del level[number]
            if not full:
                rest = 0.0
    return counts, round(rest)
