"""The pool that a configuration describes."""

from __future__ import annotations

from master.config import BackendConfig, Config, ProbePolicy
from master.core.backend import Backend
from master.core.ejection import EjectionPolicy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool


def make_pool(config: Config) -> Pool:
    """Return the pool that a configuration describes; nothing is known of its members yet."""
    master, choice, breaker = config.master, config.choice, config.breaker
    return Pool(
        map(make_backend, config.backends),
        make_health(config.probe),
        LoadPolicy(master.connect_s, master.reservation_s, session_s=choice.session_s, masters=choice.masters),
        choice,
        EjectionPolicy(
            reservation_s=master.reservation_s,
            window_s=breaker.window_s,
            networks=breaker.networks,
            max_ejected_share=breaker.max_ejected_share,
            together_share=breaker.together_share,
            open_s=breaker.open_s,
            max_open_s=breaker.max_open_s,
        ),
    )


def make_backend(backend: BackendConfig) -> Backend:
    """Return a member of the pool as it is configured."""
    return Backend(
        name=backend.name,
        weight=backend.weight,
        capacity=backend.capacity,
        zone=backend.zone,
        advertise=tuple((address.host, address.port) for address in backend.advertise),
        priority=backend.priority,
    )


def make_health(probe: ProbePolicy) -> HealthPolicy:
    """Return when a backend is up, as it is configured."""
    return HealthPolicy(rise=probe.rise, fall=probe.fall, stale_after_s=probe.stale_after_s)
