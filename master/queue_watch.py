"""What is told of the virtual queue: people wait, it is full, its control loop is frozen; each when it has held.

All of it comes and goes with every client, so nothing is told before it has held for some seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.address import printable
from lambdamu.timer import Timer
from master.config_queue import Control
from master.queue.control import Steered
from master.room_watch import Settled

if TYPE_CHECKING:
    import structlog

    from master.event_log import EventLog
    from master.waiting.room import WaitingRoom

_LOOK_S: Final = 1.0
_WAIT_S: Final = 3.0
_NOBODY_S: Final = 30.0
"""A queue that runs empty for a moment in a rush is no news, nor is the next one who waits."""
_ROOM_S: Final = 30.0
_FROZEN_S: Final = 3.0
_ID_CHARACTERS: Final = 64
"""Of the id of a queue, which a client has made up."""

PEOPLE_WAIT: Final = "people_wait"
NOBODY_WAITS: Final = "nobody_waits"
QUEUE_FULL: Final = "queue_full"
QUEUE_HAS_ROOM: Final = "queue_has_room"
LOOP_FROZEN: Final = "loop_frozen"
LOOP_THAWED: Final = "loop_thawed"
PROBLEMS: Final = frozenset({QUEUE_FULL, LOOP_FROZEN})


class LoopState(StrEnum):
    """How the rate is steered, as it is shown."""

    LOOP = "loop"
    MANUAL = "manual"
    FROZEN = "frozen"
    """The news of the backends is too old."""
    NO_NEWS = "no_news"
    """There is none, or a backend has no capacity, so there is nothing to steer by."""
    OFF = "off"


def loop_state(room: WaitingRoom) -> LoopState:
    if room.config.control is Control.OFF and room.plan.by is not Steered.MANUAL:
        return LoopState.OFF
    if room.plan.by is Steered.FROZEN and room.survey.places is None:
        return LoopState.NO_NEWS
    return LoopState(room.plan.by)


@attrs.frozen
class QueueLook:
    """How a queue stands. `full`: why somebody gets no place, in a line; empty: there are places for all."""

    waiting: int
    full: str
    frozen: bool


def take_look(room: WaitingRoom) -> QueueLook:
    """Look at a queue. That its loop is frozen while no backend is in service is no news: that itself is told."""
    frozen = loop_state(room) is LoopState.FROZEN and room.survey.serving > 0
    return QueueLook(room.queues.book.waiting, _why_full(room), frozen)


def _why_full(room: WaitingRoom) -> str:
    queues, policy = room.queues, room.policy
    if not len(queues.numbers):
        return "there are no more numbers for tickets"
    if queues.book.places >= policy.max_tickets:
        return f"as many people wait as may wait in all, {policy.max_tickets}"
    full = next((line for line in queues.lines if len(line) >= line.template.max_waiting), None)
    if full is not None:
        return f"as many people wait in {printable(full.queue[:_ID_CHARACTERS])} as may, {full.template.max_waiting}"
    if queues.lines.used >= policy.max_queues:
        return f"as many queues are open as may be, {policy.max_queues}"
    return ""


class QueueWatch:
    """Tells what has turned, as a kind of event and a line."""

    def __init__(self) -> None:
        self._nobody = Settled(yes_s=_NOBODY_S, no_s=_WAIT_S)
        self._has_room = Settled(yes_s=_ROOM_S, no_s=0.0)
        self._steers = Settled(yes_s=_FROZEN_S, no_s=_FROZEN_S)

    def look(self, now: float, look: QueueLook) -> Iterator[tuple[str, str]]:
        """Take in how the queue stands; yield what is to be told of it."""
        if self._nobody.turns(now, not look.waiting):
            yield (PEOPLE_WAIT, f"{look.waiting} wait now") if look.waiting else (NOBODY_WAITS, "nobody waits any more")
        if self._has_room.turns(now, not look.full):
            yield (QUEUE_FULL, look.full) if look.full else (QUEUE_HAS_ROOM, "the queue has places again")
        if self._steers.turns(now, not look.frozen):
            yield (
                (LOOP_FROZEN, "the news of the backends is too old to steer by: the rate stays as it is")
                if look.frozen
                else (LOOP_THAWED, "the backends tell how they stand again")
            )


async def watch_queue(
    room: WaitingRoom, log: structlog.typing.FilteringBoundLogger, events: EventLog, rng: random.Random
) -> None:
    """Look every second, and tell the log and the events, until cancelled."""
    watch, timer = QueueWatch(), Timer(_LOOK_S, rng=rng)
    while True:
        await timer.wait()
        now = trio.current_time()
        for kind, text in watch.look(now, take_look(room)):
            (log.warning if kind in PROBLEMS else log.info)(kind, message=text)
            events.add(now, kind, text)
