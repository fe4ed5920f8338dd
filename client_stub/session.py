"""One client with a session: it logs in once, shows the first screen, and goes on at another backend when its own dies.

It stands on `lambdamu.Client`, as an application does: that asks the masters, tells them who failed, and resumes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Final

import attrs
import trio
from rich.text import Text

from client_stub.interrupt import until_signal
from client_stub.options import ClientOptions
from client_stub.show import Status, complain, place_text, put_json, put_line
from client_stub.tally import FAILED, NO_BACKEND, OK
from lambdamu.address import Address, printable
from lambdamu.answers import Place
from lambdamu.client import Client, ClientObserver, ClientPolicy, Connection, Peers
from lambdamu.errors import ConnectError, LinkError, NoServerError, RemoteProtocolError
from lambdamu.messages import Batch, Code, Command, Message, as_array, as_count, as_map, as_text
from lambdamu.retry import Backoff

_SCREEN: Final = "Screen"
_FIRST: Final = "First"
_SCREEN_S: Final = 20.0
"""A screen whose data have to be fetched takes its time."""
_SHORT_S: Final = 5.0
"""Stays that end sooner, one after the other, are followed by pauses that grow."""
_MISSING: Final[Mapping[str, str]] = MappingProxyType(
    {
        Code.NOT_FOUND: "no such type",
        Code.UPSTREAM: "the upstream failed",
        Code.NO_STORE: "the cache could not give them in time",
    }
)
"""Why data of a screen are missing."""
_MOST_WHYS: Final = 3
_BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0)


@attrs.frozen
class Screen:
    """The first screen: `types` data types of which `there` have come, as screen number `count` of the session.

    `failed`: why there is none, or why types are missing, else None.
    """

    seconds: float
    count: int = 0
    types: int = 0
    there: int = 0
    failed: str | None = None

    def __str__(self) -> str:
        if self.failed is not None and not self.types:
            return f"no first screen: {self.failed}"
        missing = "" if self.failed is None else f" (missing: {self.failed})"
        return (
            f"first screen in {self.seconds * 1000:.0f} ms: {self.there} of {self.types} data types{missing}, "
            f"screen {self.count} of this session"
        )


@attrs.frozen
class Entered:
    """One login. `how`: `new`, a full one; `resumed`, by the session alone; `gone`, a full one, since the session was
    gone; `none`, a full one, and the backend keeps no sessions.
    """

    how: str
    backend: Address
    task: str
    session: str | None = attrs.field(repr=False)
    screen: Screen | None

    def to_text(self) -> Text:
        text = Text(_WORDS[self.how].format(backend=self.backend), style="bold")
        text.append(f" {printable(self.task)}", style="green")
        if self.screen is not None:
            text.append(f"; {printable(str(self.screen))}")
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "result": "OK",
            "how": self.how,
            "ip": self.backend.host,
            "port": self.backend.port,
            "task": self.task,
            "session": self.session,
            "screen": None if self.screen is None else attrs.asdict(self.screen),
        }


_WORDS: Final = {
    "new": "logged in at {backend}, new session:",
    "resumed": "session resumed at {backend}, no new login:",
    "gone": "session gone, logged in anew at {backend}:",
    "none": "logged in at {backend}, which keeps no sessions:",
}


async def run_session(options: ClientOptions, rng: random.Random) -> int:
    """Be one client with a session for `hold` seconds and return the exit code; each login is shown.

    0, 1: failed or stopped by a signal, 3: no backend.
    """
    code = await until_signal(_SessionClient(options, rng).run)
    if code is None:
        complain("stopped by a signal")
        return FAILED
    return code


class _Shown(ClientObserver):
    def __init__(self, status: Status) -> None:
        self._status = status

    def waits(self, place: Place) -> None:
        self._status.say(place_text(place))


class _SessionClient:
    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._hinted = False
        """Whether it was said where the id of the session is to be had."""
        self._status = Status()
        policy = ClientPolicy(step_s=options.timeout_s, tls=options.tls)
        if options.wait is not None:
            policy = attrs.evolve(policy, wait_s=options.wait)
        self._client = Client(
            options.masters,
            user_name=options.user_name,
            user_mail=options.user_mail,
            device=options.device,
            queue=options.queue,
            pass_text=options.pass_text,
            session=options.resume or "",
            peers=Peers(policy, _Shown(self._status)),
            rng=rng,
        )

    async def run(self) -> int:
        ends, short = trio.current_time() + self._options.hold, 0
        while True:
            begins = trio.current_time()
            try:
                await self._stay(ends)
            except NoServerError as exc:
                return self._fail(exc, NO_BACKEND)
            except ConnectError as exc:
                return self._fail(exc, FAILED)
            except (LinkError, RemoteProtocolError) as exc:
                complain(f"backend {exc}; asking again")
            if trio.current_time() >= ends:
                return OK
            # The first time at once; a backend that lets in and ends the connection is not asked without a pause.
            short = short + 1 if trio.current_time() < begins + _SHORT_S else 0
            await trio.sleep(_BACKOFF.wait_s(short, self._rng) if short > 1 else 0.0)

    def _fail(self, exc: ConnectError, code: int) -> int:
        complain(str(exc))
        if self._options.json:
            result = exc.result if isinstance(exc, NoServerError) else "Failed"
            put_json({"result": result, "ip": None, "port": None, "task": None})
        return code

    async def _stay(self, ends: float) -> None:
        """Connect, and stay until then. Raise ConnectError; LinkError or RemoteProtocolError where it is cut short."""
        async with AsyncExitStack() as stay:
            with self._status:
                connection = await stay.enter_async_context(self._client.connect())
            screen = await self._show(connection) if self._options.device is not None else None
            self._tell(connection, screen)
            with trio.move_on_at(ends):
                while True:
                    await connection.receive(within_s=float("inf"))

    def _tell(self, connection: Connection, screen: Screen | None) -> None:
        session = self._client.session or None
        how = "resumed" if connection.resumed else "gone" if connection.gone else "new" if session else "none"
        entered = Entered(how, connection.backend, connection.task, session, screen)
        if self._options.json:
            put_json(entered.to_json())
        else:
            put_line(entered.to_text())
            if how in ("new", "gone") and not self._hinted:
                self._hinted = True
                complain("--resume goes on with this session: --json shows its id")

    async def _show(self, connection: Connection) -> Screen:
        """Show the first screen. Raise LinkError, RemoteProtocolError."""
        began = trio.current_time()
        await connection.send(Message(_SCREEN, Command.EVENT, _FIRST, {"Device": self._options.device}))
        with trio.move_on_after(_SCREEN_S):
            while True:
                batch = await connection.receive(within_s=float("inf"))
                screen = read_screen(batch, trio.current_time() - began)
                if screen is not None:
                    return screen
        return Screen(_SCREEN_S, failed=f"it did not come within {_SCREEN_S:g} s")


def read_screen(batch: Batch, seconds: float) -> Screen | None:
    """Return the screen that came after so many seconds; None where a batch is about other things."""
    for message in batch:
        fields = as_map(message.data) or {}
        if message.command == Command.ERROR:
            return Screen(seconds, failed=as_text(fields.get("Text")) or "the backend did not say why")
        if (message.object, message.command, message.name) == (_SCREEN, Command.VALUE, _FIRST):
            types = [as_map(each) or {} for each in as_array(fields.get("Types")) or ()]
            missing = [each.get("Code") for each in types if "Value" not in each]
            count, there = as_count(fields.get("Count")) or 0, len(types) - len(missing)
            return Screen(seconds, count, len(types), there, _why_missing(missing))
    return None


def _why_missing(codes: Sequence[Any]) -> str | None:
    """Return in a few words why data are missing, by their codes."""
    texts = (as_text(code) or "it is not said why" for code in codes)
    whys = list(dict.fromkeys(_MISSING.get(text, text) for text in texts))
    return ", ".join([*whys[:_MOST_WHYS], "and more"][: len(whys)]) or None
