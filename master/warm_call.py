"""Tells a cache on another node which devices come: `Warm.AppStart`, of which no answer comes.

    an ask -> `tell` -> the budget of its network -> a queue -> one connection, kept -> the port of the cache

An ask never waits for it. What finds no place, or was not sent in time, is dropped and counted: a client whose data
were not warmed has them fetched when it asks. The secret is said first on each connection, as backends are told one.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.client_tls import Tls
from lambdamu.datapack import encode
from lambdamu.errors import LinkError, RemoteProtocolError
from lambdamu.messages import AUTH, TASK_OBJECT, USER_MAIL, USER_NAME, WARM, Command, LinkFault, Message
from lambdamu.resolver import Resolver
from lambdamu.retry import Backoff
from lambdamu.tcp_client import TCPClient
from master.cache.warm_types import WarmPolicy
from master.core.fair import FairPolicy, NetworkRates

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from master.config_cache import CacheNodeConfig

FRESH_S: Final = 5.0
"""Whoever came longer ago has logged in by now: to warm his data is of no use."""
_STEP_S: Final = 5.0
"""For connecting, and the same for the answer to the secret, and for one write."""
_TAKEN: Final = (AUTH, Command.VALUE, TASK_OBJECT)
"""What the answer is to a secret that is right."""
_AT_ONCE: Final = 64
"""Messages in one write."""


@attrs.define
class CallCounts:
    """Since the start. `held_back`: by the budget of their network; `dropped`: there was no place, or the write failed;
    `late`: there was no connection in time.
    """

    sent: int = 0
    held_back: int = 0
    dropped: int = 0
    late: int = 0


class WarmCaller:
    """`user_name`: how this master calls itself. `secret`: "" where none is said. Raise TlsError on a bad `ca_file`."""

    def __init__(
        self,
        config: CacheNodeConfig,
        rng: random.Random,
        log: FilteringBoundLogger,
        *,
        user_name: str,
        secret: str = "",
    ) -> None:
        self.config = config
        self.counts: Final = CallCounts()
        self.connected = False
        self.rates: Final = NetworkRates(
            FairPolicy(config.app_starts_per_network_per_s, WarmPolicy().network_burst), WarmPolicy().devices
        )
        self._rng = rng
        self._log = log
        self._hello = _say_secret(user_name, secret) if secret else b""
        self._tls = Tls(ca_file=config.ca_file, server_name=config.tls_name) if config.tls else None
        self._resolver = Resolver()
        self._waiting: deque[tuple[float, str]] = deque()
        self._some = trio.Event()
        self._requests = count(1)
        self._failing = False

    @property
    def used(self) -> float:
        """Return how full the queue is, from 0 to 1."""
        return len(self._waiting) / self.config.length

    def tell(self, device: str, network: bytes | None = None) -> None:
        """Have the data of a device warmed; `network`: that of its client, None for one that does not count."""
        now = trio.current_time()
        if network is not None and self.rates.wait_s(now, network):
            self.counts.held_back += 1
            return
        if len(self._waiting) >= self.config.length:
            self._waiting.popleft()  # who has waited longest has least use of it
            self.counts.dropped += 1
        self._waiting.append((now, device))
        self._some.set()

    async def run(self) -> None:
        """Keep a connection, until cancelled."""
        backoff, waited = Backoff(), 0
        while True:
            try:
                client = await self._connect()
            except (LinkError, RemoteProtocolError) as exc:
                self._heed(str(exc))
            else:
                self._heed("")
                began = trio.current_time()
                await self._converse(client)
                if trio.current_time() - began > backoff.most_s:  # who ends each connection at once is not hurried
                    waited = 0
            await trio.sleep(backoff.wait_s(waited, self._rng))
            waited += 1

    async def _connect(self) -> TCPClient:
        """Return a connection on which the secret was taken. Raise LinkError, RemoteProtocolError."""
        address = self.config.address
        assert address is not None  # noqa: S101 - else nobody is called
        client = await TCPClient.connect(self._resolver, address.host, address.port, within_s=_STEP_S, tls=self._tls)
        try:
            if self._hello:
                await client.send(self._hello, within_s=_STEP_S)
                answer = await client.receive(within_s=_STEP_S)
                if not any((each.object, each.command, each.name) == _TAKEN for each in answer):
                    raise LinkError(LinkFault.BAD_AUTH, f"{client.address} does not take what stands in secret_file")
        except BaseException:
            await client.aclose()
            raise
        return client

    async def _converse(self, client: TCPClient) -> None:
        """Send what comes, until the connection ends."""
        self.connected = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, client, nursery.cancel_scope)
                await self._send(client)
                nursery.cancel_scope.cancel()
        finally:
            self.connected = False
            await client.aclose()

    async def _hear(self, client: TCPClient, scope: trio.CancelScope) -> None:
        """Wait for the end; whatever is said before it is said to nobody."""
        try:
            while True:
                await client.next_batch()
        except (LinkError, RemoteProtocolError):
            scope.cancel()

    async def _send(self, client: TCPClient) -> None:
        """Send until that fails."""
        while True:
            await self._some.wait()
            devices = self._take(trio.current_time())
            if devices:
                self.counts.dropped += len(devices)  # until they are sent, which may be cut short
                try:
                    await client.send(b"".join(map(self._pack, devices)), within_s=_STEP_S)
                except LinkError:
                    return
                self.counts.dropped -= len(devices)
                self.counts.sent += len(devices)

    def _take(self, now: float) -> list[str]:
        """Return those to be sent next; those who came too long ago are forgotten."""
        devices: list[str] = []
        while self._waiting and len(devices) < _AT_ONCE:
            came, device = self._waiting.popleft()
            if now - came > FRESH_S:
                self.counts.late += 1
            else:
                devices.append(device)
        if not self._waiting:
            self._some = trio.Event()
        return devices

    def _pack(self, device: str) -> bytes:
        header = {"Request": f"{next(self._requests)}"}
        return encode([Message(WARM, Command.EVENT, "AppStart", {"Device": device}, header)])

    def _heed(self, fault: str) -> None:
        """Say when it begins to fail, and when it does so no more."""
        if bool(fault) == self._failing:
            return
        self._failing = bool(fault)
        where = str(self.config.address)
        if fault:
            self._log.warning("cache_node_unreachable", address=where, error=fault)
        else:
            self._log.info("cache_node_reached", address=where)


def _say_secret(user_name: str, secret: str) -> bytes:
    return encode([Message(AUTH, Command.SET, USER_NAME, user_name), Message(AUTH, Command.SET, USER_MAIL, secret)])
