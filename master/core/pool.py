"""The pool: its members, what is known of each, and which of them a client is sent to.

The only mutable state of the choice. It is synchronous and does no I/O, so each call is atomic; `now` is seconds of
one monotonic clock, and `rng` breaks ties.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping

from master.core.answers import OUTCOMES, Ask, Assignment, Explanation, Place, Reason, Refused, Spare, State
from master.core.ask_rate import AskRate
from master.core.backend import Backend, Endpoint
from master.core.candidates import Candidates, Found, make_levels
from master.core.choice import ChoicePolicy
from master.core.ejection import EjectionPolicy, Ejections, Verdict
from master.core.explain import explain, set_scene
from master.core.health import Health, HealthPolicy, Report
from master.core.join_cap import Permits
from master.core.load import LoadPolicy, Reservations, SessionClock, Spell
from master.core.looks import Looks
from master.core.member import WORKING, Member
from master.core.roll import Roll
from master.core.spare import carry_without, find_spare

__all__ = ["Ask", "Assignment", "Explanation", "Member", "Place", "Pool", "Reason", "Refused", "Spare", "State"]


class Pool:
    """The backends, by name. `assign` answers a client; the `record_` calls take in what the probes found."""

    def __init__(
        self,
        backends: Iterable[Backend],
        health: HealthPolicy,
        loads: LoadPolicy,
        choice: ChoicePolicy = ChoicePolicy(),  # noqa: B008 - a frozen value
        ejection: EjectionPolicy = EjectionPolicy(),  # noqa: B008 - a frozen value
    ) -> None:
        backends = tuple(backends)
        self.clock = SessionClock(loads)
        self.roll = Roll(choice, len(backends), health.stale_after_s)
        self.ejections = Ejections(ejection)
        self._asks = AskRate()
        levels = make_levels(backends)
        self._candidates = Candidates(choice, levels.values(), self.clock)
        self._members: dict[str, Member] = {}
        for backend in backends:
            sent = Reservations(loads, self.clock)
            parts = Health(health), sent, Permits(choice, backend.weight), Spell(self.clock, sent)
            self._members[backend.name] = Member(backend, *parts, levels[backend.priority])
        self._looks = Looks(self._members)
        self._last_known = False
        self._reservation_s = loads.reservation_s
        self._answers = dict.fromkeys(OUTCOMES, 0)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    @property
    def entries(self) -> int:
        """Entries in the heaps of candidates: bounded by twice the backends and a few, and the same for each zone."""
        return len(self._candidates)

    @property
    def ask_rate(self) -> float:
        """The asks a second by which the join cap is reckoned."""
        return self._asks.per_s

    @property
    def answers(self) -> Mapping[Reason, int]:
        """How many asks were answered for each reason."""
        return {**self._answers, Reason.BEST: self._asks.total + self._asks.count - sum(self._answers.values())}

    def assign(self, now: float, rng: random.Random, ask: Ask) -> Assignment | Refused:
        """Choose a backend and reserve a place there."""
        expected = self._count_ask(now)
        if self.roll.closed is not None:
            return self._refuse(self.roll.closed)
        found = self._again(now, ask.client) or self._candidates.find(now, expected, ask.zone)
        if found is None:
            return self._refuse(Reason.NO_CANDIDATE)
        member, why = found
        others = self._candidates.others(member, ask.alternates) if ask.alternates else []
        alternates = tuple(other.place(ask.family) for other in others)
        if why is Reason.AGAIN:
            self._answers[why] += 1
        else:
            self._take(member, now, expected, rng, why)
            self._note(member, now, rng, ask.client, others)
        return Assignment(member.place(ask.family), alternates, Reason.LAST_KNOWN if self._last_known else why)

    def pick(self, now: float, rng: random.Random) -> Member | None:
        """Do the same for a plain ask, and return the member itself."""
        expected = self._count_ask(now)
        found = self._candidates.find(now, expected, "") if self.roll.closed is None else None
        if found is None:
            self._refuse(self.roll.closed or Reason.NO_CANDIDATE)
            return None
        member, why = found
        self._take(member, now, expected, rng, why)
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
            if accused is not None and full:
                self.ejections.forgo(now, client, accused.backend.name)
            elif accused is not None:
                heard.append((accused.backend.name, self._accuse(accused, now, rng, client, host)))
        return heard

    def explain(self, now: float, ask: Ask) -> list[Explanation]:
        """Return how each backend stands for `ask`; `assign` would do so, unless the client asks again."""
        self._catch_up(now)
        expected, doors = self._asks.expect(now), (self.roll.closed, self._last_known)
        return explain(self, set_scene(self._candidates, now, expected, ask.zone, doors))

    def spare(self, now: float) -> Spare:
        """Return whether the users still fit when the biggest backend falls."""
        self._catch_up(now)
        return find_spare(self, now)

    def record_report(
        self, now: float, rng: random.Random, name: str, count: int, asked_at: float, probed: Endpoint
    ) -> State:
        """Take in a good probe: `count` users at `asked_at`, told by the backend at `probed`. Return its state."""
        member = self._members[name]
        self._catch_up(now)
        member.health.succeeded()
        if member.report is None or asked_at >= member.report.asked_at:
            member.take_report(now, Report(count, asked_at), probed)
        member.tie = rng.random()
        return self._probed(member, now)

    def record_failure(self, now: float, name: str) -> State:
        """Take in a failed probe; the last good report keeps its time. Return the state of the backend."""
        member = self._members[name]
        self._catch_up(now)
        member.health.failed()
        member.spell.broken()
        return self._probed(member, now)

    def record_lost(self, now: float, name: str) -> State:
        """Take in that the kept connection to a backend broke: out of choice until it answers again."""
        member = self._members[name]
        self._catch_up(now)
        member.health.lose()
        return self._judge(member, now)

    def bar(self, now: float, name: str, until: float) -> State:
        """Take out of choice until then what works by its probes and not by its clients."""
        member = self._members[name]
        self._catch_up(now)
        member.barred_until = until
        return self._judge(member, now)

    def works(self, now: float) -> bool:
        """Whether at least one backend works, full or not."""
        self._catch_up(now)
        return self.roll.working > 0

    def suspects_own_network(self, now: float) -> bool:
        """Whether all backends failed together, and none works since: the network of this master may have failed."""
        self._catch_up(now)
        return self.roll.suspected

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

    def _take(self, member: Member, now: float, expected: float, rng: random.Random, why: Reason) -> None:
        self._candidates.take(member, now, expected, rng)
        if self._last_known:
            self._answers[Reason.LAST_KNOWN] += 1
        elif why is not Reason.BEST:
            self._answers[why] += 1
        if member.backend.capacity is not None and member.free(now) == 0:
            self._candidates.leave(member)
        if now + self._reservation_s < member.look_at:
            self._looks.watch(member, now)

    def _accuse(self, member: Member, now: float, rng: random.Random, client: str, host: str) -> Verdict:
        before, name = self.ejections.out(now), member.backend.name
        verdict = self.ejections.report(
            now, rng, client, host, name, len(self), lambda out: self.roll.spares_one and carry_without(self, now, out)
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

    def _note(
        self, member: Member, now: float, rng: random.Random, client: str | None, others: Iterable[Member]
    ) -> None:
        """Note where a client is sent; one that is sent to an ejected backend is its trial, and nobody else is."""
        self.ejections.sent(now, rng, member.backend.name, client, [other.backend.name for other in others])
        if not self.ejections.idle:
            self._heed(member, now)

    def _heed(self, member: Member, now: float) -> None:
        """Have a member stand as the clients' complaints of it demand."""
        barred_s = self.ejections.barred_s(now, member.backend.name)
        until = now + barred_s if barred_s else -math.inf
        if until != member.barred_until:
            member.barred_until = until
            self._judge(member, now)

    def _probed(self, member: Member, now: float) -> State:
        if not member.heard:
            member.heard = True
            self.roll.unheard -= 1
            self._look_at_roll(now)
        return self._judge(member, now)

    def _judge(self, member: Member, now: float) -> State:
        """Take in all that may have changed: whether it works, whether it may be chosen, and its place."""
        member.reservations.count(now)
        if -math.inf < member.barred_until <= now:
            member.barred_until = -math.inf
        state = member.state(now)
        if (state in WORKING) != member.serving:
            self._turn(member, now)
            state = member.state(now)
        self._place(member, state, now)
        self._looks.watch(member, now)
        return state

    def _turn(self, member: Member, now: float) -> None:
        """A member works that did not, or does not any more."""
        member.serving = not member.serving
        if member.serving:
            member.permits.begin(self.roll.came_at(now))
            self.roll.rose()
        else:
            if self.roll.working == 1:  # nobody else works: those that clients complain of are better than none
                for name in self.ejections.pardon(now):
                    self._heed(self._members[name], now)
            member.spell.broken()
            self.roll.fell(now)
        self._look_at_roll(now)

    def _look_at_roll(self, now: float) -> None:
        self.roll.look(now)
        if self._last_known != self.roll.last_known:
            self._last_known = self.roll.last_known
            for member in self._members.values():
                self._place(member, member.state(now), now)

    def _place(self, member: Member, state: State, now: float) -> None:
        if state is State.READY or (self._last_known and member.was_good(now)):
            self._candidates.enter(member, now, self._asks.expect(now))
        else:
            self._candidates.leave(member)

    def _catch_up(self, now: float) -> None:
        """Take in what time has changed: reports that are stale, assignments that are forgotten, times out that end."""
        for member in self._looks.due(now):
            self._judge(member, now)
        if self.roll.closed is Reason.FIRST_ROUND:
            self.roll.look(now)
