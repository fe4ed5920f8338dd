"""What a master has of a cache: all of it on this node, or a connection to another one; and what devices have of it.

All is imported late: a master without it should not wait for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import trio

from master.config import Config
from master.config_secrets import read_cache_secret, read_mail
from master.devices import Devices, Tell

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from structlog.typing import FilteringBoundLogger

    from master.cache.house import CacheHouse
    from master.cache.keeper import CacheKeeper
    from master.warm_call import WarmCaller


class Shown(Protocol):
    """What has metrics of its own, and bounds."""

    def bounds(self) -> dict[str, Callable[[], float]]:
        """Return how much of each bound is used, from 0 to 1, by name."""
        ...

    def collect(self, now: float) -> Iterator[Metric]:
        """Yield all families."""
        ...


def make_cache(config: Config, rng: random.Random, show: Callable[[Shown], object]) -> CacheHouse | None:
    """Return the cache of this node. Raise LineFileError when the file of its secret is not right."""
    cache = config.cache
    if cache is None:
        return None
    from master.cache.house import CacheHouse  # noqa: PLC0415
    from master.cache_metrics import CacheMetrics  # noqa: PLC0415

    secret = read_cache_secret(cache.secret_file)[0] if cache.secret_file else ""
    house = CacheHouse(cache, config.limits, rng, secret)
    show(CacheMetrics(house))
    return house


def make_cache_keeper(house: CacheHouse, log: FilteringBoundLogger, tell: Callable[[str, str], None]) -> CacheKeeper:
    """Return what keeps a cache beyond the process. `tell`: hears of what has changed, an event and a line."""
    from master.cache.keeper import CacheKeeper  # noqa: PLC0415
    from master.store import SqliteCache  # noqa: PLC0415

    config = house.config
    file = SqliteCache(config.file) if config.file else None
    epoch_s = time.time() - trio.current_time()
    house.keeper = keeper = CacheKeeper(house.store, file, config.commit_s, log, tell, epoch_s=epoch_s)
    return keeper


def make_warm_caller(
    config: Config, rng: random.Random, log: FilteringBoundLogger, show: Callable[[Shown], object]
) -> WarmCaller | None:
    """Return who calls the cache of another node. Raise LineFileError, TlsError when a file of it is not right."""
    node = config.cache_node
    if node.address is None:
        return None
    from master.cache_metrics import CacheNodeMetrics  # noqa: PLC0415
    from master.warm_call import WarmCaller  # noqa: PLC0415

    secret = read_mail(node.secret_file)[0] if node.secret_file else ""
    caller = WarmCaller(node, rng, log, user_name=config.probe.user_name, secret=secret)
    show(CacheNodeMetrics(caller))
    return caller


def make_devices(config: Config, house: CacheHouse | None, caller: WarmCaller | None) -> Devices | None:
    """Return what is done for devices by the cache that there is; None for none."""
    networks = config.limits.networks()
    if house is None:
        return None if caller is None else Devices(caller.tell, networks)
    from master.cache.homes import Homes  # noqa: PLC0415

    homes = Homes(house.store, house.config.clients_per_device) if config.choice.session_slack else None
    return Devices(_warm_here(house), networks, homes)


def _warm_here(house: CacheHouse) -> Tell | None:
    warm = house.warm
    return None if warm is None else lambda device, network: warm.app_start(device, None, network)
