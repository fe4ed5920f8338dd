"""Which events are told to the webhook, as what, and which of them stand for each other.  Pure."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from lambdamu.address import printable
from master.event_log import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT_CHARACTERS: Final = 300
"""Of what an event says; a backend may have had a part in it."""


class Severity(StrEnum):
    """How bad a change is, the worst first. `OK` ends a problem."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    OK = "ok"


RANKS: Final[Mapping[Severity, int]] = MappingProxyType({severity: rank for rank, severity in enumerate(Severity)})


@attrs.frozen
class Rule:
    """Of one `matter` of one backend, or of the master, only the last change is so. `words` say it to people."""

    matter: str
    severity: Severity
    words: str


@attrs.frozen
class Change:
    """What is told. `at`: seconds of the monotonic clock. `times`: so many changes of this matter stand behind it."""

    kind: str
    backend: str
    text: str
    at: float
    severity: Severity
    problem: bool
    times: int = 1


_NOBODY: Final = "no client is sent anywhere"
_SOMEBODY: Final = "clients are sent to backends again"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "no_live_backend": Rule("clients", Severity.CRITICAL, _NOBODY),
        "no_takers": Rule("clients", Severity.CRITICAL, _NOBODY),
        "live_backend": Rule("clients", Severity.OK, _SOMEBODY),
        "takers_again": Rule("clients", Severity.OK, _SOMEBODY),
        "spare_lost": Rule("spare", Severity.WARNING, "the users do not fit if the biggest backend falls"),
        "spare_regained": Rule("spare", Severity.OK, "there is room for the users of any backend again"),
        "reload_refused": Rule("reload", Severity.WARNING, "the configuration was refused"),
        "reloaded": Rule("reload", Severity.OK, "the configuration is good again"),
        "state_not_read": Rule("state", Severity.WARNING, "the state was not read"),
        "state_not_written": Rule("state", Severity.WARNING, "the state cannot be written"),
        "state_written": Rule("state", Severity.OK, "the state is written again"),
        "people_wait": Rule("queue", Severity.INFO, "people wait in the queue"),
        "nobody_waits": Rule("queue", Severity.OK, "nobody waits in the queue any more"),
        "queue_full": Rule("queue_room", Severity.WARNING, "people are turned away: the queue is full"),
        "queue_has_room": Rule("queue_room", Severity.OK, "the queue has places again"),
        "loop_frozen": Rule("queue_loop", Severity.WARNING, "the control loop of the queue is frozen"),
        "loop_thawed": Rule("queue_loop", Severity.OK, "the control loop of the queue works again"),
        "queue_not_read": Rule("queue_state", Severity.WARNING, "the queue was not read"),
        "queue_not_written": Rule("queue_state", Severity.WARNING, "the queue cannot be written"),
        "queue_written": Rule("queue_state", Severity.OK, "the queue is written again"),
        "cache_not_read": Rule("cache_state", Severity.WARNING, "the cache was not read"),
        "cache_not_written": Rule("cache_state", Severity.WARNING, "the cache cannot be written"),
        "cache_written": Rule("cache_state", Severity.OK, "the cache is written again"),
        "stopping": Rule("process", Severity.WARNING, "the master stops"),
        "backend_down": Rule("works", Severity.WARNING, "is down"),
        "backend_up": Rule("works", Severity.OK, "is up again"),
        "backend_stale": Rule("works", Severity.WARNING, "has no fresh report"),
        "backend_fresh": Rule("works", Severity.OK, "has a fresh report again"),
        "backend_ejected": Rule("ejection", Severity.WARNING, "is left alone, for clients cannot use it"),
        "backend_back": Rule("ejection", Severity.OK, "is no longer left alone"),
    }
)
"""What is told, by kind of event. An event of another kind is none to be woken by."""
_SAYS_IT_ALL: Final = frozenset(
    {
        "backend_up",
        "backend_fresh",
        "backend_back",
        "live_backend",
        "takers_again",
        "spare_regained",
        "state_written",
        "nobody_waits",
        "queue_has_room",
        "loop_thawed",
        "queue_written",
        "cache_written",
    }
)
"""Kinds whose text says no more than the words here."""


def change_of(event: Event, rule: Rule, *, aside: bool) -> Change:
    """Return what is told of an event. `aside`: the operator wants no clients there, so it is nothing to hurry for."""
    problem = rule.severity is not Severity.OK
    severity = Severity.INFO if aside and problem else rule.severity
    words = f"{event.backend} {rule.words}" if event.backend else rule.words
    said = "" if event.kind in _SAYS_IT_ALL or not event.text else f": {event.text[:_TEXT_CHARACTERS]}"
    set_aside = " (set aside by its operator)" * (aside and problem)
    return Change(event.kind, event.backend, printable(f"{words}{said}{set_aside}"), event.at, severity, problem)
