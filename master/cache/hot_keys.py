"""Which keys are asked for most, in bounded memory.  Pure.

The counters of Space-Saving (Metwally, Agrawal and El Abbadi, 2005): a key that has none takes that of one that was
asked for least, and goes on from its count. So a count is never too low, too high by `over` at most, and what makes up
more than one in `size` of the asks is there. Counters stand in rows of equal counts: an ask costs the same few steps
whatever has been asked before.

Keys are texts of those who ask, and may hold whose they are; `name_of` takes that out before anything is counted.
"""

from __future__ import annotations

import math
import re
from heapq import nlargest
from typing import Final

import attrs

_SIZE: Final = 256
_TURN_S: Final = 300.0
_MOST_CHARACTERS: Final = 64
_IDS: Final = re.compile(r"(?<![^\W_])(?=[^\W_]*\d)[^\W_]{4,}")
"""Words with a digit in them, but for short ones such as v2."""
Name = tuple[str, str]
"""Of what kind, and what it is called."""


@attrs.frozen
class Hot:
    """So many asks for one name; in truth up to `over` fewer."""

    name: Name
    asks: int
    over: int


class HotKeys:
    """Counts the asks of the turn of `turn_s` seconds that is on, and of the one before it."""

    def __init__(self, size: int = _SIZE, turn_s: float = _TURN_S) -> None:
        self._size = size
        self._turn_s = turn_s
        self._turn = self._before = _Counters(size)
        self._until = -math.inf

    def note(self, now: float, name: Name) -> None:
        if now >= self._until:
            self._begin(now)
        self._turn.note(name)

    def top(self, now: float, most: int) -> list[Hot]:
        """Return what is asked for most, that first; what was not asked for in two turns is not there."""
        if now >= self._until:
            self._begin(now)
        turns = (self._turn, self._before)
        names = {name: None for turn in turns for name in turn.counts}
        found = (Hot(name, *map(sum, zip(*(turn.read(name) for turn in turns), strict=True))) for name in names)
        return nlargest(most, found, key=lambda hot: (hot.asks, hot.name))

    def _begin(self, now: float) -> None:
        fresh = now < self._until + self._turn_s
        self._before = self._turn if fresh else _Counters(self._size)
        self._turn, self._until = _Counters(self._size), now + self._turn_s


class _Counters:
    """Those of one turn. `over`: with what count a key began."""

    def __init__(self, size: int) -> None:
        self.counts: dict[Name, int] = {}
        self.over: dict[Name, int] = {}
        self._size = size
        self._rows: dict[int, dict[Name, None]] = {}
        self._least = 0

    def note(self, name: Name) -> None:
        count = self.counts.get(name)
        if count is not None:
            row = self._rows[count]
            del row[name]
        elif len(self.counts) < self._size:
            count, row = 0, {}
            self._least, self.over[name] = 1, 0
        else:
            count = self._least
            row = self._rows[count]
            last, _ = row.popitem()
            del self.counts[last], self.over[last]
            self.over[name] = count
        self.counts[name] = count + 1
        self._rows.setdefault(count + 1, {})[name] = None
        if count and not row:
            del self._rows[count]
            self._least += self._least == count  # the row above it has this one, if no other

    def read(self, name: Name) -> tuple[int, int]:
        """Return its count, and how much that may be too high: what has no counter may have had the least one."""
        least = self._least if len(self.counts) == self._size else 0
        return self.counts.get(name, least), self.over.get(name, least)


def name_of(key: str, *whose: str) -> str:
    """Return a key without what says whose it is: `*` in place of the texts of `whose`, `#` of other numbers."""
    for each in whose:
        if each and each in key:
            key = _without(key, each)
    name = key if key.isalpha() else _IDS.sub("#", key)
    return name if len(name) <= _MOST_CHARACTERS else name[: _MOST_CHARACTERS - 1] + "…"


def _without(key: str, whose: str) -> str:
    """Return a key with `*` in place of a text, where that is no part of a longer word.

    By hand: an expression for each text would have to be compiled for nearly each ask, which is dearer than the ask.
    """
    parts, began, at = [], 0, key.find(whose)
    while at >= 0:
        end = at + len(whose)
        if (at and key[at - 1].isalnum()) or key[end : end + 1].isalnum():
            at = key.find(whose, at + 1)
            continue
        parts.append(key[began:at])
        began, at = end, key.find(whose, end)
    return "*".join([*parts, key[began:]])
