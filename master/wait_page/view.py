"""What a person is shown: the answer of the master in the words of a language.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

import attrs

from lambdamu.answers import Answer
from lambdamu.messages import QUEUE_WAITS, QueueReason, Reason, Result, as_count, as_text
from master.wait_page.texts import Language

_SAID_BY_DENIED: Final = frozenset({QueueReason.NO_QUEUE, QueueReason.USED, Reason.TOO_FAST})
_LONGEST_S: Final = 30 * 86400.0


class Kind(StrEnum):
    """What the page is about."""

    WAIT = "wait"
    READY = "ready"
    CLOSED = "closed"
    DENIED = "denied"
    NO_SERVER = "no_server"
    LEFT = "left"
    LOST = "lost"
    """The browser goes on with a wait, and shows no place."""


STATUSES: Final[Mapping[Kind, HTTPStatus]] = MappingProxyType(
    {
        Kind.WAIT: HTTPStatus.OK,
        Kind.READY: HTTPStatus.OK,
        Kind.CLOSED: HTTPStatus.SERVICE_UNAVAILABLE,
        Kind.DENIED: HTTPStatus.FORBIDDEN,
        Kind.NO_SERVER: HTTPStatus.SERVICE_UNAVAILABLE,
        Kind.LEFT: HTTPStatus.OK,
        Kind.LOST: HTTPStatus.OK,
    }
)


@attrs.frozen
class View:
    """Texts as they are to be shown, not escaped; an empty one is not shown.

    `done`: how much of the line is behind, 0 to 1, None: no bar. `after_s`: when to ask again, None: not by itself.
    `link`: where to go on, a URL. `leave`, `again`: whether one may give the place up, or take one anew.
    """

    kind: Kind
    title: str
    heading: str
    place: str = ""
    eta: str = ""
    note: str = ""
    more: str = ""
    address: str = ""
    turn_label: str = ""
    turn: str = ""
    link: str = ""
    done: float | None = None
    after_s: float | None = None
    leave: bool = False
    again: bool = False


def show_answer(answer: Answer, language: Language, first: int, link: str) -> View:
    """Return what is shown for an answer. `first`: people ahead at first. `link`: where to go on, for an OK."""
    match answer.result:
        case Result.OK:
            return _ready(answer, language, link)
        case Result.WAIT:
            return _wait(answer, language, first)
        case Result.CLOSED:
            if answer.reason == Reason.LEFT:
                return show_left(language)
            heading = language.say("full" if answer.reason == QueueReason.FULL else "closed")
            return _refused(Kind.CLOSED, heading, as_text(answer.data.get("Text")) or "", answer, language)
        case Result.DENIED:
            reason = answer.reason or ""
            note = language.say(reason if reason in _SAID_BY_DENIED else "Pass")
            view = _refused(Kind.DENIED, language.say("denied"), note, answer, language)
            return attrs.evolve(view, again=reason == QueueReason.USED)
        case Result.NO_SERVER:
            return _refused(Kind.NO_SERVER, language.say("no_server"), "", answer, language)


def show_left(language: Language) -> View:
    heading = language.say("left")
    return View(Kind.LEFT, heading, heading, note=language.say("left_more"), again=True)


def show_lost(language: Language) -> View:
    heading = language.say("lost")
    return View(Kind.LOST, heading, heading, note=language.say("lost_more"), again=True)


def position_of(answer: Answer) -> int:
    """Return how many people are ahead."""
    return as_count(answer.data.get("Position")) or 0


def _wait(answer: Answer, language: Language, first: int) -> View:
    ahead, heading = position_of(answer), language.say("wait")
    reason = answer.reason or ""
    return View(
        Kind.WAIT,
        f"({language.number(ahead)}) {heading}" if ahead else heading,
        heading,
        place=language.say("place", people=language.number(ahead)) if ahead else language.say("next"),
        eta=_eta(answer, language),
        note=language.say(reason) if reason in QUEUE_WAITS else "",
        more=language.say("keep_open"),
        done=(max(first - ahead, 0) + 1) / (max(first, ahead) + 1),
        after_s=_after_s(answer),
        leave=True,
    )


def _eta(answer: Answer, language: Language) -> str:
    eta_s, most_s = (_seconds(answer.data.get(key)) for key in ("ETA", "ETA90"))
    if eta_s is None:
        return language.say("eta_unknown")
    time, most = language.duration(eta_s), language.duration(most_s if most_s is not None else eta_s)
    return language.say("eta", time=time) if most == time else language.say("eta_most", time=time, most=most)


def _ready(answer: Answer, language: Language, link: str) -> View:
    heading = language.say("ready")
    if link:
        return View(Kind.READY, heading, heading, link=link)
    turn = answer.turn or ""
    return View(
        Kind.READY,
        heading,
        heading,
        note=language.say("connect"),
        address=str(answer.endpoint),
        turn_label=language.say("turn") if turn else "",
        turn=turn,
    )


def _refused(kind: Kind, heading: str, note: str, answer: Answer, language: Language) -> View:
    after_s = _after_s(answer)
    more = language.say("retries") if after_s is not None else ""
    return View(kind, heading, heading, note=note, more=more, after_s=after_s)


def _after_s(answer: Answer) -> float | None:
    return None if answer.retry_after_s is None else min(answer.retry_after_s, _LONGEST_S)


def _seconds(value: object) -> float | None:
    good = isinstance(value, (int, float)) and 0 <= value <= _LONGEST_S
    return float(value) if good and isinstance(value, (int, float)) else None
