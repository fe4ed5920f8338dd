"""The Master object: a message in, a call of the pool, a message out. No task, no await, no look-up done twice."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import attrs

from lambdamu.datapack import encode
from lambdamu.messages import (
    BACKEND_WORKS,
    DO_SEND_SERVER,
    MASTER,
    SERVER,
    Code,
    Command,
    Message,
    Reason,
    Result,
    error,
)
from lambdamu.objects import LMObject, Peer, Quick, Reply, unmapped
from master.access import Denied
from master.answer_log import Answer, AnswerLog, hash_of, network_of_peer
from master.ask_data import BadDataError, read_ask
from master.core.backend import FAMILIES, Endpoint, Family
from master.core.ejection import Verdict
from master.core.pool import Ask, Assignment, Member, Place, Pool, Refused
from master.core.reading import find_rivals
from master.doors import Doors

_ALTERNATES: Final = 2
"""How many other backends a client that wants them is told."""
_MOST_FAILED: Final = 64
"""So many failed places are looked at, the last: a batch of thousands would keep everybody else waiting."""
_RIVALS: Final = 2
"""How many others the log of answers names beside the chosen one, with their loads."""
_PLAIN: Final[Mapping[str, Any]] = MappingProxyType({})
"""What a plain ask says."""


class AskObserver(Protocol):
    """Hears how each ask was answered, and what clients say of backends."""

    def answered(self, result: Result) -> None: ...

    def denied(self, reason: Reason) -> None:
        """An ask was answered with Denied, and why."""

    def accused(self, name: str, verdict: Verdict) -> None:
        """A client that was sent to the backend `name` says that it could not use it."""


@attrs.frozen
class AnswerPolicy:
    """`ttl_s`: for how long a client may use an answer. `retry_after_s`: when to ask again, jittered by half of it."""

    ttl_s: float
    retry_after_s: float


class Master(LMObject):
    """Answers clients that ask where to connect."""

    def __init__(
        self,
        pool: Pool,
        policy: AnswerPolicy,
        rng: random.Random,
        observer: AskObserver,
        answers: AnswerLog | None = None,
        doors: Doors | None = None,
    ) -> None:
        super().__init__(MASTER, events={DO_SEND_SERVER: self.do_send_server})
        self._pool = pool
        self.policy = policy
        self.rng = rng
        self.observer = observer
        self.answers = answers if answers is not None else AnswerLog()
        self.doors = doors
        self._quick = self.quick(encode)

    def do_send_server(self, message: Message, now: float, peer: Peer, *, hold: bool = True) -> Reply:  # noqa: ARG002
        """Return the live backend with the most room; to a plain ask, its address and nothing else.

        Whoever has no right to ask, or asks too fast, is told so, and nothing is learned of him.
        """
        doors, data = self.doors, _PLAIN
        if doors is not None and (denied := doors.too_fast(now, peer.host)):
            return self.deny(now, denied, peer, data)
        if message.data is not None:
            try:
                data = read_ask(message.data)
            except BadDataError as exc:
                return [error(message, Code.BAD_DATA, str(exc))]
        if doors is not None and (denied := doors.without_right(data.get("Pass"), peer.subject)):
            return self.deny(now, denied, peer, data)
        if data.get("Leave"):
            return self._answer(
                Result.CLOSED, {"Reason": Reason.LEFT, "RetryAfter": None, "Text": "the client has left"}
            )
        wants: frozenset[str] = data.get("Want", frozenset())
        client = hash_of(data["Client"]) if data.get("Client") else None
        if client is not None:
            self._hear(now, client, peer, data.get("Failed", []))
        ask = Ask(peer.family, _ALTERNATES if "Alternates" in wants else 0, data.get("Zone", ""), client)
        return self.send_server(now, ask, peer, wants, plain=message.data is None)

    def deny(self, now: float, denied: Denied, peer: Peer, data: Mapping[str, Any] = _PLAIN) -> Sequence[Message]:
        """Say no. It is noted as a plain ask is: strangers push nobody out of the log who may ask."""
        self.observer.denied(denied.reason)
        if now >= self.answers.plain_due:
            client = hash_of(data["Client"]) if data.get("Client") else None
            came = network_of_peer(peer.host), data.get("Zone", "")
            self.answers.note_plain(Answer(now, client, *came, Result.DENIED, denied.reason, None))
        return self._answer(Result.DENIED, {"Reason": denied.reason, "RetryAfter": denied.retry_after_s})

    def send_server(
        self, now: float, ask: Ask, peer: Peer, wants: frozenset[str] = frozenset(), *, plain: bool
    ) -> Sequence[Message]:
        assignment = self._pool.assign(now, self.rng, ask)
        if not plain or now >= self.answers.plain_due:
            self._note(now, ask, peer, assignment, plain=plain)
        if isinstance(assignment, Assignment):
            return self._answer(Result.OK, self._ok(assignment, wants))
        return self.refuse()

    def refuse(self) -> Sequence[Message]:
        """Say that no backend can take anyone now."""
        return self._answer(Result.NO_SERVER, {"RetryAfter": self._retry_after()})

    def _hear(self, now: float, client: str, peer: Peer, failures: list[tuple[str, int, str]]) -> None:
        """Take in where a client could not connect. A backend that is full, or refuses a Turn, works."""
        newest = failures[-_MOST_FAILED:]
        for full in (False, True):
            failed = [(_spelled(ip), port) for ip, port, why in newest if (why in BACKEND_WORKS) is full]
            for name, verdict in self._pool.hear(now, self.rng, client, peer.host, failed, full=full):
                self.observer.accused(name, verdict)

    def prepare(self, message: Message) -> Quick | None:
        """Return what answers a plain ask: the choice is made each time, its bytes are packed once for each address."""
        plain = message.command == Command.EVENT and message.name == DO_SEND_SERVER and message.data is None
        return self._quick if plain else None

    def quick(self, pack: Callable[[Sequence[Message]], bytes]) -> Quick | None:
        """Return what answers plain asks in the bytes that `pack` makes.

        None where a certificate may give the right: it has to be known whose connection it is.
        """
        if self.doors is None:
            return QuickAnswers(self, self._pool, pack).answer
        return None if self.doors.certificates_count else QuickAnswers(self, self._pool, pack).judge

    def _note(self, now: float, ask: Ask, peer: Peer, given: Assignment | Refused, *, plain: bool) -> None:
        network = network_of_peer(peer.host)
        if isinstance(given, Assignment):
            member = self._pool[given.place.name]
            others = [self._pool[place.name] for place in given.alternates]
            loads = self._loads(now, member, others or find_rivals(self._pool, member, _RIVALS))
            answer = Answer(now, ask.client, network, ask.zone, Result.OK, given.why, given.place.name, loads)
        else:
            answer = Answer(now, ask.client, network, ask.zone, Result.NO_SERVER, given.why, None)
        if plain:
            self.answers.note_plain(answer)
        else:
            self.answers.note(answer)

    def _loads(self, now: float, member: Member, rivals: list[Member]) -> tuple[tuple[str, float], ...]:
        """Return the load of the chosen one, this client in it, and of those that it was compared with."""
        x = self._pool.clock.at(now)
        compared = [member, *rivals]
        return tuple([(each.backend.name, each.load_at(x)) for each in compared if each.backend.weight])

    def _answer(self, result: Result, data: Mapping[str, Any]) -> Sequence[Message]:
        self.observer.answered(result)
        return [Message(MASTER, Command.VALUE, SERVER, {"Result": result, "Data": data})]

    def _ok(self, assignment: Assignment, wants: frozenset[str]) -> dict[str, Any]:
        answer = _address(assignment.place)
        if "Name" in wants:
            answer["Name"] = assignment.place.name
        if "Alternates" in wants:
            answer["Alternates"] = [{**_address(place), "Name": place.name} for place in assignment.alternates]
        if "TTL" in wants:
            answer["TTL"] = self.policy.ttl_s
        return answer

    def _retry_after(self) -> float:
        """Return seconds, jittered, so that those who were turned away together do not come back together."""
        return self.policy.retry_after_s * self.rng.uniform(0.5, 1.5)


def _address(place: Place) -> dict[str, Any]:
    ip, port = place.endpoint
    return {"IP": ip, "Port": port}


def _spelled(ip: str) -> str:
    """Return an address as it is told to clients. What is no address was told to nobody, and so is nobody's."""
    try:
        return unmapped(str(ipaddress.ip_address(ip)))
    except ValueError:
        return ""


class QuickAnswers:
    """Answers plain asks of which no more is known than where they come from, in one wire."""

    def __init__(self, master: Master, pool: Pool, pack: Callable[[Sequence[Message]], bytes]) -> None:
        """`pack` turns an answer into bytes."""
        self._master = master
        self._pool = pool
        self._to_bytes = pack
        self._packed: dict[Endpoint, bytes] = {}
        self._pick, self._answered = pool.pick, master.observer.answered
        self._rng, self._answers = master.rng, master.answers

    def judge(self, now: float, family: Family, address: tuple[str, int]) -> bytes:
        """Answer, or say no, where not everybody may ask."""
        doors = self._master.doors
        denied = doors and (doors.too_fast(now, address[0]) or doors.without_right(None, ""))
        if not denied:
            return self.answer(now, family, address)
        return self._to_bytes(self._master.deny(now, denied, Peer.from_address(*address[:2])))

    def answer(self, now: float, family: Family, address: tuple[str, int]) -> bytes:
        if now >= self._answers.plain_due:
            peer = Peer.from_address(*address[:2])
            return self._to_bytes(self._master.send_server(now, Ask(family), peer, plain=True))
        member = self._pick(now, self._rng)
        if member is None:
            return self._to_bytes(self._master.refuse())
        self._answered(Result.OK)
        endpoint = member.told[family]
        return self._packed.get(endpoint) or self._pack(endpoint)

    def _pack(self, endpoint: Endpoint) -> bytes:
        if len(self._packed) > 2 * len(FAMILIES) * len(self._pool):
            self._packed.clear()  # names that go from address to address leave old ones behind
        ip, port = endpoint
        message = Message(MASTER, Command.VALUE, SERVER, {"Result": Result.OK, "Data": {"IP": ip, "Port": port}})
        packed = self._packed[endpoint] = self._to_bytes([message])
        return packed
