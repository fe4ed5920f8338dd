"""The pool: its members, what is known of each, and which of them a client is sent to.

The only mutable state of the choice. It is synchronous and does no I/O, so each call is atomic; `now` is seconds of
one monotonic clock, and `rng` breaks ties.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

from master.core.admin import Admin, Wish
from master.core.answers import Ask, Assignment, Explanation, Place, Reason, Refused, Spare, State
from master.core.backend import Endpoint
from master.core.candidates import Found
from master.core.ejection import Verdict
from master.core.explain import Scene, explain, set_scene
from master.core.member import Member
from master.core.spare import carry_without, find_spare, weigh
from master.core.standing import Standing

__all__ = [
    "Admin",
    "Ask",
    "Assignment",
    "Explanation",
    "Member",
    "Place",
    "Pool",
    "Reason",
    "Refused",
    "Spare",
    "State",
    "Wish",
]


_LOOKED_AT: Final = 64
"""Of more backends, so many are looked at for one with a place that is kept: what it costs has a bound."""


class Pool(Standing):
    """The backends, by name. `assign` answers a client; the `record_` calls take in what the probes found."""

    @property
    def ask_rate(self) -> float:
        """The asks a second by which the join cap is reckoned."""
        return self._asks.per_s

    @property
    def answers(self) -> Mapping[Reason, int]:
        """How many asks were answered for each reason."""
        return {**self._answers, Reason.BEST: self._asks.total + self._asks.count - sum(self._answers.values())}

    def takers(self, now: float) -> int:
        """Return how many backends clients may be sent to."""
        self._catch_up(now)
        return sum(level.candidates for level in self._levels.values()) if self.roll.closed is None else 0

    def takes_clients(self, now: float, member: Member) -> bool:
        """Return whether clients may be sent to a member: where last reports count, it need not even work."""
        self._catch_up(now)
        return bool(member.stamp) and self.roll.closed is None

    def assign(self, now: float, rng: random.Random, ask: Ask) -> Assignment | Refused:
        """Choose a backend and reserve a place there."""
        expected = self._count_ask(now)
        if self.roll.closed is not None:
            return self._refuse(self.roll.closed)
        again = None if ask.anew else self._again(now, ask.client)
        back = self._at_session(now, expected, ask) if again is None and ask.prefer else None
        if back is not None:
            self._candidates.give(back[0], now, expected, rng)
        found = again or back or self._candidates.find_and_take(now, expected, rng, ask.zone)
        if found is None and ask.reserved:
            found = self._take_reserved(now, rng, ask)
        if found is None:
            return self._refuse(Reason.NO_CANDIDATE)
        member, why = found
        others = self._candidates.others(member, ask.alternates) if ask.alternates else []
        if again is not None:
            self._answers[why] += 1
        else:
            self._taken(member, now, why)
            self._note(member, now, rng, ask.client, others)
        alternates = tuple(other.place(ask.family) for other in others)
        return Assignment(member.place(ask.family), alternates, Reason.LAST_KNOWN if self._last_known else why)

    def pick(self, now: float, rng: random.Random) -> Member | None:
        """Do the same for a plain ask, and return the member itself."""
        expected = self._count_ask(now)
        found = self._candidates.find_and_take(now, expected, rng) if self.roll.closed is None else None
        if found is None:
            self._refuse(self.roll.closed or Reason.NO_CANDIDATE)
            return None
        member, why = found
        self._taken(member, now, why)
        if not self.ejections.idle:
            self._note(member, now, rng, None, [])
        return member

    def hear(
        self, now: float, rng: random.Random, client: str, host: str, failed: Iterable[Endpoint], full: bool = False
    ) -> list[tuple[str, Verdict]]:
        """Take in where a client could not connect, from the address `host`; return what came of each accusation.

        Only places it was sent to count. One that said that it is `full` is not accused, but not the place to retry.
        """
        self._catch_up(now)
        heard = []
        for endpoint in failed:
            known = map(self._members.get, self.ejections.places(now, client))
            accused = next((member for member in known if member and endpoint in member.told.values()), None)
            if accused is None or accused.wish(now) is not Wish.READY:
                continue  # nobody is sent there anyway, and an ejection would be one of few
            if full:
                self.ejections.forgo(now, client, accused.backend.name)
            else:
                heard.append((accused.backend.name, self._accuse(accused, now, rng, client, host)))
        return heard

    def explain(self, now: float, ask: Ask) -> list[Explanation]:
        """Return how each backend stands for `ask`; `assign` would do so, unless the client asks again."""
        return explain(self, self.set_scene(now, ask))

    def set_scene(self, now: float, ask: Ask) -> Scene:
        """Return what `ask` would meet now; `explain` tells with it how some of the members stand."""
        self._catch_up(now)
        expected, doors = self._asks.expect(now), (self.roll.closed, self._last_known)
        back = self._at_session(now, expected, ask) if self.roll.closed is None else None
        return set_scene(self._candidates, now, expected, ask.zone, doors, back)

    def rivals(self, member: Member, most: int) -> list[Member]:
        """Return up to `most` others that come first in the order of choice: what `member` was compared with."""
        return self._candidates.others(member, most)

    def spare(self, now: float) -> Spare:
        """Return whether the users still fit when the biggest backend falls."""
        self._catch_up(now)
        return find_spare(weigh(member, now) for member in self)

    def _count_ask(self, now: float) -> float:
        """Return V, the asks expected so far."""
        asks = self._asks
        if self._looks.next <= now:
            self._catch_up(now)
        if now >= asks.due:
            asks.bring_up(now)
        if self.roll.closed is not None:
            self.roll.look(now)
        asks.count += 1
        return asks.expected + asks.per_s * (now - asks.at)

    def _refuse(self, why: Reason) -> Refused:
        self._answers[why] += 1
        return Refused(why)

    def _taken(self, member: Member, now: float, why: Reason) -> None:
        if self._last_known:
            self._answers[Reason.LAST_KNOWN] += 1
        elif why is not Reason.BEST:
            self._answers[why] += 1
        if member.limit is not None and member.free(now) == 0:
            self._candidates.leave(member)
        if now + self._reservation_s < member.look_at:
            self._looks.watch(member, now)

    def _accuse(self, member: Member, now: float, rng: random.Random, client: str, host: str) -> Verdict:
        before, name = self.ejections.out(now), member.backend.name
        verdict = self.ejections.report(
            now,
            rng,
            client,
            host,
            name,
            self.roll.size,
            lambda out: self.roll.spares_one and carry_without(self, now, out),
        )
        for each in before | self.ejections.out(now):
            self._heed(self._members[each], now)
        return verdict

    def _again(self, now: float, client: str | None) -> Found | None:
        """Return where a client was sent a moment ago, when that is still good."""
        name = self.ejections.sent_to(now, client) if client is not None else None
        member = self._members.get(name) if name is not None else None
        if member is None or member.state(now) not in (State.READY, State.FULL):  # full, it has its place reserved
            return None
        return member, Reason.AGAIN

    def _take_reserved(self, now: float, rng: random.Random, ask: Ask) -> Found | None:
        """Give a client for which a place is kept to a backend that is full only by those who may be counted twice.

        Who was sent is counted beside the report, which may have him already, until `connect_s` is over. So those who
        are let in count twice for a while, and those who were called, and whose places are kept, would find none.
        """
        if self._last_known:
            return None
        spare = [
            member
            for member in rng.sample(self._listed, min(len(self._listed), _LOOKED_AT))
            if member.state(now) is State.FULL
            and member.limit is not None
            and member.least_users() < member.limit
            and ask.failed.isdisjoint(member.told.values())
        ]
        if not spare:
            return None
        member = min(spare, key=lambda each: (each.backend.priority, each.least_users() / each.backend.weight))
        member.reservations.add(now, self.clock.at(now))
        return member, Reason.BEST

    def _at_session(self, now: float, expected: float, ask: Ask) -> Found | None:
        """Return where a client has its session, when that is good enough; last reports tell nothing of sessions."""
        member = self._members.get(ask.prefer)
        if member is None or self._last_known or not ask.failed.isdisjoint(member.told.values()):
            return None
        if not self._candidates.may_go_back(member, now, expected):
            return None
        return member, Reason.SESSION

    def _note(
        self, member: Member, now: float, rng: random.Random, client: str | None, others: Iterable[Member]
    ) -> None:
        """Note where a client is sent; one that is sent to an ejected backend is its trial, and nobody else is."""
        self.ejections.sent(now, rng, member.backend.name, client, [other.backend.name for other in others])
        if not self.ejections.idle:
            self._heed(member, now)
