"""The policies: the place of a backend in the order of candidates after it was sent a client, lowest first.

Each is a function of the member, the time in mean sessions, and a source of chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from master.core.choice import Policy
from master.core.member import Member

Order = Callable[[Member, float, random.Random], float]


def least_load(member: Member, x: float, _rng: random.Random | None = None) -> float:
    """By load: its logarithm and the time, a sum that fading does not change (`master.core.load`)."""
    load = member.load_at(x)
    return math.log(load) + x if load > 0 else -math.inf


def round_robin(member: Member, _x: float, _rng: random.Random) -> float:
    """In turns, of which a backend has as many as it weighs: stride scheduling (Waldspurger and Weihl, 1995)."""
    return member.key + 1 / member.backend.weight


def by_chance(member: Member, _x: float, rng: random.Random) -> float:
    """By chance, as the weights are: a race of exponential clocks, which the one with weight w wins w times as often.

    What is left of such a time is distributed as the whole was, so nobody else needs to draw again.
    """
    return member.key + rng.expovariate(1.0) / member.backend.weight


def reported_load(member: Member) -> float:
    """Return the users of the last report by weight, as they were then: what the textbook's two choices compare."""
    return (member.report.count if member.report else 0) / member.backend.weight


ORDERS: Final[Mapping[Policy, Order]] = MappingProxyType(
    {
        Policy.LEAST_LOAD: least_load,
        Policy.ROUND_ROBIN: round_robin,
        Policy.RANDOM: by_chance,
        Policy.TWO_CHOICES: by_chance,
    }
)
"""`two_choices` draws two by chance, and takes the one with fewer reported users."""
