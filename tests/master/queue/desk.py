"""A queue with a clock, and clients by name: what the tests of the queue are told with."""

from __future__ import annotations

import random
from typing import Any

from master.queue.answers import Answer, Go, QueueAsk, Settled, SignedPlace, Waiting
from master.queue.limits import Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import QueuePolicy
from master.queue.queues import Queues
from master.queue.ticket import Ticket


class Steady:
    """Has everybody ask again after the same time, and notes what it hears."""

    def __init__(self, retry_after_s: float = 2.0) -> None:
        self.retry_after_s = retry_after_s
        self.heard: list[tuple[str, int]] = []

    def eta(self, _now: float, _ticket: Ticket, _ahead: int) -> tuple[float | None, float | None]:
        return None, None

    def retry_after(self, _now: float, _rng: random.Random, _ticket: Ticket, _ahead: int) -> float:
        return self.retry_after_s

    def called(self, now: float, ticket: Ticket) -> None:
        self.heard.append(("called", ticket.number))

    def claimed(self, now: float, ticket: Ticket) -> None:
        self.heard.append(("claimed", ticket.number))

    def no_show(self, now: float, ticket: Ticket) -> None:
        self.heard.append(("no_show", ticket.number))

    def left(self, now: float, ticket: Ticket) -> None:
        self.heard.append(("left", ticket.number))


class Desk:
    """`free` places are left to the queue at each `settle`; who claims takes one of them."""

    def __init__(self, free: int | None = 0, first: int = 1, estimator: Steady | None = None, **policy: Any) -> None:
        self.now = 1000.0
        self.free = free
        self.rng = random.Random(7)
        self.estimator = estimator or Steady()
        self.queues = Queues(
            self.now, QueuePolicy(**policy), self.estimator, Numbers([NumberBlock(first, first + 100_000)])
        )
        self.settle()

    def settle(self, **room: Any) -> Settled:
        return self.queues.settle(self.now, Room(self.free, **room))

    def after(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass; the shell settles each second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + step, until)
            self.settle()

    def ask(self, who: str | None, **ask: Any) -> Answer:
        client = who.encode() if who is not None else None
        return self.queues.ask(self.now, self.rng, QueueAsk(client=client, **ask))

    def join(self, *names: str, **ask: Any) -> list[Answer]:
        return [self.ask(name, **ask) for name in names]

    def position(self, who: str, **ask: Any) -> int:
        answer = self.ask(who, **ask)
        assert isinstance(answer, Waiting), answer
        return answer.position

    def enter(self, who: str | None, **ask: Any) -> Ticket:
        """Ask, be told to go, and take the place."""
        answer = self.ask(who, **ask)
        assert isinstance(answer, Go), answer
        assert self.queues.claim(self.now, answer.ticket.number, f"place of {who}")
        if self.free is not None:
            self.free -= 1
        return answer.ticket

    def ticket(self, who: str) -> Ticket:
        ticket = self.queues.book.by_client(who.encode())
        assert ticket is not None
        return ticket

    def line(self, queue: str = "default") -> list[str]:
        return [(ticket.client or b"").decode() for ticket in self.queues.lines[queue]]


def signed(ticket: Ticket) -> SignedPlace:
    """Return what the text of a ticket would say."""
    return SignedPlace(ticket.number, ticket.queue, ticket.lane, ticket.order)
