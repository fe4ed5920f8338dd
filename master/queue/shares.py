"""Which queue is next: each gets calls in proportion to its share, while people wait in it.

Stride scheduling (Waldspurger and Weihl, 1995): the queue whose turn comes first is served, and its next turn is
1 / share later. A queue that nobody waited in begins at the present turn, with nothing saved up. One whose own rate
allows nobody stands aside until it does, and so long its share goes to the others.
"""

from __future__ import annotations

import heapq
from itertools import count

from master.queue.line import Line


class Shares:
    def __init__(self) -> None:
        self._turn_at = 0.0
        self._turns: list[tuple[float, int, Line]] = []
        """Entries are (time of the turn, serial number, line); that of the number `entry` counts."""
        self._aside: list[tuple[float, int, Line]] = []
        self._serials = count(1)

    def begin(self, now: float, line: Line) -> None:
        """Hear that somebody waits in a line in which nobody did."""
        line.turn_at = max(line.turn_at, self._turn_at)
        line.gate.begin(now)
        self._enter(line)

    def changed(self, line: Line) -> None:
        """Hear that its rate is another: it need not stand aside any longer."""
        if line.entry:
            self._enter(line)

    def next(self, now: float) -> Line | None:
        """Return the line to be served; None when nobody waits, or nobody whose queue may be served yet."""
        while self._aside and self._aside[0][0] <= now:
            _, serial, line = heapq.heappop(self._aside)
            if serial == line.entry:
                self._enter(line)
        while self._turns:
            _, serial, line = self._turns[0]
            if serial == line.entry and len(line):
                if line.gate.allows(now):
                    return line
                heapq.heappush(self._aside, (line.gate.opens_at(now), serial, line))
            elif serial == line.entry:
                line.entry = 0
            heapq.heappop(self._turns)
        return None

    def serve(self, now: float, line: Line, counted: bool = True) -> None:
        """Count a call of a line; `counted`: in its rate too."""
        self._turn_at = max(self._turn_at, line.turn_at)
        line.turn_at += 1 / line.template.share
        if counted:
            line.gate.take(now)
        self._enter(line)

    def take_back(self, line: Line, counted: bool = True) -> None:
        """A call of this line did not become a user."""
        line.turn_at -= 1 / line.template.share
        if counted:
            line.gate.give_back()
        if line.entry:
            self._enter(line)

    def _enter(self, line: Line) -> None:
        line.entry = next(self._serials)
        heapq.heappush(self._turns, (line.turn_at, line.entry, line))
