"""The metrics of one master: its own registry, counted from the start. Children are looked up once and kept.

Names follow the conventions of Prometheus: base units, `_total` for what only grows. What the pool knows is read from
the pool when somebody looks, and is not stored a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lambdamu.errors import LinkError
from lambdamu.messages import Code, LinkFault, Result
from lambdamu.tcp_server import Ending
from master.core.pool import Pool


class Metrics:
    """One registry and the counters in it; two masters in one process do not meet."""

    def __init__(self, names: Iterable[str], connections_limit: int) -> None:
        self.registry = CollectorRegistry()
        asks = Counter("lambdamu_asks", "Asks answered, by result.", ["result"], registry=self.registry)
        self.asks = {result: asks.labels(result) for result in Result}
        ended = Counter("lambdamu_connections_ended", "Connections ended, by how.", ["how"], registry=self.registry)
        self.endings = {how: ended.labels(how) for how in Ending}
        broken = Counter("lambdamu_protocol_errors", "Peers cut off, by code.", ["code"], registry=self.registry)
        self.broken = {code: broken.labels(code) for code in (Code.LIMIT, Code.NOT_MESSAGE_PACK, Code.BAD_MESSAGE)}
        self.refused = self._counter("connections_refused", "Connections turned away: too many were open.")
        self.exhausted = self._counter(
            "accept_failures", "Times no connection could be accepted for want of resources."
        )
        self.open = Gauge("lambdamu_connections", "Connections open now.", registry=self.registry)
        limit = Gauge("lambdamu_connections_limit", "Connections that may be open.", registry=self.registry)
        limit.set(connections_limit)
        good = Counter("lambdamu_probes", "Probes that gave a report.", ["backend"], registry=self.registry)
        failed = Counter("lambdamu_probe_failures", "Probes that failed.", ["backend"], registry=self.registry)
        whys = Counter("lambdamu_probe_faults", "Probes that failed, by why.", ["why"], registry=self.registry)
        self.probes = {name: good.labels(name) for name in names}
        self.failures = {name: failed.labels(name) for name in self.probes}
        # Not by backend and why: ten series for each of ten thousand backends would be most of this process.
        self.faults = {why: whys.labels(why) for why in LinkFault}

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"lambdamu_{name}", text, registry=self.registry)

    def watch(self, pool: Pool) -> None:
        """Show what `pool` knows, from now on."""
        self.registry.register(PoolCollector(pool))

    def watch_log(self, dropped: Callable[[], int]) -> None:
        """Show how many lines the log has dropped, from now on."""
        gauge = Gauge("lambdamu_log_lines_dropped", "Lines that could not be written.", registry=self.registry)
        gauge.set_function(dropped)

    def probed(self, name: str, failure: LinkError | None) -> None:
        if failure is None:
            self.probes[name].inc()
        else:
            self.failures[name].inc()
            self.faults[LinkFault(failure.why)].inc()


class PoolCollector(Collector):
    """Reads the pool when the registry is read, inside trio."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand: the registry need not run a collection to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        now = trio.current_time()
        ready = GaugeMetricFamily("lambdamu_backend_ready", "Whether clients are sent there now.", labels=["backend"])
        users = GaugeMetricFamily("lambdamu_backend_users", "Users reported and sent since.", labels=["backend"])
        held = GaugeMetricFamily("lambdamu_backend_reservations", "Assignments not yet reported.", labels=["backend"])
        for member in self._pool:
            name = [member.backend.name]
            ready.add_metric(name, member.state(now) == "ready")
            users.add_metric(name, member.users(now))
            held.add_metric(name, member.reservations.count(now))
        yield from (ready, users, held)
        yield GaugeMetricFamily("lambdamu_choice_entries", "Entries in the heap of candidates.", self._pool.entries)
