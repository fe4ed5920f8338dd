"""What operators want of a running queue, over what is configured. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from master.queue.lines import DEFAULT
from master.queue.policy import Mode, QueuePolicy, TemplatePolicy

WHOLE = ""
"""Stands for the queue as a whole, in place of the id of one."""
AS_CONFIGURED = "as configured"


@attrs.frozen
class Order:
    """What is None is as configured. `per_minute` infinity: no limit. `at`: Unix seconds.

    Of one queue only the rate can be set.
    """

    who: str
    why: str
    at: float
    mode: Mode | None = None
    text: str | None = None
    per_minute: float | None = None
    target_load: float | None = None

    def over(self, before: Order | None) -> Order:
        """Return this one with what it leaves as it is taken from the one before it."""
        if before is None:
            return self
        kept = {key: getattr(before, key) for key in KEYS if getattr(self, key) is None}
        return attrs.evolve(self, **kept)

    def describe(self) -> str:
        """Return what is wanted, in one line."""
        wanted = ((key, getattr(self, key)) for key in KEYS)
        return ", ".join(f"{key} {_word(value)}" for key, value in wanted if value is not None)


KEYS = ("mode", "text", "per_minute", "target_load")


def _word(value: Mode | str | float) -> str:
    if isinstance(value, str):
        return value or "empty"
    return "none" if value == math.inf else f"{value:g}"


def obey(policy: QueuePolicy, orders: Mapping[str, Order]) -> QueuePolicy:
    """Return `policy` as the orders, by queue, want it."""
    whole = orders.get(WHOLE)
    if whole is not None:
        changed = {key: getattr(whole, key) for key in KEYS if getattr(whole, key) is not None}
        if changed.get("per_minute") == math.inf:
            changed["per_minute"] = None
        policy = attrs.evolve(policy, **changed)
    own = [
        _template(policy.templates, queue, order.per_minute)
        for queue, order in orders.items()
        if queue != WHOLE and order.per_minute is not None
    ]
    return attrs.evolve(policy, templates=(*own, *policy.templates)) if own else policy


def _template(templates: tuple[TemplatePolicy, ...], queue: str, per_minute: float) -> TemplatePolicy:
    found = next((each for each in templates if each.fits(queue)), None) or next(
        (each for each in templates if each.fits(DEFAULT)), TemplatePolicy()
    )
    rate = None if per_minute == math.inf else per_minute
    return attrs.evolve(found, pattern=exactly(queue), per_minute=rate)


def exactly(queue: str) -> str:
    """Return the pattern that this id alone fits."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in queue)
