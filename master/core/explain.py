"""Why a backend would be chosen for an ask, and the others not."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from master.core.answers import Explanation, Reason
from master.core.candidates import Candidates, Found
from master.core.member import Member


@attrs.frozen
class Scene:
    """An ask at a moment: `found` is who would be chosen and why, `closed` why nobody is, whoever may be chosen."""

    now: float
    expected: float
    zone: str
    closed: Reason | None
    last_known: bool
    found: Found | None

    def reason(self, member: Member) -> Reason:
        """Return the one reason why `member` is chosen or not; what is the matter with itself comes first."""
        if not member.stamp:
            return Reason(member.state(self.now).value)
        if self.closed is not None or self.found is None:
            return self.closed or Reason.NO_CANDIDATE
        chosen, why = self.found
        if member is chosen:
            return Reason.LAST_KNOWN if self.last_known else why
        if member.level is not chosen.level:
            return Reason.LOWER_PRIORITY
        if member.permits.turn > self.expected:
            return Reason.CAPPED
        other_zone = why is Reason.IN_ZONE and member.backend.zone != self.zone
        return Reason.OTHER_ZONE if other_zone else Reason.BEHIND


def set_scene(
    candidates: Candidates,
    now: float,
    expected: float,
    zone: str,
    roll: tuple[Reason | None, bool],
    back: Found | None = None,
) -> Scene:
    """Return what an ask would meet; `roll` says why the door is closed, and whether the last reports are trusted.

    `back`: whom the client goes back to for the sake of its session.
    """
    closed, last_known = roll
    found = back or candidates.find(now, expected, zone) if closed is None else None
    return Scene(now, expected, zone, closed, last_known, found)


def explain(members: Iterable[Member], scene: Scene) -> list[Explanation]:
    """Return how each member stands."""
    return [_explain(member, scene) for member in members]


def _explain(member: Member, scene: Scene) -> Explanation:
    weight, report = member.backend.weight, member.report
    reported, own = member.parts(member.reservations.clock.at(scene.now))
    return Explanation(
        name=member.backend.name,
        state=member.state(scene.now),
        age_s=report.age(scene.now) if report is not None else None,
        reported=reported,
        own=own,
        weight=weight,
        load=(reported + own) / weight if weight and report is not None else None,
        opens_in=max(0.0, member.permits.turn - scene.expected) if member.stamp else 0.0,
        reason=scene.reason(member),
    )
