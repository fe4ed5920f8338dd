"""The routes of the virtual queue: how it stands, and what an operator wants of it."""

from __future__ import annotations

import math
import time
from typing import Any, Final

import attrs
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lambdamu.address import printable
from master.config import BOUNDS
from master.config_queue import QueueConfig
from master.queue.policy import Mode
from master.waiting.orders import AS_CONFIGURED, KEYS, WHOLE, Order
from master.waiting.room import WaitingRoom
from master.web.controls import ControlError
from master.web.desk import Desk
from master.web.queue_views import NO_LIMIT, find_line, line_row, overview
from master.web.reading import answer_json, caller_of, read_object, read_reason

_NONE: Final = "there is no queue: the configuration of this master has no [queue]"
_MOST_ID: Final = 128
"""The wire knows no longer ids."""
_KEYS: Final = frozenset({"reason", "reset", *KEYS})
_BOUNDS: Final = BOUNDS[QueueConfig]


def queue_routes(desk: Desk) -> list[Route]:
    api = _QueueApi(desk)
    return [
        Route("/api/v1/queue", api.whole, methods=["GET"]),
        Route("/api/v1/queue", api.order, methods=["POST"]),
        Route("/api/v1/queue/{queue:path}", api.one, methods=["GET"]),
        Route("/api/v1/queue/{queue:path}", api.order, methods=["POST"]),
    ]


@attrs.define(eq=False)
class _QueueApi:
    _desk: Desk

    async def whole(self, _request: Request) -> Response:
        return answer_json(await overview(self._room(), trio.current_time()))

    async def one(self, request: Request) -> Response:
        room, queue = self._room(), request.path_params["queue"]
        line = find_line(room, queue)
        if line is None:
            raise HTTPException(404, f"there is no queue {printable(queue)} now: nobody has asked for it lately")
        return answer_json(line_row(room, line, trio.current_time()))

    async def order(self, request: Request) -> Response:
        room = self._room()
        queue = self._queue(room, request)
        caller = caller_of(request)
        reason, order = _read_order(await request.body(), queue, caller.name)
        controls = self._desk.controls
        if controls is None:
            raise HTTPException(501, "the queue cannot be changed here")
        try:
            controls.order_queue(queue, order, who=caller.name, reason=reason)
        except ControlError as exc:
            raise HTTPException(409, str(exc)) from exc
        wanted = AS_CONFIGURED if order is None else order.describe()
        which = f"queue {queue}" if queue else "the queue"
        self._desk.events.add(trio.current_time(), "operator", f"{which}: {wanted}, by {caller.name}: {reason}")
        return answer_json({"queue": queue, "wanted": wanted, "who": caller.name})

    def _queue(self, room: WaitingRoom, request: Request) -> str:
        """Return which queue a change is for: one that is open, can be opened, or is wanted otherwise already."""
        if "queue" not in request.path_params:
            return WHOLE
        queue: str = request.path_params["queue"]
        fits = any(template.fits(queue) for template in room.policy.templates)
        if 0 < len(queue) <= _MOST_ID and (fits or queue in room.orders or find_line(room, queue) is not None):
            return queue
        raise HTTPException(404, f"there is no queue {printable(queue)}, and no template fits it")

    def _room(self) -> WaitingRoom:
        if self._desk.room is None:
            raise HTTPException(404, _NONE)
        return self._desk.room


def _read_order(body: bytes, queue: str, who: str) -> tuple[str, Order | None]:
    """Return why something is wanted and what, None for as configured. Raise HTTPException with one line."""
    given = read_object(body, "a reason and what is wanted")
    if given.keys() - _KEYS:
        known = ", ".join(KEYS)
        raise HTTPException(400, f"the body holds what is not known; it has a reason and some of {known}, or reset")
    reason = read_reason(given.get("reason"))
    wanted = {key: given[key] for key in KEYS if given.get(key) is not None}
    reset = given.get("reset", False)
    if not isinstance(reset, bool) or reset == bool(wanted):
        raise HTTPException(400, f"one of {', '.join(KEYS)} must be wanted, or else reset be true")
    if queue and wanted.keys() - {"per_minute"}:
        raise HTTPException(400, "of one queue only per_minute can be set; all else is of the queue as a whole")
    if reset:
        return reason, None
    return reason, Order(who, reason, time.time(), **{key: _READERS[key](value) for key, value in wanted.items()})


def _read_mode(value: object) -> Mode:
    if not isinstance(value, str) or value not in list(Mode):
        raise HTTPException(400, f"mode must be one of {', '.join(Mode)}")
    return Mode(value)


def _read_text(value: object) -> str:
    most = int(_BOUNDS["text"].most)
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise HTTPException(400, "text must be a text of whole characters")
    if len(value.encode()) > most:
        raise HTTPException(400, f"text must have at most {most} bytes")
    return value


def _read_rate(value: object) -> float:
    if value == NO_LIMIT:
        return math.inf
    return _read_number("per_minute", value, f', or "{NO_LIMIT}"')


def _read_load(value: object) -> float:
    return _read_number("target_load", value)


def _read_number(key: str, value: object, more: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value not in _BOUNDS[key]:
        raise HTTPException(400, f"{key} must be a number {_BOUNDS[key]}{more}")
    return float(value)


_READERS: Final[dict[str, Any]] = {
    "mode": _read_mode,
    "text": _read_text,
    "per_minute": _read_rate,
    "target_load": _read_load,
}
