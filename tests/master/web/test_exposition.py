"""The metrics as text: the same as the library's, and never long in one go."""

from __future__ import annotations

import random
import time

import prometheus_client
import structlog
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics

from master.config import BackendConfig, Config
from master.node import Node
from master.web.exposition import Renderer, accepts_openmetrics, render


class Some:
    def collect(self) -> list[Metric]:
        gauge = GaugeMetricFamily("some", 'A "quoted" \\ text\nof two lines.', labels=["b", "a"])
        for value in (0, 1.5, 1e300, float("nan"), float("inf"), -float("inf"), True, 2**60):
            gauge.add_metric([f'"\\\n é🐌 {value}', "x"], value)
        counter = CounterMetricFamily("more", "More.", labels=["a"])
        counter.add_metric(["x"], 3)
        histogram = HistogramMetricFamily("late_seconds", "Late.")
        histogram.add_metric([], [("0.1", 1.0), ("+Inf", 2.0)], 0.5)
        return [gauge, counter, CounterMetricFamily("none", "None.", labels=["a"]), histogram]

    def describe(self) -> list[Metric]:
        return []


async def test_both_formats_are_those_of_the_library() -> None:
    registry = CollectorRegistry()
    registry.register(Some())  # type: ignore[arg-type]
    assert await render(registry, openmetrics=False) == prometheus_client.generate_latest(registry)
    assert await render(registry, openmetrics=True) == openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]


def large(backends: int) -> Node:
    members = tuple(BackendConfig(f"backend-{i}", "10.0.0.1", i + 1, capacity=100) for i in range(backends))
    node = Node(Config(backends=members), rng=random.Random(1), log=structlog.get_logger())
    for name in (member.backend.name for member in node.pool):
        node.pool.record_report(trio.current_time(), random.Random(1), name, 5, trio.current_time(), ("10.0.0.1", 1))
    return node


async def test_a_large_pool_is_rendered_in_parts_with_a_head_for_each_family() -> None:
    node = large(450)
    text = (await render(node.metrics.registry, openmetrics=False)).decode()
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert text.count("\nlambdamu_backend_up{") == 450


async def test_others_work_while_many_lines_are_rendered() -> None:
    node = large(2000)
    await render(node.metrics.registry, openmetrics=False)  # names are known from now on
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()  # of this thread, so that a busy machine does not count
            await trio.lowlevel.checkpoint()
            longest = max(longest, time.thread_time() - before)

    began = time.thread_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        text = await render(node.metrics.registry, openmetrics=False)
        nursery.cancel_scope.cancel()
    assert text.count(b"\n") > 20_000
    assert longest < (time.thread_time() - began) / 4  # measured: 3 of some 80 ms


class Counting(Some):
    collected = 0

    def collect(self) -> list[Metric]:
        self.collected += 1
        return super().collect()


async def test_many_who_ask_at_once_cost_one_rendering_and_one_who_is_cancelled_leaves_nobody_waiting() -> None:
    registry, some = CollectorRegistry(), Counting()
    registry.register(some)  # type: ignore[arg-type]
    renderer, texts, gone = Renderer(registry), list[bytes](), trio.CancelScope()

    async def ask() -> None:
        texts.append(await renderer.text(openmetrics=False))

    async def begin_and_go() -> None:
        with gone:
            await renderer.text(openmetrics=False)

    before = some.collected
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert (len(texts), len(set(texts)), some.collected - before) == (50, 1, 1)
    async with trio.open_nursery() as nursery:
        gone.cancel()
        nursery.start_soon(begin_and_go)
        nursery.start_soon(ask)
    assert len(texts) == 51


def test_openmetrics_is_given_to_those_who_accept_it() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    assert accepts_openmetrics(prometheus)
    assert accepts_openmetrics("text/plain, application/openmetrics-text")
    for accept in ("", "*/*", "text/plain", "application/openmetrics-textual"):
        assert not accepts_openmetrics(accept)
