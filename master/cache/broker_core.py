"""Who waits for a worker, who has one, and who has waited too long.

A queue of fixed length with priorities, first in first out within each, and limits on how many workers one kind of
work may hold. A heap by deadline stands beside it: what is too late leaves wherever it stands, so its place is free and
its asker is told at once, also in the middle of the queue and while a worker has it.

| an entry is | and becomes | by |
|---|---|---|
| NEW | WAITING, PARKED, OVER | `offer`, `park`; refused |
| WAITING | BUSY | `next` |
| WAITING | OVER | `due`, `withdraw`, `close`, or it is put out for a better one |
| PARKED | OVER | `ended`, `due`, `withdraw`, `abandon` |
| BUSY | OVER | `ended`: the result is wanted |
| BUSY | LATE | `due`, `withdraw`, `abandon`: it has its answer, but the worker is not back |
| LATE | OVER | `ended`: the result is dropped |

An entry is given out for an answer exactly once, or it was withdrawn. Whoever waits for what somebody else fetches is
parked: it has a deadline and an answer like all others, but neither a place in the queue nor a worker.

It is long because the stages of an entry are one machine.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import attrs
from attrs.validators import deep_mapping, ge, instance_of

_SPARE: Final = 1024
"""So many outdated deadlines are kept beside twice the number of those that count."""


@attrs.frozen
class BrokerPolicy:
    """`length`: places in the queue. `per_kind`: so many workers at most are busy with one kind.

    A kind that is not there has no limit. `most_parked`: so many may wait for what somebody else fetches.
    """

    length: int = attrs.field(default=3000, validator=ge(1))
    workers: int = attrs.field(default=100, validator=ge(1))
    per_kind: Mapping[str, int] = attrs.field(factory=dict, validator=deep_mapping(instance_of(str), ge(1)))
    most_parked: int = attrs.field(default=10_000, validator=ge(1))


class Refusal(Enum):
    """Why there is no result."""

    FULL = "full"
    """No place, or it was put out for one of higher priority."""
    EXPIRED = "expired"
    STOPPING = "stopping"


class Stage(Enum):
    NEW = "new"
    WAITING = "waiting"
    PARKED = "parked"
    BUSY = "busy"
    LATE = "late"
    OVER = "over"


WAITING, PARKED, BUSY, LATE, OVER = Stage.WAITING, Stage.PARKED, Stage.BUSY, Stage.LATE, Stage.OVER
"""By these names it takes half the time."""


@attrs.define(eq=False)
class Entry:
    """One request. The lowest `priority` is served first; kinds and priorities are few.

    `deadline`: when its lifetime is over. `needs_s`: so long the work takes; what could not be ready in time is not
    begun, and has expired when so little is left.
    """

    kind: str
    priority: int
    deadline: float
    work: Any
    needs_s: float = 0.0
    serial: int = attrs.field(default=0, init=False)
    offered_at: float = attrs.field(default=0.0, init=False)
    stage: Stage = attrs.field(default=Stage.NEW, init=False)

    @property
    def due(self) -> float:
        """When it expires where it stands now."""
        return self.deadline if self.stage is BUSY else self.deadline - self.needs_s


E = TypeVar("E", bound=Entry)


@attrs.frozen
class Offered(Generic[E]):
    """`refused`: why it was not taken. `put_out`: who has lost the place to it, and is to be told FULL."""

    refused: Refusal | None = None
    put_out: E | None = None


_TAKEN: Final[Offered[Any]] = Offered()
_REFUSED: Final[dict[Refusal, Offered[Any]]] = {why: Offered(why) for why in Refusal}


class BrokerCore(Generic[E]):
    """Call `next` once after each `offer` and each `ended`: whoever can begin, does."""

    def __init__(self, policy: BrokerPolicy) -> None:
        self.policy = policy
        self.closed = False
        self.length = 0
        """How many wait in the queue."""
        self.parked = 0
        self.working = 0
        """How many workers are busy, those with something that has expired included."""
        self.busy: dict[str, int] = {}
        """The same by kind; kinds without any are not there."""
        self.refused = 0
        """How many found no place."""
        self.put_out = 0
        self.expired = 0
        self._serial = 0
        self._lines: dict[tuple[int, str], OrderedDict[int, E]] = {}
        """Those who wait, by priority and kind: a kind at its limit is passed over as a whole, and keeps its order."""
        self._open: dict[int, E] = {}
        """All who have no answer yet."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap. An entry that has left, or whose time is another now, is passed over at the top."""
        self._lapsed: list[E] = []
        """Who has expired and was not given out by `due` yet; they hold no place any more."""

    @property
    def watched(self) -> int:
        """Return how many deadlines are held, the outdated ones included."""
        return len(self._deadlines)

    def oldest_s(self, now: float) -> float:
        """Return for how long the first of those in the queue has waited, 0 where nobody does."""
        heads = (next(iter(line.values())).offered_at for line in self._lines.values())
        return max(0.0, now - min(heads, default=now))

    def next_due(self) -> float:
        """Return when `due` has something to give out, infinity where nobody has a deadline."""
        if self._lapsed:
            return -math.inf
        heap = self._deadlines
        while heap and not self._counts(*heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def offer(self, now: float, entry: E) -> Offered[E]:
        """Give it a place: a free one, or that of the last among those of the lowest priority, where that is lower.

        What can begin at once needs no place.
        """
        refused = self._number(now, entry)
        if refused is not None:
            return _REFUSED[refused]
        offered = _TAKEN
        if self.length >= self.policy.length + self._may_begin(entry.kind):
            last = self._last()
            if last is None or last.priority <= entry.priority:
                self.refused += 1
                entry.stage = OVER
                return _REFUSED[Refusal.FULL]
            self.put_out += 1
            self._close(last)
            offered = Offered(put_out=last)
        key = (entry.priority, entry.kind)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = OrderedDict()
        line[entry.serial] = entry
        self.length += 1
        self._begin(entry, WAITING)
        return offered

    def park(self, now: float, entry: E) -> Refusal | None:
        """Have it wait for somebody else's work, until `ended` says that this is done."""
        refused = self._number(now, entry)
        if refused is None and self.parked >= self.policy.most_parked:
            self.refused += 1
            refused = Refusal.FULL
        if refused is None:
            self.parked += 1
            self._begin(entry, PARKED)
        else:
            entry.stage = OVER
        return refused

    def next(self, now: float) -> E | None:
        """Give a free worker to the best of those whose kind is not at its limit; None where that is nobody."""
        self._lapse(now)
        best: E | None = None
        if self.working < self.policy.workers:
            for (priority, kind), line in self._lines.items():
                if self._may_begin(kind) and (best is None or priority <= best.priority):
                    head = next(iter(line.values()))
                    if best is None or (priority, head.serial) < (best.priority, best.serial):
                        best = head
        if best is None:
            return None
        self._leave_line(best)
        self.working += 1
        self.busy[best.kind] = self.busy.get(best.kind, 0) + 1
        best.stage = BUSY
        if best.needs_s:
            heapq.heappush(self._deadlines, (best.deadline, best.serial))
        return best

    def ended(self, entry: E) -> bool:
        """Hear that the work is done, and take the worker back; return whether the result is to be the answer."""
        wanted = entry.stage is BUSY or entry.stage is PARKED
        if wanted:
            self._close(entry)
        if entry.stage is LATE:
            self._free_worker(entry)
        return wanted

    def due(self, now: float) -> list[E]:
        """Return all whose lifetime is over: they are to be told so."""
        self._lapse(now)
        lapsed, self._lapsed = self._lapsed, []
        return lapsed

    def withdraw(self, entry: E) -> bool:
        """Hear that nobody waits for the answer any more; return whether there was none yet."""
        if entry.serial not in self._open:
            return False
        self._close(entry)
        return True

    def close(self) -> list[E]:
        """Take nothing new, and return those who wait in the queue. Who has a worker or is parked goes on."""
        self.closed = True
        waiting = [entry for entry in self._open.values() if entry.stage is WAITING]
        for entry in waiting:
            self._close(entry)
        return waiting

    def abandon(self) -> list[E]:
        """Return all who have no answer yet, and take nothing new: nobody will work for them."""
        self.closed = True
        left = [*self._lapsed, *self._open.values()]
        self._lapsed = []
        for entry in list(self._open.values()):
            self._close(entry)
        return left

    def _number(self, now: float, entry: E) -> Refusal | None:
        """Have an entry come in; return why it cannot."""
        self._lapse(now)
        self._serial += 1
        entry.serial, entry.offered_at = self._serial, now
        if self.closed:
            entry.stage = OVER
            return Refusal.STOPPING
        if not entry.due > now:
            self.expired += 1
            entry.stage = OVER
            return Refusal.EXPIRED
        return None

    def _begin(self, entry: E, stage: Stage) -> None:
        entry.stage = stage
        self._open[entry.serial] = entry
        heapq.heappush(self._deadlines, (entry.due, entry.serial))
        if len(self._deadlines) > 2 * len(self._open) + _SPARE:
            self._deadlines[:] = [(each.due, serial) for serial, each in self._open.items()]
            heapq.heapify(self._deadlines)

    def _close(self, entry: E) -> None:
        """Have an entry be answered, and give back what it holds, but for a worker."""
        del self._open[entry.serial]
        if entry.stage is WAITING:
            self._leave_line(entry)
        elif entry.stage is PARKED:
            self.parked -= 1
        entry.stage = LATE if entry.stage is BUSY else OVER

    def _lapse(self, now: float) -> None:
        """Take out all who have expired, so that nobody ever waits behind them."""
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            at, serial = heapq.heappop(heap)
            if self._counts(at, serial):
                entry = self._open[serial]
                self._close(entry)
                self._lapsed.append(entry)
                self.expired += 1

    def _counts(self, at: float, serial: int) -> bool:
        entry = self._open.get(serial)
        return entry is not None and entry.due == at

    def _may_begin(self, kind: str) -> bool:
        if self.working >= self.policy.workers:
            return False
        most = self.policy.per_kind.get(kind)
        return most is None or self.busy.get(kind, 0) < most

    def _last(self) -> E | None:
        """Return the last of the lowest priority."""
        lasts = (next(reversed(line.values())) for line in self._lines.values())
        return max(lasts, key=lambda entry: (entry.priority, entry.serial), default=None)

    def _leave_line(self, entry: E) -> None:
        key = (entry.priority, entry.kind)
        line = self._lines[key]
        del line[entry.serial]
        if not line:
            del self._lines[key]
        self.length -= 1

    def _free_worker(self, entry: E) -> None:
        entry.stage = OVER
        self.working -= 1
        left = self.busy[entry.kind] - 1
        if left:
            self.busy[entry.kind] = left
        else:
            del self.busy[entry.kind]
