"""How the virtual queue is set: what holds for all of it, and from which template a queue is opened."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

import attrs
from attrs.validators import deep_iterable, ge, gt, instance_of, le, optional

from master.queue.ticket import Lane


class Mode(StrEnum):
    AUTO = "auto"
    """People wait only while there is no room."""
    QUEUE_ALL = "queue_all"
    """Everybody takes a place first, also while there is room."""
    PASS = "pass"  # noqa: S105 - a word, no password
    """All are let through, and it is counted who would have waited."""
    HOLD = "hold"
    """Nobody enters; everybody keeps the place, and newcomers get one."""
    CLOSED = "closed"
    """Nobody enters, and newcomers get a text and no place."""


@attrs.frozen
class TemplatePolicy:
    """What a queue is opened from when its id fits `pattern`, shell style, capitals told apart.

    `per_minute`: its own rate, None: no such limit, 0: nobody. `share`: its weight beside other queues in which people
    wait. `vip_share`: of its calls, at most this part goes to the vip lane while others wait, 0 to 1.
    """

    pattern: str = "default"
    per_minute: float | None = attrs.field(default=None, validator=optional(ge(0)))
    share: float = attrs.field(default=1.0, validator=[ge(0.001), le(1000)])
    max_waiting: int = attrs.field(default=1_000_000, validator=ge(1))
    lanes: tuple[Lane, ...] = attrs.field(default=tuple(Lane), validator=deep_iterable(instance_of(Lane)))
    vip_share: float = attrs.field(default=0.5, validator=[ge(0), le(1)])

    def fits(self, queue: str) -> bool:
        return fnmatchcase(queue, self.pattern)


@attrs.frozen
class QueuePolicy:
    """`text` goes to those who find it closed. `per_minute`: None: no such limit, 0: nobody.

    `claimed_s`: for so long a client that was let in is remembered. `max_tickets` bounds places, that is
    those who wait or are called; as many again are remembered of those who have left or entered.
    """

    mode: Mode = Mode.AUTO
    text: str = ""
    per_minute: float | None = attrs.field(default=None, validator=optional(ge(0)))
    burst: int = attrs.field(default=10, validator=ge(1))
    target_load: float = attrs.field(default=0.9, validator=[gt(0), le(1)])
    claim_s: float = attrs.field(default=20.0, validator=gt(0))
    claimed_s: float = attrs.field(default=120.0, validator=gt(0))
    lease_s: float = attrs.field(default=30.0, validator=gt(0))
    away_lease_s: float = attrs.field(default=600.0, validator=gt(0))
    return_s: float = attrs.field(default=120.0, validator=ge(0))
    hold_plain_s: float = attrs.field(default=60.0, validator=gt(0))
    max_calls: int = attrs.field(default=10_000, validator=ge(1))
    max_queues: int = attrs.field(default=1_000, validator=ge(1))
    max_tickets: int = attrs.field(default=1_000_000, validator=ge(1))
    max_tickets_per_network: int = attrs.field(default=1_000, validator=ge(1))
    max_polls_per_s: float = attrs.field(default=5_000.0, validator=gt(0))
    commit_s: float = attrs.field(default=0.1, validator=gt(0))
    n_minus_1: bool = False
    templates: tuple[TemplatePolicy, ...] = (TemplatePolicy(),)
