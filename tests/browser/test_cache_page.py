"""The cache on the status page, beside a pool and alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import NASTY, PHONE, FedPage, Page, row
from tests.end_to_end.conftest import Stage, free_port, wait_for_port
from tests.end_to_end.test_cache import Front

SUMMARY = {"sessions": 12345, "trouble": []}
DARK_PHONE = {"viewport": PHONE, "color_scheme": "dark"}


def table(name: str, rows: int) -> dict[str, Any]:
    return {"table": name, "rows": rows, "bytes": 1200 * rows, "evicted": 0, "expired": rows // 3, "refused": 0}


def told(**more: Any) -> dict[str, Any]:
    """Return what a node tells of a cache that works, and fetches."""
    minute = {"seconds": 60.0, "asks_per_s": 1234.5, "hit_rate": 0.92, "saved_per_s": 250.0, "calls_per_s": 20.0}
    warm = {"saved": 70_000, "calls": 9000, "failures": 3, "stale": 2, "app_starts": 400, "warmed": 1600}
    queue = {"length": 40, "max_length": 3000, "oldest_s": 0.25, "waiting": 700, "max_waiting": 10_000}
    kinds = [{"kind": f"Products.{name}", "busy": 17, "max": 50} for name in ("Cards", "Loans")]
    return {
        **SUMMARY,
        "bytes": 90 * 2**20,
        "max_bytes": 256 * 2**20,
        "tables": [table(name, 10**i) for name, i in (("session", 5), ("device", 4), ("cache", 6), ("warm", 3))],
        "last_minute": minute | {"failed_per_s": 0.0, "refused_per_s": 0.0},
        "warm": warm,
        "queue": queue | {"refused": 1, "put_out": 2, "expired": 3, "cut": 4, "dropped": 5},
        "workers": {"busy": 34, "max": 100, "kinds": kinds},
        "upstream": [{"peer": "10.0.0.1:9001", "breaker": "closed"}, {"peer": "10.0.0.2:9001", "breaker": "open"}],
        "store": {"failing": False, "unwritten": 12, "written_s_ago": 0.1},
        "connections": {"open": 30, "max": 1000, "refused": 9},
        "keys": [
            {"table": "cache", "name": NASTY, "asks": 81_200, "over": 0},
            {"table": "warm", "name": "Products.Cards", "asks": 9000, "over": 400},
        ],
    } | more


@pytest.fixture
def page(browser: Any, idle_master: int, request: pytest.FixtureRequest) -> Any:
    page = FedPage(browser, idle_master, **getattr(request, "param", {}))
    yield page
    page.close()


def test_where_there_is_no_cache_nothing_is_said_of_one(page: FedPage) -> None:
    page.begin([row("b1")], [])
    page.verdict("all is well")
    assert page.at("cache").is_hidden()
    page.tell_pool(1, cache=SUMMARY)
    page.tell("cache", told())
    page.sees(page.at("cache"), "12,345 sessions")
    page.tell_pool(1, cache=None)
    assert page.at("cache").is_hidden()
    assert page.at("to-cache").is_hidden()


@pytest.mark.parametrize("page", [{}, DARK_PHONE], indirect=True, ids=["desk", "phone"])
def test_the_cache_is_shown_beside_a_pool(page: FedPage, request: pytest.FixtureRequest) -> None:
    page.begin([row("b1")], [], cache=SUMMARY)
    page.tell("cache", told())
    state = "12,345 sessions · hit rate 92 % in the last minute · 1,235 /s asks · 250 /s calls saved · 20 /s made"
    page.sees_only(page.at("cache-state"), state)
    page.sees_only(page.at("cache-alarm"), "")
    page.sees(page.at("cache-loads"), "Workers34 of 100Products.Cards17 of 50.*Queue40 of 3,000, the first for 0.3 s")
    page.sees(page.at("cache-loads"), "Memory90 MiB of 256 MiBConnections30 of 1,000, 9 refused")
    page.sees(page.at("cache-tables"), "session100,000114.4 MiB33,333 expireddevice")
    page.sees(page.at("cache-peers"), "10.0.0.2:9001fails: it is left alone")
    page.sees(page.at("cache-keys"), "<img src=x.*cache81,200Products.Cardswarm8,600 to 9,000")
    page.sees(page.at("cache-facts"), "70,000 calls saved, 9,000 made, 3 failed, 2 old answers")
    page.sees(page.at("backends"), "b1")
    assert page.page.locator("#cache img").count() == 0
    assert page.is_no_wider_than_the_screen()
    page.shoot(f"cache-{request.node.callspec.id}")


@pytest.mark.parametrize(
    "page", [{}, {"viewport": PHONE}, {"color_scheme": "dark"}], indirect=True, ids=["desk", "phone", "dark"]
)
def test_an_accident_is_seen_on_a_node_for_the_cache_alone(page: FedPage, request: pytest.FixtureRequest) -> None:
    trouble = ["the upstream fails at 10.0.0.1:9001", "9 fetches and asks were refused"]
    summary = SUMMARY | {"trouble": trouble}
    page.begin(
        [], [], cache=summary, alone=True, takers=0, verdict="the cache has 12,345 sessions, and not all is well"
    )
    accident = told(**summary)
    accident["queue"] |= {"length": 3000, "oldest_s": 9.8}
    accident["workers"] |= {"busy": 100}
    accident["last_minute"] |= {"hit_rate": None, "failed_per_s": 19.0, "refused_per_s": 180.0}
    page.tell("cache", accident)
    page.sees_only(page.at("mark"), "!")
    page.sees_only(page.at("cache-alarm"), "The upstream fails at 10.0.0.1:9001. 9 fetches and asks were refused.")
    page.counts(page.page.locator("#cache-loads .full"), 2)
    page.sees(page.at("cache-state"), "hit rate unknown .* 19 /s failed · 180 /s refused")
    for gone in ("backends", "why", "rates"):
        assert page.at(gone).is_hidden()
    assert "connection" not in page.at("pool").inner_text()
    assert page.is_no_wider_than_the_screen()
    page.shoot(f"cache-alone-{request.node.callspec.id}")
    page.tell_pool(0, cache=SUMMARY, alone=True)
    page.sees_only(page.at("mark"), "✓")


def test_a_real_node_for_the_cache_alone_tells_the_page_what_is_there(stage: Stage, browser: Any) -> None:
    port, http = free_port(), free_port()
    config = stage.folder / "cache.toml"
    config.write_text(f'[cache]\nlisten = "127.0.0.1:{port}"\n[http]\nlisten = "127.0.0.1:{http}"\n')
    node = stage.start("master", "--config", str(config))
    wait_for_port(http, node)
    page = Page(browser, http)
    page.verdict("the cache has 0 sessions")
    with Front(port) as front:
        session = front.ask("Session", "Create", Client="ann")["Data"]["Session"]
        front.ask("Cache", "Put", Session=session, Key="cart", Value=b"x")
        page.sees(page.at("cache-state"), "^1 session ·")
        page.sees(page.at("cache-keys"), "cartcache1")
        page.sees(page.at("cache-loads"), "Connections1 of 1,000")
        assert "Workers" not in page.at("cache-loads").inner_text()
    page.shoot("cache-real")
    page.close()
