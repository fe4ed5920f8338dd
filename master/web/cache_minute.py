"""How fast the counters of the cache have grown over the last minute, and what goes wrong just now."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from master.web.views import Json, finite

if TYPE_CHECKING:
    from master.cache.house import CacheHouse

_TOTALS: Final = ("asks", "refused", "hits", "served", "saved", "calls", "failed")
"""What is counted over the last minute."""
_MINUTE: Final = 61
_JUST_NOW: Final = 11
"""So many looks, a second apart: those of the last minute, and of the last 10 s."""
_MOST_FAILED: Final = 0.1


class LastMinute:
    """How fast counters have grown over the last minute; `take` comes once a second."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=_MINUTE)

    def take(self, now: float, house: CacheHouse) -> None:
        self._looks.append((now, _totals(house)))

    def row(self) -> Json:
        """Return it a second; null before it is known. `hit_rate`: of the asks for warm data that might be served."""
        seconds, grown = self._grown(_MINUTE)
        served, rates = grown["served"], ("asks", "saved", "calls", "failed", "refused")
        return {
            "seconds": finite(seconds) if seconds else None,
            "hit_rate": finite(grown["hits"] / served) if served else None,
            **{f"{key}_per_s": finite(grown[key] / seconds) if seconds else None for key in rates},
        }

    def troubles(self) -> Iterator[str]:
        """Yield a line for each thing that goes wrong just now, again and again."""
        seconds, grown = self._grown(_JUST_NOW)
        if grown["failed"] > _MOST_FAILED * grown["calls"]:
            yield f"{grown['failed']} of {grown['calls']} calls of the upstream failed in the last {seconds:.0f} s"
        if grown["refused"]:
            yield f"{grown['refused']} fetches and asks were refused in the last {seconds:.0f} s: too many wait"

    def _grown(self, looks: int) -> tuple[float, Mapping[str, int]]:
        """Return seconds, 0 where there is nothing to compare, and what has come in them."""
        if not self._looks:
            return 0.0, dict.fromkeys(_TOTALS, 0)
        (began, first), (ended, last) = self._looks[-min(looks, len(self._looks))], self._looks[-1]
        return ended - began, {key: last[key] - first[key] for key in _TOTALS}


def _totals(house: CacheHouse) -> Mapping[str, int]:
    warm, asks, refused = house.warm, house.service.answered.total(), house.broker.core.refused
    if warm is None:
        return dict.fromkeys(_TOTALS, 0) | {"asks": asks, "refused": refused}
    counts, fetches = warm.counts, warm.fetches.counts
    values = (asks, refused, counts.hits, counts.served, warm.saved, fetches.calls, fetches.failures)
    return dict(zip(_TOTALS, values, strict=True))
