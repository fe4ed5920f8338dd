"""What the pool knows, as metrics: read from it when somebody looks, and not stored a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from master.core.answers import Reason
from master.core.pool import Member, Pool, Spare, Wish
from master.metric_families import Series, by, counters, gauges, total


def _whether_up(member: Member, now: float) -> float:
    return member.works(now)


def _whether_set_aside(member: Member, now: float) -> float:
    return member.wish(now) is not Wish.READY


def _users(member: Member, now: float) -> float:
    return member.users(now)


def _capacity(member: Member, _now: float) -> float | None:
    return member.limit


def _load(member: Member, now: float) -> float | None:
    return member.load(now) if member.backend.weight and member.report is not None else None


def _report_age(member: Member, now: float) -> float | None:
    return member.report.age(now) if member.report is not None else None


def _reservations(member: Member, now: float) -> float:
    return member.reservations.count(now)


_GAUGES: Final = (
    ("up", "Whether it works, room or not.", _whether_up),
    ("set_aside", "Whether its operator, or it itself, wants no new clients.", _whether_set_aside),
    ("users", "Users reported and sent since.", _users),
    ("capacity", "The most users; no series for no limit.", _capacity),
    ("load", "Users it is likely to have by weight, the number that is compared.", _load),
    ("report_age_seconds", "Seconds since the question of its last good report.", _report_age),
    ("reservations", "Assignments not yet reported.", _reservations),
)


def collect_pool(pool: Pool, now: float, spare: Spare) -> Iterator[Metric]:
    """Yield all of it, in parts. `spare` may be some seconds old."""
    members = list(pool)
    for name, text, read in _GAUGES:
        yield from gauges(f"backend_{name}", text, _series(members, now, read))
    taking = ((_names(member), float(pool.takes_clients(now, member))) for member in members)
    yield from gauges("backend_ready", "Whether clients are sent there now.", taking)
    sent = ((_names(member), float(member.reservations.total)) for member in members)
    yield from counters("backend_assignments", "Clients sent there.", ("backend",), sent)
    aside = dict.fromkeys(Wish, 0)
    for member in members:
        aside[member.admin.at(now).wish] += 1
    wishes = GaugeMetricFamily("lambdamu_backends_wanted", "Backends by what the operator wants.", labels=["admin"])
    for wish, count in aside.items():
        wishes.add_metric([wish], count)
    yield wishes
    yield by("choices", "Asks by why a backend was chosen, or none.", "why", pool.answers)
    yield total("failed_together", "Times all backends failed together.", pool.roll.suspicions)
    for name, text, value in _whole(pool, now):
        yield GaugeMetricFamily(f"lambdamu_{name}", text, value)
    yield GaugeMetricFamily("lambdamu_carries_biggest", "Whether users fit without the biggest.", spare.fits)
    if spare.left is not None:
        yield GaugeMetricFamily("lambdamu_spare_users", "Places left for users if the biggest falls.", spare.left)


def _whole(pool: Pool, now: float) -> Iterator[tuple[str, str, float]]:
    yield "backends", "Backends of the pool.", len(pool)
    yield "backends_working", "Backends that work, room or not.", pool.roll.working
    yield "candidates", "Backends that clients may be sent to now.", pool.takers(now)
    yield "panic", "Whether nobody is chosen because too few work.", pool.roll.closed is Reason.PANIC
    yield "session_seconds", "Mean session time by which load fades.", pool.clock.mean_s
    yield "ejected", "Backends out because clients say so.", len(pool.ejections.out(now))
    yield "sendings", "Clients of whom it is kept where they went.", len(pool.ejections)
    yield "choice_entries", "Entries in the heap of candidates.", pool.entries


def _series(members: list[Member], now: float, read: Callable[[Member, float], float | None]) -> Iterator[Series]:
    for member in members:
        value = read(member, now)
        if value is not None:
            yield _names(member), value


def _names(member: Member) -> tuple[str]:
    return (member.backend.name,)
