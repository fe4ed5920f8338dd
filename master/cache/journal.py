"""What of the cache has changed since the file was told of it: the keys of rows, each once however often it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from master.cache.rows import Changes, Key, Row, Table

_SPARE: Final = 16384

Place = tuple[Table, Key]


class Journal:
    """At first all is to be written anew: nobody has said that the file has anything.

    When nobody has taken the changes for so long that they outgrow the rows, they are dropped, and the file is to be
    written anew. So a store whose changes nobody takes keeps none.
    """

    def __init__(self, rows: Callable[[], int]) -> None:
        """`rows`: tells how many there are in the store."""
        self._rows = rows
        self._changed: dict[Place, None] = {}
        self._anew = True
        self._rest: list[Place] = []
        """Of those that are to be written anew."""
        self._fence_moved = False

    def note(self, table: Table, key: Key) -> None:
        """Hear that a row is another one now, or gone."""
        if self._anew:
            return
        self._changed[table, key] = None
        if len(self._changed) > _SPARE and len(self._changed) > 2 * self._rows() + _SPARE:
            self.write_anew()

    def note_fence(self) -> None:
        self._fence_moved = True

    def write_anew(self) -> None:
        self._anew = True
        self._changed.clear()
        self._rest.clear()

    def go_on(self) -> None:
        """Hear that the file has what is here."""
        self._anew = False

    @property
    def unwritten(self) -> int:
        """Return how many changes the file has not been told of; to be written anew is one, though there is no row."""
        return self._fence_moved + (max(self._rows(), 1) if self._anew else len(self._rest) + len(self._changed))

    def take(self, most: int, fence: int, find: Callable[[Place], Row | None], places: Iterable[Place]) -> Changes:
        """Return the oldest `most` of it, rows as `find` tells of them now; `places`: of all rows."""
        anew, self._anew = self._anew, False
        if anew:
            self._changed.clear()
            self._rest = list(places)
        taken = self._rest[: -most - 1 : -1]
        del self._rest[-most:]
        changed = list(islice(self._changed, most - len(taken)))
        for place in changed:
            del self._changed[place]
        self._fence_moved = False
        rows: list[Row] = []
        gone: list[Place] = []
        for place in (*taken, *changed):
            row = find(place)
            if row is not None:
                rows.append(row)
            else:
                gone.append(place)
        return Changes(rows, gone, fence, not (self._changed or self._rest), anew)

    def give_back(self, changes: Changes) -> None:
        """Hear that these could not be written: they are among the next."""
        self._fence_moved = True
        if changes.anew or self._anew:
            self.write_anew()
            return
        for row in changes.rows:
            self._changed[row.table, row.key] = None
        for place in changes.gone:
            self._changed[place] = None
