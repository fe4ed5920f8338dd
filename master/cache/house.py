"""The cache service put together: store, objects, broker, warm-up, port.  Runs beside a pool, or alone."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.breaker import BreakerPolicy
from lambdamu.port import PortLimits, PortObserver
from master.cache.broker import Broker
from master.cache.broker_core import BrokerPolicy
from master.cache.objects import Objects, Times
from master.cache.port import CachePort
from master.cache.service import CacheService, Guard
from master.cache.store import CacheStore, StorePolicy
from master.cache.upstream import WireUpstream
from master.cache.warm import Warmer
from master.cache.warm_types import WarmPolicy

if TYPE_CHECKING:
    from lambdamu.tls import TlsDoor
    from master.config_cache import CacheConfig
    from master.kept import Kept

_OWNER_BYTES: Final = 8
_OPEN_S: Final = 1.0
_MOST_OPEN_S: Final = 5.0
"""A peer that has failed is left alone for so long at first and at last: one call each time is no load for it."""
_FULL_SHARE: Final = 0.8
"""Of the workers, those that one of several peers may hold: one that hangs leaves the others some."""
_LEASE_SPARE_S: Final = 30.0
"""So much longer than a call a permit for it is good."""


class CacheHouse:
    """What a node has with `[cache]`. `secret`: what stands in its file, empty where there is none."""

    def __init__(self, config: CacheConfig, limits: PortLimits, rng: random.Random, secret: str = "") -> None:
        self.config = config
        self.keeper: Kept | None = None
        self.turned_away = 0
        """Connections that were refused at the port, because as many as allowed were open, or shook hands."""
        self.port: CachePort | None = None
        self._limits = attrs.evolve(
            limits, batch_bytes=config.batch_bytes, connections=config.connections, connections_per_address=0
        )
        policy = StorePolicy(config.max_bytes, config.value_bytes, sessions_per_client=config.sessions_per_client)
        self.store = CacheStore(policy)
        per_kind: dict[str, int] = {}
        for warm in config.warm:  # two types that ask the same of the upstream share its limit
            per_kind[warm.kind] = max(warm.workers, per_kind.get(warm.kind, 0))
        self.broker = Broker(BrokerPolicy(config.length, config.workers, per_kind, config.waiting))
        self.upstream: WireUpstream | None = None
        self.warm: Warmer | None = None
        if config.upstream:
            self.upstream = WireUpstream(
                [Address.parse(each) for each in config.upstream],
                policy=_breaker_policy(config),
                rng=rng,
                value_bytes=config.value_bytes,
            )
            owner = secrets.token_hex(_OWNER_BYTES)
            self.warm = Warmer(self.store, self.broker, self.upstream, config.warm, owner, _warm_policy(config), rng)
        times = Times(config.session_s, config.data_s, config.device_s)
        self._guard = Guard(secret, certificates=config.client_certificates)
        objects = Objects(self.store, times, config.value_bytes)
        self.hot = objects.hot
        self.service = CacheService(
            objects,
            rng,
            warm=self.warm,
            guard=self._guard,
        )

    def make_port(self, tls: TlsDoor | None, observer: PortObserver) -> CachePort:
        guard = self._guard
        self.port = CachePort(
            self.service,
            self._limits,
            self.config.asks,
            observer=observer,
            tls=tls,
            knows=guard.lets_in,
            wanted=guard.wanted,
        )
        return self.port

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch, until cancelled. What is over is given back by its keeper."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.broker.run)
                if self.warm is not None:
                    await nursery.start(self.warm.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            if self.upstream is not None:
                with trio.CancelScope(shield=True):  # it waits for nobody
                    await self.upstream.aclose()

    def stop(self) -> None:
        """Take nothing new that has to be fetched; what has a worker is finished."""
        self.broker.stop()


def _breaker_policy(config: CacheConfig) -> BreakerPolicy:
    """Return when a peer of the upstream is left alone.

    It is tried again so soon that who asks when it is back has to ask again, if at all, within the time that an answer
    may take. One that is alone may have all workers: there is nobody to keep some of them for.
    """
    lifetimes = [kind.lifetime_s for kind in config.warm] or [_OPEN_S]  # without types nothing is called
    shortest_s = min(lifetimes)
    return BreakerPolicy(
        slow_s=max(lifetimes) / 2,
        open_s=min(_OPEN_S, shortest_s / 10),
        max_open_s=min(_MOST_OPEN_S, shortest_s * 0.4),
        lease_s=max(lifetimes) + _LEASE_SPARE_S,
        workers=config.workers,
        full_share=1.0 if len(config.upstream) == 1 else _FULL_SHARE,
    )


def _warm_policy(config: CacheConfig) -> WarmPolicy:
    return WarmPolicy(
        device_s=config.app_start_device_s,
        client_s=config.app_start_client_s,
        network_per_s=config.app_starts_per_network_per_s,
        fetches_per_s=config.app_start_fetches_per_s,
        clients_per_device=config.clients_per_device,
    )
