"""Tells a cache on another node which devices come: `Warm.AppStart`, of which no answer comes.

    an ask -> `tell` -> the budget of its network -> the connection that a CacheClient keeps -> the port of the cache

An ask never waits for it. What finds no place, or was not sent in time, is dropped and counted: a client whose data
were not warmed has them fetched when it asks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.cache_client import CacheClient, CachePolicy
from lambdamu.client_tls import Tls
from lambdamu.errors import CacheUnavailableError
from lambdamu.messages import WARM
from lambdamu.retry import Backoff
from master.cache.warm_types import WarmPolicy
from master.core.fair import FairPolicy, NetworkRates

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from master.config_cache import CacheNodeConfig

FRESH_S: Final = 5.0
"""Whoever came longer ago has logged in by now: to warm his data is of no use."""
_STEP_S: Final = 5.0
"""For connecting, and the same for the answer to the secret, and for one write."""


@attrs.frozen
class CallCounts:
    """Since the start. `held_back`: by the budget of their network; `dropped`: there was no place, or the write failed;
    `late`: there was no connection in time.
    """

    sent: int
    held_back: int
    dropped: int
    late: int


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
        self.rates: Final = NetworkRates(
            FairPolicy(config.app_starts_per_network_per_s, WarmPolicy().network_burst), WarmPolicy().devices
        )
        self._log = log
        assert config.address is not None  # noqa: S101 - else nobody is called
        self._cache = CacheClient(
            config.address,
            name=user_name,
            secret=secret,
            policy=CachePolicy(within_s=_STEP_S, asks=config.length, backoff=Backoff()),
            tls=Tls(ca_file=config.ca_file, server_name=config.tls_name) if config.tls else None,
            told=self._heed,
            rng=rng,
        )
        self.fault: str | None = None
        """Why the node cannot be reached, as far as that is known; None: it can."""
        self._held_back = 0
        self._no_place = 0

    @property
    def counts(self) -> CallCounts:
        tells = self._cache.tells
        return CallCounts(tells.sent, self._held_back, self._no_place + tells.lost, tells.late)

    @property
    def connected(self) -> bool:
        return self._cache.connected

    @property
    def used(self) -> float:
        """Return how full the queue is, from 0 to 1."""
        return self._cache.waiting / self.config.length

    def tell(self, device: str, network: bytes | None = None) -> None:
        """Have the data of a device warmed; `network`: that of its client, None for one that does not count."""
        if network is not None and self.rates.wait_s(trio.current_time(), network):
            self._held_back += 1
            return
        try:
            self._cache.tell(WARM, "AppStart", within_s=FRESH_S, Device=device)
        except CacheUnavailableError:
            self._no_place += 1

    async def run(self) -> None:
        """Keep a connection, until cancelled."""
        await self._cache.run()

    def _heed(self, fault: str | None) -> None:
        """Say when it begins to fail, and when it does so no more."""
        failed, self.fault = self.fault is not None, fault
        if (fault is not None) == failed:
            return
        where = str(self.config.address)
        if fault is not None:
            self._log.warning("cache_node_unreachable", address=where, error=fault)
        else:
            self._log.info("cache_node_reached", address=where)
