"""How one user calls: a master is asked, a backend is logged in to. What is expected to fail comes back as a value."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import attrs
import trio

from lambdamu.address import Address
from lambdamu.answers import Answer, Entry, Failure, broken, read_answer, read_task
from lambdamu.client_tls import Tls
from lambdamu.datapack import encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import (
    AUTH,
    DO_SEND_SERVER,
    MASTER,
    SESSION,
    TURN,
    USER_MAIL,
    USER_NAME,
    Batch,
    Code,
    Command,
    LinkFault,
    Message,
)
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient

T = TypeVar("T")
_SESSION_S: Final = 1.0
"""A backend that has let in, and then says nothing of a session for so long, keeps none."""


@attrs.frozen
class Login:
    """A connection on which a user is logged in, as the Task object `task`.

    `session`: its id, None where there is none. `resumed`: it is the one that was shown, and nobody had to log in.
    `gone`: the one that was shown is gone, or another user's, so the user has logged in anew.
    """

    task: str
    client: TCPClient
    session: str | None = attrs.field(default=None, repr=False)
    resumed: bool = False
    gone: bool = False

    async def hold(self, hold_s: float) -> Failure | None:
        """Stay for `hold_s` seconds, passing over what the backend says; return why, when it ends the stay before."""
        with trio.move_on_after(hold_s):
            try:
                while True:
                    await self.client.receive(within_s=math.inf)
            except (LinkError, RemoteProtocolError) as exc:
                return Failure.from_error(exc).of("backend", self.client.address)
        return None


@attrs.frozen
class Caller:
    """Calls as one user; connecting, sending and waiting for an answer each take `timeout_s` seconds at most.

    `tls`: how masters are asked under TLS; None: they are asked in the clear, as backends are logged in to always.
    """

    user_name: str
    user_mail: str
    timeout_s: float
    tls: Tls | None = None
    _resolver: Resolver = attrs.field(factory=Resolver)

    async def ask(self, master: Address, data: dict[str, Any] | None = None) -> Answer | Failure:
        """Ask a master for a backend, over a connection of its own; without `data` the ask is a plain one."""
        question = encode([Message(MASTER, Command.EVENT, DO_SEND_SERVER, data)])
        called = await self._call(master, question, read_answer, self.tls)
        if isinstance(called, Failure):
            return called.of("master", master)
        client, answer = called
        await client.aclose()
        return answer

    async def log_in(self, backend: Address, turn: str | None = None, session: str | None = None) -> Login | Failure:
        """Log in to a backend, showing a `turn` where there is one; whoever gets the login closes it.

        `session`: the id of one, which is resumed without a login where it is still there and is that of this user;
        "": a new one is wanted; None: none is.
        """
        if session is not None:
            login = await self._enter(backend, turn, session)
            if session and isinstance(login, Failure) and login.why == Code.NOT_YOURS:
                # It is another user's, so this one has none. The answer has ended the connection, and used no turn.
                login = await self._enter(backend, turn, "")
                return attrs.evolve(login, gone=True) if isinstance(login, Login) else login
            return login
        called = await self._call(backend, self._introduction(turn), read_task, None)
        if isinstance(called, Failure):
            return called.of("backend", backend)
        client, task = called
        return Login(task, client)

    @asynccontextmanager
    async def login(self, backend: Address, turn: str | None = None) -> AsyncIterator[Login | Failure]:
        """Log in to a backend; the connection lasts until the end of the block."""
        login = await self.log_in(backend, turn)
        try:
            yield login
        finally:
            if isinstance(login, Login):
                await login.client.aclose()

    async def _enter(self, backend: Address, turn: str | None, shown: str) -> Login | Failure:
        """Log in with a session, within the time of three steps; who shows one does not say what gives the right."""
        with trio.move_on_after(3 * self.timeout_s):
            client = await self._connect(backend, None)
            if isinstance(client, Failure):
                return client.of("backend", backend)
            try:
                login = await self._resume(client, turn, shown)
            except BaseException:
                await client.aclose()
                raise
            if isinstance(login, Failure):
                await client.aclose()
                return login.of("backend", backend)
            return login
        return Failure(f"did not let in within {3 * self.timeout_s:g} s", why=LinkFault.TIMEOUT).of("backend", backend)

    async def _resume(self, client: TCPClient, turn: str | None, shown: str) -> Login | Failure:
        entry = await self._question_entry(client, self._introduction(turn, shown))
        if isinstance(entry, Failure) and shown and entry.why == LinkFault.TIMEOUT:
            # It may be one that keeps no sessions, and waits for what gives the right.
            entry = await self._question_entry(client, self._introduction(None))
        if isinstance(entry, Failure):
            return entry
        gone = bool(shown) and entry.told and entry.session is None
        if gone:
            entry = await self._question_entry(client, self._introduction(None, ""))
            if isinstance(entry, Failure):
                return entry
        if not entry.task:
            return broken("it named no Task object", LinkFault.BAD_AUTH)
        resumed = bool(shown) and entry.session == shown
        return Login(entry.task, client, entry.session, resumed, gone)

    async def _question_entry(self, client: TCPClient, question: bytes) -> Entry | Failure:
        entry = Entry()
        try:
            await client.send(question, within_s=self.timeout_s)
            within_s = self.timeout_s
            while not (entry.told and entry.task is not None):
                with trio.move_on_after(within_s) as patience:
                    if failure := entry.read(await client.next_batch()):
                        return failure
                if patience.cancelled_caught:
                    break
                within_s = _SESSION_S if entry.task else self.timeout_s
        except (LinkError, RemoteProtocolError) as exc:
            return Failure.from_error(exc)
        if entry.task is None:
            return Failure(f"did not answer within {self.timeout_s:g} s", why=LinkFault.TIMEOUT)
        return entry

    def _introduction(self, turn: str | None, session: str | None = None) -> bytes:
        """Return what is said first; the mail, which gives the right to log in, only by those who show no session."""
        mail = "" if session else self.user_mail
        said = ((TURN, turn), (SESSION, session), (USER_NAME, self.user_name), (USER_MAIL, mail))
        return encode([Message(AUTH, Command.SET, name, text) for name, text in said if text is not None])

    async def _call(
        self, address: Address, question: bytes, read: Callable[[Batch], T | Failure | None], tls: Tls | None
    ) -> tuple[TCPClient, T] | Failure:
        """Connect and put a question. The connection is closed unless it is returned."""
        client = await self._connect(address, tls)
        if isinstance(client, Failure):
            return client
        try:
            found = await self._question(client, question, read)
        except BaseException:
            await client.aclose()
            raise
        if isinstance(found, Failure):
            await client.aclose()
            return found
        return client, found

    async def _connect(self, address: Address, tls: Tls | None) -> TCPClient | Failure:
        try:
            return await TCPClient.connect(self._resolver, address.host, address.port, within_s=self.timeout_s, tls=tls)
        except LinkError as exc:
            return Failure.from_error(exc)

    async def _question(
        self, client: TCPClient, question: bytes, read: Callable[[Batch], T | Failure | None]
    ) -> T | Failure:
        try:
            await client.send(question, within_s=self.timeout_s)
            with trio.move_on_after(self.timeout_s):
                while True:
                    found = read(await client.receive(within_s=math.inf))
                    if found is not None:
                        return found
        except (LinkError, RemoteProtocolError) as exc:
            return Failure.from_error(exc)
        return Failure(f"did not answer within {self.timeout_s:g} s", why=LinkFault.TIMEOUT)
