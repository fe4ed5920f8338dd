"""The metrics of one master: plain numbers that are counted from the start, and read when somebody looks.

Counting an ask costs an addition. What the pool knows is read from the pool, and is not stored a second time. Each
master has its own registry. Names follow the conventions of Prometheus: base units, `_total` for what only grows.

A family with a series for each backend is given in parts of one name, one after the other, so that whoever collects can
let others work in between (`master.web.exposition`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lambdamu.errors import LinkError
from lambdamu.messages import Code, LinkFault, Result
from lambdamu.tcp_server import Ending
from master.core.ejection import Verdict
from master.core.pool import Member, Pool, Spare, State, Wish
from master.histogram import Histogram
from master.loop_lag import LoopLag

PART: Final = 200
"""So many series of one family are collected in one go, in less than a millisecond."""

_ANSWER_BOUNDS_S: Final = (1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
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
        self.alerts: Mapping[str, int] = dict.fromkeys(("sent", "failed", "dropped"), 0)
        self.probes = dict.fromkeys(names, 0)
        self.failures = dict.fromkeys(self.probes, 0)
        # Not by backend and why: ten series for each of ten thousand backends would be most of this process.
        self.faults = dict.fromkeys(LinkFault, 0)
        self.probe_s = dict.fromkeys(self.probes, 0.0)
        self.lag = LoopLag()
        self.answer_s = Histogram(_ANSWER_BOUNDS_S)
        self.bounds: dict[str, Callable[[], float]] = {"connections": lambda: self.open / self.connections_limit}
        """How much of each bound is used, from 0 to 1."""
        self._pool: Pool | None = None
        self._spare = Spare(None, 0, 0)
        self._spare_due = -math.inf
        self._log_dropped: Callable[[], int] | None = None
        self._http_refused: Callable[[], int] | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def watch(self, pool: Pool) -> None:
        """Show what `pool` knows, from now on."""
        self._pool = pool

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

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        if failure is None:
            self.probes[name] += 1
            self.probe_s[name] += took_s
        else:
            self.failures[name] += 1
            self.faults[LinkFault(failure.why)] += 1

    def keep(self, names: Sequence[str]) -> None:
        """Have series of these backends and no others, from 0 for those that are new."""
        all_series: tuple[dict[str, Any], ...] = (self.probes, self.failures, self.probe_s)
        for series in all_series:
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
        yield from _by_backend("probes", "Probes that gave a report.", self.probes)
        yield from _by_backend("probe_failures", "Probes that failed.", self.failures)
        yield from _by_backend("probe_seconds", "Seconds that good probes took, from question to report.", self.probe_s)
        yield _by("probe_faults", "Probes that failed, by why.", "why", self.faults)
        yield GaugeMetricFamily("lambdamu_reload_success", "Whether the last reload was good.", not self.reload_failed)
        if self.reloaded_at is not None:
            yield GaugeMetricFamily("lambdamu_reload_timestamp_seconds", "Time of the last reload.", self.reloaded_at)
        yield _total("store_failures", "Times the state could not be written.", self.store_failures)
        yield _by("alerts", "Posts to the webhook, failed tries, and changes given up.", "result", self.alerts)
        if self._log_dropped is not None:
            yield _total("log_lines_dropped", "Lines that could not be written.", self._log_dropped())
        if self._http_refused is not None:
            yield _total("http_connections_refused", "HTTP connections turned away: too many.", self._http_refused())
        yield from self._process()
        if self._pool is not None:
            now = trio.current_time()
            yield from _pool(self._pool, now, self.spare(now))

    def _process(self) -> Iterator[Metric]:
        near = GaugeMetricFamily("lambdamu_bound_ratio", "How much of a bound is used, 0 to 1.", labels=["bound"])
        for name, ratio in self.bounds.items():
            near.add_metric([name], ratio())
        yield near
        yield _histogram("loop_lag_seconds", "How late a timer of the loop was.", self.lag)
        yield _histogram("answer_seconds", "From reading questions of clients to sending the answer.", self.answer_s)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"lambdamu_{name}", text, value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"lambdamu_{name}", text)
    family.add_metric([], *histogram.buckets())
    return family


def _by(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    return next(_by_backend(name, text, values, label, len(values) or 1))


def _by_backend(
    name: str, text: str, values: Mapping[Any, float], label: str = "backend", part: int = PART
) -> Iterator[Metric]:
    items = list(values.items())
    for at in range(0, len(items) or 1, part):
        family = CounterMetricFamily(f"lambdamu_{name}", text, labels=[label])
        for word, value in items[at : at + part]:
            family.add_metric([word], value)
        yield family


def _whether_up(member: Member, now: float) -> float:
    return member.works(now)


def _whether_ready(member: Member, now: float) -> float:
    return member.state(now) is State.READY


def _whether_set_aside(member: Member, now: float) -> float:
    return member.admin.at(now).wish is not Wish.READY


def _users(member: Member, now: float) -> float:
    return member.users(now)


def _capacity(member: Member, _now: float) -> float | None:
    return member.limit


def _load(member: Member, now: float) -> float | None:
    return member.load(now) if member.backend.weight and member.report is not None else None


def _report_age(member: Member, now: float) -> float | None:
    return member.report.age(now) if member.report is not None else None


def _reservations(member: Member, now: float) -> float:
    return member.reservations.count(now)


def _assignments(member: Member, _now: float) -> float:
    return member.reservations.total


_GAUGES: Final = (
    ("up", "Whether it works, room or not.", _whether_up),
    ("ready", "Whether clients are sent there now.", _whether_ready),
    ("set_aside", "Whether its operator wants no new clients there.", _whether_set_aside),
    ("users", "Users reported and sent since.", _users),
    ("capacity", "The most users; no series for no limit.", _capacity),
    ("load", "Users it is likely to have by weight, the number that is compared.", _load),
    ("report_age_seconds", "Seconds since the question of its last good report.", _report_age),
    ("reservations", "Assignments not yet reported.", _reservations),
)


def _pool(pool: Pool, now: float, spare: Spare) -> Iterator[Metric]:
    members = list(pool)
    parts = [members[at : at + PART] for at in range(0, len(members), PART)] or [[]]
    for name, text, read in _GAUGES:
        for part in parts:
            gauge = GaugeMetricFamily(f"lambdamu_backend_{name}", text, labels=["backend"])
            for member in part:
                value = read(member, now)
                if value is not None:
                    gauge.add_metric([member.backend.name], value)
            yield gauge
    for part in parts:
        sent = CounterMetricFamily("lambdamu_backend_assignments", "Clients sent there.", labels=["backend"])
        for member in part:
            sent.add_metric([member.backend.name], _assignments(member, now))
        yield sent
    aside = dict.fromkeys(Wish, 0)
    for member in members:
        aside[member.admin.at(now).wish] += 1
    wishes = GaugeMetricFamily("lambdamu_backends_wanted", "Backends by what the operator wants.", labels=["admin"])
    for wish, count in aside.items():
        wishes.add_metric([wish], count)
    yield wishes
    yield _by("choices", "Asks by why a backend was chosen, or none.", "why", pool.answers)
    yield _total("failed_together", "Times all backends failed together.", pool.roll.suspicions)
    yield GaugeMetricFamily("lambdamu_backends", "Backends of the pool.", len(pool))
    yield GaugeMetricFamily("lambdamu_backends_working", "Backends that work, room or not.", pool.roll.working)
    yield GaugeMetricFamily("lambdamu_session_seconds", "Mean session time by which load fades.", pool.clock.mean_s)
    yield GaugeMetricFamily("lambdamu_carries_biggest", "Whether users fit without the biggest.", spare.fits)
    yield GaugeMetricFamily("lambdamu_ejected", "Backends out because clients say so.", len(pool.ejections.out(now)))
    yield GaugeMetricFamily("lambdamu_sendings", "Clients of whom it is kept where they went.", len(pool.ejections))
    yield GaugeMetricFamily("lambdamu_choice_entries", "Entries in the heap of candidates.", pool.entries)
