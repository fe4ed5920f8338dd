"""The members of the pool, and how each stands: what its probes found, what its operator wants, and what follows.

It is synchronous and does no I/O, so each call is atomic; `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

from master.core.admin import READY, Admin, Wish
from master.core.answers import OUTCOMES, Reason, State
from master.core.ask_rate import AskRate
from master.core.backend import Backend, Endpoint
from master.core.candidates import Candidates, make_levels
from master.core.choice import ChoicePolicy
from master.core.ejection import EjectionPolicy, Ejections
from master.core.health import NOTHING_SAID, Health, HealthPolicy, Report, Said
from master.core.join_cap import Permits
from master.core.load import LoadPolicy, Reservations, SessionClock, Spell
from master.core.looks import Looks
from master.core.member import WORKING, Member
from master.core.news import News
from master.core.roll import Roll


class Standing:
    """The backends, by name. The `record_` calls take in what the probes found."""

    def __init__(
        self,
        backends: Iterable[Backend],
        health: HealthPolicy,
        loads: LoadPolicy,
        choice: ChoicePolicy = ChoicePolicy(),  # noqa: B008 - a frozen value
        ejection: EjectionPolicy = EjectionPolicy(),  # noqa: B008 - a frozen value
    ) -> None:
        backends = tuple(backends)
        self._policies = (health, loads, choice)
        self.clock = SessionClock(loads)
        self.roll = Roll(choice, len(backends), health.stale_after_s)
        self.ejections = Ejections(ejection)
        self.news = News()
        self._asks = AskRate()
        self._levels = make_levels(backends)
        self._candidates = Candidates(choice, self._levels.values(), self.clock)
        self._members = {backend.name: self._make(backend) for backend in backends}
        self._listed = tuple(self._members.values())
        """The same, for who takes some of them by chance."""
        for member in self._listed:
            member.awaited = member.counted = True
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

    def record_report(
        self, now: float, rng: random.Random, name: str, count: int, asked_at: float, probed: Endpoint
    ) -> State:
        """Take in a good probe: `count` users at `asked_at`, told by the backend at `probed`. Return its state."""
        member = self._members[name]
        self._catch_up(now)
        member.health.succeeded()
        self.roll.answered()
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

    def record_said(self, now: float, name: str, said: Said) -> State:
        """Take in what a backend says of itself; return its state. It changes nothing of what its probes find."""
        member = self._members[name]
        self._catch_up(now)
        if said != member.said:
            member.hear(said)
        return self._judge(member, now)

    def bar(self, now: float, name: str, until: float) -> State:
        """Take out of choice until then what works by its probes and not by its clients."""
        member = self._members[name]
        self._catch_up(now)
        member.barred_until = until
        return self._judge(member, now)

    def set_admin(self, now: float, name: str, admin: Admin) -> State:
        """Have a backend stand as its operator wants, and return its state. Raise KeyError on an unknown name."""
        member = self._members[name]
        self._catch_up(now)
        member.admin = admin.at(now)
        return self._judge(member, now)

    def restore(self, now: float, name: str, report: Report, probed: Endpoint) -> None:
        """Take in a report that an earlier process left, as the last known and no more: a probe has to come yet."""
        member = self._members[name]
        if member.report is None:
            member.take_report(now, report, probed)
            member.spell.broken()
            self._judge(member, now)
            self._look_at_roll(now)

    def change(self, now: float, backends: Iterable[Backend], moved: frozenset[str] = frozenset()) -> None:
        """Have these backends from now on, in one step; who is the same as before is not touched.

        Whoever is new waits for a probe, and the door does not wait for it. `moved`: names that stand for a process
        somewhere else now, which is as new, though the operator wants of it what he wanted.
        """
        self._catch_up(now)
        wanted = {backend.name: backend for backend in backends}
        before = dict(self._members)
        for name, member in before.items():
            if name not in wanted or name in moved:
                self._dismiss(member)
        self.ejections.keep(wanted.keys() - moved)
        self.news.keep(wanted.keys())
        self._levels = make_levels(wanted.values(), self._levels)
        self._candidates.stand_in(self._levels.values())
        # The same dictionary in the new order: others look into it.
        self._members.clear()
        for name, backend in wanted.items():
            same = name in before and name not in moved
            member = self._members[name] = before[name] if same else self._make(backend)
            if not same and name in before:
                member.admin = before[name].admin
            changed = member.backend != backend
            if changed:
                self._candidates.leave(member)
                member.describe(backend)
            if changed or member.level is not self._levels[backend.priority]:
                self._candidates.place(member, self._levels[backend.priority], self._asks.expect(now))
            if changed or not same:
                self._judge(member, now)
        self._listed = tuple(self._members.values())
        self._look_at_roll(now)

    def set_health(self, now: float, policy: HealthPolicy) -> None:
        """Judge the probes by another policy from now on."""
        self._catch_up(now)
        self._policies = (policy, *self._policies[1:])
        self.roll.instant_s = policy.stale_after_s
        for member in self._members.values():
            member.health.adopt(policy)
            member.look_at = math.inf
            self._judge(member, now)

    def works(self, now: float) -> bool:
        """Whether at least one backend works, full or not."""
        self._catch_up(now)
        return self.roll.working > 0

    def suspects_own_network(self, now: float) -> bool:
        """Whether all backends failed together, and none has answered since: this master's network may have failed."""
        self._catch_up(now)
        return self.roll.suspected

    def _make(self, backend: Backend) -> Member:
        health, loads, choice = self._policies
        reservations = Reservations(loads, self.clock)
        return Member(
            backend,
            Health(health),
            reservations,
            Permits(choice, backend.weight),
            Spell(self.clock, reservations),
            self._levels[backend.priority],
        )

    def _dismiss(self, member: Member) -> None:
        """A member is in the pool no more; what still refers to it finds it outdated."""
        self._candidates.leave(member)
        member.look_at = math.inf
        self._await_no_more(member)
        if member.counted:
            self.roll.size -= 1
        if member.serving:
            self.roll.left()

    def _probed(self, member: Member, now: float) -> State:
        if not member.heard:
            member.heard = True
            if self._await_no_more(member):
                self._look_at_roll(now)
        return self._judge(member, now)

    def _await_no_more(self, member: Member) -> bool:
        """Let the door open without it; return whether it was waited for."""
        awaited, member.awaited = member.awaited, False
        self.roll.unheard -= awaited
        return awaited

    def _judge(self, member: Member, now: float) -> State:
        """Take in all that may have changed: whether it is wanted, works, may be chosen, and its place."""
        member.reservations.count(now)
        if -math.inf < member.barred_until <= now:
            member.barred_until = -math.inf
        if member.admin is not READY:
            self._heed_operator(member, now)
        state = member.state(now)
        counted = member.wish(now) is Wish.READY and (member.heard or member.awaited)
        if counted != member.counted or (state in WORKING) != member.serving:
            self._turn(member, state in WORKING, counted, now)
            state = member.state(now)
        self._place(member, state, now)
        self._looks.watch(member, now)
        return state

    def _heed_operator(self, member: Member, now: float) -> None:
        before, member.admin = member.admin, member.admin.at(now)
        if member.admin is READY and before.wish is not Wish.READY:
            self.news.end(member.backend.name, before)
        if member.admin.wish is Wish.MAINT:
            # What comes back afterwards may be another process: it has to answer first.
            member.health.lose()
            member.hear(NOTHING_SAID)
            member.spell.broken()
            self._await_no_more(member)

    def _turn(self, member: Member, serving: bool, counted: bool, now: float) -> None:
        """A member is counted that was not, or works that did not, or the other way round."""
        self.roll.size += counted - member.counted
        member.counted = counted
        if serving != member.serving:
            member.serving = serving
            self.news.turn([member.backend.name])
            if serving:
                member.permits.begin(self.roll.came_at(now))
                self.roll.rose()
            else:
                if self.roll.working == 1:  # nobody else works: those that clients complain of are better than none
                    for name in self.ejections.pardon(now):
                        self._heed(self._members[name], now)
                member.spell.broken()
                if member.wish(now) is Wish.READY:
                    self.roll.fell(now)
                else:
                    self.roll.left()
        self._look_at_roll(now)

    def _heed(self, member: Member, now: float) -> None:
        """Have a member stand as the clients' complaints of it demand."""
        barred_s = self.ejections.barred_s(now, member.backend.name)
        until = now + barred_s if barred_s else -math.inf
        if until != member.barred_until:
            member.barred_until = until
            self._judge(member, now)

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
