"""The main logical machine put together: real sockets, one process.

The file is long because what shows in the whole alone is tested here: what is counted, logged and divided.
"""

from __future__ import annotations

import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from prometheus_client import CollectorRegistry

from lambdamu.address import Address
from lambdamu.datapack import Decoder, encode
from lambdamu.errors import LinkError
from lambdamu.messages import Message, Result
from lambdamu.objects import Peer
from lambdamu.tcp_server import PortLimits, open_listeners
from lambdamu.testing import FakeBackend, Script
from master.answer_log import PLAIN_EVERY_S
from master.config import BackendConfig, Config, GatewayConfig, MasterPolicy, ProbePolicy, TlsConfig
from master.core.health import Said
from master.core.pool import Ask, Assignment, State
from master.entrances import Entrance
from master.metrics import Metrics
from master.node import Node
from master.observer import Observer
from master.process import fit_descriptors

LOCAL = Address("127.0.0.1", 0)
PEER = Peer("203.0.113.7", 4)
QUICK = ProbePolicy(interval_s=0.05, timeout_s=0.05, stale_after_s=60.0)


def capturing_log() -> tuple[Any, structlog.testing.LogCapture]:
    capture = structlog.testing.LogCapture()
    return structlog.wrap_logger(None, processors=[capture]), capture


@asynccontextmanager
async def running(*backends: FakeBackend, **config: Any) -> AsyncIterator[tuple[Node, Address]]:
    members = tuple(BackendConfig(f"b{i}", *backend.address) for i, backend in enumerate(backends))
    settings = Config(MasterPolicy(listen=LOCAL), probe=QUICK, backends=members, **config)
    node = Node(settings, rng=random.Random(1), log=capturing_log()[0])
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(node.run, {Entrance.CLIENTS: open_listeners(LOCAL)})
        [address] = addresses[Entrance.CLIENTS]
        with trio.fail_after(10):
            while not all(member.state(trio.current_time()) is State.READY for member in node.pool):  # noqa: ASYNC110
                await trio.sleep(0.01)
        yield node, address
        node.stop()
        await node.finished.wait()


async def test_who_asks_too_fast_is_denied_on_the_wire_also_by_ipv6() -> None:
    limits = PortLimits(asks_per_network_per_s=0.01, asks_burst=2)
    async with FakeBackend(Script(users=1)) as backend, running(backend, limits=limits) as (node, address):
        ask = Message("Master", "Event", "DoSendServer")
        answers = [(await say(address, ask))[0].data for _ in range(4)]
        assert [answer["Result"] for answer in answers] == ["OK", "OK", "Denied", "Denied"]
        assert answers[3]["Data"]["Reason"] == "TooFast"
        assert 90 < answers[3]["Data"]["RetryAfter"] <= 150
        assert node.metrics.bounds["networks"]() > 0
        quick = node.master.prepare(ask)
        assert quick is not None
        later = trio.current_time() + PLAIN_EVERY_S
        for _ in range(4):
            data = quick(later, 6, ("2001:db8::1", 5, 0, 0))  # type: ignore[arg-type]
        ((answer,),) = Decoder().feed(data)
        assert answer.data["Result"] == "Denied"
        assert node.answers.search("2001:db8::1", 9)
        assert sample(node.metrics.registry, "lambdamu_denied_total", reason="TooFast") == 4


async def say(address: Address, *messages: Message) -> list[Message]:
    """Send one batch on a connection of its own and return the answer."""
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(encode(messages))
        return next(Decoder().feed(bytes(await stream.receive_some(65536))))


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_asks_connections_and_probes_are_counted_exactly() -> None:
    async with FakeBackend(Script(users=7)) as backend, running(backend) as (node, address):
        registry = node.metrics.registry
        for _ in range(5):
            (answer,) = await say(address, Message("Master", "Event", "DoSendServer"))
            assert answer.data["Data"] == {"IP": "127.0.0.1", "Port": backend.address[1]}
        (error,) = await say(address, Message("Nobody", "Get", "Name"))
        assert error.data["Code"] == "UnknownObject"
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b"\xc1")
            await stream.receive_some(100)
            assert sample(registry, "lambdamu_protocol_errors_total", code="NotMessagePack") == 1
        with trio.fail_after(5):
            while sample(registry, "lambdamu_connections"):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert sample(registry, "lambdamu_asks_total", result="OK") == 5
        assert sample(registry, "lambdamu_asks_total", result="NoServer") == 0
        assert sample(registry, "lambdamu_connections_limit") == 10000
        ended = {how: sample(registry, "lambdamu_connections_ended_total", how=how) for how in ("left", "protocol")}
        assert ended == {"left": 6, "protocol": 1}
        assert (sample(registry, "lambdamu_probes_total", backend="b0") or 0) >= 1
        assert sample(registry, "lambdamu_probe_failures_total", backend="b0") == 0
        assert sample(registry, "lambdamu_backend_ready", backend="b0") == 1
        assert sample(registry, "lambdamu_backend_users", backend="b0") == 12
        assert sample(registry, "lambdamu_backend_reservations", backend="b0") == 5
        assert (sample(registry, "lambdamu_choice_entries") or 0) >= 1
        chosen = [sample(registry, "lambdamu_choices_total", why=why) or 0 for why in ("best", "earliest")]
        assert sum(chosen) == 5
        assert sample(registry, "lambdamu_choices_total", why="first_round") == 0
        assert sample(registry, "lambdamu_failed_together_total") == 0
        assert (sample(registry, "lambdamu_session_seconds") or 0) > 0
        assert sample(registry, "lambdamu_carries_biggest") == 0


async def test_one_too_many_is_counted_and_told() -> None:
    async with running(limits=PortLimits(connections=1)) as (node, address):  # noqa: SIM117
        async with await trio.open_tcp_stream(address.host, address.port) as first:
            await first.send_all(encode([Message("Master", "Event", "DoSendServer")]))
            await first.receive_some(100)
            (refusal,) = await say(address, Message("Master", "Event", "DoSendServer"))
            assert refusal.data["Code"] == "Limit"
            assert sample(node.metrics.registry, "lambdamu_connections_refused_total", why="limit") == 1
            assert sample(node.metrics.registry, "lambdamu_connections") == 1


async def test_every_series_is_there_before_anything_happens() -> None:
    metrics = Metrics(["b0"], 5)
    for name, labels in (
        ("lambdamu_probes_total", {"backend": "b0"}),
        ("lambdamu_probe_failures_total", {"backend": "b0"}),
        ("lambdamu_backend_ejections_total", {"backend": "b0"}),
        ("lambdamu_connections_refused_total", {"why": "limit"}),
        ("lambdamu_connections_refused_total", {"why": "resources"}),
        ("lambdamu_asks_total", {"result": "Wait"}),
        ("lambdamu_connections_ended_total", {"how": "reset"}),
    ):
        assert sample(metrics.registry, name, **labels) == 0


async def test_two_masters_in_one_process_do_not_meet() -> None:
    async with FakeBackend() as backend, running(backend) as (first, address), running(backend) as (second, _):
        await say(address, Message("Master", "Event", "DoSendServer"))
        assert sample(first.metrics.registry, "lambdamu_asks_total", result="OK") == 1
        assert sample(second.metrics.registry, "lambdamu_asks_total", result="OK") == 0


async def test_a_restless_backend_is_logged_now_and_then_and_its_last_change_always(autojump_clock: object) -> None:
    log, capture = capturing_log()
    observer = Observer(Metrics(["b0"], 5), log)
    refused = LinkError("refused", "it refused")
    for i in range(1001):
        observer.became("b0", State.DOWN if i % 2 == 0 else State.READY, refused if i % 2 == 0 else None)
        await trio.sleep(0.1)
        observer.say_rest(trio.current_time())
    await trio.sleep(20)
    observer.say_rest(trio.current_time())
    observer.say_rest(trio.current_time())
    assert 6 < len(capture.entries) < 20
    assert capture.entries[-1]["event"] == "backend_down"
    assert len(capture.entries) + sum(entry["left_out"] for entry in capture.entries) >= 1001


async def test_whether_anybody_lives_is_logged_on_a_change_and_once_a_minute_while_nobody_does(
    autojump_clock: object,
) -> None:
    log, capture = capturing_log()
    config = Config(MasterPolicy(listen=LOCAL), backends=(BackendConfig("b0", "127.0.0.1", 1),))
    node = Node(config, rng=random.Random(1), log=log)
    rng = random.Random(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watch._log_whether_anybody_lives)
        await trio.sleep(600)
        assert 10 <= len(capture.entries) <= 11
        assert {entry["event"] for entry in capture.entries} == {"no_live_backend"}
        for _ in range(60):
            now = trio.current_time()
            node.pool.record_report(now, rng, "b0", 0, now, ("127.0.0.1", 1))
            await trio.sleep(1)
        await trio.sleep(30)
        assert [entry["event"] for entry in capture.entries][-2:] == ["live_backend", "no_live_backend"]
        nursery.cancel_scope.cancel()


async def test_when_all_fail_together_the_log_and_a_metric_say_so(autojump_clock: object) -> None:
    log, capture = capturing_log()
    members = tuple(BackendConfig(f"b{i}", "127.0.0.1", i + 1) for i in range(3))
    node = Node(Config(MasterPolicy(listen=LOCAL), backends=members), rng=random.Random(1), log=log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watch._log_whether_anybody_lives)
        await trio.sleep(1.0)
        for member in node.pool:
            node.pool.record_report(
                trio.current_time(), random.Random(1), member.backend.name, 0, trio.current_time(), ("127.0.0.1", 1)
            )
        await trio.sleep(30)
        assert sample(node.metrics.registry, "lambdamu_failed_together_total") == 1
        nursery.cancel_scope.cancel()
    assert [entry["event"] for entry in capture.entries] == ["live_backend", "no_live_backend"]
    assert capture.entries[-1]["own_network_suspected"] is True


async def test_a_pool_that_comes_and_goes_fills_no_log(autojump_clock: object) -> None:
    log, capture = capturing_log()
    config = Config(MasterPolicy(listen=LOCAL), backends=(BackendConfig("b0", "127.0.0.1", 1),))
    node = Node(config, rng=random.Random(1), log=log)
    rng = random.Random(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watch._log_whether_anybody_lives)
        for _ in range(300):
            now = trio.current_time()
            node.pool.record_report(now, rng, "b0", 0, now, ("127.0.0.1", 1))
            await trio.sleep(6)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert 50 < len(capture.entries) < 250  # of 600 changes in half an hour
    assert capture.entries[-1]["event"] == "no_live_backend"


def test_where_descriptors_are_few_connections_are_fewer_and_probes_keep_theirs() -> None:
    log, capture = capturing_log()
    backends = tuple(BackendConfig(f"b{i}", "127.0.0.1", i + 1) for i in range(10))
    few = fit_descriptors(Config(limits=PortLimits(connections=10**6), backends=backends), log, 10)
    assert few.limits.connections < 10**6
    assert capture.entries[0]["event"] == "few_descriptors"
    enough = Config(limits=PortLimits(connections=5), backends=backends)
    assert fit_descriptors(enough, log, 10) is enough


def test_where_descriptors_are_few_each_entrance_gets_the_same_part_of_what_it_asks_for() -> None:
    log, _ = capturing_log()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = max(hard, 10**6)
    config = Config(
        limits=PortLimits(connections=more),
        tls=TlsConfig(listen=Address("127.0.0.1", 1)),
        gateway=GatewayConfig(listen=Address("127.0.0.1", 2), connections=2 * more),
    )
    few = fit_descriptors(config, log, 10)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = 2 * few.limits.connections + few.gateway.connections
    assert soft - 40 < taken + 10 <= soft
    assert few.gateway.connections == pytest.approx(2 * few.limits.connections, abs=2)
    assert few.written("gateway", "connections") == 2 * more


async def test_a_backend_that_says_it_drains_is_set_aside_for_those_who_watch() -> None:
    async with FakeBackend() as one, FakeBackend() as two, running(one, two) as (node, _):
        registry = node.metrics.registry
        node.pool.record_said(trio.current_time(), "b0", Said(drain=True))
        aside = [sample(registry, "lambdamu_backend_set_aside", backend=name) for name in ("b0", "b1")]
        assert aside == [1, 0]


async def test_how_many_are_ejected_is_shown_as_part_of_how_many_may_be() -> None:
    members = tuple(BackendConfig(f"b{i}", "127.0.0.1", i + 1) for i in range(7))
    node = Node(Config(backends=members), rng=random.Random(1), log=capturing_log()[0])
    now, rng = trio.current_time(), random.Random(1)

    def share() -> float | None:
        return sample(node.metrics.registry, "lambdamu_bound_ratio", bound="ejected")

    assert share() == 0
    for i, member in enumerate(node.pool):
        node.pool.record_report(now, rng, member.backend.name, 0, now, ("127.0.0.1", i + 1))
    for i in range(100):
        answer = node.pool.assign(now, rng, Ask(client=f"{i}"))
        if isinstance(answer, Assignment) and answer.place.name == "b0":
            node.pool.hear(now, rng, f"{i}", f"192.0.{i}.7", [answer.place.endpoint])
    assert sample(node.metrics.registry, "lambdamu_ejected") == 1
    assert share() == 0.5  # of seven, two may be
    few = Node(Config(backends=members[:2]), rng=rng, log=capturing_log()[0])
    assert sample(few.metrics.registry, "lambdamu_bound_ratio", bound="ejected") == 0


async def test_an_hour_with_a_dead_backend_and_ten_thousand_asks_to_nobody_are_few_lines(
    autojump_clock: object,
) -> None:
    log, capture = capturing_log()
    config = Config(MasterPolicy(listen=LOCAL), backends=(BackendConfig("b0", "127.0.0.1", 1),))
    node = Node(config, rng=random.Random(1), log=log)
    refused = LinkError("refused", "it refused")
    node.observer.became("b0", State.DOWN, refused)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watch._log_whether_anybody_lives)
        nursery.start_soon(node.watch._watch_room)
        for _ in range(3600):
            node.pool.record_failure(trio.current_time(), "b0")
            node.observer.probed("b0", refused, 1.0)
            for _ in range(3):
                node.master.do_send_server(Message("Master", "Event", "DoSendServer"), trio.current_time(), PEER)
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert node.metrics.asks[Result.NO_SERVER] == 10_800
    assert 60 <= len(capture.entries) < 65  # one a minute, that nobody lives, and the first word on the backend


async def test_what_lets_the_master_in_at_a_backend_is_told_to_nobody_when_the_backend_repeats_it() -> None:
    log, capture = capturing_log()
    members = (BackendConfig("b0", "127.0.0.1", 1),)
    node = Node(Config(probe=ProbePolicy(user_mail="hush@host"), backends=members), rng=random.Random(1), log=log)
    node.observer.became("b0", State.DOWN, LinkError("bad_auth", "it answered: no user hush@host here"))
    (entry,) = capture.entries
    (event,) = node.events.last(9)
    assert entry["text"] == event.text == node.observer.whys["b0"] == "it answered: no user *** here"
    assert "hush" not in f"{capture.entries}{event}"
