"""A mobile client without a screen: it asks a master where to go, goes there, logs in, and says how it went."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Final

import attrs
import trio
from rich.text import Text

from client_stub.caller import ask_any
from client_stub.crowd_report import run_crowd
from client_stub.interrupt import until_signal
from client_stub.options import ClientOptions, tls_of
from client_stub.report import run_load
from client_stub.show import Status, complain, place_text, put_json, put_line
from client_stub.tally import FAILED, NO_BACKEND, OK, TOO_LATE
from client_stub.waiting import Waiting
from lambdamu.address import Address, printable
from lambdamu.answers import Answer, Failure, explain
from lambdamu.caller import Caller
from lambdamu.messages import Result

__all__ = ["ClientOptions", "run_client", "tls_of"]

_NOT_REACHED: Final = "Failed"
"""The result of a client that had no answer, or could not use its backend; no word of the wire."""


async def run_client(options: ClientOptions) -> int:
    """Be one client, a load or a crowd of them, and return the exit code.

    0, 1: failed or stopped by a signal, 3: no backend.
    """
    caller = Caller(options.user_name, options.user_mail, options.timeout_s, options.tls)
    rng = random.Random()
    if options.is_crowd:
        return await run_crowd(options, caller, rng)
    if options.is_load:
        return await run_load(options, caller, rng)
    if options.session:
        from client_stub.session import run_session  # noqa: PLC0415 - brings the library, which others can do without

        return await run_session(options, rng)
    return await _OneClient(options, caller, rng).run()


@attrs.frozen
class Outcome:
    """How far one client got; None where it did not get."""

    result: str
    ip: str | None = None
    port: int | None = None
    task: str | None = None

    def to_text(self) -> Text:
        """Return `IP:PORT Task`, as far as it is known."""
        text = Text()
        if self.ip is not None and self.port is not None:
            text.append(str(Address(self.ip, self.port)), style="bold")
        if self.task is not None:
            text.append(f" {printable(self.task)}", style="green")
        return text


class _OneClient:
    """One client. Its outcome is shown once, as soon as it is known: before the client stays at its backend."""

    def __init__(self, options: ClientOptions, caller: Caller, rng: random.Random) -> None:
        self._options = options
        self._caller = caller
        self._rng = rng
        self._shown = False
        self._waiting: Waiting | None = None

    async def run(self) -> int:
        code = await until_signal(self._ask_and_go)
        if code is None:
            left = self._waiting is not None and self._waiting.left
            complain("stopped by a signal" + ("; it has left the queue" if left else ""))
            self._show(Outcome(_NOT_REACHED))
            return FAILED
        return code

    async def _ask_and_go(self) -> int:
        asked = await self._ask()
        if asked is None:
            complain(f"it was not let in within {self._options.wait:g} s, and has left")
            self._show(Outcome(Result.WAIT))
            return TOO_LATE
        if isinstance(asked, Failure):
            return self._fail(asked, Outcome(_NOT_REACHED))
        master, answer = asked
        endpoint = answer.endpoint
        if endpoint is None:
            complain(f"master {master}: {explain(answer)}")
            self._show(Outcome(answer.result))
            return NO_BACKEND
        if self._options.ask_only:
            self._show(Outcome(answer.result, answer.ip, answer.port))
            return OK
        return await self._go(answer, endpoint)

    async def _ask(self) -> tuple[Address, Answer] | Failure | None:
        """Return what a master has said at last; None when it took too long."""
        options = self._options
        if not options.waits:
            return await ask_any(partial(self._caller.ask, data=options.data), options.masters, self._rng)
        with Status() as status, trio.move_on_after(math.inf if options.wait is None else options.wait):
            self._waiting = Waiting(options, self._caller, self._rng, lambda place: status.say(place_text(place)))
            return await self._waiting.ask()
        return None

    async def _go(self, answer: Answer, endpoint: Address) -> int:
        async with self._caller.login(endpoint, answer.turn) as login:
            if isinstance(login, Failure):
                return self._fail(login, Outcome(_NOT_REACHED, answer.ip, answer.port))
            self._show(Outcome(answer.result, answer.ip, answer.port, login.task))
            lost = await login.hold(self._options.hold)
            return OK if lost is None else self._fail(lost, Outcome(_NOT_REACHED, answer.ip, answer.port))

    def _fail(self, failure: Failure, outcome: Outcome) -> int:
        complain(failure.text)
        self._show(outcome)
        return FAILED

    def _show(self, outcome: Outcome) -> None:
        if self._shown:
            return
        self._shown = True
        if self._options.json:
            put_json(attrs.asdict(outcome))
        elif outcome.task is not None or (self._options.ask_only and outcome.ip is not None):
            put_line(outcome.to_text())
