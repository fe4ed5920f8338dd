"""The queues that are open, by id; from which template one is opened, and when it is closed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from lambdamu.messages import QueueReason
from master.queue.line import Line
from master.queue.policy import TemplatePolicy

DEFAULT: Final = "default"


class Lines:
    """At most `most` queues, and `default`, which nobody shuts out by opening others.

    One to which no ticket belongs any more makes room for another when there is need.
    """

    def __init__(self, templates: tuple[TemplatePolicy, ...], most: int) -> None:
        self._templates = templates
        self._most = most
        self._lines: dict[str, Line] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def used(self) -> int:
        """How many have a ticket: the others make room when there is need."""
        return len(self._lines) - len(self._idle)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def __getitem__(self, queue: str) -> Line:
        return self._lines[queue]

    def get(self, queue: str) -> Line | None:
        """Return a queue if it is open."""
        return self._lines.get(queue)

    def set(self, now: float, templates: tuple[TemplatePolicy, ...], most: int) -> None:
        """Take on other templates; a queue whose id fits none any more stays as it is until it is empty."""
        self._templates, self._most = templates, most
        for line in self:
            template = self._template(line.queue)
            line.fits = template is not None
            line.set(now, template or line.template)

    def called(self, queue: str) -> str:
        """Return the queue that serves asks for `queue`: that one, or `default` where no template fits."""
        line = self._lines.get(queue)
        # Of one that is open it is known: to try the patterns at each ask would cost a twentieth of it.
        fits = line.fits if line is not None else self._template(queue) is not None
        return queue if fits else DEFAULT

    def open(self, now: float, queue: str) -> Line | QueueReason:
        """Return a queue, opened if need be; else why there is none."""
        if queue in self._lines:
            return self._lines[queue]
        template = self._template(queue)
        if template is None:
            return QueueReason.NO_QUEUE
        if len(self._lines) >= self._most and not self._close_one() and queue != DEFAULT:
            return QueueReason.FULL
        return self._put(Line(queue, template, now))

    def open_again(self, now: float, queue: str) -> Line:
        """Return a queue that was open before a restart, whatever the templates are now."""
        if queue in self._lines:
            return self._lines[queue]
        template = self._template(queue)
        line = self._put(Line(queue, template or TemplatePolicy(queue), now))
        line.fits = template is not None
        return line

    def enter(self, queue: str) -> None:
        """Count a ticket that belongs to a queue."""
        self._lines[queue].tickets += 1
        self._idle.pop(queue, None)

    def leave(self, queue: str) -> None:
        """Count one that does no longer."""
        line = self._lines[queue]
        line.tickets -= 1
        if not line.tickets:
            self._idle[queue] = None

    def _put(self, line: Line) -> Line:
        self._lines[line.queue] = line
        self._idle[line.queue] = None
        return line

    def _close_one(self) -> bool:
        if not self._idle:
            return False
        queue, _ = self._idle.popitem(last=False)
        del self._lines[queue]
        return True

    def _template(self, queue: str) -> TemplatePolicy | None:
        return next((each for each in self._templates if each.fits(queue)), None)
