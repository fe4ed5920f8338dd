"""How one user calls: a master is asked, a backend is logged in to. What is expected to fail comes back as a value."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import attrs
import trio

from client_stub.answers import Answer, Failure, read_answer, read_task
from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import (
    AUTH,
    DO_SEND_SERVER,
    MASTER,
    USER_MAIL,
    USER_NAME,
    Batch,
    Command,
    Message,
)
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient

T = TypeVar("T")

_ASK: Final = encode([Message(MASTER, Command.EVENT, DO_SEND_SERVER)])

ROUNDS: Final = 3
"""So often every master is tried before a client gives up."""
BACKOFF_S: Final = 0.2
"""Before the second round a client waits up to this, before each further one up to twice as long as before the last."""
MAX_BACKOFF_S: Final = 2.0


@attrs.frozen
class Login:
    """A connection on which a user is logged in, as the Task object `task`."""

    task: str
    _client: TCPClient

    async def hold(self, hold_s: float) -> Failure | None:
        """Stay for `hold_s` seconds, passing over what the backend says; return why, when it ends the stay before."""
        with trio.move_on_after(hold_s):
            try:
                while True:
                    await self._client.receive(within_s=math.inf)
            except (LinkError, RemoteProtocolError) as exc:
                return _failure(exc).of("backend", self._client.address)
        return None


@attrs.frozen
class Caller:
    """Calls as one user; connecting, sending and waiting for an answer each take `timeout_s` seconds at most."""

    user_name: str
    user_mail: str
    timeout_s: float
    _resolver: Resolver = attrs.field(factory=Resolver)

    async def ask(self, master: Address) -> Answer | Failure:
        """Ask a master for a backend, over a connection of its own."""
        async with self._called("master", master, _ASK, read_answer) as called:
            return called if isinstance(called, Failure) else called[1]

    @asynccontextmanager
    async def login(self, backend: Address) -> AsyncIterator[Login | Failure]:
        """Log in to a backend; the connection lasts until the end of the block."""
        async with self._called("backend", backend, self._introduction(), read_task) as called:
            yield called if isinstance(called, Failure) else Login(called[1], called[0])

    def _introduction(self) -> bytes:
        name = Message(AUTH, Command.SET, USER_NAME, self.user_name)
        return encode([name, Message(AUTH, Command.SET, USER_MAIL, self.user_mail)])

    @asynccontextmanager
    async def _called(
        self, what: str, address: Address, question: bytes, read: Callable[[Batch], T | Failure | None]
    ) -> AsyncIterator[tuple[TCPClient, T] | Failure]:
        """Connect and put a question; the connection lasts until the end of the block."""
        client = await self._connect(address)
        if isinstance(client, Failure):
            yield client.of(what, address)
            return
        try:
            found = await self._question(client, question, read)
            yield found.of(what, address) if isinstance(found, Failure) else (client, found)
        finally:
            await client.aclose()

    async def _connect(self, address: Address) -> TCPClient | Failure:
        try:
            return await TCPClient.connect(self._resolver, address.host, address.port, within_s=self.timeout_s)
        except LinkError as exc:
            return _failure(exc)

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
            return _failure(exc)
        return Failure(f"did not answer within {self.timeout_s:g} s")


def _failure(exc: LinkError | RemoteProtocolError) -> Failure:
    if isinstance(exc, RemoteProtocolError):
        return Failure(f"not to the protocol: {exc.text}", final=True)
    return Failure(str(exc))


async def ask_any(
    ask: Callable[[Address], Awaitable[Answer | Failure]], masters: Sequence[Address], rng: random.Random
) -> tuple[Address, Answer] | Failure:
    """Ask masters in an order of chance until one answers; return it with its answer, or why none did.

    Between two rounds it waits, by full jitter: anything up to a bound that doubles each time
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    failures: dict[Address, Failure] = {}
    left = list(dict.fromkeys(masters))
    for tries in range(ROUNDS):
        if tries:
            await trio.sleep(rng.uniform(0, min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (tries - 1))))
        for master in rng.sample(left, len(left)):
            answer = await ask(master)
            if isinstance(answer, Answer):
                return master, answer
            failures[master] = answer
        left = [master for master in left if not failures[master].final]
        if not left:
            break
    return Failure("; ".join(failure.text for failure in failures.values()) or "there is no master to ask")
