"""What the metrics say of the cache, and that clients cannot make series of their own."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import structlog
import trio

from lambdamu.objects import Peer
from lambdamu.port import PortObserver
from master.cache.house import CacheHouse
from master.cache.rows import Row, Table, cost_of
from master.cache_metrics import CacheMetrics
from master.config_file import parse
from master.node import Node
from master.web.exposition import render
from tests.master.cache.house import SlowUpstream
from tests.master.cache.wire import question

LOG: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
PEER = Peer("127.0.0.1", 4)
ALONE = '[cache]\nlisten = "127.0.0.1:0"\n'
POOL = '[[backend]]\nhost = "127.0.0.1"\nport = 9\n[master]\nlisten = "127.0.0.1:0"\n'
FETCHES = 'upstream = ["127.0.0.1:9"]\n'
WARM = "".join(
    f'[[cache.warm]]\ntype = {number}\nobject = "Products"\nname = "{name}"\nworkers = 1\nlifetime_s = 10\n'
    for number, name in enumerate(("Cards", "Loans"), 1)
)
Shown = dict[tuple[str, ...], float]


def make(text: str = "", warm: str = "") -> CacheHouse:
    config = parse(ALONE + text + warm)
    assert config.cache is not None
    return CacheHouse(config.cache, config.limits, random.Random(1))


@asynccontextmanager
async def fetching(text: str = "", delay_s: float = 1.0) -> AsyncIterator[tuple[CacheHouse, SlowUpstream]]:
    """Yield a cache at work, with an upstream that answers after `delay_s`."""
    house, upstream = make(FETCHES + text, WARM), SlowUpstream(delay_s)
    assert house.upstream is not None
    house.upstream.fetch = upstream.fetch  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(house.run)
        yield house, upstream
        nursery.cancel_scope.cancel()


def show(house: CacheHouse) -> Shown:
    """Return each series, by its name and the values of its labels."""
    return {
        (sample.name.removeprefix("lambdamu_cache_"), *map(str, sample.labels.values())): sample.value
        for family in CacheMetrics(house).collect(trio.current_time())
        for sample in family.samples
    }


def family(shown: Shown, name: str) -> Shown:
    """Return the series of one family that are not 0, by their labels."""
    return {words[1:]: value for words, value in shown.items() if words[0] == name and value}


def log_in(house: CacheHouse, client: str, *, size: int = 0, ttl_s: float = 1e6) -> Row:
    row = Row(Table.SESSION, (client,), bytes(size), client, client, 1, 0, 0.0, ttl_s)
    house.store.put(trio.current_time(), row)
    return row


def ask(house: CacheHouse, session: str, number: int = 1) -> None:
    assert house.warm is not None
    house.warm.ask(session, number, 1, lambda _: None)


async def test_rows_are_counted_by_table_and_those_that_were_not_taken_by_why(autojump_clock: object) -> None:
    house = make()
    assert {words: value for words, value in show(house).items() if words[0] == "rows"} == {
        ("rows", table): 0 for table in ("warm", "cache", "device", "session")
    }
    ann = log_in(house, "ann", size=100)
    log_in(house, "bob", ttl_s=1.0)
    house.store.put(0.0, Row(Table.CACHE, ("nobody", "k"), b"", "x", "nobody", 1, 0, 0.0, 9.0))
    await trio.sleep(2.0)
    assert house.store.sweep(trio.current_time(), 100)
    shown = show(house)
    assert (shown["rows", "session"], shown["bytes", "session"]) == (1, cost_of(ann))
    assert family(shown, "expired_total") == {("session",): 1}
    assert family(shown, "refused_total") == {("cache", "no_session"): 1}


async def test_what_makes_room_and_sessions_that_find_none_are_shown(autojump_clock: object) -> None:
    house = make("batch_bytes = 65536\nmax_bytes = 1048576\n")
    house.store.put(0.0, Row(Table.DEVICE, ("d", "ann"), bytes(40_000), "ann", "", 1, 0, 0.0, 1e6))
    shown = show(house)
    assert (
        shown["refused_total", "session", "full"] == 0
    )  # from the start on, or the first one would not be an increase
    for number in range(30):
        log_in(house, f"c{number}", size=50_000)
    shown = show(house)
    assert family(shown, "evicted_total") == {("device",): 1}
    rows = shown["rows", "session"]
    assert family(shown, "refused_total") == {("session", "full"): 30 - rows}
    assert 0 < rows < 30


async def test_each_bound_is_shown_by_how_much_of_it_is_used(autojump_clock: object) -> None:
    async with fetching("max_bytes = 10485760\nlength = 2\nworkers = 1\nwaiting = 8\n") as (house, _):
        bounds = CacheMetrics(house).bounds()
        assert {name: bound() for name, bound in bounds.items()} == dict.fromkeys(bounds, 0)
        sessions = sum(cost_of(log_in(house, client)) for client in ("ann", "bob"))
        house.store.put(0.0, device := Row(Table.DEVICE, ("d", "ann"), b"", "ann", "", 1, 0, 0.0, 1e6))
        for client in ("ann", "bob"):
            ask(house, client)
        await trio.sleep(0.1)
        assert house.warm is not None
        policy = house.store.policy
        assert {name: bound() for name, bound in bounds.items()} == {
            "cache_bytes": (sessions + cost_of(device)) / policy.max_bytes,
            "cache_session_bytes": sessions / policy.max_bytes,
            "cache_leases": 1 / policy.max_leases,
            "cache_workers": 1,
            "cache_queue": 0.5,
            "cache_waiting": 0.25,
            "cache_strangers": 0,
            "cache_flights": 2 / house.warm.policy.flights,
        }


async def test_the_queue_and_the_workers_are_shown_by_kind_and_what_went_wrong_by_how(autojump_clock: object) -> None:
    async with fetching("length = 2\n", delay_s=60.0) as (house, _):
        for client in ("ann", "bob", "cid", "dan"):
            log_in(house, client)
            ask(house, client)
        await trio.sleep(3.0)
        shown = show(house)
        assert (shown["workers_busy", "Products.Cards"], shown["workers_busy", "Products.Loans"]) == (1, 0)
        assert (shown["queue_length",], shown["queue_oldest_seconds",], shown["waiting",]) == (2, 3.0, 3)
        assert shown["flights",] == 3
        assert family(shown, "broker_steps_total") == {("refused",): 1}
        await trio.sleep(20.0)
        shown = show(house)
        assert (shown["queue_length",], shown["queue_oldest_seconds",], shown["waiting",]) == (0, 0, 0)
        steps = family(shown, "broker_steps_total")
        assert steps["expired",] == house.broker.core.expired > 0
        assert family(shown, "fetches_ended_total") == {("failed",): 1}


async def test_old_data_and_strangers_are_counted(autojump_clock: object) -> None:
    async with fetching() as (house, _):
        assert house.warm is not None
        port = house.make_port(None, PortObserver())
        house.warm.fetches.counts.stale, port.put_out = 3, 2
        shown = show(house)
    assert (shown["stale_answers_total",], shown["strangers_put_out_total",]) == (3, 2)


async def test_asks_for_warm_data_are_hits_or_join_a_fetch_or_miss_or_are_refused(autojump_clock: object) -> None:
    async with fetching() as (house, upstream):
        log_in(house, "ann")
        for _ in range(3):
            ask(house, "ann")
        await trio.sleep(2.0)
        ask(house, "ann")
        ask(house, "nobody")
        ask(house, "ann", 99)
        upstream.answers.append("no")
        ask(house, "ann", 2)
        await trio.sleep(1.1)
        ask(house, "ann", 2)  # it rests, and makes no call
        shown = show(house)
        asks = {("hit",): 1, ("joined",): 2, ("missed",): 3, ("refused",): 2}
        assert family(shown, "warm_asks_total") == asks
        assert shown["fetches_total",] == upstream.total == 2
        assert family(shown, "fetches_ended_total") == {("kept",): 1, ("failed",): 1}


async def test_app_starts_are_shown_by_what_they_brought_about(autojump_clock: object) -> None:
    async with fetching() as (house, _):
        house.store.put(0.0, Row(Table.DEVICE, ("d", "ann"), b"", "ann", "", 1, 0, 0.0, 1e6))
        assert house.warm is not None
        for device in ("d", "d", "another"):
            house.warm.app_start(device, 1)
        steps = {("heard",): 3, ("unknown",): 1, ("held_back",): 1, ("fetched",): 2}
        assert family(show(house), "app_starts_total") == steps


async def test_the_breaker_of_each_peer_is_in_one_state(autojump_clock: object) -> None:
    house = make('upstream = ["127.0.0.1:9", "127.0.0.1:10"]\n', WARM)
    assert house.upstream is not None
    house.upstream.peers[1].breaker.trip(trio.current_time(), random.Random(1))
    assert family(show(house), "upstream_breaker") == {("127.0.0.1:9", "closed"): 1, ("127.0.0.1:10", "open"): 1}


async def test_what_was_asked_is_counted_by_what_came_of_it_and_names_of_peers_make_no_series(
    autojump_clock: object,
) -> None:
    house = make()
    for number in range(50):
        house.service.handle(question("Session.Create", {"Client": f"c{number}"}), 0.0, PEER)
        house.service.handle(question(f"Session.Mine{number}", {}), 0.0, PEER)
        house.service.handle(question(f"Mine{number}.Get", {"Session": f"s{number}"}), 0.0, PEER)
    house.service.handle(question("Session.Get", {"Session": "gone"}), 0.0, PEER)
    house.service.handle(question("Session.Create", {"Client": "c", "Value": bytes(2**20)}), 0.0, PEER)
    assert family(show(house), "asks_total") == {
        ("Session", "Create", "OK"): 50,
        ("", "", "UnknownName"): 50,
        ("", "", "UnknownObject"): 50,
        ("Session", "Get", "SessionGone"): 1,
        ("Session", "Create", "TooBig"): 1,
    }
    assert len(show(house)) < 60


@attrs.define
class Kept:
    failing: bool = True
    commits: int = 3
    failures: int = 2
    unwritten: int = 17
    written_at: float = 0.0


@pytest.mark.parametrize("file", ["", "cache.db"])
async def test_the_store_is_shown_where_a_file_keeps_the_cache(file: str, autojump_clock: object) -> None:
    house = make(f'file = "{file}"\n' if file else "")
    kept = {"store_failing": 1, "unwritten": 17, "commits_total": 3, "store_failures_total": 2}
    assert not {words[0] for words in show(house)} & kept.keys()
    house.keeper = Kept()
    shown = {words[0]: value for words, value in show(house).items() if words[0] in kept}
    assert shown == (kept if file else {})


async def test_where_nothing_is_fetched_there_is_nothing_of_warm_data(autojump_clock: object) -> None:
    names = {words[0] for words in show(make())}
    assert not {name for name in names if name.startswith(("warm", "fetches", "app_starts", "flights", "upstream"))}
    assert "cache_flights" not in CacheMetrics(make()).bounds()


@pytest.mark.parametrize(
    ("text", "cache", "pool"), [(ALONE, True, False), (ALONE + POOL, True, True), (POOL, False, True)]
)
async def test_a_node_shows_the_cache_and_the_pool_where_it_has_them(
    text: str, cache: bool, pool: bool, autojump_clock: object
) -> None:
    node = Node(parse(text), rng=random.Random(1), log=LOG)
    shown = (await render(node.metrics.registry, openmetrics=True)).decode()
    assert bool(re.search(r"^lambdamu_cache_rows\{", shown, re.MULTILINE)) is cache
    assert ('bound="cache_session_bytes"' in shown) is cache
    assert ('bound="cache_connections"' in shown) is cache
    assert bool(re.search(r"^lambdamu_(backends|panic|carries_biggest)\b", shown, re.MULTILINE)) is pool
    assert ('bound="ejected"' in shown) is pool
    assert "lambdamu_build_info" in shown
