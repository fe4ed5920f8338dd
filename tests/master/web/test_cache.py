"""What operators are told of the cache, and who is who in it, over real sockets.

The file is long because each view, and each refusal, is one test over the same node.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio

from lambdamu.address import Address
from lambdamu.objects import Peer
from master.cache.rows import Row, Table
from master.config_cache import CacheNodeConfig
from master.config_file import parse
from master.node import Node
from master.tokens import TokensFile
from master.web.cache_minute import LastMinute
from master.web.cache_views import SHOWN_BYTES, value_row
from master.web.run import Web
from master.web.server import open_http_listeners
from tests.master.cache.wire import question
from tests.master.web.conftest import LOCAL, FakeControls, Site
from tests.master.web.test_feed import Reader
from tests.master.web.test_queue import documented

ALONE = """
[cache]
sessions_per_client = 0
listen = "127.0.0.1:0"
upstream = ["127.0.0.1:9"]
[[cache.warm]]
type = 1
object = "Products"
name = "Cards"
workers = 5
[http]
listen = "127.0.0.1:0"
ready_needs_backend = true
"""
POOL = '[[backend]]\nhost = "127.0.0.1"\nport = 9\n[master]\nlisten = "127.0.0.1:0"\n'
PEER = Peer("127.0.0.1", 4)
TOKENS = "reader: a-token-that-reads: read\nann: a-token-that-writes: write\n"
WRITES = {"Authorization": "Bearer a-token-that-writes"}
READS = {"Authorization": "Bearer a-token-that-reads"}
ODD = "a/b ü%2F?"


@asynccontextmanager
async def cache_site(
    more: str = "", controls: FakeControls | None = None, tokens: str | None = None
) -> AsyncIterator[Site]:
    """Yield a node with a cache, which nothing runs, and its operators' side."""
    config = parse(ALONE + more)
    log = structlog.wrap_logger(None, processors=[capture := structlog.testing.LogCapture()])
    node = Node(config, rng=random.Random(1), log=log)
    file = None if tokens is None else TokensFile(tokens)
    web = Web(node, config.http, log, controls or FakeControls(node=node), tokens_file=file)
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(web.run, open_http_listeners(LOCAL))
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            yield Site(node, web, address, client, nursery, capture)
        nursery.cancel_scope.cancel()


def ask(here: Site, where: str, **data: Any) -> Any:
    """Ask as a backend does; return the Data of the answer."""
    assert here.node.cache is not None
    [answer] = here.node.cache.service.handle(question(where, data), trio.current_time(), PEER)  # type: ignore[misc]
    return answer.data


def log_in(here: Site, client: str, device: str, value: bytes = b"secret") -> str:
    session: str = ask(here, "Session.Create", Client=client, Value=value, TTL=100.0)["Session"]
    ask(here, "Device.Bind", Session=session, Device=device)
    return session


def until(here: Site, session: str) -> float:
    assert here.node.cache is not None
    row = here.node.cache.store.get(trio.current_time(), Table.SESSION, (session,))
    assert row is not None
    return row.until


@pytest.mark.parametrize("path", ["", "/session/x", "/device/x", "/client/x"])
async def test_without_a_cache_one_line_says_so(site: Any, path: str) -> None:
    async with site("b1", controls=FakeControls()) as here:
        answer = await here.http.get(f"/api/v1/cache{path}")
        said = "there is no cache: the configuration of this node has no [cache]"
        assert (answer.status_code, answer.json()) == (404, {"error": said})
        pool = (await here.http.get("/api/v1/backends")).json()
        assert (pool["cache"], pool["cache_node"], pool["alone"]) == (None, None, False)
        assert here.node.events.last(9) == []


async def test_where_the_cache_is_another_node_it_is_named_and_so_is_what_keeps_from_it(site: Any) -> None:
    async with site("b1", cache_node=CacheNodeConfig(Address("cache.example", 7100))) as here:
        answer = await here.http.get("/api/v1/cache")
        assert answer.status_code == 404
        assert answer.json()["error"].endswith("has no [cache]; its [cache_node] is cache.example:7100")
        for why in ("the cache cache.example:7100: Connection refused", None):
            here.node.warm_call.fault = why
            pool = (await here.http.get("/api/v1/backends")).json()
            assert pool["cache_node"] == {"address": "cache.example:7100", "connected": False, "trouble": why or ""}


@pytest.mark.parametrize("more", ["", POOL])
async def test_how_the_cache_stands_is_told_alone_and_beside_a_pool(more: str) -> None:
    async with cache_site(more) as here:
        session = log_in(here, "ann", "phone")
        for key in ("cart", "cart", "cart", f"of:{session}:ann:77001"):
            ask(here, "Cache.Put", Session=session, Key=key, Value=b"x")
        here.node.cache.turned_away = 7
        told = (await here.http.get("/api/v1/cache")).json()
        assert documented("Cache", told)
        tables = {row["table"]: row["rows"] for row in told["tables"]}
        assert tables == {"session": 1, "device": 1, "cache": 2, "warm": 0}
        assert (told["sessions"], told["trouble"], told["store"]) == (1, [], None)
        assert told["keys"] == [
            {"table": "cache", "name": "cart", "asks": 3, "over": 0},
            {"table": "cache", "name": "of:*:*:#", "asks": 1, "over": 0},
        ]
        assert told["workers"] == {"busy": 0, "max": 100, "kinds": [{"kind": "Products.Cards", "busy": 0, "max": 5}]}
        assert told["upstream"] == [{"peer": "127.0.0.1:9", "breaker": "closed"}]
        assert told["connections"] == {"open": 0, "max": 1000, "refused": 7}
        assert not {"ann", "phone", session} & set(str(told).replace("'", " ").split())
        pool = (await here.http.get("/api/v1/backends")).json()
        assert documented("Backends", pool)
        assert (pool["alone"], pool["cache"]) == (not more, {"sessions": 1, "trouble": []})
        assert pool["verdict"] == ("there are no backends" if more else "the cache has 1 session") or more
        reader = await Reader.of(here)
        async with reader.stream:
            [frame] = [data for kind, data in await reader.until("complete") if kind == "cache"]
        assert documented("Cache", frame)


async def test_a_node_for_the_cache_alone_is_ready_without_a_backend() -> None:
    async with cache_site() as here:
        assert (await here.http.get("/readyz")).status_code == 200
        here.web.desk.stopping = True
        assert (await here.http.get("/readyz")).status_code == 503


async def test_what_is_wrong_is_told_in_lines() -> None:
    @attrs.define
    class Kept:
        failing: bool = True
        unwritten: int = 3
        written_at: float = 0.0
        commits: int = 0
        failures: int = 1
        error: str = "x: Permission denied"

    async with cache_site() as here:
        house = here.node.cache
        assert house is not None
        assert house.upstream is not None
        house.config = attrs.evolve(house.config, file="x")
        house.keeper = Kept()
        now = trio.current_time()
        for _ in range(20):
            permit = house.upstream.peers[0].breaker.acquire(now, random.Random(1))
            if hasattr(permit, "failed"):
                permit.failed(now)
        told = (await here.http.get("/api/v1/cache")).json()
        assert documented("Cache", told)
        wrong = [
            "x is not written, 3 changes would end with the process: Permission denied",
            "the upstream fails at 127.0.0.1:9",
        ]
        assert told["trouble"] == wrong
        assert (told["store"]["failing"], told["upstream"][0]["breaker"]) == (True, "open")
        verdict = (await here.http.get("/api/v1/backends")).json()["verdict"]
        assert verdict == "the cache has 0 sessions, and not all is well"


async def test_rates_are_those_of_the_last_minute() -> None:
    async with cache_site() as here:
        house = here.node.cache
        assert house is not None
        assert house.warm is not None
        minute = LastMinute()
        assert set(minute.row().values()) == {None}
        minute.take(0.0, house)
        assert set(minute.row().values()) == {None}
        session = log_in(here, "ann", "phone")
        warm = Row(Table.WARM, ("ann", 1, 0), b"x", "ann", "", 0, 1, 0.0, 300.0)
        house.store.put(trio.current_time(), warm)
        for _ in range(28):
            ask(here, "Warm.Get", Session=session, Type=1)
        minute.take(10.0, house)
        row = minute.row()
        assert (row["seconds"], row["asks_per_s"], row["hit_rate"], row["saved_per_s"]) == (10.0, 3.0, 1.0, 2.8)
        for second in range(11, 80):
            minute.take(float(second), house)
        rates = dict.fromkeys((f"{key}_per_s" for key in ("asks", "saved", "calls", "failed", "refused")), 0.0)
        assert minute.row() == {"seconds": 60.0, "hit_rate": None, **rates}


async def test_what_goes_wrong_again_and_again_is_told_for_ten_seconds() -> None:
    async with cache_site() as here:
        house = here.node.cache
        assert house is not None
        assert house.warm is not None
        minute = LastMinute()
        assert list(minute.troubles()) == []
        for second in range(15):
            minute.take(float(second), house)
        assert list(minute.troubles()) == []
        house.warm.fetches.counts.calls, house.warm.fetches.counts.failures = 19, 2
        house.broker.core.refused = 7
        said = ["2 of 19 calls of the upstream failed in the last 10 s"]
        said += ["7 fetches and asks were refused in the last 10 s: too many wait"]
        for second in range(15, 25):
            minute.take(float(second), house)
            assert list(minute.troubles()) == said
        minute.take(25.0, house)
        assert list(minute.troubles()) == []
        house.warm.fetches.counts.calls, house.warm.fetches.counts.failures = 39, 4
        minute.take(26.0, house)
        assert list(minute.troubles()) == []  # one in ten may


async def test_a_session_is_looked_up_by_its_id_which_does_not_prolong_it() -> None:
    async with cache_site() as here:
        session = log_in(here, ODD, "phone")
        ask(here, "Cache.Put", Session=session, Key="cart", Value=b"\x81\xa1a\xff")
        before = until(here, session)
        told = (await here.http.get(f"/api/v1/cache/session/{session}")).json()
        assert documented("CacheSession", told)
        assert (told["client"], told["ttl_s"], told["more"]) == (ODD, 100.0, False)
        assert told["value"] == {"bytes": 6, "looks": "text", "text": None, "base64": None}
        [entry] = told["entries"]
        assert (entry["key"], entry["value"]["looks"], entry["value"]["base64"]) == ("cart", "bytes", None)
        shown = (await here.http.get(f"/api/v1/cache/session/{session}", params={"values": "1"})).json()
        assert documented("CacheSession", shown)
        assert shown["value"]["text"] == "secret"
        assert shown["entries"][0]["value"]["base64"] == "gaFh/w=="
        assert until(here, session) == before
        told = [event.text for event in here.node.events.last(9)]
        assert told == [f"session {shown['hash']}: looked up{how}, by local" for how in ("", ", with values")]
        assert session not in str(told)
        assert [asked[3:] for asked in here.web.desk.controls.asked] == [("local", False), ("local", True)]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("session/nobody", 404),
        ("session/", 400),
        ("session/" + 129 * "x", 400),
        ("session/%ff%fe", 400),
        ("session/%00", 404),
        ("client/" + 64 * "%C3%BC", 404),
        ("client/" + 65 * "%C3%BC", 400),
        ("device/x?values=perhaps", 400),
        ("nothing/x", 404),
    ],
)
async def test_an_id_that_nobody_has_or_that_is_none_is_one_line(path: str, status: int) -> None:
    async with cache_site() as here:
        answer = await here.http.get(f"/api/v1/cache/{path}")
        assert (answer.status_code, list(answer.json())) == (status, ["error"])


async def test_who_uses_a_device_and_what_a_client_has() -> None:
    async with cache_site() as here:
        first, second = log_in(here, ODD, ODD), log_in(here, ODD, "tablet")
        log_in(here, "bob", ODD)
        quoted = "a%2Fb%20%C3%BC%252F%3F"
        device = (await here.http.get(f"/api/v1/cache/device/{quoted}")).json()
        assert documented("CacheDevice", device)
        assert (device["device"], [row["client"] for row in device["clients"]]) == (ODD, ["bob", ODD])
        path = f"/api/v1/cache/client/{quoted}"
        client = (await here.http.get(path)).json()
        assert documented("CacheClient", client)
        assert [row["device"] for row in client["devices"]] == ["tablet", ODD]
        assert [row["session"] for row in client["sessions"]] == [f"{each[:4]}…" for each in (second, first)]
        shown = (await here.http.get(path, params={"values": "true"})).json()
        assert [row["session"] for row in shown["sessions"]] == [second, first]
        assert shown["sessions"][0]["value"]["text"] == "secret"


async def test_an_explanation_for_a_device_is_what_it_is_answered() -> None:
    two = POOL + '[[backend]]\nhost = "127.0.0.1"\nport = 10\n[choice]\nfirst_round_s = 0.0\n'
    async with cache_site(two) as here:
        here.report("127.0.0.1:9", users=5)
        here.report("127.0.0.1:10", users=5)
        session = log_in(here, "ann", "phone")
        for home in ("127.0.0.1:9", "127.0.0.1:10"):
            ask(here, "Cache.Put", Session=session, Key="Backend", Value=home.encode())
            told = (await here.http.get("/api/v1/explain", params={"device": "phone"})).json()
            assert (told["chosen"], told["reason"]) == (home, "session")
            assert {row["reason"] for row in told["backends"] if row["name"] != home} == {"behind"}
            here.report(home, users=500)
            told = (await here.http.get("/api/v1/explain", params={"device": "phone"})).json()
            assert (told["chosen"] != home, told["reason"]) == (True, "best"), "its load is far above the mean"
            here.report(home, users=5)
        told = (await here.http.get("/api/v1/explain", params={"device": "other"})).json()
        assert told["reason"] == "best"


async def test_of_many_a_hundred_are_told() -> None:
    async with cache_site() as here:
        session = ""
        for _ in range(101):
            session = log_in(here, "ann", "phone")
        for number in range(101):
            log_in(here, f"c{number}", "phone")
            ask(here, "Cache.Put", Session=session, Key=f"k{number}", Value=b"x")
        for path, rows in (("client/ann", "sessions"), ("device/phone", "clients"), (f"session/{session}", "entries")):
            told = (await here.http.get(f"/api/v1/cache/{path}")).json()
            assert (len(told[rows]), told["more"]) == (100, True)


async def test_an_operator_ends_a_session_with_all_that_is_kept_with_it() -> None:
    async with cache_site() as here:
        session = log_in(here, "ann", "phone")
        ask(here, "Cache.Put", Session=session, Key="cart", Value=b"x")
        path = f"/api/v1/cache/session/{session}"
        for body in ({}, {"reason": " "}, {"reason": "x", "more": 1}, []):
            assert (await here.http.request("DELETE", path, json=body)).status_code == 400
        ended = await here.http.request("DELETE", path, json={"reason": "it was stolen"})
        assert documented("CacheSessionEnded", ended.json())
        assert ask(here, "Session.Get", Session=session)["Code"] == "SessionGone"
        assert here.node.cache.store.counts(Table.CACHE).rows == 0  # type: ignore[union-attr]
        [event] = here.node.events.last(9)
        assert event.text == f"session {ended.json()['session']}: ended, by local: it was stolen"
        assert (await here.http.request("DELETE", path, json={"reason": "again"})).status_code == 404


async def test_who_is_who_needs_a_token_that_may_write(tmp_path: Any) -> None:
    (tmp_path / "tokens").write_text(TOKENS)
    async with cache_site(tokens=str(tmp_path / "tokens")) as here:
        session = log_in(here, "ann", "phone")
        assert (await here.http.get("/api/v1/cache")).status_code == 401
        assert (await here.http.get("/api/v1/cache", headers=READS)).status_code == 200
        for path in (f"session/{session}", "device/phone", "client/ann"):
            answer = await here.http.get(f"/api/v1/cache/{path}", headers=READS)
            assert (answer.status_code, answer.json()) == (
                403,
                {"error": "this token may read, not look up who is who"},
            )
            assert (await here.http.get(f"/api/v1/cache/{path}", headers=WRITES)).status_code == 200
        gone = await here.http.request(
            "DELETE", f"/api/v1/cache/session/{session}", headers=READS, json={"reason": "x"}
        )
        assert gone.status_code == 403
        assert [event.text.rpartition(", ")[2] for event in here.node.events.last(9)] == 3 * ["by ann"]


@pytest.mark.parametrize(
    ("value", "looks", "text", "part"),
    [
        (b"", "empty", "", None),
        ("ü".encode() * 20_000, "text", "ü" * 8192, None),
        (b"x" + "ü".encode() * 20_000, "text", "x" + "ü" * 8191, None),
        (b"a\x00", "bytes", None, "YQA="),
        (b"abc\xff", "bytes", None, "YWJj/w=="),
        (b"\xc3", "bytes", None, "ww=="),
        (bytes(20_000), "bytes", None, "A" * (4 * SHOWN_BYTES // 3) + "A=="),
    ],
)
def test_a_value_is_shown_as_what_it_looks_like(value: bytes, looks: str, text: str | None, part: str | None) -> None:
    assert value_row(value, shown=False) == {"bytes": len(value), "looks": looks, "text": None, "base64": None}
    shown = value_row(value, shown=True)
    assert (shown["text"], shown["base64"]) == (text, part)
