"""What is counted of each backend and of the port, and which series there are."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest
import structlog
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.epoll_server import EpollServer
from lambdamu.errors import LinkError
from lambdamu.machine import LogicalMachine
from lambdamu.messages import LinkFault, Message
from lambdamu.stream_server import StreamServer
from lambdamu.tcp_server import PortLimits, open_listeners
from master.config import BackendConfig, Config, MasterPolicy, ProbePolicy
from master.core.admin import Admin, Wish
from master.core.ejection import Verdict
from master.entrances import Entrance
from master.metrics import Metrics
from master.node import Node
from master.observer import Observer
from master.web.exposition import render

LOCAL = Address("127.0.0.1", 0)
NASTY = 'a"b\\c\nd 🐌 é'
LOG: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
FROM_THE_START = {
    "lambdamu_backend_assignments_total",
    "lambdamu_backend_ejections_total",
    "lambdamu_backend_ready",
    "lambdamu_backend_reservations",
    "lambdamu_backend_up",
    "lambdamu_backend_users",
    "lambdamu_probe_failures_total",
    "lambdamu_probe_seconds_total",
    "lambdamu_probes_total",
}


def make_node(*backends: BackendConfig) -> Node:
    probe = ProbePolicy(interval_s=5.0, stale_after_s=15.0)  # none ends while a test begins
    return Node(Config(MasterPolicy(listen=LOCAL), probe=probe, backends=backends), rng=random.Random(1), log=LOG)


def series_of(registry: CollectorRegistry, backend: str) -> dict[str, float]:
    found = (sample for family in registry.collect() for sample in family.samples)
    return {sample.name: sample.value for sample in found if sample.labels.get("backend") == backend}


def make_busy(node: Node, name: str) -> None:
    """Have something counted of a backend in each of its families."""
    now = trio.current_time()
    node.pool.record_report(now, random.Random(1), name, 7, now, ("10.0.0.1", 1))
    node.observer.probed(name, None, 0.25)
    node.observer.probed(name, LinkError(LinkFault.REFUSED, "it refused"), 0.0)
    node.observer.accused(name, Verdict.EJECTED)


async def test_each_backend_has_its_series_from_the_start_on_however_it_is(nobody: Address) -> None:
    places = {"drained": nobody, "dead": nobody, "nameless": Address("no.invalid", 1)}
    node = make_node(*(BackendConfig(name, place.host, place.port) for name, place in places.items()))
    node.pool.set_admin(trio.current_time(), "drained", Admin(Wish.DRAIN, "ann", "a new disk"))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, {Entrance.CLIENTS: open_listeners(LOCAL)})
        for name in places:
            series = series_of(node.metrics.registry, name)
            assert {word: series[word] for word in FROM_THE_START} == dict.fromkeys(FROM_THE_START, 0)
            assert series["lambdamu_backend_set_aside"] == (name == "drained")
        nursery.cancel_scope.cancel()


async def test_a_failed_probe_is_counted_by_backend_and_why_from_the_first_one_on() -> None:
    metrics = Metrics(["b1", "b2"], 5)
    value = metrics.registry.get_sample_value
    faults = {"backend": "b1", "why": "refused"}
    assert value("lambdamu_probe_faults_total", faults) is None
    for why in (LinkFault.REFUSED, LinkFault.TIMEOUT, LinkFault.REFUSED):
        metrics.probed("b1", LinkError(why, "so it is"), 0.0)
    assert value("lambdamu_probe_faults_total", faults) == 2
    assert value("lambdamu_probe_faults_total", {**faults, "why": "timeout"}) == 1
    assert value("lambdamu_probe_failures_total", {"backend": "b1"}) == 3
    assert value("lambdamu_probe_failures_total", {"backend": "b2"}) == 0
    assert not [name for name in series_of(metrics.registry, "b2") if "faults" in name]


async def test_one_that_goes_takes_all_its_series_with_it_and_comes_back_as_new() -> None:
    node = make_node(BackendConfig("b1", "h", 1), BackendConfig("b2", "h", 2))
    for name in ("b1", "b2"):
        make_busy(node, name)
    before = series_of(node.metrics.registry, "b2")
    assert {"lambdamu_probe_faults_total", "lambdamu_backend_probe_p99_seconds"} | FROM_THE_START <= before.keys()
    node.pool.change(trio.current_time(), [node.pool["b2"].backend])
    node.metrics.keep(["b2"])
    assert series_of(node.metrics.registry, "b1") == {}
    assert series_of(node.metrics.registry, "b2").keys() == before.keys()
    node.metrics.keep(["b2", "b1"])
    assert set(series_of(node.metrics.registry, "b1").values()) == {0}


@pytest.mark.parametrize(("capacity", "places"), [(10, -4), (30, 16), (None, None)])
async def test_the_places_that_are_left_without_the_biggest_may_be_too_few(
    capacity: int | None, places: float | None
) -> None:
    node = make_node(*(BackendConfig(f"b{i}", "h", i + 1, capacity=capacity) for i in range(2)))
    value = node.metrics.registry.get_sample_value
    for name in ("b0", "b1"):
        node.pool.record_report(trio.current_time(), random.Random(1), name, 7, trio.current_time(), ("10.0.0.1", 1))
    assert value("lambdamu_spare_users") == places
    assert value("lambdamu_carries_biggest") == (places is None or places >= 0)


@pytest.mark.parametrize("rich", [False, True])
async def test_a_name_survives_whatever_is_in_it(rich: bool) -> None:
    node = make_node(BackendConfig(NASTY, "h", 1))
    make_busy(node, NASTY)
    text = (await render(node.metrics.registry, openmetrics=rich)).decode()
    families = list(openmetrics.text_string_to_metric_families(text) if rich else text_string_to_metric_families(text))
    labelled = [sample for family in families for sample in family.samples if "backend" in sample.labels]
    assert {sample.labels["backend"] for sample in labelled} == {NASTY}
    assert len(labelled) == len(series_of(node.metrics.registry, NASTY)) >= 14
    assert [sample.value for sample in labelled if sample.name == "lambdamu_backend_probe_p99_seconds"] == [0.25]
    [build] = [sample for family in families for sample in family.samples if sample.name == "lambdamu_build_info"]
    assert build.value == 1
    assert build.labels["version"]


async def test_many_faults_are_collected_in_parts_and_none_is_lost() -> None:
    names = [f"b{i}" for i in range(100)]
    metrics = Metrics(names, 5)
    for name in names:
        for why in LinkFault:
            metrics.probed(name, LinkError(why, "so it is"), 0.0)
    parts = [family.samples for family in metrics.collect() if family.name == "lambdamu_probe_faults"]
    assert max(map(len, parts)) <= 200
    assert sum(map(len, parts)) == len(names) * len(LinkFault)


@pytest.mark.parametrize("server", [EpollServer, StreamServer])
async def test_the_number_of_open_connections_never_falls_below_none(server: Any) -> None:
    metrics = Metrics([], 3)
    lowest = 0

    class Watching(Observer):
        def ended(self, how: Any) -> None:
            nonlocal lowest
            super().ended(how)
            lowest = min(lowest, metrics.open)

    port, rng = (
        server(LogicalMachine("x"), PortLimits(connections=3), observer=Watching(metrics, LOG)),
        random.Random(3),
    )
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(port.serve, open_listeners(LOCAL))
        peers: list[socket.socket] = []
        for _ in range(60):
            peers.append(socket.create_connection((address.host, address.port)))
            peers[-1].sendall(rng.choice([b"", b"\xc1", encode([Message("Nobody", "Get", "Name")])]))
            await trio.sleep(0.001)
            while len(peers) > rng.randrange(8):
                leave(peers.pop(rng.randrange(len(peers))), rng)
        with trio.fail_after(10):
            while metrics.refused["limit"] == 0 or metrics.open == 0:
                peers.append(socket.create_connection((address.host, address.port)))
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    for peer in peers:
        peer.close()
    assert lowest == 0
    assert metrics.open >= 0
    assert sum(metrics.endings.values()) > 0


def leave(peer: socket.socket, rng: random.Random) -> None:
    """Go, sometimes without a word of farewell."""
    if rng.random() < 0.5:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    peer.close()


async def test_what_could_not_be_let_in_is_counted_by_why() -> None:
    metrics = Metrics([], 3)
    observer = Observer(metrics, LOG)
    observer.refused()
    for _ in range(2):
        observer.cannot_accept(OSError(24, "Too many open files"))
    value = metrics.registry.get_sample_value
    counted = {why: value("lambdamu_connections_refused_total", {"why": why}) for why in ("limit", "resources")}
    assert counted == {"limit": 1, "resources": 2}
