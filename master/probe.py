"""What a probe asks a backend, and whether the answers make it one that works. Pure: bytes out, batches in.

A backend works when it returns a non-empty name of a Task object and a count of users. The order of the two answers
is free, and they may come in one batch or two. Values nobody asked for are no answers; they are passed over.
"""

from __future__ import annotations

import attrs

from lambdamu.datapack import dump, encode
from lambdamu.errors import LinkError
from lambdamu.messages import (
    AUTH,
    SYSTEM,
    TASK_OBJECT,
    USER_COUNT,
    USER_MAIL,
    USER_NAME,
    Batch,
    Command,
    LinkFault,
    Message,
    as_count,
    as_text,
)


@attrs.frozen
class Questions:
    """The two batches, packed once for all probes: a master asks every backend the same."""

    auth: bytes
    count: bytes

    @property
    def all(self) -> bytes:
        """Both, in one write."""
        return self.auth + self.count

    @classmethod
    def of(cls, user_name: str, user_mail: str) -> Questions:
        return cls(
            encode(
                [Message(AUTH, Command.SET, USER_NAME, user_name), Message(AUTH, Command.SET, USER_MAIL, user_mail)]
            ),
            encode([Message(SYSTEM, Command.GET, USER_COUNT)]),
        )


@attrs.define
class Probe:
    """The answers of one probe; `needs_task` says whether Auth was asked too."""

    needs_task: bool
    count: int | None = None

    @property
    def complete(self) -> bool:
        return self.count is not None and not self.needs_task

    def take(self, batch: Batch) -> None:
        """Take in what the backend said. Raise LinkError when it is a wrong answer."""
        for message in batch:
            if message.command == Command.VALUE:
                self._take_value(message)
            elif message.command == Command.ERROR:
                raise LinkError(_fault(message), f"it answered the error {dump(message.data)}")

    def _take_value(self, message: Message) -> None:
        if (message.object, message.name) == (AUTH, TASK_OBJECT):
            if not as_text(message.data):
                raise LinkError(LinkFault.BAD_AUTH, f"it named no Task object but {dump(message.data)}")
            self.needs_task = False
        elif (message.object, message.name) == (SYSTEM, USER_COUNT):
            count = as_count(message.data)
            if count is None:
                raise LinkError(LinkFault.BAD_COUNT, f"it counted no users but {dump(message.data)}")
            self.count = count


def is_answer(message: Message) -> bool:
    """Whether it answers one of the questions of a probe."""
    return (message.object, message.name) in ((AUTH, TASK_OBJECT), (SYSTEM, USER_COUNT))


def _fault(message: Message) -> LinkFault:
    faults = {AUTH: LinkFault.BAD_AUTH, SYSTEM: LinkFault.BAD_COUNT}
    return faults.get(message.object, LinkFault.NOT_THE_PROTOCOL)
