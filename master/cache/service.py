"""The cache service: a question in, an operation on the store, the answer out, with the Header of both.

What needs no wait is answered at once. Only warm data may have to be fetched: that answer is owed (`Later`), and its
connection goes on being served meanwhile.
"""

from __future__ import annotations

import hmac
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from lambdamu.errors import LambdaMuError
from lambdamu.messages import (
    AUTH,
    CACHE,
    TASK_OBJECT,
    USER_MAIL,
    USER_NAME,
    VALUE,
    WARM,
    Code,
    Command,
    Message,
    Transport,
    as_text,
    error,
    fatal_error,
)
from lambdamu.objects import NOTHING, Farewell, Later, Peer, Quick, Reply
from master.cache.fields import BadFieldError, Fields
from master.cache.header import VERSION, Header, read_header
from master.cache.objects import Failed, Objects, Outcome, Wrong
from master.cache.warm_types import Answer, NotServed, Why

_APP_START: Final = (WARM, "AppStart")
_GET: Final = (WARM, "Get")
_RETRY_S: Final = 1.0
"""The middle of the time after which it is of use to ask again, where nobody knows better."""
_FAILURES: Final[Mapping[Why, Transport]] = MappingProxyType(
    {Why.FULL: Transport.FULL, Why.EXPIRED: Transport.EXPIRED, Why.STOPPING: Transport.STOPPING}
)
"""What of warm data that are not served is a failure of the transport; the rest are words for `Code`."""


class NoStoreError(LambdaMuError):
    """The store cannot be used now. That says nothing of what is in it."""


class WarmUp(Protocol):
    """Who fetches warm data, and has them before they are asked for."""

    def app_start(self, device: str, version: int | None, network: bytes | None = None) -> int:
        """The app on a device has been started; return how many fetches begin. `version` None: that of its sessions."""
        ...

    def ask(self, session: str, number: int, version: int, answer: Callable[[Answer], object]) -> Any:
        """Have `answer` called once: before this returns, then with None; or later."""
        ...

    def leave(self, waiter: Any) -> None:
        """Hear that nobody waits any more for what `ask` has returned."""
        ...


class Guard:
    """Who may ask: whoever shows a certificate, or says the secret; everybody, where neither is wanted."""

    def __init__(self, secret: str = "", *, certificates: bool = False) -> None:
        self._secret = secret.encode()
        self._certificates = certificates
        self._in: set[Peer] = set()

    @property
    def has_secret(self) -> bool:
        return bool(self._secret)

    @property
    def wanted(self) -> str:
        """Return what a stranger is to do."""
        ways = ["say the secret first, as Auth.Set UserName and UserMail"] if self._secret else []
        return ", or ".join([*ways, "show a client certificate under TLS"] if self._certificates else ways)

    def lets_in(self, peer: Peer) -> bool:
        return peer in self._in or not (self._secret or self._certificates) or bool(self._certificates and peer.subject)

    def say(self, peer: Peer, secret: str) -> bool:
        """Take in what a connection says; return whether it may ask now: not after a wrong secret."""
        if self._secret and hmac.compare_digest(secret.encode(), self._secret):
            self._in.add(peer)
        elif self._secret:
            self._in.discard(peer)
            return False
        return self.lets_in(peer)

    def forget(self, peer: Peer) -> None:
        self._in.discard(peer)


class _Owed:
    """An answer that comes at once or later; `tell` puts it into words."""

    def __init__(self, tell: Callable[[Answer], Message]) -> None:
        self._tell = tell
        self._told: Message | None = None
        self._later: Later | None = None

    def take(self, given: Answer) -> None:
        told = self._tell(given)
        if self._later is None:
            self._told = told
        else:
            self._later.answer((told,))

    def reply(self, leave: Callable[[], None]) -> Reply:
        """Return it, or that it is owed; then `leave` is called when nobody waits for it any more."""
        if self._told is not None:
            return (self._told,)
        self._later = Later(cancelled=leave)
        return self._later


class CacheService:
    """Answers messages with a Header; `answered` counts the answers by object, name and outcome; those that
    are good are there from the start.
    """

    def __init__(
        self,
        objects: Objects,
        rng: random.Random,
        *,
        warm: WarmUp | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._objects = objects
        self._operations = objects.operations
        self._rng = rng
        self._warm = warm
        self._guard = guard or Guard()
        self._commands = {*self._operations, _APP_START, _GET}
        self._names = {name for name, _ in self._commands}
        self.answered: Counter[tuple[str, str, str]] = Counter({(*which, ""): 0 for which in self._commands})

    def handle(self, message: Message, now: float, peer: Peer) -> Reply:
        """Return the answer to one message: one, none, or one that is owed; a Farewell ends the connection."""
        if message.object == AUTH and message.header is None:
            return self._authenticate(message, peer)
        header = read_header(message.header)
        if header is None:
            text = "a message needs a Header, a map with a Request: a text from 1 to 128 bytes long"
            return Farewell([fatal_error(Code.BAD_MESSAGE, text)])
        if message.command in (Command.VALUE, Command.ERROR):
            return NOTHING
        if not self._guard.lets_in(peer):
            return Farewell([header.wrong(message, Code.NOT_YOURS, self._guard.wanted)])
        which = (message.object, message.name)
        if which == _APP_START and message.command == Command.EVENT:
            return self._app_start(message, header)
        if header.version != VERSION:
            failed = Failed(Transport.VERSION, f"the Version of the Header must be {VERSION}")
            return (self._tell(message, header, failed),)
        return self._do(message, header, now, which)

    def prepare(self, message: object) -> Quick | None:  # noqa: ARG002 - no question has always the same answer
        return None

    def disconnected(self, peer: Peer) -> None:
        self._guard.forget(peer)

    def _do(self, message: Message, header: Header, now: float, which: tuple[str, str]) -> Reply:
        operation = self._operations.get(which)
        outcome: Outcome
        if message.command != Command.EVENT or (operation is None and which != _GET):
            outcome = self._unknown(message, which)
        else:
            try:
                fields = Fields(message.data)
                if operation is None:
                    return self._get_warm(message, header, now, fields)
                outcome = operation(now, fields)
            except BadFieldError as exc:
                outcome = Wrong(Code.BAD_DATA, str(exc))
            except NoStoreError as exc:
                outcome = Failed(Transport.NO_STORE, str(exc))
        return (self._tell(message, header, outcome),)

    def _unknown(self, message: Message, which: tuple[str, str]) -> Wrong:
        if message.object not in self._names:
            return Wrong(Code.UNKNOWN_OBJECT, "the objects here are Session, Cache, Device and Warm")
        if message.command not in (Command.SET, Command.GET, Command.EVENT):
            return Wrong(Code.UNKNOWN_COMMAND, "a command is Set, Get, Event, Value or Error")
        if which not in self._commands:
            return Wrong(Code.UNKNOWN_NAME, f"{message.object} has no such name")
        return Wrong(Code.UNKNOWN_COMMAND, "all that can be done here is an Event")

    def _get_warm(self, message: Message, header: Header, now: float, fields: Fields) -> Reply:
        data_type, version = fields.data_type(), fields.number("Version", -1)
        session = self._objects.find_session(now, fields)
        if isinstance(session, Wrong):
            return (self._tell(message, header, session),)
        if self._warm is None:
            failed = Failed(Transport.NO_WORKER, "this node fetches no warm data")
            return (self._tell(message, header, failed),)
        self._objects.hot.note(now, (WARM, str(data_type)))
        version = session.version if version < 0 else version
        owed = _Owed(lambda given: self._tell(message, header, _outcome(given, data_type, version)))
        waiter = self._warm.ask(session.session, data_type, version, owed.take)
        return owed.reply(partial(self._warm.leave, waiter))

    def _app_start(self, message: Message, header: Header) -> Reply:
        """Whatever comes of it, it is not answered.

        Who may ask here speaks for many, so its own network counts for nothing: that of a phone is known to the master.
        """
        try:
            fields = Fields(message.data)
            device, version = fields.text("Device"), fields.number("Version", -1)
        except BadFieldError:
            self.answered[WARM, "AppStart", Code.BAD_DATA] += 1
            return NOTHING
        self.answered[WARM, "AppStart", "" if header.version == VERSION else "Version"] += 1
        if self._warm is not None and header.version == VERSION:
            self._warm.app_start(device, None if version < 0 else version)
        return NOTHING

    def _tell(self, message: Message, header: Header, outcome: Outcome) -> Message:
        if isinstance(outcome, Wrong):
            self._count(message, outcome.code)
            return header.wrong(message, outcome.code, outcome.text)
        if isinstance(outcome, Failed):
            self._count(message, outcome.error.word)
            again_s = outcome.retry_after_s
            if again_s is None and outcome.error not in (Transport.TOO_BIG, Transport.VERSION):
                again_s = _RETRY_S * self._rng.uniform(0.5, 1.5)
            return header.failed(message, outcome.error, outcome.text, again_s)
        self._count(message, "")
        return header.answer(message, outcome)

    def _count(self, message: Message, outcome: str) -> None:
        which = (message.object, message.name)
        # Names that nobody knows are not counted each: there is no end of them.
        self.answered[(*(which if which in self._commands else ("", "")), outcome)] += 1

    def _authenticate(self, message: Message, peer: Peer) -> Sequence[Message]:
        """Answer the exchange that backends have; its last message is that of the secret."""
        if message.command in (Command.VALUE, Command.ERROR):
            return NOTHING
        if message.command != Command.SET:
            return [error(message, Code.UNKNOWN_COMMAND, "Auth takes Set alone")]
        if message.name not in (USER_NAME, USER_MAIL):
            return [error(message, Code.UNKNOWN_NAME, "Auth has no such name")]
        text = as_text(message.data)
        if text is None:
            return [error(message, Code.BAD_DATA, f"{message.name} must be a text")]
        if message.name == USER_NAME:
            return NOTHING
        if not self._guard.say(peer, text):
            text = "this is not the secret" if self._guard.has_secret and text else self._guard.wanted
            return Farewell([error(message, Code.NOT_YOURS, text)])
        return [Message(AUTH, Command.VALUE, TASK_OBJECT, CACHE)]


def _outcome(given: Answer, data_type: int, version: int) -> Outcome:
    if not isinstance(given, NotServed):
        return {"Type": data_type, "Version": version, "Stale": given.stale, VALUE: given.value}
    failure = _FAILURES.get(given.why)
    if failure is not None:
        return Failed(failure, given.text, given.retry_after_s)
    return Wrong(Code(given.why.value), given.text)
