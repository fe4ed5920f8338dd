"""The Master object: a message in, a call of the pool, a message out. No task, no await, no look-up done twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

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
from lambdamu.objects import Later, LMObject, Peer, Quick, Reply
from master.access import Denied
from master.answer_log import Answer, AnswerLog, hash_of, network_of_peer
from master.ask_data import BadDataError, read_ask, spelled
from master.core.backend import FAMILIES, Endpoint, Family
from master.core.ejection import Verdict
from master.core.pool import Ask, Assignment, Member, Pool, Refused
from master.doors import Doors
from master.told import AnswerPolicy, describe
from master.waiting.visits import Outcome, Visit

if TYPE_CHECKING:
    from master.devices import Devices
    from master.waiting.desk import Desk

_ALTERNATES: Final = 2
"""How many other backends a client that wants them is told."""
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
        desk: Desk | None = None,
    ) -> None:
        super().__init__(MASTER, events={DO_SEND_SERVER: self.do_send_server})
        self._pool = pool
        self.policy = policy
        self.rng = rng
        self.observer = observer
        self.answers = answers if answers is not None else AnswerLog()
        self.doors = doors
        self.desk = desk
        self.devices: Devices | None = None
        """What is done for devices, where there is a cache."""
        self._quick = self.quick(encode)

    def do_send_server(self, message: Message, now: float, peer: Peer, *, hold: bool = True) -> Reply:
        """Return the live backend with the most room; to a plain ask, its address and nothing else.

        Whoever has no right to ask, or asks too fast, is told so, and nothing is learned of him. `hold`: whether the
        queue may owe a plain ask its answer.
        """
        doors, data = self.doors, _PLAIN
        if doors is not None and (denied := doors.too_fast(now, peer.host)):
            return self.deny(now, denied, peer, data)
        if message.data is not None:
            try:
                data = read_ask(message.data)
            except BadDataError as exc:
                return [error(message, Code.BAD_DATA, str(exc))]
        judged = doors.judge(data.get("Pass"), peer.subject) if doors is not None else None
        if isinstance(judged, Denied):
            return self.deny(now, judged, peer, data)
        if data.get("Leave") and self.desk is None:
            return self._answer(
                Result.CLOSED, {"Reason": Reason.LEFT, "RetryAfter": None, "Text": "the client has left"}
            )
        client = hash_of(data["Client"]) if data.get("Client") else None
        if client is not None and data.get("Failed"):
            self._hear(now, client, peer, data["Failed"])
        alternates = _ALTERNATES if "Alternates" in data.get("Want", ()) else 0
        # The queue knows itself who asks again; whom it lets in once more needs one more place.
        ask = Ask(peer.family, alternates, data.get("Zone", ""), client, anew=self.desk is not None)
        plain = message.data is None
        if self.desk is None:
            if self.devices is not None:
                ask = self.devices.seek(now, ask, data)
            return self.send_server(now, ask, peer, data, plain=plain)
        rights = judged.rights if judged is not None else ()
        return self._by_queue(now, self.desk, Visit(ask, peer.host, data, rights, plain, plain and hold), peer)

    def _by_queue(self, now: float, desk: Desk, visit: Visit, peer: Peer) -> Reply:
        """Answer as the queue says; who waits on his connection is owed the answer."""
        outcome = desk.ask(now, visit)
        if isinstance(outcome, Outcome):
            return self._say(now, visit, peer, outcome)
        later = Later(cancelled=partial(desk.give_up, outcome.number), fin_cancels=True)
        desk.hold(outcome.number, visit, lambda at, told: later.answer(self._say(at, visit, peer, told)))
        return later

    def _say(self, now: float, visit: Visit, peer: Peer, told: Outcome) -> Sequence[Message]:
        """Note an answer of the desk, and put it into words."""
        self._note(now, visit.ask, peer, told.assignment or told, plain=visit.plain)
        if told.result is Result.OK and self.devices is not None:
            self.devices.sent(peer.host, visit.data)
        return self._answer(told.result, told.data)

    def deny(self, now: float, denied: Denied, peer: Peer, data: Mapping[str, Any] = _PLAIN) -> Sequence[Message]:
        """Say no. It is noted as a plain ask is: strangers push nobody out of the log who may ask."""
        self.observer.denied(denied.reason)
        if now >= self.answers.plain_due:
            client = hash_of(data["Client"]) if data.get("Client") else None
            came = network_of_peer(peer.host), data.get("Zone", "")
            self.answers.note_plain(Answer(now, client, *came, Result.DENIED, denied.reason, None))
        return self._answer(Result.DENIED, {"Reason": denied.reason, "RetryAfter": denied.retry_after_s})

    def send_server(
        self, now: float, ask: Ask, peer: Peer, data: Mapping[str, Any] = _PLAIN, *, plain: bool
    ) -> Sequence[Message]:
        assignment = self._pool.assign(now, self.rng, ask)
        self._note(now, ask, peer, assignment, plain=plain)
        if isinstance(assignment, Refused):
            return self.refuse()
        if self.devices is not None:
            self.devices.sent(peer.host, data)
        return self._answer(Result.OK, describe(assignment, data.get("Want", frozenset()), self.policy.ttl_s))

    def refuse(self) -> Sequence[Message]:
        """Say that no backend can take anyone now."""
        return self._answer(Result.NO_SERVER, {"RetryAfter": self.policy.again_s(self.rng)})

    def _hear(self, now: float, client: str, peer: Peer, failures: list[tuple[str, int, str]]) -> None:
        """Take in where a client could not connect. A backend that is full, or refuses a Turn, works."""
        for full in (False, True):
            failed = [(spelled(ip), port) for ip, port, why in failures if (why in BACKEND_WORKS) is full]
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
        if self.doors is not None and self.doors.certificates_count:
            return None
        answers = QuickAnswers(self, self._pool, pack)
        if self.desk is not None:
            return answers.walk_in
        return answers.answer if self.doors is None else answers.judge

    def _note(self, now: float, ask: Ask, peer: Peer, given: Assignment | Refused | Outcome, *, plain: bool) -> None:
        """Note where somebody was sent, or why not; of plain asks when one is due."""
        if plain and now < self.answers.plain_due:
            return
        if isinstance(given, Assignment):
            answer = self._sent(now, ask, peer, given)
        else:
            result, why = (Result.NO_SERVER, given.why) if isinstance(given, Refused) else (given.result, given.reason)
            answer = Answer(now, ask.client, network_of_peer(peer.host), ask.zone, result, why, None)
        (self.answers.note_plain if plain else self.answers.note)(answer)

    def _sent(self, now: float, ask: Ask, peer: Peer, given: Assignment) -> Answer:
        member = self._pool[given.place.name]
        others = [self._pool[place.name] for place in given.alternates]
        loads = self._loads(now, member, others or self._pool.rivals(member, _RIVALS))
        network = network_of_peer(peer.host)
        return Answer(now, ask.client, network, ask.zone, Result.OK, given.why, given.place.name, loads)

    def _loads(self, now: float, member: Member, rivals: list[Member]) -> tuple[tuple[str, float], ...]:
        """Return the load of the chosen one, this client in it, and of those that it was compared with."""
        x = self._pool.clock.at(now)
        compared = [member, *rivals]
        return tuple([(each.backend.name, each.load_at(x)) for each in compared if each.backend.weight])

    def _answer(self, result: Result, data: Mapping[str, Any]) -> Sequence[Message]:
        self.observer.answered(result)
        return [Message(MASTER, Command.VALUE, SERVER, {"Result": result, "Data": data})]


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

    def walk_in(self, now: float, family: Family, address: tuple[str, int]) -> bytes | None:
        """Answer where there is a queue; None when it has to be asked."""
        desk = self._master.desk
        if desk is None or now >= self._answers.plain_due or not desk.may_walk_in(now):
            return None
        denied = self._denied(now, address)
        if denied is not None:
            return denied
        member = self._pick(now, self._rng)
        if member is None:
            return None
        desk.queues.walked_in(now)
        return self._ok(member, family)

    def judge(self, now: float, family: Family, address: tuple[str, int]) -> bytes:
        """Answer, or say no, where not everybody may ask."""
        return self._denied(now, address) or self.answer(now, family, address)

    def _denied(self, now: float, address: tuple[str, int]) -> bytes | None:
        doors = self._master.doors
        denied = doors and (doors.too_fast(now, address[0]) or doors.without_right(None, ""))
        return self._to_bytes(self._master.deny(now, denied, Peer.from_address(*address[:2]))) if denied else None

    def answer(self, now: float, family: Family, address: tuple[str, int]) -> bytes:
        if now >= self._answers.plain_due:
            peer = Peer.from_address(*address[:2])
            return self._to_bytes(self._master.send_server(now, Ask(family), peer, plain=True))
        member = self._pick(now, self._rng)
        if member is None:
            return self._to_bytes(self._master.refuse())
        return self._ok(member, family)

    def _ok(self, member: Member, family: Family) -> bytes:
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
