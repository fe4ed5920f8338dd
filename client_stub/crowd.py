"""A crowd of clients that wait in a queue: who asks when, what each says, and what it makes of the answer. Pure.

Each client asks when it was told to, and not by a task of its own: whoever is due next stands first in a heap, one for
each master, as a client stays with the master that knows its place. `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Final

from client_stub.crowd_member import NOT_IN, CrowdPolicy, Member, Stage
from client_stub.crowd_tally import CrowdTally, Front, Promise
from lambdamu.address import Address
from lambdamu.answers import Answer, Place
from lambdamu.messages import TURN, Result
from lambdamu.retry import Backoff

_BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0)
_TRIES: Final = 12
"""So many calls of one client may fail in a row, over some 40 s."""
_LEAST_POLL_S: Final = 0.1
_LONGEST_POLL_S: Final = 3600.0
_LATE_S: Final = 2.0
"""Whose ask is answered later than this may have lost its call on the way: it is not counted as overtaken."""


class Crowd:
    """`ids`: the `Client` of each. `masters`: how many there are."""

    def __init__(self, now: float, policy: CrowdPolicy, ids: Sequence[str], masters: int, rng: random.Random) -> None:
        self.tally = CrowdTally(policy.clients, rng)
        self._policy = policy
        self._rng = rng
        gap_s = 0.0 if policy.rate is None else 1.0 / policy.rate
        self._members = [
            Member(number, client, now + number * gap_s, rng.randrange(masters)) for number, client in enumerate(ids)
        ]
        self._fronts = [Front() for _ in range(masters)]
        self._due: list[list[tuple[float, int, Member]]] = [[] for _ in range(masters)]
        for member in self._members:
            self._due[member.master].append((member.due, member.number, member))
        self._left = len(self._members)
        self._leaving = False

    @property
    def is_over(self) -> bool:
        """Whether nobody asks, waits or stays any more."""
        return not self._left

    def next_due(self, master: int) -> float:
        """Return when somebody is to ask this master next; infinity for never, as things are."""
        heap = self._due[master]
        return heap[0][0] if heap else math.inf

    def take(self, now: float, master: int, most: int) -> list[Member]:
        """Return those who are due, the first first; each is to be said to have `asked`, and then what came of it."""
        heap = self._due[master]
        taken: list[Member] = []
        while heap and heap[0][0] <= now and len(taken) < most:
            taken.append(heappop(heap)[2])
        return taken

    def asks(self, now: float, member: Member) -> dict[str, Any]:
        """Return the `Data` with which it asks now."""
        member.asked_at = now
        self.tally.late_s.add(now - member.due)
        if member.joined_at == math.inf:
            member.joined_at = now
            self.tally.set_out += 1
        said = {"Client": member.client, "Want": [TURN], **self._policy.said}
        shown = member.turn or member.ticket
        if shown is not None:
            said["Ticket"] = shown
        if member.failed is not None:
            said["Failed"] = [member.failed]
        if member.away:
            said["Away"] = True
        if member.stage is Stage.LEAVES:
            said["Leave"] = True
        return said

    def answered(self, now: float, member: Member, answer: Answer) -> Address | None:
        """Take an answer in; return the backend where it sends to."""
        self.tally.answer_s.add(now - member.asked_at)
        if member.joined and now - member.due > _LATE_S:
            member.counts = False
        member.fails, member.failed = 0, None
        endpoint = answer.endpoint
        if member.stage is Stage.LEAVES:
            self._end(now, member, "left")
        elif endpoint is not None:
            self._let_in(now, member, answer, endpoint)
            return endpoint
        elif (place := answer.place) is not None:
            self._wait(now, member, answer.ticket, place)
        elif answer.retry_after_s is not None and (member.ticket or answer.result is Result.DENIED):
            self.tally.note(_word(answer))
            self._again(now, member, self._pause_s(now, member, answer.retry_after_s))
        else:
            self._end(now, member, _ENDS[answer.result])
            self.tally.note(_word(answer))
        return None

    def call_failed(self, now: float, member: Member, why: str) -> None:
        """Hear that a master could not be asked: it tries again, and another one if there is one."""
        self.tally.note(why)
        member.fails += 1
        member.counts = False
        if member.stage is Stage.LEAVES:
            self._end(now, member, "left")
        elif member.fails > _TRIES:
            self._end(now, member, "failed")
        else:
            member.master = (member.master + 1) % len(self._due)
            self._again(now, member, _BACKOFF.wait_s(member.fails, self._rng))

    def connected(self, member: Member, backend: Address) -> None:
        self.tally.backends[backend].connected += 1
        self.tally.staying += 1
        member.login_fails = 0

    def login_failed(self, now: float, member: Member, backend: Address, why: str) -> None:
        """Hear that a backend could not be used: it asks again, and tells that."""
        self.tally.note(why)
        self.tally.backends[backend].failed += 1
        member.login_fails += 1
        if member.login_fails > _TRIES or self._leaving:
            self._end(now, member, "failed")
        else:
            self._return(now, member, backend, why)

    def stayed(self, now: float, member: Member, backend: Address, for_s: float, lost: str | None) -> None:
        """Hear that a stay is over. `lost`: the backend has ended it, in one word: it asks for its place again."""
        self.tally.staying -= 1
        member.stays_s -= for_s
        if lost is None or member.stays_s <= 0.0 or self._leaving:
            self._end(now, member, "done")
            return
        self.tally.lost += 1
        self._return(now, member, backend, lost)

    def leave_all(self, now: float) -> int:
        """Have all who may have a place leave by an ask that is due now; return how many. It is over for the others."""
        self._leaving = True
        leaving = [member for member in self._members if member.joined_at < math.inf and member.stage in NOT_IN]
        for heap in self._due:
            heap.clear()
        for member in leaving:
            self._make_leave(member)
            self._again(now, member, 0.0)
        for member in self._members:
            if member.stage not in (Stage.LEAVES, Stage.OVER):
                self._end(now, member, "gave_up")
        return len(leaving)

    # Within.

    def _let_in(self, now: float, member: Member, answer: Answer, backend: Address) -> None:
        tally = self.tally
        tally.sent_to(backend)
        self._stands(member)
        if member.stage is Stage.WAITS:
            tally.waiting -= 1
        if not member.entered:
            member.entered = True
            member.stays_s = self._policy.stay_s or 0.0
            tally.let_in += 1
            tally.wait_s.append(now - member.joined_at)
            tally.judge(member.promise, now, came=True)
            self._fronts[member.master].entered(now, member.joined_at)
        member.promise = None
        member.turn = answer.turn
        member.stage = Stage.IN
        if self._policy.stay_s is None:
            self._end(now, member, "done")

    def _stands(self, member: Member) -> None:
        """Count a client that was heard by a queue, or let in at once."""
        if not member.joined:
            member.joined = True
            self.tally.joined += 1

    def _wait(self, now: float, member: Member, ticket: str | None, place: Place) -> None:
        self._stands(member)
        if member.stage is not Stage.WAITS:
            member.stage = Stage.WAITS
            self.tally.waiting += 1
        if ticket is not None:
            member.ticket, member.turn = ticket, None
        if member.placed_at == math.inf:
            member.placed_at = now
        elif self._is_overtaken(member):
            member.overtaken = True
            self.tally.overtaken += 1
        if place.eta90_s is not None and not member.entered:
            member.promise = member.promise or Promise()
            member.promise.show(now + place.eta90_s, self._rng)
        away_s = self._away_s(member)
        self._again(now, member, self._pause_s(now, member, place.retry_after_s) if away_s is None else away_s)

    def _away_s(self, member: Member) -> float | None:
        """Return how long to be silent because it goes away, which is told first; None when it does not."""
        if self._policy.away_s is None or not member.away_left:
            return None
        member.counts = False
        member.away, member.away_left = not member.away, not member.away
        return 0.0 if member.away else self._policy.away_s

    def _pause_s(self, now: float, member: Member, told_s: float) -> float:
        pause_s = min(max(told_s, _LEAST_POLL_S), _LONGEST_POLL_S)
        left_s = member.joined_at + self._policy.wait_s - now
        if pause_s < left_s or member.entered:
            return pause_s
        self._make_leave(member)
        return max(0.0, left_s)

    def _make_leave(self, member: Member) -> None:
        if member.stage is Stage.WAITS:
            self.tally.waiting -= 1
        member.stage = Stage.LEAVES

    def _is_overtaken(self, member: Member) -> bool:
        """Whether somebody was in, when it asked, who had set out after it had its place."""
        if not member.counts or member.overtaken or member.entered:
            return False
        return self._fronts[member.master].latest(member.asked_at) > member.placed_at

    def _return(self, now: float, member: Member, backend: Address, why: str) -> None:
        member.failed = {"IP": backend.host, "Port": backend.port, "Why": why}
        self._again(now, member, _BACKOFF.wait_s(member.login_fails, self._rng))

    def _again(self, now: float, member: Member, after_s: float) -> None:
        if self._leaving and member.stage is not Stage.LEAVES:
            self._make_leave(member)
            after_s = 0.0
        member.due = now + after_s
        heappush(self._due[member.master], (member.due, member.number, member))

    def _end(self, now: float, member: Member, how: str) -> None:
        if member.stage is Stage.WAITS:
            self.tally.waiting -= 1
        self.tally.judge(member.promise, now, came=False)
        member.stage, member.promise = Stage.OVER, None
        self.tally.ended[how] += 1
        self._left -= 1


_ENDS: Final = {Result.NO_SERVER: "no_server", Result.CLOSED: "closed", Result.DENIED: "denied", Result.WAIT: "failed"}
"""What becomes of a client that was told so, and not when to come again."""


def _word(answer: Answer) -> str:
    return f"{answer.result} {answer.reason}" if answer.reason else str(answer.result)
