"""The log: one event for each change of state, to standard error. Text from outside is escaped, and nothing floods.

For people it is a line; for machines a JSON object with the names of the Elastic Common Schema (ECS), where what is
ours alone stands under `lambdamu`.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import attrs
import ecs_logging
import structlog

_LINE_BYTES: Final = 4000
"""A pipe that takes anything takes so much at once (POSIX: PIPE_BUF); a longer line is cut."""


_ERRORS: Final = ("error", "fault", "text")
"""Under these an event tells what is wrong."""


class Sink:
    """Where the lines go: a descriptor that is written to only when it takes a line at once.

    A disk that is full, a reader that has stalled or gone must not stop a master: such a line is dropped and counted.
    """

    def __init__(self, descriptor: int | None) -> None:
        """`descriptor` None: there is none, as where standard error was closed before the start."""
        self.dropped = 0
        self._descriptor = descriptor

    def msg(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")[:_LINE_BYTES] + b"\n"
        try:
            if self._descriptor is None or not select.select([], [self._descriptor], [], 0)[1]:
                self.dropped += 1
            else:
                os.write(self._descriptor, data)
        except (OSError, ValueError):  # ValueError: a number too large for select
            self.dropped += 1

    debug = info = warning = error = critical = msg


def standard_error() -> Sink:
    # Closed at the start, the number 2 is free, and the next file or socket may get it.
    return Sink(2 if sys.stderr is not None else None)


def make_logger(sink: Sink, *, json: bool, level: str = "info") -> structlog.typing.FilteringBoundLogger:
    """Return a logger that writes lines for people, or JSON. Nothing below `level`, such as "info", is written."""
    least = logging.getLevelNamesMapping()[level.upper()]
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        sink,
        processors=[_escape, *(_for_machines() if json else _for_people())],
        wrapper_class=structlog.make_filtering_bound_logger(least),
    )
    return logger


def _for_people() -> list[structlog.typing.Processor]:
    # Tracebacks leave the locals out: they may hold what a client sent.
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]


def _for_machines() -> list[structlog.typing.Processor]:
    as_json = ecs_logging.StructlogFormatter()
    return [lambda logger, method, event: as_json(logger, method, _name_as_ecs(event))]


def _name_as_ecs(event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Give each field its name in ECS: the event is `event.action`, an error `error.message`; the rest is ours."""
    action, said = event.pop("event"), event.pop("message", None)
    error = next((event.pop(key) for key in _ERRORS if key in event), None)
    about, told = event.get("backend") or (event.get("address") if error else None), said or error
    if about and ":" in about and f"{told} ".startswith((f"{about}:", f"{about} ")):
        about = None  # what is told begins with that address already
    words = [action.replace("_", " "), about, told]
    named: dict[str, Any] = {f"lambdamu.{key}": value for key, value in event.items() if value is not None}
    if error is not None:
        named["error.message"] = error
    # What structlog calls the event is the message of ECS.
    return {
        **named,
        "event": ": ".join(str(word) for word in words if word),
        "event.action": action,
        "service.name": "lambdamu",
    }


def _escape(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make control characters visible, so that a name cannot write a line of its own."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = value.encode("unicode_escape").decode()
    return event


@attrs.define(eq=False)
class Throttle:
    """Lets `burst` events through at once and then one in `period_s`; the next one tells how many were held back."""

    period_s: float
    burst: int = 1
    _due: float = attrs.field(default=-float("inf"), init=False)
    _held: int = attrs.field(default=0, init=False)

    def let_through(self, now: float) -> int | None:
        """Return how many were held back since the last one, or None when this one is to be held back too."""
        if self._due - (self.burst - 1) * self.period_s > now:
            self._held += 1
            return None
        held, self._held = self._held, 0
        self._due = max(self._due, now) + self.period_s
        return held
