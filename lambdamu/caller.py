"""How one user calls: a master is asked, a backend is logged in to. What is expected to fail comes back as a value."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, read_answer, read_task
from lambdamu.client_tls import Tls
from lambdamu.datapack import encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import (
    AUTH,
    DO_SEND_SERVER,
    MASTER,
    TURN,
    USER_MAIL,
    USER_NAME,
    Batch,
    Command,
    LinkFault,
    Message,
)
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient

T = TypeVar("T")


@attrs.frozen
class Login:
    """A connection on which a user is logged in, as the Task object `task`."""

    task: str
    client: TCPClient

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

    async def log_in(self, backend: Address, turn: str | None = None) -> Login | Failure:
        """Log in to a backend, showing a `turn` where there is one; whoever gets the login closes it."""
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

    def _introduction(self, turn: str | None) -> bytes:
        said = ((TURN, turn), (USER_NAME, self.user_name), (USER_MAIL, self.user_mail))
        return encode([Message(AUTH, Command.SET, name, text) for name, text in said if text is not None])

    async def _call(
        self, address: Address, question: bytes, read: Callable[[Batch], T | Failure | None], tls: Tls | None
    ) -> tuple[TCPClient, T] | Failure:
        """Connect and put a question. The connection is closed unless it is returned."""
        try:
            client = await TCPClient.connect(
                self._resolver, address.host, address.port, within_s=self.timeout_s, tls=tls
            )
        except LinkError as exc:
            return Failure.from_error(exc)
        try:
            found = await self._question(client, question, read)
        except BaseException:
            await client.aclose()
            raise
        if isinstance(found, Failure):
            await client.aclose()
            return found
        return client, found

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
