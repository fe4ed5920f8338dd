"""How families of metrics are made: in parts of one name, so that whoever collects can let others work in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from master.kept import Kept

PART: Final = 200
"""So many series of one family are collected in one go, in less than a millisecond."""
Series = tuple[tuple[str, ...], float]
"""The values of the labels, and that of the series."""


def total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"lambdamu_{name}", text, value)


def by(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    """Return a counter with few series: a word for each, and what was counted of it."""
    family = CounterMetricFamily(f"lambdamu_{name}", text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def kept(prefix: str, what: str, keeper: Kept) -> Iterator[Metric]:
    """Yield how something is kept beyond the process; `what` is the word for it."""
    yield gauge(f"{prefix}_store_failing", f"1: {what} could not be written last.", keeper.failing)
    yield gauge(f"{prefix}_unwritten", f"Changes of {what} that would be lost now.", keeper.unwritten)
    yield total(f"{prefix}_commits", f"Times {what} was written.", keeper.commits)
    yield total(f"{prefix}_store_failures", f"Times {what} could not be written or read.", keeper.failures)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"lambdamu_{name}", text, value)


def gauge_of(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with few series: a word for each."""
    family = GaugeMetricFamily(f"lambdamu_{name}", text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def by_backend(name: str, text: str, values: Mapping[str, float]) -> Iterator[Metric]:
    """Yield a counter with a series for each backend."""
    return counters(name, text, ("backend",), [((backend,), value) for backend, value in values.items()])


def counters(name: str, text: str, labels: tuple[str, ...], series: Iterable[Series]) -> Iterator[Metric]:
    """Yield a counter; one without series is there all the same, by its name."""
    return _parts(CounterMetricFamily, name, text, labels, series)


def gauges(name: str, text: str, series: Iterable[Series], labels: tuple[str, ...] = ("backend",)) -> Iterator[Metric]:
    """Yield a gauge; one without series is there all the same, by its name."""
    return _parts(GaugeMetricFamily, name, text, labels, series)


def _parts(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    series: Iterable[Series],
) -> Iterator[Metric]:
    rest = iter(series)
    part = list(islice(rest, PART))
    while True:
        family = kind(f"lambdamu_{name}", text, labels=labels)
        for words, value in part:
            family.add_metric(words, value)
        yield family
        part = list(islice(rest, PART))
        if not part:
            return
