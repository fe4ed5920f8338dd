"""The metrics of one master: plain numbers that are counted from the start, and read when somebody looks.

Counting an ask costs an addition. What the pool knows is read from the pool, and is not stored a second time. Each
master has its own registry. Names follow the conventions of Prometheus: base units, `_total` for what only grows.

A family with a series for each backend is given in parts of one name, one after the other, so that whoever collects can
let others work in between (`master.web.exposition`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lambdamu.errors import LinkError
from lambdamu.messages import Code, LinkFault, Reason, Result
from lambdamu.release import find_version
from lambdamu.tcp_server import Ending
from master.core.ejection import Verdict
from master.core.pool import Pool, Spare
from master.histogram import Histogram
from master.loop_lag import LoopLag
from master.metric_families import Series, by, by_backend, counters, gauge_of, gauges, total
from master.pool_metrics import collect_pool
from master.probe_times import ProbeTimes

_ANSWER_BOUNDS_S: Final = (1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_FATAL: Final = (Code.LIMIT, Code.NOT_MESSAGE_PACK, Code.BAD_MESSAGE)


class Refusal(StrEnum):
    """Why a connection was turned away, or none could be let in."""

    LIMIT = "limit"
    """As many as allowed were open, in all or from its address."""
    RESOURCES = "resources"
    """The system gave no descriptor or no memory; told at most ten times a second."""


class Metrics(Collector):
    """What has been counted so far, by word; every word is there from the start."""

    def __init__(self, names: Iterable[str], connections_limit: int) -> None:
        self.asks = dict.fromkeys(Result, 0)
        self.denied: dict[Reason, int] = dict.fromkeys((reason for reason in Reason if reason is not Reason.LEFT), 0)
        self.accusations = dict.fromkeys(Verdict, 0)
        self.open = 0
        self.connections_limit = connections_limit
        self.endings = dict.fromkeys(Ending, 0)
        self.broken = dict.fromkeys(_FATAL, 0)
        self.refused = dict.fromkeys(Refusal, 0)
        self.reloaded_at: float | None = None
        """When the configuration was read last, Unix time; None before the first reload."""
        self.reload_failed = False
        self.store_failures = 0
        self.alerts: Mapping[str, int] = dict.fromkeys(("sent", "failed", "dropped"), 0)
        self.probes = dict.fromkeys(names, 0)
        self.failures = dict.fromkeys(self.probes, 0)
        # From the first fault on: ten series for each of ten thousand backends would be most of this process.
        self.faults: dict[str, dict[LinkFault, int]] = {}
        self.probe_s = dict.fromkeys(self.probes, 0.0)
        self.probe_times = ProbeTimes()
        self.ejections = dict.fromkeys(self.probes, 0)
        self.lag = LoopLag()
        self.answer_s = Histogram(_ANSWER_BOUNDS_S)
        self.bounds: dict[str, Callable[[], float]] = {}
        """How much of each bound is used, from 0 to 1."""
        self.entrances: dict[str, Callable[[], int]] = {}
        """Connections open now, by where they came in."""
        self.certificates: dict[str, Callable[[], float]] = {}
        """When the certificate ends, Unix seconds, by where it is shown."""
        self._pool: Pool | None = None
        self._spare = Spare(None, 0, 0)
        self._spare_due = -math.inf
        self._log_dropped: Callable[[], int] | None = None
        self._http_refused: Callable[[], int] | None = None
        self._others: list[Callable[[float], Iterator[Metric]]] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def watch(self, pool: Pool) -> None:
        """Show what `pool` knows, from now on."""
        self._pool = pool
        self.bounds["ejected"] = lambda: _ejected_share(pool, trio.current_time())

    def spare(self, now: float) -> Spare:
        """Return whether the users fit when the biggest backend falls; for a large pool as of some seconds ago.

        All members are looked at, which takes 2 ms for a thousand: no more than that in a second.
        """
        if self._pool is not None and now >= self._spare_due:
            self._spare = self._pool.spare(now)
            self._spare_due = now + len(self._pool) / 1000
        return self._spare

    def watch_log(self, dropped: Callable[[], int]) -> None:
        """Show how many lines the log has dropped, from now on."""
        self._log_dropped = dropped

    def watch_http(self, refused: Callable[[], int]) -> None:
        """Show how many connections of operators were turned away, from now on."""
        self._http_refused = refused

    def watch_other(self, collect: Callable[[float], Iterator[Metric]]) -> None:
        """Show what the virtual queue, or the cache, gives for now, seconds of trio's clock, from now on."""
        self._others.append(collect)

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        if failure is None:
            self.probes[name] += 1
            self.probe_s[name] += took_s
            self.probe_times.add(name, took_s)
        else:
            self.failures[name] += 1
            faults, why = self.faults.setdefault(name, {}), LinkFault(failure.why)
            faults[why] = faults.get(why, 0) + 1

    def keep(self, names: Sequence[str]) -> None:
        """Have series of these backends and no others, from 0 for those that are new."""
        all_series: tuple[dict[str, Any], ...] = (self.probes, self.failures, self.probe_s, self.ejections)
        for series in all_series:
            before = dict(series)
            series.clear()
            series.update((name, before.get(name, 0)) for name in names)
        self.probe_times.keep(names)
        for name in self.faults.keys() - self.probes.keys():
            del self.faults[name]

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand: the registry need not run a collection to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give everything; inside trio, since ages are reckoned by its clock."""
        yield by("asks", "Asks answered.", "result", self.asks)
        yield by("denied", "Asks answered with Denied.", "reason", self.denied)
        yield by("accusations", "Backends that clients could not use.", "verdict", self.accusations)
        yield GaugeMetricFamily("lambdamu_connections", "Connections open now.", self.open)
        yield GaugeMetricFamily("lambdamu_connections_limit", "Connections that may be open.", self.connections_limit)
        opened = {entrance: float(count()) for entrance, count in self.entrances.items()}
        yield gauge_of("entrance_connections", "Connections open now, by where they came in.", "entrance", opened)
        if self.certificates:
            ends = {entrance: end() for entrance, end in self.certificates.items()}
            yield gauge_of("certificate_expiry_timestamp_seconds", "When the certificate ends.", "entrance", ends)
        yield by("connections_ended", "Connections ended.", "how", self.endings)
        yield by("protocol_errors", "Peers cut off.", "code", self.broken)
        yield by("connections_refused", "Connections turned away, and times none could be let in.", "why", self.refused)
        yield from by_backend("probes", "Probes that gave a report.", self.probes)
        yield from by_backend("probe_failures", "Probes that failed.", self.failures)
        yield from by_backend("probe_seconds", "Seconds that good probes took, from question to report.", self.probe_s)
        yield from counters("probe_faults", "Probes that failed, by why.", ("backend", "why"), self._faults())
        yield from gauges("backend_probe_p99_seconds", "The 99th percentile of its last good probes.", self._p99())
        yield from by_backend("backend_ejections", "Times it was ejected because clients complained.", self.ejections)
        yield GaugeMetricFamily("lambdamu_reload_success", "Whether the last reload was good.", not self.reload_failed)
        if self.reloaded_at is not None:
            yield GaugeMetricFamily("lambdamu_reload_timestamp_seconds", "Time of the last reload.", self.reloaded_at)
        yield total("store_failures", "Times the state could not be written.", self.store_failures)
        yield by("alerts", "Posts to the webhook, failed tries, and changes given up.", "result", self.alerts)
        if self._log_dropped is not None:
            yield total("log_lines_dropped", "Lines that could not be written.", self._log_dropped())
        if self._http_refused is not None:
            yield total("http_connections_refused", "HTTP connections turned away: too many.", self._http_refused())
        yield from self._process()
        if self._pool is not None:
            now = trio.current_time()
            yield from collect_pool(self._pool, now, self.spare(now))
        for collect in self._others:
            yield from collect(trio.current_time())

    def _faults(self) -> Iterator[Series]:
        for name, faults in list(self.faults.items()):
            for why, count in list(faults.items()):
                yield (name, why), count

    def _p99(self) -> Iterator[Series]:
        for name in list(self.probes):
            took_s = self.probe_times.quantile(name, 0.99)
            if took_s is not None:
                yield (name,), took_s

    def _process(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("lambdamu_build_info", "Which version of lambdamu this is.", labels=["version"])
        build.add_metric([_version()], 1)
        yield build
        near = GaugeMetricFamily("lambdamu_bound_ratio", "How much of a bound is used, 0 to 1.", labels=["bound"])
        for name, ratio in self.bounds.items():
            near.add_metric([name], ratio())
        yield near
        yield _histogram("loop_lag_seconds", "How late a timer of the loop was.", self.lag)
        yield _histogram("answer_seconds", "From reading questions of clients to sending the answer.", self.answer_s)


@cache
def _version() -> str:
    return find_version()


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"lambdamu_{name}", text)
    family.add_metric([], *histogram.buckets())
    return family


def _ejected_share(pool: Pool, now: float) -> float:
    """Return how much of what `[breaker]` allows is out; 0 where it allows none."""
    most = pool.ejections.policy.most_out(pool.roll.size)
    return len(pool.ejections.out(now)) / most if most else 0.0
