"""What masters and backends say to a client: a batch in, and what it means out. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import attrs

from lambdamu.address import MAX_PORT, Address, printable
from lambdamu.datapack import dump
from lambdamu.messages import (
    AUTH,
    MASTER,
    SERVER,
    TASK_OBJECT,
    Batch,
    Command,
    Message,
    Result,
    as_map,
    as_text,
)


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


@attrs.frozen
class Failure:
    """Why somebody could not be used, in one line. `final`: it would be no use to ask the same one again."""

    text: str
    final: bool = False

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
            return as_text(message.data) or _broken(f"it named no Task object but {dump(message.data)}")
    return None


def explain(answer: Answer) -> str:
    """Return in one line what a master said that named no backend, and when to ask again."""
    after_s = answer.data.get("RetryAfter")
    again = f"; ask again in {after_s:.1f} s" if type(after_s) in (int, float) else ""
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
        return _broken(f"its answer is no map but {dump(data)}")
    result = _result(fields.get("Result"))
    if result is None:
        return _broken(f"it answered the unknown result {dump(fields.get('Result'))}")
    details = as_map(fields.get("Data")) or {}
    return _go(details) if result is Result.OK else Answer(result, None, None, details)


def _result(value: Any) -> Result | None:
    word = as_text(value)
    return next((result for result in Result if result == word), None)


def _go(details: Mapping[Any, Any]) -> Answer | Failure:
    ip, port = as_text(details.get("IP")), details.get("Port")
    if ip is None or not _is_ip(ip):
        return _broken(f"it sends to the IP {dump(details.get('IP'))}")
    if type(port) is not int or not 0 < port <= MAX_PORT:
        return _broken(f"it sends to the port {dump(port)}")
    return Answer(Result.OK, ip, port, details)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _refused(message: Message) -> Failure:
    fields = as_map(message.data) or {}
    code, text = as_text(fields.get("Code")), as_text(fields.get("Text"))
    said = f"{code}: {text}" if code and text else code or dump(message.data)
    return Failure(_line(f"it answered the error {said}"))


def _broken(text: str) -> Failure:
    return Failure(f"not to the protocol: {text}", final=True)


def _line(text: str) -> str:
    """Keep a text from outside to one line of a terminal or two."""
    shown = printable(text)
    return shown if len(shown) <= 200 else shown[:197] + "..."
