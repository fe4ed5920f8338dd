"""What operators are shown of the virtual queue, as values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from typing import Final

import trio

from master.answer_log import Who
from master.queue.answers import Tally
from master.queue.line import Line
from master.queue.policy import Mode
from master.queue.ticket import WAITING, Lane, Ticket
from master.waiting.orders import Order
from master.waiting.room import WaitingRoom
from master.web.desk import wall
from master.web.views import Json, dumps, finite, parts, rows_of

MOST_QUEUES: Final = 100
"""So many queues are told of, those in which the most people wait; of each other one when it is asked for."""
NO_LIMIT: Final = "none"
"""Stands for a rate without a limit, where null says that an operator has not set it."""
_HASH_DIGITS: Final = 32
_PART: Final = 500


def summary_row(room: WaitingRoom | None) -> Json | None:
    """Return in a few words how the queue stands; None where there is none."""
    if room is None:
        return None
    queues = room.queues
    return {
        "mode": queues.policy.mode.value,
        "waiting": queues.book.waiting,
        "called": len(queues.book.called),
        "limit": queues.limit.value,
        "reason": queues.reason.value,
    }


def head_row(room: WaitingRoom, now: float) -> Json:
    """Return what is said of the queue as a whole."""
    queues, survey, plan, policy = room.queues, room.survey, room.plan, room.policy
    tally, limits, score = queues.tally, queues.limits, room.estimates.score
    return {
        "at": finite(wall(now)),
        **(summary_row(room) or {}),
        "text": policy.text,
        "claimed": queues.book.claimed,
        "held": room.desk.held,
        "count": len(queues.lines),
        "limits": {
            "free_places": limits.spare,
            "per_minute": finite(limits.gate.per_minute),
            "max_calls": policy.max_calls,
            "max_tickets": policy.max_tickets,
            "max_queues": policy.max_queues,
            "max_held": room.desk.max_held,
        },
        "load": {
            "target_load": policy.target_load,
            "users": survey.users,
            "places": survey.places,
            "capacity": survey.capacity,
            "serving": survey.serving,
            "wanted": survey.wanted,
            "cpu": finite(survey.cpu),
        },
        "loop": {
            "control": room.config.control.value,
            "by": plan.by.value,
            "planned_per_s": finite(plan.planned_per_s),
            "per_s": finite(plan.per_s),
            "goal": finite(plan.goal),
            "steady_per_s": finite(plan.steady_per_s),
            "part": finite(room.control.gauge.part),
        },
        "promises": {"kept": score.kept, "broken": score.broken, "share": finite(score.share)},
        "gone": _gone_row(tally),
        "counts": {
            "joined": tally.joined,
            "claimed": tally.claimed,
            "refused": tally.refused,
            "would_wait": tally.would_wait,
            "turned_away": room.desk.turned_away,
        },
        "turns": {"signed": room.turns.signed, "left": room.turns.numbers.left},
        "store": None
        if room.kept is None
        else {
            "failing": room.kept.failing,
            "unwritten": room.kept.unwritten,
            "written_s_ago": finite(now - room.kept.written_at),
        },
        "orders": [_order_row(queue, order) for queue, order in sorted(room.orders.items())],
    }


def _gone_row(tally: Tally) -> Json:
    """Return who has gone without having been let in; `share`: of all whose wait has ended."""
    gone = max(0, tally.left + tally.lapsed + tally.missed - tally.returned)
    ended = gone + tally.claimed
    return {
        "left": tally.left,
        "lapsed": tally.lapsed,
        "missed": tally.missed,
        "returned": tally.returned,
        "share": finite(gone / ended) if ended else None,
    }


def _order_row(queue: str, order: Order) -> Json:
    return {
        "queue": queue,
        "who": order.who,
        "reason": order.why,
        "at": finite(order.at),
        "mode": None if order.mode is None else order.mode.value,
        "text": order.text,
        "per_minute": NO_LIMIT if order.per_minute == math.inf else order.per_minute,
        "target_load": order.target_load,
    }


def line_row(room: WaitingRoom, line: Line, now: float) -> Json:
    """Return what is said of one queue. The drain is that of people who wait; the estimate is for who joins now."""
    forecast, outlook = room.estimates.forecast(line.queue), room.outlooks.get(line.queue)
    measured = forecast.meter.measured() if forecast is not None and len(line) else None
    at_once, halted = _lets_in_at_once(room, line, now), room.policy.mode in (Mode.HOLD, Mode.CLOSED)
    waits = forecast is not None and not at_once and not halted
    wait = forecast.wait(line.ahead_of_newcomer) if forecast is not None and waits else None
    return {
        "queue": line.queue,
        "waiting": len(line),
        "lanes": {lane.name.lower(): line.waiting(lane) for lane in Lane},
        "template": line.template.pattern,
        "per_minute": finite(line.gate.per_minute),
        "drain_per_s": finite(measured.per_s) if measured is not None else None,
        "planned_per_s": finite(outlook.planned_per_s) if outlook is not None else None,
        "show_rate": finite(forecast.show.value) if forecast is not None else None,
        "at_once": at_once,
        "eta_s": finite(wait.mean_s) if wait is not None else None,
        "eta90_s": finite(wait.point90_s) if wait is not None else None,
    }


def _lets_in_at_once(room: WaitingRoom, line: Line, now: float) -> bool:
    """Whether who joins now need not wait."""
    queues, mode = room.queues, room.policy.mode
    if mode is not Mode.AUTO:
        return mode is Mode.PASS
    return not queues.book.waiting and queues.limits.binding(now) is None and line.gate.allows(now)


async def fullest(lines: Iterable[Line], most: int) -> list[Line]:
    """Return the queues in which the most people wait, at most so many; looked at in parts."""
    found: list[Line] = []
    for part in parts(list(lines), _PART):
        found = nlargest(most, [*found, *part], key=len)
        await trio.lowlevel.checkpoint()
    return found


async def overview(room: WaitingRoom, now: float, most: int = MOST_QUEUES) -> bytes:
    """Return the queue as a whole, and its fullest queues."""
    lines = await fullest(room.queues.lines, most)
    head = dumps(head_row(room, now))
    return head[:-1] + b',"queues":' + await rows_of(lines, lambda line: line_row(room, line, now)) + b"}"


def find_line(room: WaitingRoom, queue: str) -> Line | None:
    """Return a queue, None where it is not open."""
    try:
        return room.queues.lines[queue]
    except KeyError:
        return None


def place_row(room: WaitingRoom | None, client: str, now: float) -> Json | None:
    """Return the place of a client that is known by its id or its whole hash; None where it has none."""
    hashes = [each for each in Who.of(client).hashes if len(each) == _HASH_DIGITS] if client else []
    for known in hashes:
        ticket = room.queues.book.by_client(bytes.fromhex(known)) if room is not None else None
        if room is not None and ticket is not None:
            return _place_row(room, ticket, now)
    return None


def _place_row(room: WaitingRoom, ticket: Ticket, now: float) -> Json:
    line = find_line(room, ticket.queue)
    waits = ticket.stage is WAITING and line is not None
    return {
        "queue": ticket.queue,
        "lane": ticket.lane.name.lower(),
        "stage": ticket.stage.value,
        "ahead": line.ahead(ticket) if line is not None and waits else None,
        "joined_at": finite(wall(ticket.joined_at)),
        "ends_in_s": finite(max(0.0, ticket.due - now)),
        "away": ticket.away,
        "held": ticket.held,
    }
