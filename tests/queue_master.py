"""A master that holds a queue, over the queue of the product: what clients that wait are tested against.

It has no pool: `places` people are let in at a time, until it is told that they have gone.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from lambdamu.address import Address
from lambdamu.machine import LogicalMachine
from lambdamu.messages import DO_SEND_SERVER, MASTER, SERVER, Command, Message, QueueReason, Result
from lambdamu.objects import LMObject, Peer, Reply
from lambdamu.tcp_server import PortLimits, TCPServer, open_listeners
from lambdamu.turns import client_hash
from master.queue import ticket_text
from master.queue.answers import Again, Answer, Closed, Denied, Go, QueueAsk, SignedPlace, Waiting
from master.queue.estimates import Estimates, Outlook
from master.queue.limits import Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import QueuePolicy
from master.queue.polls import PollPolicy
from master.queue.queues import Queues
from master.queue.ticket import Lane
from master.queue.ticket_text import TicketText, queue_hash

_TICKETS = TicketText([b"the secret of the tests"])
_LOOK_S = 1.0


class QueueMaster(LMObject):
    """`to`: the backends it sends to, in turn. `asks`: the Data of each ask. `entered`: `Client` ids, as they got in.

    A Turn is a text that only this master takes; shown as a Ticket it opens the resume lane.
    """

    def __init__(self, *to: Address, places: int = 0, polls_per_s: float = 5000.0, **policy: Any) -> None:
        super().__init__(MASTER, events={DO_SEND_SERVER: self._asked})
        self.asks: list[dict[str, Any]] = []
        self.asked_at: list[float] = []
        self.answers: list[dict[str, Any]] = []
        self.entered: list[str] = []
        self.places = places
        self.address = Address("127.0.0.1", 0)
        self._to = to
        self._turns: dict[str, str] = {}
        self._rng = random.Random(7)
        now = trio.current_time()
        self.estimates = Estimates(self._rng, PollPolicy(polls_per_s))
        self.queues = Queues(now, QueuePolicy(**policy), self.estimates, Numbers([NumberBlock(1, 1 << 40)]))
        self._looked_at = now - _LOOK_S
        self.changed: Callable[[], None] = lambda: None

    def gone(self, count: int = 1) -> None:
        """Let so many have left their backends."""
        self.places += count

    def _asked(self, message: Message, now: float, peer: Peer) -> Reply:
        said = message.data or {}
        self.asks.append(said)
        self.asked_at.append(now)
        self._settle(now)
        answer = self._to_wire(now, said, self.queues.ask(now, self._rng, self._read(said)))
        self.answers.append(answer)
        self.changed()
        return [Message(MASTER, Command.VALUE, SERVER, answer)]

    def _settle(self, now: float) -> None:
        if now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            outlook = Outlook(self.queues.book.waiting, None)
            self.estimates.look(now, {"default": outlook})
        self.queues.settle(now, Room(self.places, why=QueueReason.NO_PLACE))

    def _read(self, said: dict[str, Any]) -> QueueAsk:
        shown = said.get("Ticket", "")
        signed = _TICKETS.read(shown)
        place = None if signed is None else SignedPlace(signed.number, "default", Lane(signed.lane), signed.order)
        return QueueAsk(
            client=client_hash(said["Client"]) if "Client" in said else None,
            place=place,
            lane=Lane.RESUME if shown in self._turns else Lane.PLAIN,
            away=said.get("Away", False),
            leave=said.get("Leave", False),
        )

    def _to_wire(self, now: float, said: dict[str, Any], answer: Answer) -> dict[str, Any]:
        match answer:
            case Waiting():
                return {"Result": Result.WAIT.value, "Data": self._waiting(answer)}
            case Go(ticket):
                backend = self._to[len(self.entered) % len(self._to)]
                turn = f"turn-{len(self._turns)}"
                self._turns[turn] = said["Client"]
                self.queues.claim(now, ticket.number, turn)
                self.entered.append(said["Client"])
                self.places -= 1
                data = {"IP": backend.host, "Port": backend.port, "Turn": turn}
                return {"Result": Result.OK.value, "Data": data}
            case Again(turn):
                backend = self._to[0]
                return {"Result": Result.OK.value, "Data": {"IP": backend.host, "Port": backend.port, "Turn": turn}}
            case Closed(reason, retry_after_s, text):
                data = {"Reason": reason.value, "RetryAfter": retry_after_s, "Text": text}
                return {"Result": Result.CLOSED.value, "Data": data}
            case Denied(reason):
                return {"Result": Result.DENIED.value, "Data": {"Reason": reason.value, "RetryAfter": None}}

    def _waiting(self, waiting: Waiting) -> dict[str, Any]:
        ticket = waiting.ticket
        client = ticket.client or bytes(16)
        place = ticket_text.SignedPlace(
            ticket.number, queue_hash(ticket.queue), ticket.lane, ticket.order, ticket.joined_at, client
        )
        return {
            "Queue": ticket.queue,
            "Ticket": _TICKETS.write(place),
            "Position": waiting.position,
            "ETA": waiting.eta_s,
            "ETA90": waiting.eta90_s,
            "RetryAfter": waiting.retry_after_s,
            "Reason": waiting.reason.value,
        }


@asynccontextmanager
async def queue_master(*to: Address, **options: Any) -> AsyncIterator[QueueMaster]:
    """Serve a `QueueMaster`."""
    master = QueueMaster(*to, **options)
    machine = LogicalMachine("master")
    machine.add(master)
    async with trio.open_nursery() as nursery:
        server = TCPServer(machine, PortLimits(idle_s=10000.0))
        [master.address] = await nursery.start(server.serve, open_listeners(Address("127.0.0.1", 0)))
        yield master
        nursery.cancel_scope.cancel()
