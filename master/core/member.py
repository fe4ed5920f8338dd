"""A member of the pool: a backend, and what is known of it."""

from __future__ import annotations

import math
from typing import Final

import attrs

from master.core.admin import READY, Admin, Wish
from master.core.answers import Place, State
from master.core.backend import FAMILIES, Backend, Endpoint, Family
from master.core.health import NOTHING_SAID, Health, Report, Said
from master.core.join_cap import Permits
from master.core.load import Reservations, Spell
from master.core.selection import Candidate, Group, Level

WORKING: Final = frozenset({State.READY, State.FULL, State.NO_WEIGHT})


@attrs.define(eq=False)
class Member(Candidate):
    """Read it; only the pool changes it. Each of its parts looks after itself; the pool says when."""

    backend: Backend
    health: Health
    reservations: Reservations
    permits: Permits
    spell: Spell
    level: Level[Member]
    groups: tuple[Group[Member], ...] = attrs.field(init=False)
    """Where it stands as a candidate."""
    report: Report | None = None
    asked_x: float = 0.0
    """When the report was asked for, in mean sessions."""
    probed: Endpoint | None = None
    """The address that gave the report."""
    told: dict[Family, Endpoint] = attrs.field(factory=dict)
    """Where a client of each family is sent."""
    barred_until: float = -math.inf
    """It is ejected until then: clients say that it does not work, whatever the probes find."""
    admin: Admin = READY
    """What the operator wants of it, as it was judged last."""
    said: Said = NOTHING_SAID
    """What it says of itself."""
    limit: int | None = attrs.field(init=False)
    """The most users: as it is configured, or as it says, if that is less."""
    awaited: bool = False
    """Whether the door stays closed until it has been probed: it was there at the start."""
    heard: bool = False
    """Whether a probe has ended since the start, well or badly."""
    counted: bool = False
    """Whether the roll counts it: it is wanted in service, and has been probed or is waited for."""
    serving: bool = False
    """Whether it works and is wanted, as it was judged last; the pool judges anew whenever that can change."""
    look_at: float = math.inf
    """When the pool will look again whether its report is stale, or an assignment is to be forgotten."""

    def __attrs_post_init__(self) -> None:
        self.groups = self.level.groups(self.backend.zone)
        self.hear(self.said)

    def users(self, now: float) -> int:
        """Return the users it is taken to have: those reported, and those sent since, by all masters."""
        sent = self.reservations.count(now) * self.reservations.policy.masters
        return (self.report.count if self.report else 0) + sent

    def least_users(self) -> int:
        """Return the users it has at least: those reported, and those sent after that was asked."""
        if self.report is None:
            return 0
        sent = self.reservations.made_since(self.report.asked_at) * self.reservations.policy.masters
        return self.report.count + sent

    def free(self, now: float) -> int | None:
        """Return the places left, never below 0; None for no limit."""
        return None if self.limit is None else max(0, self.limit - self.users(now))

    def load(self, now: float) -> float:
        """Return the users it is likely to have by weight, the number that is compared; the weight is over 0."""
        return self.load_at(self.reservations.clock.at(now))

    def load_at(self, x: float) -> float:
        """Do the same at `x` in mean sessions."""
        reported, own = self.parts(x)
        return (reported + own) / self.backend.weight

    def parts(self, x: float) -> tuple[float, float]:
        """Return what its load is made of at `x`: users by the report, and by own assignments of all masters."""
        reported = self.report.count * math.exp(self.asked_x - x) if self.report else 0.0
        return reported, self.reservations.policy.masters * self.reservations.weigh(x)

    def state(self, now: float) -> State:
        wish = self.wish(now)
        if wish is Wish.MAINT:
            return State.MAINT
        return State.DRAIN if (state := self.found(now)) in WORKING and wish is Wish.DRAIN else state

    def wish(self, now: float) -> Wish:
        """Return what is wanted of it: what the operator wants, and a backend may declare itself draining."""
        wish = self.admin.at(now).wish
        return Wish.DRAIN if self.said.drain and wish is Wish.READY else wish

    def found(self, now: float) -> State:
        """Return the same, whatever the operator wants."""
        if self.report is None or not self.heard:
            return State.UNPROBED
        if not self.health.up:
            return State.DOWN
        if self.health.lost:
            return State.LOST
        if self.report.age(now) > self.health.policy.stale_after_s:
            return State.STALE
        if now < self.barred_until:
            return State.EJECTED
        if self.backend.weight == 0:
            return State.NO_WEIGHT
        if self.free(now) == 0:
            return State.FULL
        return State.READY

    def works(self, now: float) -> bool:
        """Whether it is up and its report is fresh, room or not."""
        return self.state(now) in WORKING

    def was_good(self, now: float) -> bool:
        """Whether it may be a candidate where its last good report is taken for true."""
        wanted = self.wish(now) is Wish.READY and now >= self.barred_until and self.backend.weight > 0
        return wanted and self.report is not None and self.free(now) != 0

    def next_look(self) -> float:
        """Return when its standing may change by time alone."""
        expiry = min(self.reservations.next_expiry(), self.admin.until)
        if self.barred_until > -math.inf:
            expiry = min(expiry, self.barred_until)
        if not self.serving or self.report is None:
            return expiry
        return min(expiry, self.report.asked_at + self.health.policy.stale_after_s)

    def take_report(self, now: float, report: Report, probed: Endpoint) -> None:
        """Take in a good answer, to a question that was asked no earlier than that of the last."""
        self.report = report
        self.asked_x = self.reservations.clock.at(report.asked_at)
        self.spell.reported(now, report.count, report.asked_at)
        self.reservations.confirmed_by(report.asked_at)
        if probed != self.probed:
            self._tell(probed)

    def describe(self, backend: Backend) -> None:
        """Be as the operator describes it now; it is no candidate meanwhile."""
        self.backend = backend
        self.permits.weigh(backend.weight)
        self.hear(self.said)
        if self.probed is not None:
            self._tell(self.probed)

    def hear(self, said: Said) -> None:
        """Take in what it says of itself; it can only lower what it may be given."""
        self.said = said
        limits = [limit for limit in (self.backend.capacity, said.capacity) if limit is not None]
        self.limit = min(limits) if limits else None

    def _tell(self, probed: Endpoint) -> None:
        self.probed = probed
        self.told = {family: self.backend.endpoint_for(family, probed) for family in FAMILIES}

    def place(self, family: Family) -> Place:
        return Place(self.backend.name, self.told[family])
