"""CacheClient: asks the cache service (docs/cache.md) over one kept connection, for all who ask in a process.

    cache = CacheClient(Address("127.0.0.1", 7100))
    nursery.start_soon(cache.run)
    made = await cache.ask("Session", "Create", Client="ann", Value=b"her basket")
    found = await cache.ask("Session", "Get", Session=made["Session"])

Answers come in any order and are matched by their Request. A connection that is lost is made anew, after pauses that
grow; a question that was lost with it is put once more, within its own time. So all but `Session.Create` do no harm
when they are done twice, and of that a session may be left that nobody knows and that ends by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.answers import Failure, read_task
from lambdamu.cache_answers import read_answer
from lambdamu.client_tls import Tls
from lambdamu.datapack import WireLimits, encode, encode_alone
from lambdamu.errors import CacheRefusedError, CacheUnavailableError, LinkError, RemoteProtocolError
from lambdamu.messages import AUTH, USER_MAIL, USER_NAME, Command, LinkFault, Message, as_map, as_text
from lambdamu.resolver import Resolver
from lambdamu.retry import Backoff
from lambdamu.tcp_client import TCPClient

_TRIES: Final = 2
"""So often a question is put at most: one that ends connections shall not do so for others without end."""
_WRITE_BYTES: Final = 65536


@attrs.frozen
class CachePolicy:
    """Times are seconds. `within_s`: connecting takes so long at most, and so does a question that says nothing else.

    `asks`: so many questions are on their way at once; one more is refused. `batch_bytes`: as the service has it.
    """

    within_s: float = attrs.field(default=2.0, validator=attrs.validators.gt(0.0))
    asks: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    batch_bytes: int = attrs.field(default=2**20, validator=attrs.validators.ge(65536))
    backoff: Backoff = Backoff(0.1, 2.0)  # noqa: RUF009 - a frozen value


@attrs.define(eq=False)
class _Asked:
    """A question on its way. `done`: it was answered, or never will be."""

    packed: bytes
    tries: int = 0
    heard: int = 0
    """So much the service had said when it was sent."""
    until: float = math.inf
    """Later it is not sent any more."""
    answer: Message | None = None
    done: trio.Event = attrs.field(factory=trio.Event)


@attrs.define
class TellCounts:
    """What came of that which was said and has no answer. `late`: there was no connection in time; `lost`: it broke."""

    sent: int = 0
    late: int = 0
    lost: int = 0


class CacheClient:
    """`secret`: what stands in the `secret_file` of the service, where it has one. `told` hears, once each time that
    it changes, why the service cannot be reached; None: it can, and has said that this client may ask.
    """

    def __init__(
        self,
        address: Address,
        *,
        name: str = "cache client",
        secret: str = "",
        policy: CachePolicy | None = None,
        tls: Tls | None = None,
        told: Callable[[str | None], None] = lambda _: None,
        rng: random.Random | None = None,
    ) -> None:
        self.address: Final = address
        self._name = name
        self._secret = secret
        self._policy = policy or CachePolicy()
        self._tls = tls
        self._told = told
        self._rng = rng or random.Random()
        self.connected = False
        self.tells: Final = TellCounts()
        self._resolver = Resolver()
        self._numbers = count(1)
        self._asked: dict[str, _Asked] = {}
        """All whose answers are waited for, by Request."""
        self._unsent: dict[str, _Asked] = {}
        self._filled = trio.Event()
        self._heard = 0
        """How many messages have come, of all connections."""
        self._why: str | None = None
        """Why it cannot be reached, as far as that is known."""
        self._scope = trio.CancelScope()
        """Of the connection that there is, or is being made."""

    async def ask(self, thing: str, name: str, *, within_s: float | None = None, **data: Any) -> Mapping[Any, Any]:
        """Return the Data of the answer to `thing.name`, such as Session.Get; names and bounds as in docs/cache.md.

        Raise SessionGoneError, CacheRefusedError, or CacheUnavailableError after `within_s` seconds at the latest. To
        be cancelled is safe; the question may have been dealt with, then as after a CacheUnavailableError.
        """
        request, asked = self._put(thing, name, data)
        self._asked[request] = asked
        within_s = self._policy.within_s if within_s is None else within_s
        try:
            with trio.move_on_after(within_s):
                await asked.done.wait()
        finally:
            del self._asked[request]
            sent = self._unsent.pop(request, None) is None
        if asked.answer is not None:
            return read_answer(asked.answer)
        if sent and not asked.done.is_set() and self._heard == asked.heard:
            self._scope.cancel()  # nothing was said there all the time: the next connection may be better
            self._say(f"the cache {self.address} is silent")
        raise CacheUnavailableError(self._why or f"the cache {self.address} did not answer within {within_s:g} s")

    def tell(self, thing: str, name: str, *, within_s: float = math.inf, **data: Any) -> None:
        """Say what has no answer (Warm.AppStart), within so many seconds or never; `tells` counts what came of it.

        Raise CacheUnavailableError where too much waits to be said.
        """
        now = trio.current_time()
        while self._unsent and next(iter(self._unsent.values())).until < now:  # else they would hold places in vain
            del self._unsent[next(iter(self._unsent))]
            self.tells.late += 1
        _, told = self._put(thing, name, data)
        told.until = now + within_s

    @property
    def waiting(self) -> int:
        """How much is to be sent yet."""
        return len(self._unsent)

    async def run(self) -> None:
        """Keep a connection, until cancelled."""
        fails = 0
        while True:
            heard, began = self._heard, trio.current_time()
            with trio.CancelScope() as self._scope:
                try:
                    await self._converse()
                except (LinkError, RemoteProtocolError) as exc:
                    self._say(f"the cache {self.address}: {str(exc).removeprefix(str(self.address)).lstrip(': ')}")
            # One that was only idle until the service ended it was a good one, too.
            good = self._heard > heard or trio.current_time() > began + 2 * self._policy.within_s
            fails = 0 if good else fails + 1
            await trio.sleep(self._policy.backoff.wait_s(fails, self._rng))

    def _put(self, thing: str, name: str, data: Mapping[str, Any]) -> tuple[str, _Asked]:
        request = str(next(self._numbers))
        if len(self._asked) >= self._policy.asks or len(self._unsent) >= self._policy.asks:
            raise CacheUnavailableError(f"{self._policy.asks} questions to the cache are on their way already")
        packed = encode_alone(Message(thing, Command.EVENT, name, dict(data), {"Request": request}))
        if len(packed) > self._policy.batch_bytes:
            raise CacheRefusedError("TooBig", f"a question has at most {self._policy.batch_bytes} bytes")
        asked = self._unsent[request] = _Asked(packed)
        self._filled.set()
        return request, asked

    # The connection

    async def _converse(self) -> None:
        """Connect, ask and hear, until that ends. Raise LinkError, RemoteProtocolError."""
        address, policy = self.address, self._policy
        limits = WireLimits(batch_bytes=policy.batch_bytes)
        client = await TCPClient.connect(
            self._resolver, address.host, address.port, within_s=policy.within_s, limits=limits, tls=self._tls
        )
        try:
            await self._introduce(client)
            self._say(None)
            self.connected = True
            ended: list[LinkError | RemoteProtocolError] = []
            async with trio.open_nursery() as nursery:
                for task in (self._send, self._receive):
                    nursery.start_soon(self._until_broken, task, client, ended, nursery.cancel_scope)
            raise ended[0]
        finally:
            self.connected = False
            self._lose()
            await client.aclose()

    async def _introduce(self, client: TCPClient) -> None:
        """Say the secret; without one it is said empty, to hear whether one is wanted: else nobody would tell why."""
        said = ((USER_NAME, self._name), (USER_MAIL, self._secret))
        await client.send(
            encode([Message(AUTH, Command.SET, name, text) for name, text in said]), within_s=self._policy.within_s
        )
        task = read_task(await client.receive(within_s=self._policy.within_s))
        if not isinstance(task, str):
            why = task.text if isinstance(task, Failure) else "it does not answer as a cache does"
            why = why if self._secret else f"without a secret {why}"
            raise LinkError(LinkFault.BAD_AUTH, f"{client.address}: {why}")
        self._heard += 1

    async def _until_broken(
        self,
        task: Callable[[TCPClient], Awaitable[None]],
        client: TCPClient,
        ended: list[LinkError | RemoteProtocolError],
        scope: trio.CancelScope,
    ) -> None:
        try:
            await task(client)
        except (LinkError, RemoteProtocolError) as exc:
            ended.append(exc)
            scope.cancel()

    async def _send(self, client: TCPClient) -> None:
        while True:
            await self._filled.wait()
            out, told = self._take(trio.current_time())
            if not self._unsent:
                self._filled = trio.Event()
            if out:
                self.tells.lost += told  # until they are sent, which may be cut short
                await client.send(out, within_s=self._policy.within_s)
                self.tells.lost -= told
                self.tells.sent += told

    def _take(self, now: float) -> tuple[bytes, int]:
        """Return what is sent next, and how many in it have no answer."""
        out, told = bytearray(), 0
        while self._unsent and len(out) < _WRITE_BYTES:
            request = next(iter(self._unsent))
            asked = self._unsent.pop(request)
            if now > asked.until:
                self.tells.late += 1
                continue
            asked.tries += 1
            asked.heard = self._heard
            out += asked.packed
            told += request not in self._asked
        return bytes(out), told

    async def _receive(self, client: TCPClient) -> None:
        while True:
            for message in await client.next_batch():
                self._heard += 1
                request = as_text((as_map(message.header) or {}).get("Request"))
                if request is None and message.command == Command.ERROR:
                    said = as_map(message.data) or {}
                    raise LinkError(
                        LinkFault.CLOSED, f"it ends the connection: {as_text(said.get('Code'))}: {said.get('Text')}"
                    )
                asked = self._asked.get(request or "")
                if asked is not None:  # else nobody waits for it any more
                    asked.answer = message
                    asked.done.set()

    def _lose(self) -> None:
        """Have what was asked over a connection that is lost asked once more, or say that it never will be answered."""
        for request, asked in self._asked.items():
            if asked.done.is_set() or request in self._unsent:
                continue
            if asked.tries < _TRIES:
                self._unsent[request] = asked
                self._filled.set()
            else:
                asked.done.set()

    def _say(self, why: str | None) -> None:
        if why != self._why:
            self._told(why)
        self._why = why
