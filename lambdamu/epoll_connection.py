"""What the port on Linux holds for a connection, and the order of the deadlines of all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from lambdamu.objects import Farewell, Later, Peer, family_of
from lambdamu.port import LINGER_S, Ending, PortLimits
from lambdamu.wire import Reader

_SWEPT_A_TURN: Final = 256
UNREGISTERED: Final = -1
"""The mask of a connection that the kernel has not been told of."""
_NEVER: Final = float("inf")


_NONE: Final[list[Any]] = []
"""Stands for no answers without a list for each connection; replaced, never appended to."""


class Connection:
    """One connection. Most of them never need more than the first six fields; `fd` is -1 when it has ended."""

    __slots__ = (
        "active_at",
        "address",
        "answers",
        "began",
        "decoder",
        "ending",
        "entry",
        "family",
        "fd",
        "half_closed",
        "mask",
        "out",
        "owed",
        "parting",
        "peer",
        "queued",
        "rest",
        "send_due",
        "thrown_away",
    )

    def __init__(self, fd: int, address: tuple[str, int], now: float) -> None:
        self.fd = fd
        self.address = address
        self.family = family_of(address[0])
        self.active_at = now
        """When something was said last, by either side."""
        self.mask = UNREGISTERED
        """What the kernel watches for."""
        self.entry: Any = None
        """What stands under the conversation or before it; None where nothing does (`lambdamu.epoll_guarded`)."""
        self.decoder: Reader | None = None
        """There only while a batch is not whole or not answered."""
        self.peer: Peer | None = None
        self.out: bytearray | None = None
        """What was answered and not taken yet."""
        self.owed: Later | None = None
        self.parting: Farewell | None = None
        """What was owed, where it is the last that the peer is told."""
        self.rest: Iterator[Any] | None = None
        """What is left of the batch that is being answered, and `answers` to what is done of it."""
        self.answers: list[Any] = _NONE
        self.queued = False
        """Whether it is to be gone on with in the next turn."""
        self.half_closed = False
        self.ending: Ending | None = None
        """How it is to end, when it lingers only."""
        self.thrown_away = 0
        self.began = self.send_due = 0.0

    @property
    def busy(self) -> bool:
        """Whether something else comes before more of its questions."""
        return self.queued or self.owed is not None or bool(self.out)

    def reads(self, most_ahead: int) -> bool:
        """Whether more bytes are wanted: not while answers wait, and ahead of an owed answer only so many."""
        if self.half_closed or self.queued or self.out:
            return False
        return self.owed is None or self.decoder is None or self.decoder.buffered < most_ahead


class Deadlines:
    """All connections by descriptor, and in the order in which their time runs out.

    A deadline of one kind always lies the same time ahead, so those who come last are due last: no heap is needed.
    """

    def __init__(self, limits: PortLimits) -> None:
        self._limits = limits
        self._by_activity: OrderedDict[int, Connection] = OrderedDict()
        """Every connection, the longest silent first."""
        self.get = self._by_activity.get
        """The connection of a descriptor, or None."""
        self.moved = self._by_activity.move_to_end
        """What `touch` does, for the one place that cannot afford the call: it sets `active_at` itself."""
        self._partial: OrderedDict[int, Connection] = OrderedDict()
        """Those that have sent the beginning of a batch."""
        self._sending: OrderedDict[int, Connection] = OrderedDict()
        """Those that have not taken an answer yet."""
        self._lingering: OrderedDict[int, Connection] = OrderedDict()
        """Those that have only to read what they were told."""
        self.rest_until = _NEVER
        """When, at a stop, the rest of a batch is waited for no longer."""
        self.last_call_over = False
        """Whether, at a stop, those with nothing to say have been sent home."""

    def __len__(self) -> int:
        return len(self._by_activity)

    def everyone(self) -> list[Connection]:
        return list(self._by_activity.values())

    def add(self, fd: int, address: tuple[str, int], now: float) -> Connection:
        connection = self._by_activity[fd] = Connection(fd, address, now)
        return connection

    def remove(self, fd: int, connection: Connection) -> None:
        del self._by_activity[fd]
        # A connection that asks once and leaves is in none of the others.
        if connection.decoder is not None:
            self._partial.pop(fd, None)
        if connection.send_due:
            self._sending.pop(fd, None)
        if connection.ending is not None:
            self._lingering.pop(fd, None)

    def touch(self, connection: Connection, now: float) -> None:
        """Something was said."""
        connection.active_at = now
        self._by_activity.move_to_end(connection.fd)

    def partial(self, connection: Connection, now: float) -> None:
        """A batch has begun at `connection.began`; one that began before keeps its place."""
        self._partial[connection.fd] = connection
        if connection.began == now:
            self._partial.move_to_end(connection.fd)

    def whole(self, connection: Connection) -> None:
        """No batch is begun any more."""
        if connection.decoder is not None:
            self._partial.pop(connection.fd, None)

    def sending(self, connection: Connection, now: float) -> None:
        """The peer does not take all of an answer."""
        connection.send_due = now + self._limits.send_s
        self._sending[connection.fd] = connection
        self._sending.move_to_end(connection.fd)

    def sent(self, connection: Connection) -> None:
        """The peer has taken all."""
        connection.send_due = 0.0
        self._sending.pop(connection.fd, None)

    def linger(self, connection: Connection, now: float) -> None:
        """The last word is out."""
        connection.active_at = now
        self._partial.pop(connection.fd, None)
        self._lingering[connection.fd] = connection

    def next_due(self) -> float:
        """Return when somebody's time may run out, infinity for never."""
        limits, due = self._limits, _NEVER
        if connection := _head(self._by_activity):
            due = connection.active_at + limits.idle_s
        if connection := _head(self._partial):
            due = min(due, connection.began + limits.message_s, self.rest_until)
        if connection := _head(self._sending):
            due = min(due, connection.send_due)
        if connection := _head(self._lingering):
            due = min(due, connection.active_at + LINGER_S)
        return due

    def due(self, now: float) -> Iterator[tuple[Connection, Ending]]:
        """Give those whose time is over, a bounded number of them; the caller ends each before it takes the next."""
        for _ in range(_SWEPT_A_TURN):
            found = self._first_due(now)
            if found is None:
                return
            yield found

    def _first_due(self, now: float) -> tuple[Connection, Ending] | None:
        limits = self._limits
        connection = _head(self._partial)
        if connection is not None and min(connection.began + limits.message_s, self.rest_until) <= now:
            return connection, Ending.MESSAGE_DEADLINE
        connection = _head(self._sending)
        if connection is not None and connection.send_due <= now:
            return connection, Ending.SEND_DEADLINE
        connection = _head(self._lingering)
        if connection is not None and connection.active_at + LINGER_S <= now:
            return connection, connection.ending or Ending.LEFT
        return self._first_idle(now)

    def _first_idle(self, now: float) -> tuple[Connection, Ending] | None:
        """Return the longest silent one that is due; those that wait for us or have another deadline get more time."""
        for _ in range(_SWEPT_A_TURN):
            connection = _head(self._by_activity)
            if connection is None or connection.active_at + self._limits.idle_s > now:
                return None
            if not connection.busy and connection.decoder is None and connection.ending is None:
                return connection, Ending.IDLE
            self.touch(connection, now)
        return None


def _head(queue: OrderedDict[int, Connection]) -> Connection | None:
    return next(iter(queue.values()), None)
