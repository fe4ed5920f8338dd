"""The candidates by level and zone: who may be chosen, who is chosen, and what being chosen changes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from master.core.answers import Reason
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Policy
from master.core.load import SessionClock
from master.core.mean_load import MeanLoad
from master.core.member import Member
from master.core.orders import ORDERS, least_load, reported_load
from master.core.selection import Group, Level

Found = tuple[Member, Reason]
_AHEAD: Final = 10
"""So many clients may be sent back to their sessions before the turn of a backend has come: where few ask, its turn
does not come for a while after each, least of all when it is new. In a crowd it is no more than that."""


def make_levels(
    backends: Iterable[Backend], before: Mapping[int, Level[Member]] = MappingProxyType({})
) -> dict[int, Level[Member]]:
    """Return a level for each priority, the first one first; one of those `before` where its zones are the same."""
    zones: dict[int, list[str]] = {}
    for backend in backends:
        zones.setdefault(backend.priority, []).append(backend.zone)
    levels = {priority: Level[Member].of(zones[priority]) for priority in sorted(zones)}
    return {
        priority: before[priority] if priority in before and before[priority].resize(level) else level
        for priority, level in levels.items()
    }


class Candidates:
    """The members that may be chosen. `expected` is V, the asks expected since the start (`master.core.ask_rate`)."""

    def __init__(self, policy: ChoicePolicy, levels: Iterable[Level[Member]], clock: SessionClock) -> None:
        self._policy = policy
        self._levels = tuple(levels)
        self._clock = clock
        self._masters = clock.policy.masters
        self._by_load = policy.policy is Policy.LEAST_LOAD
        self._pairs = policy.policy is Policy.TWO_CHOICES
        self._order = ORDERS[policy.policy]
        self._stamp = 0
        self._last_key = 0.0
        self._passed: Member | None = None
        """Of two that were drawn, the one that was not chosen."""
        self._mean = MeanLoad()

    def __len__(self) -> int:
        """How many entries the heaps hold, outdated ones included."""
        return sum(map(len, self._levels))

    def stand_in(self, levels: Iterable[Level[Member]]) -> None:
        """Choose in these levels from now on, the first one first; each member is to be placed in its own."""
        self._levels = tuple(levels)

    def place(self, member: Member, level: Level[Member], expected: float) -> None:
        """Have a member stand in a level by its zone, with the key and the turn it has, if it is a candidate."""
        weight = member.backend.weight
        if member.stamp:
            member.level.left(weight)
            level.enlisted(weight)
        member.level, member.groups = level, level.groups(member.backend.zone)
        if member.stamp:
            self._put(member, expected)

    def enter(self, member: Member, now: float, expected: float) -> None:
        """Give a member its place by what is known of it now; it may be a candidate already."""
        if not member.stamp:
            member.level.enlisted(member.backend.weight)
            member.key = max(member.key, self._last_key)
            member.permits.turn = max(member.permits.turn, member.level.first_turn(expected))
        elif member.permits.grows:
            member.permits.grow(now, expected, member.level.first_turn(expected))
        if self._by_load:
            member.key = least_load(member, self._clock.at(now))
        self._put(member, expected)

    def leave(self, member: Member) -> None:
        """Hear that a member may not be chosen any more."""
        if member.stamp:
            member.stamp = 0
            member.level.left(member.backend.weight)

    def find(self, now: float, expected: float, zone: str) -> Found | None:
        """Return who is to be chosen for a client in `zone`, and why; None when there is no candidate."""
        for level in self._levels:
            best = self._draw(level.every, expected) if self._pairs else level.every.best(expected)
            if best is not None:
                if zone and zone in level.zones:
                    return self._near(level, best, now, expected, zone)
                return best, Reason.BEST
            # The cap yields, not the client; and to the one that is due first: the least loaded is mostly the one that
            # has just come back, and would get everybody.
            first = level.every.first_parked()
            if first is not None:
                return self._earliest_near(level, first[3], now, zone), Reason.EARLIEST
        return None

    def take(self, member: Member, now: float, expected: float, rng: random.Random) -> None:
        """Give a client to `member`, whom `find` has just returned."""
        if not self._by_load:
            self._last_key = max(self._last_key, member.key)
        self.give(member, now, expected, rng)
        if self._pairs and self._passed is not None:
            self._move(self._passed, self._clock.at(now), expected, rng)

    def give(self, member: Member, now: float, expected: float, rng: random.Random) -> None:
        """Give a client to a candidate, whoever would be the first."""
        x = self._clock.at(now)
        member.reservations.add(now, x)
        member.permits.take(now, expected, member.level.weights)
        self._move(member, x, expected, rng)

    def may_go_back(self, member: Member, now: float, expected: float) -> bool:
        """Whether a client may be sent to `member` because it has a session there.

        So it is while that one is of the level in which somebody is chosen, not far from its turn, and has, with this
        client, at most `session_slack` more than the mean and one client: consistent hashing with bounded loads
        (Mirrokni, Thorup and Zadimoghaddam, 2018), so that a crowd that belongs to one backend does not bury it.
        """
        level = next((level for level in self._levels if level.candidates), None)
        slack = self._policy.session_slack
        if not slack or not member.stamp or member.level is not level:
            return False
        # Where the cap yields since nobody is open, who is due first says what time it is.
        if not member.permits.is_near(now, level.first_turn(expected), level.weights, _AHEAD):
            return False
        x = self._clock.at(now)
        users = self._mean.users(level, self._stamp, x) + self._masters
        return member.load_at(x) <= (1 + slack) * users / level.weights

    def find_and_take(self, now: float, expected: float, rng: random.Random, zone: str = "") -> Found | None:
        """Do `find` and `take`.

        For `least_load` and no zone both are written out: `Reservations.add`, `Permits.take`, the key, `_put`. Every
        plain ask comes by here, and each of those calls would be as dear as what it does: together a tenth of an ask.
        """
        if zone or not self._by_load:
            found = self.find(now, expected, zone)
            if found is not None:
                self.take(found[0], now, expected, rng)
            return found
        why = Reason.BEST
        for level in self._levels:
            member = level.every.best(expected)
            if member is not None:
                break
            first = level.every.first_parked()
            if first is not None:
                member, why = first[3], Reason.EARLIEST
                break
        else:
            return None
        clock, reservations, permits, report = self._clock, member.reservations, member.permits, member.report
        x = clock.base + (now - clock.since) * clock.per_s
        reservations.total += 1
        reservations.own = own = reservations.own * math.exp(reservations.own_at - x) + 1
        reservations.own_at = x
        reservations.sent.append((now, x))
        cost = level.weights * permits.whole
        if now < permits.slow_until:
            cost /= permits.ramp(now)
        turn, least = permits.turn, expected - self._policy.slack
        permits.turn = turn = (turn if turn > least else least) + cost  # noqa: FURB136 - a call less
        load = self._masters * own
        if report is not None:
            load += report.count * math.exp(member.asked_x - x)
        member.key = key = math.log(load / member.backend.weight) + x
        self._stamp = stamp = member.stamp = self._stamp + 1
        for group in member.groups:
            if turn > expected:
                group.park((turn, member.tie, stamp, member))
            else:
                group.add((key, member.tie, stamp, member))
        return member, why

    def others(self, member: Member, count: int) -> list[Member]:
        """Return up to `count` other candidates, best first; meant for a few of them."""
        found: list[Member] = []
        for level in self._levels:
            if len(found) < count:
                front = level.every.front(count - len(found) + 1)
                found += [other for other in front if other is not member]
        return found[:count]

    def _near(self, level: Level[Member], best: Member, now: float, expected: float, zone: str) -> Found:
        passed = self._passed
        home = self._draw(level.zones[zone], expected)
        if home is best or (home is not None and self._close(home, best, now)):
            return home, Reason.IN_ZONE
        self._passed = passed
        return best, Reason.SPILLED

    def _earliest_near(self, level: Level[Member], first: Member, now: float, zone: str) -> Member:
        """Return the one that is due first in the zone of the client, unless the load there is too high."""
        home = level.zones[zone].first_parked() if zone and zone in level.zones else None
        return home[3] if home is not None and self._close(home[3], first, now) else first

    def _close(self, home: Member, best: Member, now: float) -> bool:
        """Whether the load of `home` is not too much higher; one client more never is."""
        allowed = best.load(now) * (1 + self._policy.zone_slack) + 1 / home.backend.weight
        return home.load(now) <= allowed

    def _draw(self, group: Group[Member], expected: float) -> Member | None:
        """Return the open member of a group that the policy chooses."""
        self._passed = None
        first = group.best(expected)
        if first is None or not self._pairs:
            return first
        second = group.second()
        if second is None or reported_load(first) <= reported_load(second):
            self._passed = second
            return first
        self._passed = first
        return second

    def _move(self, member: Member, x: float, expected: float, rng: random.Random) -> None:
        member.key = self._order(member, x, rng)
        member.tie = rng.random()
        self._put(member, expected)

    def _put(self, member: Member, expected: float) -> None:
        self._stamp = member.stamp = self._stamp + 1
        turn = member.permits.turn
        if turn > expected:
            entry = (turn, member.tie, self._stamp, member)
            for group in member.groups:
                group.park(entry)
        else:
            entry = (member.key, member.tie, self._stamp, member)
            for group in member.groups:
                group.add(entry)
