"""A crowd on the wire: a few kept connections that ask for all who are due, and one for each client at its backend."""

from __future__ import annotations

import math
import random
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from client_stub.crowd import Crowd
from client_stub.crowd_member import CrowdPolicy, Member
from client_stub.options import ClientOptions
from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, read_answer
from lambdamu.caller import Caller, Login
from lambdamu.datapack import encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, LinkFault, Message
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient

BURST: Final = 256
"""So many ask in one write at most: their answers fit into the buffers of a socket while nobody reads."""
_ANSWERS_S: Final = 30.0
"""All answers to one write are there by then. A crowd that comes at once is told in the figures how long it took."""
_LOGINS: Final = 200
"""So many log in at once; their turns last some seconds."""
_LEAVE_S: Final = 5.0
"""So long it takes at most to have all leave."""


class CrowdRun:
    """Runs a crowd; `crowd.tally` is right at any moment, also after `run` was cancelled, which has all leave.

    `slots`: most clients that stay at a backend at once; None is no bound. `say` is told once when it holds them back.
    """

    def __init__(
        self, options: ClientOptions, caller: Caller, rng: random.Random, slots: int | None, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._caller = caller
        self._rng = rng
        self._resolver = Resolver()
        ids = [secrets.token_hex(16) for _ in range(options.clients)]
        said = {"Pass": options.pass_text, "Queue": options.queue}
        policy = CrowdPolicy(
            options.clients,
            options.rate,
            math.inf if options.wait is None else options.wait,
            options.away,
            options.stay,
            {key: value for key, value in said.items() if value is not None},
        )
        self.crowd = Crowd(trio.current_time(), policy, ids, len(options.masters), rng)
        self._moved = trio.Event()
        """Somebody may be due sooner than before, or all are through."""
        self._slots = slots
        self._open = trio.Semaphore(options.clients if slots is None else slots)
        self._logging_in = trio.Semaphore(_LOGINS)
        self._say = say
        self._held_back = False

    async def run(self) -> None:
        """Return when each client is through."""
        try:
            await self._serve()
        finally:
            if not self.crowd.is_over:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _LEAVE_S):
                    if self.crowd.leave_all(trio.current_time()):
                        await self._serve()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            each = max(1, (self._options.connections or 1) // len(self._options.masters))
            for master in range(len(self._options.masters)):
                send, receive = trio.open_memory_channel[list[Member]](0)
                nursery.start_soon(self._hand_out, master, send)
                for _ in range(each):
                    nursery.start_soon(self._ask_for, master, receive, nursery)
            while not self.crowd.is_over:
                await self._moved.wait()
            nursery.cancel_scope.cancel()

    async def _hand_out(self, master: int, send: trio.MemorySendChannel[list[Member]]) -> None:
        """Give those who are due to whichever connection is free."""
        while True:
            moved = self._moved
            with trio.move_on_at(self.crowd.next_due(master)):
                await moved.wait()
            while members := self.crowd.take(trio.current_time(), master, BURST):
                await send.send(members)

    def _has_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def _ask_for(
        self, master: int, receive: trio.MemoryReceiveChannel[list[Member]], nursery: trio.Nursery
    ) -> None:
        """Ask for those who are due, over one connection that is kept."""
        client: TCPClient | None = None
        try:
            async for members in receive:
                left = deque(members)
                try:
                    client = await self._ask(master, client, left, nursery)
                except (LinkError, RemoteProtocolError) as exc:
                    client = None
                    why = exc.why if isinstance(exc, LinkError) else LinkFault.NOT_THE_PROTOCOL
                    for member in left:
                        self.crowd.call_failed(trio.current_time(), member, why)
                self._has_moved()
        finally:
            if client is not None:
                with trio.CancelScope(shield=True):
                    await client.aclose()

    async def _ask(self, master: int, kept: TCPClient | None, left: deque[Member], nursery: trio.Nursery) -> TCPClient:
        """Ask for all who are left, take those off who were answered, and return the connection.

        One that was kept may have been idle for too long and ended by the master: then a new one asks.
        """
        client, before = kept, len(left)
        if client is not None:
            try:
                await self._talk(client, left, nursery)
            except LinkError as exc:
                await client.aclose()
                if exc.why != LinkFault.CLOSED or len(left) < before:
                    raise
            except BaseException:
                await client.aclose()
                raise
            else:
                return client
        address, timeout_s = self._options.masters[master], self._options.timeout_s
        client = await TCPClient.connect(
            self._resolver, address.host, address.port, within_s=timeout_s, tls=self._options.tls
        )
        try:
            await self._talk(client, left, nursery)
        except BaseException:
            await client.aclose()
            raise
        return client

    async def _talk(self, client: TCPClient, left: deque[Member], nursery: trio.Nursery) -> None:
        now = trio.current_time()
        questions = b"".join(
            encode([Message(MASTER, Command.EVENT, DO_SEND_SERVER, self.crowd.asks(now, member))]) for member in left
        )
        await client.send(questions, within_s=self._options.timeout_s)
        with trio.move_on_after(_ANSWERS_S):
            while left:
                answer = read_answer(await client.next_batch())
                if answer is not None:
                    self._take(left.popleft(), answer, nursery)
            return
        raise LinkError(LinkFault.TIMEOUT, f"{client.address} did not answer within {_ANSWERS_S:g} s")

    def _take(self, member: Member, answer: Answer | Failure, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        if isinstance(answer, Failure):
            self.crowd.call_failed(now, member, answer.why)
            return
        endpoint = self.crowd.answered(now, member, answer)
        if endpoint is not None and self._options.stay is not None:
            nursery.start_soon(self._go, member, endpoint)

    async def _go(self, member: Member, backend: Address) -> None:
        """Log in and stay, for as long as it has not stayed yet."""
        if self._open.value == 0 and not self._held_back:
            self._held_back = True
            self._say(f"held back: the limit of open files (ulimit -n) allows {self._slots} clients at their backends")
        async with self._open:
            async with self._logging_in:
                login = await self._caller.log_in(backend, member.turn)
            if isinstance(login, Failure):
                self.crowd.login_failed(trio.current_time(), member, backend, login.why)
            else:
                await self._stay(member, backend, login)
        self._has_moved()

    async def _stay(self, member: Member, backend: Address, login: Login) -> None:
        began, lost = trio.current_time(), None
        self.crowd.connected(member, backend)
        try:
            ended = await login.hold(member.stays_s)
            lost = None if ended is None else ended.why
        finally:
            now = trio.current_time()
            self.crowd.stayed(now, member, backend, now - began, lost)
            with trio.CancelScope(shield=True):
                await login.client.aclose()
