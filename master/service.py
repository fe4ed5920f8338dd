"""The Master object: a message in, a call of the pool, a message out. No task, no await, no look-up done twice."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import attrs

from lambdamu.datapack import encode
from lambdamu.messages import (
    DO_SEND_SERVER,
    MASTER,
    SERVER,
    Code,
    Command,
    Message,
    Reason,
    Result,
    as_array,
    as_map,
    as_text,
    error,
)
from lambdamu.objects import LMObject, Peer, Quick, Reply, unmapped
from master.access import Denied
from master.answer_log import Answer, AnswerLog, hash_of, network_of_peer
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
_TEXT_KEYS: Final = {"Client": 128, "Device": 128, "Zone": 128, "Queue": 128, "Ticket": 200, "Pass": 512}
"""The texts a client may send with its ask, and the most bytes of each."""
_BOOL_KEYS: Final = ("Away", "Leave")
_PLAIN: Final[Mapping[str, Any]] = MappingProxyType({})
"""What a plain ask says."""
_EXTRAS: Final = frozenset({"Name", "Alternates", "TTL", "Turn"})


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


class BadDataError(ValueError):
    """The `Data` of an ask has a wrong value; the text names the key."""


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
        self._rng = rng
        self._observer = observer
        self._answers = answers if answers is not None else AnswerLog()
        self._doors = doors
        self._packed: dict[Endpoint, bytes] = {}
        self._pick, self._answered = pool.pick, observer.answered

    def do_send_server(self, message: Message, now: float, peer: Peer) -> Reply:
        """Return the live backend with the most room; to a plain ask, its address and nothing else.

        Whoever has no right to ask, or asks too fast, is told so, and nothing is learned of him.
        """
        doors, data = self._doors, _PLAIN
        if doors is not None and (denied := doors.too_fast(now, peer.host)):
            return self._deny(now, denied, peer, data)
        if message.data is not None:
            try:
                data = read_ask(message.data)
            except BadDataError as exc:
                return [error(message, Code.BAD_DATA, str(exc))]
        if doors is not None and (denied := doors.without_right(data.get("Pass"), peer.subject)):
            return self._deny(now, denied, peer, data)
        if data.get("Leave"):
            return self._answer(
                Result.CLOSED, {"Reason": Reason.LEFT, "RetryAfter": None, "Text": "the client has left"}
            )
        wants: frozenset[str] = data.get("Want", frozenset())
        client = hash_of(data["Client"]) if data.get("Client") else None
        if client is not None:
            self._hear(now, client, peer, data.get("Failed", []))
        ask = Ask(peer.family, _ALTERNATES if "Alternates" in wants else 0, data.get("Zone", ""), client)
        return self._send_server(now, ask, peer, wants, plain=message.data is None)

    def _deny(self, now: float, denied: Denied, peer: Peer, data: Mapping[str, Any]) -> Sequence[Message]:
        """Say no. It is noted as a plain ask is: strangers push nobody out of the log who may ask."""
        self._observer.denied(denied.reason)
        if now >= self._answers.plain_due:
            client = hash_of(data["Client"]) if data.get("Client") else None
            came = network_of_peer(peer.host), data.get("Zone", "")
            self._answers.note_plain(Answer(now, client, *came, Result.DENIED, denied.reason, None))
        return self._answer(Result.DENIED, {"Reason": denied.reason, "RetryAfter": denied.retry_after_s})

    def _send_server(
        self, now: float, ask: Ask, peer: Peer, wants: frozenset[str] = frozenset(), *, plain: bool
    ) -> Sequence[Message]:
        assignment = self._pool.assign(now, self._rng, ask)
        if not plain or now >= self._answers.plain_due:
            self._note(now, ask, peer, assignment, plain=plain)
        if isinstance(assignment, Assignment):
            return self._answer(Result.OK, self._ok(assignment, wants))
        return self._answer(Result.NO_SERVER, {"RetryAfter": self._retry_after()})

    def _hear(self, now: float, client: str, peer: Peer, failures: list[tuple[str, int, str]]) -> None:
        """Take in where a client could not connect. A backend that said that it is full works."""
        newest = failures[-_MOST_FAILED:]
        for full in (False, True):
            failed = [(_spelled(ip), port) for ip, port, why in newest if (why == Code.FULL) is full]
            for name, verdict in self._pool.hear(now, self._rng, client, peer.host, failed, full=full):
                self._observer.accused(name, verdict)

    def prepare(self, message: Message) -> Quick | None:
        """Return what answers a plain ask: the choice is made each time, its bytes are packed once for each address.

        None where a certificate may give the right: it has to be known whose connection it is.
        """
        plain = message.command == Command.EVENT and message.name == DO_SEND_SERVER and message.data is None
        if not plain or self._doors is None:
            return self._send_server_quickly if plain else None
        return None if self._doors.certificates_count else partial(self._judge_quickly, self._doors)

    def _judge_quickly(self, doors: Doors, now: float, family: Family, address: tuple[str, int]) -> bytes:
        denied = doors.too_fast(now, address[0]) or doors.without_right(None, "")
        if denied is None:
            return self._send_server_quickly(now, family, address)
        return encode(self._deny(now, denied, Peer.from_address(*address[:2]), _PLAIN))

    def _send_server_quickly(self, now: float, family: Family, address: tuple[str, int]) -> bytes:
        if now >= self._answers.plain_due:
            return encode(self._send_server(now, Ask(family), Peer.from_address(*address[:2]), plain=True))
        member = self._pick(now, self._rng)
        if member is None:
            return encode(self._answer(Result.NO_SERVER, {"RetryAfter": self._retry_after()}))
        self._answered(Result.OK)
        endpoint = member.told[family]
        return self._packed.get(endpoint) or self._pack(endpoint)

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
            self._answers.note_plain(answer)
        else:
            self._answers.note(answer)

    def _loads(self, now: float, member: Member, rivals: list[Member]) -> tuple[tuple[str, float], ...]:
        """Return the load of the chosen one, this client in it, and of those that it was compared with."""
        x = self._pool.clock.at(now)
        compared = [member, *rivals]
        return tuple([(each.backend.name, each.load_at(x)) for each in compared if each.backend.weight])

    def _pack(self, endpoint: Endpoint) -> bytes:
        if len(self._packed) > 2 * len(FAMILIES) * len(self._pool):
            self._packed.clear()  # names that go from address to address leave old ones behind
        ip, port = endpoint
        message = Message(MASTER, Command.VALUE, SERVER, {"Result": Result.OK, "Data": {"IP": ip, "Port": port}})
        packed = self._packed[endpoint] = encode([message])
        return packed

    def _answer(self, result: Result, data: Mapping[str, Any]) -> Sequence[Message]:
        self._observer.answered(result)
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
        return self.policy.retry_after_s * self._rng.uniform(0.5, 1.5)


def _address(place: Place) -> dict[str, Any]:
    ip, port = place.endpoint
    return {"IP": ip, "Port": port}


def read_ask(data: Any) -> dict[str, Any]:
    """Return the known keys of an ask's `Data`, texts as str and `Want` as a set. Raise BadDataError on a wrong value.

    Unknown keys, and unknown words in `Want`, are left out: they belong to versions to come.
    """
    given = as_map(data)
    if given is None:
        raise BadDataError("Data must be a map")
    known: dict[str, Any] = {
        key: _text(given[key], key, limit) for key, limit in _TEXT_KEYS.items() if given.get(key) is not None
    }
    for key in _BOOL_KEYS:
        if given.get(key) is not None:
            known[key] = _bool(given[key], key)
    known["Want"] = _wants(given.get("Want"))
    if given.get("Failed") is not None:
        known["Failed"] = _failures(given["Failed"])
    return known


def _text(value: Any, key: str, limit: int) -> str:
    text = as_text(value)
    if text is None:
        raise BadDataError(f"{key} must be a text")
    if len(text.encode()) > limit:
        raise BadDataError(f"{key} must be at most {limit} bytes long")
    return text


def _spelled(ip: str) -> str:
    """Return an address as it is told to clients. What is no address was told to nobody, and so is nobody's."""
    try:
        return unmapped(str(ipaddress.ip_address(ip)))
    except ValueError:
        return ""


def _bool(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise BadDataError(f"{key} must be true or false")
    return value


def _wants(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    words = [as_text(word) for word in _array(value, "Want")]
    if None in words:
        raise BadDataError("Want must be an array of texts")
    return _EXTRAS.intersection(word for word in words if word)


def _failures(value: Any) -> list[tuple[str, int, str]]:
    failures = []
    for item in _array(value, "Failed"):
        fields = as_map(item)
        port = fields.get("Port") if fields is not None else None
        if fields is None or type(port) is not int or not 0 < port < 65536:
            raise BadDataError(
                "Failed must be an array of maps with a text IP, a Port from 1 to 65535 and, if any, a text Why"
            )
        why = fields.get("Why")
        why = "" if why is None else _text(why, "Failed.Why", 128)
        failures.append((_text(fields.get("IP"), "Failed.IP", 64), port, why))
    return failures


def _array(value: Any, key: str) -> Sequence[Any]:
    array = as_array(value)
    if array is None:
        raise BadDataError(f"{key} must be an array")
    return array
