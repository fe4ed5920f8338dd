"""The pool: its members, what is known of each, and which of them a client is sent to.

The only mutable state of the choice. It is synchronous and does no I/O, so each call is atomic; `now` is seconds of
one monotonic clock, and `rng` breaks ties.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from enum import StrEnum

import attrs

from master.core.backend import FAMILIES, Backend, Endpoint, Family
from master.core.health import Health, HealthPolicy, Report
from master.core.load import LoadPolicy, Reservations, load
from master.core.selection import LeastLoaded


class State(StrEnum):
    """Whether a backend can be chosen now, and if not, the first reason why."""

    READY = "ready"
    NO_WEIGHT = "no_weight"
    UNPROBED = "unprobed"
    DOWN = "down"
    LOST = "lost"
    STALE = "stale"
    FULL = "full"


@attrs.frozen
class Ask:
    """What a client asked for: the family it came by, and how many alternates it wants."""

    family: Family = 4
    alternates: int = 0


@attrs.frozen
class Place:
    """A backend to go to, and where it is."""

    name: str
    endpoint: Endpoint


@attrs.frozen
class Assignment:
    """Where a client is sent; `alternates` are next best, with nothing reserved there."""

    place: Place
    alternates: tuple[Place, ...] = ()


@attrs.frozen
class Refused:
    """No backend can take anyone now."""


REFUSED = Refused()


@attrs.define(eq=False)
class Member:
    """A backend and what is known of it. Read it; only the pool changes it."""

    backend: Backend
    health: Health
    reservations: Reservations
    report: Report | None = None
    probed: Endpoint | None = None
    """The address that gave the report."""
    expiring: bool = False
    """Whether the pool will look again when its oldest reservation is due to be forgotten."""
    told: dict[Family, Endpoint] = attrs.field(factory=dict)
    """Where a client of each family is sent."""

    def users(self, now: float) -> int:
        """Return the users it is taken to have: those reported, and those sent since."""
        return (self.report.count if self.report else 0) + self.reservations.count(now)

    def free(self, now: float) -> int | None:
        """Return the places left, never below 0; None for no limit."""
        capacity = self.backend.capacity
        return None if capacity is None else max(0, capacity - self.users(now))

    def load(self, now: float) -> float:
        """Return users by weight, the number that is compared; the weight is over 0."""
        return load(self.users(now), self.backend.weight)

    def works(self, now: float) -> bool:
        """Whether it is up and its report is fresh, room or not."""
        return self.state(now) in (State.READY, State.FULL, State.NO_WEIGHT)

    def usable(self, now: float) -> bool:
        """Whether its state is READY, found out the short way: every ask comes by here."""
        report, health, capacity = self.report, self.health, self.backend.capacity
        return (
            report is not None
            and health.up
            and not health.lost
            and now - report.asked_at <= health.policy.stale_after_s
            and self.backend.weight > 0
            and (capacity is None or report.count + self.reservations.count(now) < capacity)
        )

    def state(self, now: float) -> State:
        if self.report is None:
            return State.UNPROBED
        if not self.health.up:
            return State.DOWN
        if self.health.lost:
            return State.LOST
        if self.report.age(now) > self.health.policy.stale_after_s:
            return State.STALE
        if self.backend.weight == 0:
            return State.NO_WEIGHT
        if self.free(now) == 0:
            return State.FULL
        return State.READY


class Pool:
    """The backends, by name. `assign` answers a client; the `record_` calls take in what the probes found."""

    def __init__(self, backends: Iterable[Backend], health: HealthPolicy, loads: LoadPolicy) -> None:
        self._members = {backend.name: Member(backend, Health(health), Reservations(loads)) for backend in backends}
        self._choice: LeastLoaded[Member] = LeastLoaded(Member.usable)
        self._expiries: list[tuple[float, str]] = []
        """When to look whether reservations of a backend are forgotten: a heap, a backend stands in it once at most."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    @property
    def entries(self) -> int:
        """Entries in the heap of candidates: bounded by twice the backends and a few."""
        return len(self._choice)

    def assign(self, now: float, rng: random.Random, ask: Ask) -> Assignment | Refused:
        """Choose the usable backend with the least load and reserve a place there."""
        alternates = self._alternates(now, rng, ask) if ask.alternates else ()
        member = self.pick(now, rng)
        if member is None:
            return REFUSED
        return Assignment(_place(member, ask.family), alternates)

    def pick(self, now: float, rng: random.Random) -> Member | None:
        """Do the same, and return the member itself: all that a plain ask needs."""
        if self._expiries and self._expiries[0][0] <= now:
            self._expire(now, rng)
        member = self._choice.best(now)
        if member is not None:
            member.reservations.add(now)
            if not member.expiring:
                self._watch_expiry(member)
            self._choice.rerank_best(member.load(now), rng)
        return member

    def record_report(
        self, now: float, rng: random.Random, name: str, count: int, asked_at: float, probed: Endpoint
    ) -> State:
        """Take in a good probe: `count` users at `asked_at`, told by the backend at `probed`. Return its state."""
        member = self._members[name]
        member.health.succeeded()
        if member.report is None or asked_at >= member.report.asked_at:
            member.report = Report(count, asked_at)
            if probed != member.probed:
                member.probed = probed
                member.told = {family: member.backend.endpoint_for(family, probed) for family in FAMILIES}
            member.reservations.confirmed_by(asked_at)
        self._rank(member, now, rng)
        return member.state(now)

    def record_failure(self, now: float, name: str) -> State:
        """Take in a failed probe; the last good report keeps its time. Return the state of the backend."""
        member = self._members[name]
        member.health.failed()
        return member.state(now)

    def record_lost(self, now: float, name: str) -> State:
        """Take in that the kept connection to a backend broke: out of choice until it answers again."""
        member = self._members[name]
        member.health.lose()
        return member.state(now)

    def works(self, now: float) -> bool:
        """Whether at least one backend works, full or not."""
        return any(member.works(now) for member in self._members.values())

    def _rank(self, member: Member, now: float, rng: random.Random) -> None:
        if member.backend.weight > 0:
            self._choice.rank(member, member.load(now), rng)

    def _expire(self, now: float, rng: random.Random) -> None:
        """Give new places to those who were held back by clients that never came."""
        while self._expiries and self._expiries[0][0] <= now:
            _, name = heapq.heappop(self._expiries)
            member = self._members[name]
            member.expiring = False
            self._rank(member, now, rng)
            self._watch_expiry(member)

    def _watch_expiry(self, member: Member) -> None:
        expiry = member.reservations.next_expiry()
        if expiry is not None and not member.expiring:
            member.expiring = True
            heapq.heappush(self._expiries, (expiry, member.backend.name))

    def _alternates(self, now: float, rng: random.Random, ask: Ask) -> tuple[Place, ...]:
        self._expire(now, rng)
        return tuple(_place(member, ask.family) for member in self._choice.next_best(now, ask.alternates))


def _place(member: Member, family: Family) -> Place:
    return Place(member.backend.name, member.told[family])
