"""The metrics of one master: plain numbers that are counted from the start, and read when somebody looks.

Counting an ask costs an addition. What the pool knows is read from the pool, and is not stored a second time. Each
master has its own registry. Names follow the conventions of Prometheus: base units, `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lambdamu.errors import LinkError
from lambdamu.messages import Code, LinkFault, Result
from lambdamu.tcp_server import Ending
from master.core.ejection import Verdict
from master.core.pool import Pool, State, Wish

_FATAL: Final = (Code.LIMIT, Code.NOT_MESSAGE_PACK, Code.BAD_MESSAGE)


class Metrics(Collector):
    """What has been counted so far, by word; every word is there from the start."""

    def __init__(self, names: Iterable[str], connections_limit: int) -> None:
        self.asks = dict.fromkeys(Result, 0)
        self.accusations = dict.fromkeys(Verdict, 0)
        self.open = 0
        self.connections_limit = connections_limit
        self.endings = dict.fromkeys(Ending, 0)
        self.broken = dict.fromkeys(_FATAL, 0)
        self.refused = 0
        self.exhausted = 0
        self.reloaded_at: float | None = None
        """When the configuration was read last, Unix time; None before the first reload."""
        self.reload_failed = False
        self.store_failures = 0
        self.probes = dict.fromkeys(names, 0)
        self.failures = dict.fromkeys(self.probes, 0)
        # Not by backend and why: ten series for each of ten thousand backends would be most of this process.
        self.faults = dict.fromkeys(LinkFault, 0)
        self._pool: Pool | None = None
        self._log_dropped: Callable[[], int] | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def watch(self, pool: Pool) -> None:
        """Show what `pool` knows, from now on."""
        self._pool = pool

    def watch_log(self, dropped: Callable[[], int]) -> None:
        """Show how many lines the log has dropped, from now on."""
        self._log_dropped = dropped

    def probed(self, name: str, failure: LinkError | None) -> None:
        if failure is None:
            self.probes[name] += 1
        else:
            self.failures[name] += 1
            self.faults[LinkFault(failure.why)] += 1

    def keep(self, names: Sequence[str]) -> None:
        """Have series of these backends and no others, from 0 for those that are new."""
        for series in (self.probes, self.failures):
            before = dict(series)
            series.clear()
            series.update((name, before.get(name, 0)) for name in names)

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand: the registry need not run a collection to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give everything; inside trio, since ages are reckoned by its clock."""
        yield _by("asks", "Asks answered.", "result", self.asks)
        yield _by("accusations", "Backends that clients could not use.", "verdict", self.accusations)
        yield GaugeMetricFamily("lambdamu_connections", "Connections open now.", self.open)
        yield GaugeMetricFamily("lambdamu_connections_limit", "Connections that may be open.", self.connections_limit)
        yield _by("connections_ended", "Connections ended.", "how", self.endings)
        yield _by("protocol_errors", "Peers cut off.", "code", self.broken)
        yield _total("connections_refused", "Connections turned away: too many were open.", self.refused)
        yield _total("accept_failures", "Times no connection could be accepted for want of resources.", self.exhausted)
        yield _by("probes", "Probes that gave a report.", "backend", self.probes)
        yield _by("probe_failures", "Probes that failed.", "backend", self.failures)
        yield _by("probe_faults", "Probes that failed, by why.", "why", self.faults)
        yield GaugeMetricFamily("lambdamu_reload_success", "Whether the last reload was good.", not self.reload_failed)
        if self.reloaded_at is not None:
            yield GaugeMetricFamily("lambdamu_reload_timestamp_seconds", "Time of the last reload.", self.reloaded_at)
        yield _total("store_failures", "Times the state could not be written.", self.store_failures)
        if self._log_dropped is not None:
            yield _total("log_lines_dropped", "Lines that could not be written.", self._log_dropped())
        if self._pool is not None:
            yield from _pool(self._pool, trio.current_time())


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"lambdamu_{name}", text, value)


def _by(name: str, text: str, label: str, values: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"lambdamu_{name}", text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def _pool(pool: Pool, now: float) -> Iterator[Metric]:
    ready = GaugeMetricFamily("lambdamu_backend_ready", "Whether clients are sent there now.", labels=["backend"])
    users = GaugeMetricFamily("lambdamu_backend_users", "Users reported and sent since.", labels=["backend"])
    held = GaugeMetricFamily("lambdamu_backend_reservations", "Assignments not yet reported.", labels=["backend"])
    for member in pool:
        name = [member.backend.name]
        ready.add_metric(name, member.state(now) is State.READY)
        users.add_metric(name, member.users(now))
        held.add_metric(name, member.reservations.count(now))
    yield from (ready, users, held)
    aside = dict.fromkeys(Wish, 0)
    for member in pool:
        aside[member.admin.at(now).wish] += 1
    wishes = GaugeMetricFamily("lambdamu_backends_wanted", "Backends by what the operator wants.", labels=["admin"])
    for wish, count in aside.items():
        wishes.add_metric([wish], count)
    yield wishes
    yield _by("choices", "Asks by why a backend was chosen, or none.", "why", pool.answers)
    yield _total("failed_together", "Times all backends failed together.", pool.roll.suspicions)
    yield GaugeMetricFamily("lambdamu_session_seconds", "Mean session time by which load fades.", pool.clock.mean_s)
    yield GaugeMetricFamily("lambdamu_carries_biggest", "Whether users fit without the biggest.", pool.spare(now).fits)
    yield GaugeMetricFamily("lambdamu_ejected", "Backends out because clients say so.", len(pool.ejections.out(now)))
    yield GaugeMetricFamily("lambdamu_sendings", "Clients of whom it is kept where they went.", len(pool.ejections))
    yield GaugeMetricFamily("lambdamu_choice_entries", "Entries in the heap of candidates.", pool.entries)
