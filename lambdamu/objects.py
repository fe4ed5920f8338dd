"""LMObject: a name, its properties and its events; and `Later`, an answer that is owed.

A message goes in and messages come out, without I/O: whoever holds the object decides where they travel.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import attrs

from lambdamu.errors import LocalProtocolError
from lambdamu.messages import Code, Command, Message, error


@attrs.frozen(eq=False)
class Peer:
    """Who is at the other end of a connection; each connection has its own, compared by identity.

    `host` is an address in text form; an IPv4 address that came mapped into IPv6 is given as the IPv4 one. `subject`:
    whom its TLS certificate names, when that was verified; empty when there is none.
    """

    host: str
    port: int
    subject: str = ""

    @property
    def family(self) -> Literal[4, 6]:
        return 6 if ":" in self.host else 4

    @classmethod
    def from_address(cls, host: str, port: int, subject: str = "") -> Peer:
        return cls(unmapped(host), port, subject)


def unmapped(host: str) -> str:
    """Return an address in text form, the IPv4 one when it came mapped into IPv6."""
    if host.startswith("::ffff:"):
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
        if mapped is not None:
            return str(mapped)
    return host


def family_of(host: str) -> Literal[4, 6]:
    """Return the family of an address as the system gave it, mapped or not."""
    return 6 if ":" in host and ":" in unmapped(host) else 4


class Later:
    """An answer that is owed.

    The object that owes calls `answer` once, when it can. The port calls `attach` to hear it, and `cancel` when the
    connection goes. `fin_cancels` says whether a client that half-closes gives the answer up; most do not.
    """

    def __init__(self, *, cancelled: Callable[[], None] | None = None, fin_cancels: bool = False) -> None:
        self.fin_cancels: Final = fin_cancels
        self._cancelled = cancelled
        self._answer: Sequence[Message] | None = None
        self._listener: Callable[[Sequence[Message]], None] | None = None
        self._over = False

    def answer(self, messages: Sequence[Message]) -> bool:
        """Give the answer; return False when nobody waits for it any more. Raise LocalProtocolError on a second one."""
        if self._answer is not None:
            raise LocalProtocolError("an owed answer was given twice")
        if self._over:
            return False
        self._answer = messages
        if self._listener is not None:
            self._listener(messages)
        return True

    def attach(self, listener: Callable[[Sequence[Message]], None]) -> None:
        """Have `listener` called with the answer, at once when it is there already."""
        self._listener = listener
        if self._answer is not None:
            listener(self._answer)

    def cancel(self) -> None:
        """Say that nobody waits any more; whoever owes is told, once, unless the answer was given."""
        if self._over or self._answer is not None:
            return
        self._over = True
        if self._cancelled is not None:
            self._cancelled()


class Farewell(list[Message]):
    """Answers after which the port ends the connection; what else the peer has asked is not answered.

    It may also be what was owed: the answer of a Later.
    """


Reply = Sequence[Message] | Later
Action = Callable[[Message, float, Peer], Reply]
Quick = Callable[[float, Literal[4, 6], tuple[str, int]], bytes | None]
"""What answers a frequent question: the moment, the family of the client and its address as the system gave it in; the
bytes of a batch out, or None where it has to go through `handle` this time."""
NOTHING: Final[Sequence[Message]] = ()


class LMObject:
    """An object of a logical machine: what may be set, what may be asked for, and what makes it act, by name."""

    def __init__(
        self,
        name: str,
        *,
        settable: Mapping[str, Action] | None = None,
        gettable: Mapping[str, Action] | None = None,
        events: Mapping[str, Action] | None = None,
    ) -> None:
        self.name = name
        self._actions: dict[tuple[str, str], Action] = {}
        for command, actions in ((Command.SET, settable), (Command.GET, gettable), (Command.EVENT, events)):
            for property_name, action in (actions or {}).items():
                self._actions[command.value, property_name] = action
        self._names = {property_name for _, property_name in self._actions}

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        """Return the answer to one message: messages, none, or one that is owed. `now`: seconds, monotonic."""
        action = self._actions.get((message.command, message.name))
        if action is not None:
            return action(message, now, peer)
        return self._refuse(message)

    def prepare(self, message: Message) -> Quick | None:  # noqa: ARG002 - few objects have such questions
        """Return what answers this message whoever sends it, where it hangs on the moment and where he is alone."""
        return None

    def disconnected(self, peer: Peer) -> None:
        """Hear that the connection of `peer` is gone."""

    def _refuse(self, message: Message) -> Reply:
        if message.command in (Command.VALUE, Command.ERROR):
            return NOTHING
        if message.command not in (Command.SET, Command.GET, Command.EVENT):
            return [error(message, Code.UNKNOWN_COMMAND, "a command is Set, Get, Event, Value or Error")]
        if message.name in self._names:
            return [error(message, Code.UNKNOWN_COMMAND, f"this name of {self.name} takes another command")]
        return [error(message, Code.UNKNOWN_NAME, f"{self.name} has no such name")]
