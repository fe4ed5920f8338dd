"""The objects of a backend: Auth lets users in, System counts them, and Users is what both know. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import attrs

from lambdamu.errors import CacheError, CacheRefusedError
from lambdamu.messages import (
    AUTH,
    LOAD,
    SESSION,
    SYSTEM,
    TASK_OBJECT,
    TURN,
    USER_COUNT,
    USER_MAIL,
    USER_NAME,
    Code,
    Command,
    Message,
    as_text,
    error,
)
from lambdamu.objects import NOTHING, Farewell, LMObject, Peer, Reply
from lambdamu.turns import Turn, TurnFault, Verifier


class Keeper(Protocol):
    """Who keeps the sessions of connections."""

    def enter(self, peer: Peer, client: str, session: str, reply: Callable[[Entered], Sequence[Message]]) -> Reply:
        """Have a session made for a client, where `session` is empty, or resumed.

        What `reply` makes of the outcome is the answer; it is called once, unless the peer goes before.
        """
        ...

    def entered_without(self, peer: Peer, client: str) -> None:
        """Hear that `client` is logged in on a connection, and has no session."""
        ...

    def forget(self, peer: Peer) -> None: ...


Entered = str | CacheError | None
"""The session that somebody has now; None: the one that was shown is gone; or why nobody knows."""


@attrs.define(eq=False)
class Load:
    """What a backend says of itself. `cpu` gives how busy it is, from 0 to 1."""

    cpu: Callable[[], float]
    draining: bool = False


class Users:
    """Which connections are users, and which Task object each connection has.

    `base` users are there always, without a connection. Who authenticates as `probe_mail` is no user: it is let in
    beyond `capacity` and never counted.
    """

    def __init__(self, base: int, capacity: int | None, probe_mail: str) -> None:
        self._base = base
        self.capacity = capacity
        self._probe_mail = probe_mail
        self._users: set[Peer] = set()
        self._tasks: dict[Peer, str] = {}
        self._numbers = count(1)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._users

    def is_probe(self, mail: str) -> bool:
        """Return whether who says this is the master."""
        return mail == self._probe_mail

    def others(self, peer: Peer) -> int:
        """Return how many users there are besides `peer`."""
        return self._base + len(self._users) - (peer in self._users)

    def admit(self, peer: Peer, mail: str) -> str | None:
        """Let `peer` in and return the name of its Task object, the same each time; None when there is no room."""
        if self.is_probe(mail):
            self._users.discard(peer)
        elif self.capacity is not None and self.others(peer) >= self.capacity:
            return None
        else:
            self._users.add(peer)
        if peer not in self._tasks:
            self._tasks[peer] = f"Task-{next(self._numbers)}"
        return self._tasks[peer]

    def forget(self, peer: Peer) -> None:
        self._users.discard(peer)
        self._tasks.pop(peer, None)


@attrs.define(eq=False)
class TurnGate:
    """Demands a Turn of every user. `wall`: Unix seconds. A connection pays once, however often it logs in."""

    verifier: Verifier
    wall: Callable[[], float]
    _shown: dict[Peer, Turn] = attrs.field(factory=dict, init=False)
    """Turns that were good when they were shown, until they are used."""
    _paid: set[Peer] = attrs.field(factory=set, init=False)

    def show(self, peer: Peer, data: Any) -> TurnFault | None:
        """Take in what `peer` shows; return what is wrong with it."""
        turn = self.verifier.check(self.wall(), data)
        if isinstance(turn, TurnFault):
            return turn
        self._shown[peer] = turn
        return None

    def missing(self, peer: Peer) -> TurnFault | None:
        """Return why `peer` cannot be let in: it has shown nothing."""
        if peer in self._paid or peer in self._shown:
            return None
        return TurnFault(Code.TURN_MISSING, "this backend lets in only those with a turn; ask a master for one")

    def pay(self, peer: Peer) -> TurnFault | None:
        """Use what `peer` has shown; return why that is too late."""
        if peer in self._paid:
            return None
        fault = self.verifier.spend(self.wall(), self._shown.pop(peer))
        if fault is None:
            self._paid.add(peer)
        return fault

    def forget(self, peer: Peer) -> None:
        self._shown.pop(peer, None)
        self._paid.discard(peer)


class Auth(LMObject):
    """Answers a connection that has said both its user's name and mail, once for each such pair.

    With a `gate` a user must have shown a Turn by then, which is used when he is let in; else he is told why not, and
    the connection ends. Nothing of that holds for the probe. Without one turns are passed over.

    With a `keeper` a user who has said a Session by then gets one, or has it resumed: then the mail, which stands for
    what gives him the right to log in, may be empty. Nil tells him that it is gone; that nobody knows is an Error, and
    ends the connection. Without a keeper sessions are passed over.
    """

    def __init__(self, users: Users, gate: TurnGate | None = None, keeper: Keeper | None = None) -> None:
        super().__init__(
            AUTH,
            settable={
                USER_NAME: self._set,
                USER_MAIL: self._set,
                TURN: self._pass_over if gate is None else self._show,
                SESSION: self._pass_over if keeper is None else self._set,
            },
        )
        self._users = users
        self._gate = gate
        self._keeper = keeper
        self._said: dict[Peer, dict[str, str]] = {}
        """What connections have said of a pair that is not complete."""

    def disconnected(self, peer: Peer) -> None:
        self._said.pop(peer, None)
        self._users.forget(peer)
        if self._gate is not None:
            self._gate.forget(peer)
        if self._keeper is not None:
            self._keeper.forget(peer)

    def _set(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        text = as_text(message.data)
        if text is None:
            return [error(message, Code.BAD_DATA, f"{message.name} must be a text")]
        said = self._said.setdefault(peer, {})
        said[message.name] = text
        shows = bool(said.get(SESSION)) and USER_MAIL in said
        if not (said.get(USER_NAME) and (said.get(USER_MAIL) or shows)):
            return NOTHING
        del self._said[peer]
        return self._authenticate(message, said, peer)

    def _authenticate(self, message: Message, said: dict[str, str], peer: Peer) -> Reply:
        mail, session = said[USER_MAIL], said.get(SESSION)
        probes = self._users.is_probe(mail)
        gate = None if probes else self._gate
        if gate is not None and (fault := gate.missing(peer)):
            return _farewell(message, fault.code, fault.text)
        was_in = peer in self._users
        task = self._users.admit(peer, mail)
        if task is None:
            return [error(message, Code.FULL, "this backend has as many users as it can take")]
        client = said[USER_NAME]
        if session is None or self._keeper is None or probes:
            return self._let_in(message, peer, task, client)
        reply = partial(self._entered, message, peer, task, client, mail, was_in)
        return self._keeper.enter(peer, client, session, reply)

    def _entered(
        self, message: Message, peer: Peer, task: str, client: str, mail: str, was_in: bool, entered: Entered
    ) -> Sequence[Message]:
        """Answer somebody whose session is known now: he had a place meanwhile."""
        if isinstance(entered, CacheError) or (entered is None and not mail):
            if not was_in:
                self._users.forget(peer)
            if isinstance(entered, CacheRefusedError):
                return _farewell(message, entered.code, entered.text)
            if isinstance(entered, CacheError):
                text = "sessions cannot be had now; keep yours, and try again"
                return _farewell(message, Code.NO_STORE, text)
            task = ""
        elif isinstance(answer := self._let_in(message, peer, task, client if entered is None else None), Farewell):
            return answer
        return [Message(AUTH, Command.VALUE, TASK_OBJECT, task), Message(AUTH, Command.VALUE, SESSION, entered)]

    def _let_in(self, message: Message, peer: Peer, task: str, sessionless: str | None) -> Sequence[Message]:
        """Answer somebody who is in; `sessionless`: his name, where he has no session."""
        if self._gate is not None and peer in self._users and (fault := self._gate.pay(peer)):
            self._users.forget(peer)
            return _farewell(message, fault.code, fault.text)
        if sessionless is not None and self._keeper is not None:
            self._keeper.entered_without(peer, sessionless)
        return [Message(AUTH, Command.VALUE, TASK_OBJECT, task)]

    def _show(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        assert self._gate is not None  # noqa: S101 - else nobody would ask here
        fault = self._gate.show(peer, message.data)
        return NOTHING if fault is None else _farewell(message, fault.code, fault.text)

    def _pass_over(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        return NOTHING


def _farewell(message: Message, code: str, text: str) -> Farewell:
    return Farewell([error(message, code, text)])


class System(LMObject):
    """Says how many users there are besides the one that asks; with a `load`, also how the backend does."""

    def __init__(self, users: Users, load: Load | None = None) -> None:
        super().__init__(SYSTEM, gettable={USER_COUNT: self._count} | ({LOAD: self._say_load} if load else {}))
        self._users = users
        self._load = load

    def _say_load(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        load = self._load
        assert load is not None  # noqa: S101 - else nobody would ask here
        said: dict[str, Any] = {"CPU": load.cpu(), "State": "drain" if load.draining else "ready"}
        if self._users.capacity is not None:
            said["Capacity"] = self._users.capacity
        return [Message(SYSTEM, Command.VALUE, LOAD, said)]

    def _count(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        return [Message(SYSTEM, Command.VALUE, USER_COUNT, self._users.others(peer))]
