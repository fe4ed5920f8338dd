"""What the cache knows, as metrics: read from it when somebody looks, and not stored a second time.

Clients, sessions and devices are no labels: there is no end of them. Tables, kinds of fetches and peers are as many as
the configuration says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs
from prometheus_client.core import CounterMetricFamily, Metric

from lambdamu.breaker import State
from master.cache.rows import Table
from master.metric_families import by, counters, gauge, gauge_of, gauges, kept, total

if TYPE_CHECKING:
    from master.cache.house import CacheHouse
    from master.cache.warm import Warmer
    from master.warm_call import WarmCaller


@attrs.define(eq=False)
class CacheMetrics:
    """Of warm data, and of what keeps the cache, there are no series where there is nothing of it."""

    house: CacheHouse

    def bounds(self) -> dict[str, Callable[[], float]]:
        """Return how much of each bound is used, from 0 to 1. `cache_bytes` is near 1 where there is much to keep."""
        store, core = self.house.store, self.house.broker.core
        most, policy = store.policy, core.policy
        bounds: dict[str, Callable[[], float]] = {
            "cache_bytes": lambda: store.bytes / most.max_bytes,
            "cache_session_bytes": lambda: store.counts(Table.SESSION).bytes / most.max_bytes,
            "cache_leases": lambda: store.leases / most.max_leases,
            "cache_workers": lambda: core.working / policy.workers,
            "cache_queue": lambda: min(core.length / policy.length, 1.0),
            "cache_waiting": lambda: core.parked / policy.most_parked,
        }
        bounds["cache_strangers"] = lambda: port.strangers / port.most_strangers if (port := self.house.port) else 0.0
        warm = self.house.warm
        if warm is not None:
            bounds["cache_flights"] = lambda: len(warm.fetches.flights) / warm.policy.flights
        return bounds

    def collect(self, now: float) -> Iterator[Metric]:
        """Yield all of it."""
        yield from self._store()
        yield self._asks()
        put_out = self.house.port.put_out if self.house.port is not None else 0
        yield total(
            "cache_strangers_put_out", "Connections that ended as others came before they said the secret.", put_out
        )
        refused = "Connections turned away: too many were open, or shook hands."
        yield total("cache_connections_refused", refused, self.house.turned_away)
        yield from self._broker(now)
        if self.house.warm is not None:
            yield from self._warm(self.house.warm)
            yield from self._upstream(now)
        yield from self._kept()

    def _store(self) -> Iterator[Metric]:
        store = self.house.store
        counts = {table.name.lower(): store.counts(table) for table in Table}
        rows, used = ({name: getattr(each, key) for name, each in counts.items()} for key in ("rows", "bytes"))
        yield gauge_of("cache_rows", "Rows, the dead included that are not swept yet.", "table", rows)
        yield gauge_of("cache_bytes", "What they are counted with.", "table", used)
        evicted = {name: each.evicted for name, each in counts.items()}
        yield by("cache_evicted", "Rows that made room for others.", "table", evicted)
        expired = {name: each.expired for name, each in counts.items()}
        yield by("cache_expired", "Rows whose time was over.", "table", expired)
        refused = (((table.name.lower(), why), count) for (table, why), count in store.refused.items())
        yield from counters("cache_refused", "Rows that were not taken.", ("table", "why"), refused)

    def _asks(self) -> Metric:
        labels = ["object", "operation", "outcome"]
        family = CounterMetricFamily("lambdamu_cache_asks", "What was asked, by what came of it.", labels=labels)
        for (name, operation, outcome), count in self.house.service.answered.items():
            family.add_metric([name, operation, outcome or "OK"], count)
        return family

    def _broker(self, now: float) -> Iterator[Metric]:
        broker, core = self.house.broker, self.house.broker.core
        yield gauge("cache_queue_length", "Fetches that wait for a worker.", core.length)
        yield gauge("cache_queue_oldest_seconds", "How long the first of them has waited.", core.oldest_s(now))
        yield gauge("cache_waiting", "Asks that wait for a fetch.", core.parked)
        busy = (((kind,), float(core.busy.get(kind, 0))) for kind in core.policy.per_kind)
        yield from gauges("cache_workers_busy", "Workers that are busy, by what they fetch.", busy, ("kind",))
        steps = {
            "refused": core.refused,
            "put_out": core.put_out,
            "expired": core.expired,
            "cut": broker.cut,
            "dropped": broker.dropped,
        }
        yield by("cache_broker_steps", "Fetches and asks that did not go as they should.", "step", steps)

    def _warm(self, warm: Warmer) -> Iterator[Metric]:
        counts, fetches = warm.counts, warm.fetches.counts
        asks = {
            "hit": counts.hits,
            "joined": fetches.joined,
            "missed": counts.misses - fetches.joined,
            "refused": counts.asks - counts.served,
        }
        yield by("cache_warm_asks", "Asks for warm data.", "result", asks)
        yield total("cache_stale_answers", "Old data in place of a failure.", fetches.stale)
        yield total("cache_fetches", "Calls of the upstream.", fetches.calls)
        ends = {
            "kept": fetches.published,
            "failed": fetches.failures,
            "unkept": fetches.unkept,
            "overtaken": fetches.overtaken,
        }
        yield by("cache_fetches_ended", "What came of them.", "result", ends)
        starts = {
            "heard": counts.app_starts,
            "unknown": counts.unknown_devices,
            "held_back": counts.held_back,
            "fetched": counts.warmed,
        }
        yield by("cache_app_starts", "AppStarts, and what they brought about.", "step", starts)
        yield gauge("cache_flights", "Data that are awaited from the upstream.", len(warm.fetches.flights))

    def _upstream(self, now: float) -> Iterator[Metric]:
        if self.house.upstream is not None:
            peers = [(str(peer.address), peer.breaker.state(now)) for peer in self.house.upstream.peers]
            states = (((name, state), float(state is at)) for name, at in peers for state in State)
            yield from gauges("cache_upstream_breaker", "1: the state of its breaker.", states, ("peer", "state"))

    def _kept(self) -> Iterator[Metric]:
        keeper = self.house.keeper
        if keeper is None or not self.house.config.file:
            return
        yield from kept("cache", "the cache", keeper)


@attrs.define(eq=False)
class CacheNodeMetrics:
    """Of a cache on another node there is what this master tells it."""

    caller: WarmCaller

    def bounds(self) -> dict[str, Callable[[], float]]:
        """Return how much of each bound is used, from 0 to 1."""
        caller = self.caller
        return {"cache_node_calls": lambda: caller.used, "cache_node_networks": lambda: caller.rates.used}

    def collect(self, _now: float) -> Iterator[Metric]:
        """Yield all of it."""
        counts = attrs.asdict(self.caller.counts)
        yield by("cache_node_calls", "Devices that the cache node was to be told of.", "step", counts)
        yield gauge("cache_node_connected", "Whether there is a connection to the cache node.", self.caller.connected)
