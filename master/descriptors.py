"""The limit on open files, and how many connections fit in it."""

from __future__ import annotations

import resource
from typing import Final

from master.config import Config
from master.observer import Logger

_SPARE_DESCRIPTORS: Final = 16
"""For what opens a file now and then: look-ups of names, the system's random numbers."""


def fit_descriptors(config: Config, log: Logger, held: int) -> Config:
    """Raise the limit on open files as far as it is needed and allowed; where that is not enough, lower `connections`.

    So clients can never take the descriptors that the probes live by. `held`: those that were open at the start.
    """
    others = held + 2 * len(config.backends) + _SPARE_DESCRIPTORS
    if config.http.listen is not None:
        others += config.http.connections
    asked = {"limits": config.limits.connections}
    if config.gateway.listen is not None:
        asked["gateway"] = config.gateway.connections
    if config.cache is not None:
        asked["cache"] = config.cache.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = config.limits.connections if config.tls.listen is not None else 0  # the port under TLS has as many again
    clients = sum(asked.values()) + more
    wanted = clients + others
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return config
    # Each gets the same part of what it asks for.
    fitting = {table: max(1, number * (soft - others) // clients) for table, number in asked.items()}
    log.warning(
        "few_descriptors",
        limit=soft,
        connections=fitting["limits"],
        gateway_connections=fitting.get("gateway"),
        cache_connections=fitting.get("cache"),
        message=f"raise the limit on open files to {wanted}",
    )
    for table, number in fitting.items():
        config = config.work_with(table, "connections", number)
    return config
