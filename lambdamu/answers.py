"""What masters and backends say to a client: a batch in, and what it means out. Pure."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from lambdamu.address import MAX_PORT, Address, printable
from lambdamu.breaker import Fault
from lambdamu.datapack import dump
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import (
    AUTH,
    MASTER,
    SERVER,
    SESSION,
    TASK_OBJECT,
    TURN,
    Batch,
    Command,
    LinkFault,
    Message,
    Result,
    as_array,
    as_count,
    as_map,
    as_text,
)

_MAX_ALTERNATES: Final = 16
_WHY_CHARS: Final = 32
_SIGNED_BYTES: Final = 200
"""A Ticket and a Turn are no longer."""
_LONGEST_TOLD_S: Final = 1e9
"""Nobody waits for longer, and the number would fill the line."""
_OURS: Final = frozenset({LinkFault.NO_DESCRIPTOR, LinkFault.NO_ADDRESS, LinkFault.UNREACHABLE})
"""A device without a network fails so, at once and with everybody. None of them got a call, so none shall be left alone
for it: or the device would go on waiting when its network is back."""

_FOR_GOOD: Final = frozenset({LinkFault.CERTIFICATE, LinkFault.TLS})
"""A moment later a peer shows the same certificate, and speaks TLS as little."""


@attrs.frozen
class Place:
    """Where a client stands in a queue. `position`: people ahead, 0: it is next; `eta_s`, `eta90_s`: the wait that is
    left, its mean and what nine in ten waits do not exceed. None: unknown. `reason`: why it waits, one word.
    """

    position: int | None
    eta_s: float | None
    eta90_s: float | None
    retry_after_s: float
    reason: str | None = None
    queue: str | None = None


@attrs.frozen
class Answer:
    """What a master said. `ip`, an address in text form, and `port` are there where `result` is OK."""

    result: Result
    ip: str | None
    port: int | None
    data: Mapping[Any, Any]
    """The map inside, as it came: its values are not checked."""

    @property
    def endpoint(self) -> Address | None:
        """Where to go; None where there is nowhere."""
        return None if self.ip is None or self.port is None else Address(self.ip, self.port)

    @property
    def places(self) -> tuple[tuple[Address, str | None], ...]:
        """Where to go, the best first, and what the master calls each; an alternate that is no address is left out."""
        alternates = (as_array(self.data.get("Alternates")) or ())[:_MAX_ALTERNATES]
        found = ((_endpoint(each), each) for each in (self.data, *(as_map(item) or {} for item in alternates)))
        return tuple((address, as_text(each.get("Name"))) for address, each in found if address is not None)

    @property
    def ttl_s(self) -> float | None:
        """For how many seconds the answer may be used; None for no bound."""
        return _seconds(self.data.get("TTL"))

    @property
    def retry_after_s(self) -> float | None:
        """When to ask again, in seconds; None where the master has not said."""
        return _seconds(self.data.get("RetryAfter"))

    @property
    def reason(self) -> str | None:
        return as_text(self.data.get("Reason"))

    @property
    def place(self) -> Place | None:
        """Where it stands, if it is to wait and was told when to ask again: no other Wait is to the protocol."""
        retry_after_s = self.retry_after_s
        if self.result is not Result.WAIT or retry_after_s is None:
            return None
        eta_s, eta90_s = _seconds(self.data.get("ETA")), _seconds(self.data.get("ETA90"))
        position, queue = as_count(self.data.get("Position")), as_text(self.data.get("Queue"))
        return Place(position, eta_s, eta90_s, retry_after_s, self.reason, queue)

    @property
    def ticket(self) -> str | None:
        """The place in the queue, to be shown at the next ask."""
        return self._signed("Ticket")

    @property
    def turn(self) -> str | None:
        """The right to connect to the backend that is named first, to be shown there."""
        return self._signed(TURN)

    def _signed(self, key: str) -> str | None:
        text = as_text(self.data.get(key))
        return text if text and len(text.encode()) <= _SIGNED_BYTES else None


@attrs.frozen
class Failure:
    """Why somebody could not be used, in one line. `final`: it would be no use to ask the same one again.

    `why`: one word. `fault`: whether the other was not there or said no; None when the fault may well be our own.
    """

    text: str
    final: bool = False
    why: str = attrs.field(default=LinkFault.NOT_THE_PROTOCOL, eq=False)
    fault: Fault | None = attrs.field(default=Fault.SYSTEM, eq=False)

    @classmethod
    def from_error(cls, exc: LinkError | RemoteProtocolError) -> Failure:
        if isinstance(exc, RemoteProtocolError):
            return broken(exc.text)
        fault = None if exc.why in _OURS else Fault.SYSTEM
        return cls(str(exc), final=exc.why in _FOR_GOOD, why=exc.why, fault=fault)

    def of(self, what: str, address: Address) -> Failure:
        """Return the failure with its author named, once, as in `master 127.0.0.1:7000: Connection refused`."""
        text = self.text.removeprefix(str(address)).lstrip(": ")
        return attrs.evolve(self, text=f"{what} {address}: {text}")


def read_answer(batch: Batch) -> Answer | Failure | None:
    """Return what a batch says to a client that asked for a server; None when it is about other things."""
    for message in batch:
        if message.command == Command.ERROR:
            return _refused(message)
        if (message.object, message.command, message.name) == (MASTER, Command.VALUE, SERVER):
            return _answer(message.data)
    return None


def read_task(batch: Batch) -> str | Failure | None:
    """Return the name of the Task object that a backend gives; None when the batch is about other things."""
    for message in batch:
        if message.command == Command.ERROR:
            return _refused(message)
        if (message.object, message.command, message.name) == (AUTH, Command.VALUE, TASK_OBJECT):
            return as_text(message.data) or broken(
                f"it named no Task object but {dump(message.data)}", LinkFault.BAD_AUTH
            )
    return None


class Entry:
    """What a backend says to a login with a session, in one batch or two.

    `task`: the Task object, None while it is not named, empty where the session that was shown is gone and nothing else
    gave the right. `told`: whether the session was spoken of, and with that all is said; `session` None: it is gone.
    """

    def __init__(self) -> None:
        self.task: str | None = None
        self.told = False
        self.session: str | None = None

    def read(self, batch: Batch) -> Failure | None:
        """Take in a batch; return what is wrong with it."""
        for message in batch:
            if message.command == Command.ERROR:
                return _refused(message)
            if (message.object, message.command) != (AUTH, Command.VALUE):
                continue
            if message.name == TASK_OBJECT:
                self.task = as_text(message.data)
                if self.task is None:
                    return broken(f"it named no Task object but {dump(message.data)}", LinkFault.BAD_AUTH)
            elif message.name == SESSION:
                self.told, self.session = True, as_text(message.data)
                if message.data is not None and not self.session:
                    return broken(f"it named no session but {dump(message.data)}", LinkFault.BAD_AUTH)
        return None


def explain(answer: Answer) -> str:
    """Return in one line what a master said that named no backend, and when to ask again."""
    after_s = answer.retry_after_s
    again = f"; ask again in {after_s:.1f} s" if after_s is not None and after_s < _LONGEST_TOLD_S else ""
    return explain_refusal(answer) + again


def explain_refusal(answer: Answer) -> str:
    """Return in one line what a master said that named no backend: the same for all who were told the same."""
    text = f"it answered {answer.result}"
    if reason := as_text(answer.data.get("Reason")):
        text += f", {reason}"
    if said := as_text(answer.data.get("Text")):
        text += f": {said}"
    return _line(text)


def _answer(data: Any) -> Answer | Failure:
    fields = as_map(data)
    if fields is None:
        return broken(f"its answer is no map but {dump(data)}")
    result = _result(fields.get("Result"))
    if result is None:
        return broken(f"it answered the unknown result {dump(fields.get('Result'))}")
    details = as_map(fields.get("Data")) or {}
    return _go(details) if result is Result.OK else Answer(result, None, None, details)


def _result(value: Any) -> Result | None:
    word = as_text(value)
    return next((result for result in Result if result == word), None)


def _go(details: Mapping[Any, Any]) -> Answer | Failure:
    endpoint = _endpoint(details)
    if endpoint is not None:
        return Answer(Result.OK, endpoint.host, endpoint.port, details)
    if not _is_ip(as_text(details.get("IP"))):
        return broken(f"it sends to the IP {dump(details.get('IP'))}")
    return broken(f"it sends to the port {dump(details.get('Port'))}")


def _endpoint(details: Mapping[Any, Any]) -> Address | None:
    ip, port = as_text(details.get("IP")), details.get("Port")
    good = type(port) is int and 0 < port <= MAX_PORT
    return Address(ip, port) if good and ip is not None and port is not None and _is_ip(ip) else None


def _is_ip(text: str | None) -> bool:
    try:
        ipaddress.ip_address(text or "")
    except ValueError:
        return False
    return True


def _seconds(value: Any) -> float | None:
    good = type(value) in (int, float) and math.isfinite(value) and value >= 0
    return float(value) if good else None


def _refused(message: Message) -> Failure:
    fields = as_map(message.data) or {}
    code, text = as_text(fields.get("Code")), as_text(fields.get("Text"))
    said = f"{code}: {text}" if code and text else code or dump(message.data)
    return Failure(_line(f"it answered the error {said}"), why=(code or "Error")[:_WHY_CHARS], fault=Fault.LOGIC)


def broken(text: str, why: LinkFault = LinkFault.NOT_THE_PROTOCOL) -> Failure:
    """Return the failure of a peer that does not keep to the protocol."""
    return Failure(f"not to the protocol: {text}", final=True, why=why)


def _line(text: str) -> str:
    """Keep a text from outside to one line of a terminal or two."""
    shown = printable(text)
    return shown if len(shown) <= 200 else shown[:197] + "..."
