"""A master whose pool is told what to know, and its operators' side on a real socket."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio

from lambdamu.address import Address
from master.config import BackendConfig, ChoiceConfig, Config, HttpPolicy
from master.config_cache import CacheNodeConfig
from master.config_queue import QueueConfig
from master.core.admin import Wish
from master.node import Node
from master.queue.numbers import NumberBlock
from master.waiting.orders import Order
from master.web.controls import ControlError, LastReload, Wanted
from master.web.run import Web
from master.web.server import DEADLINES, Deadlines, open_http_listeners

LOCAL = Address("127.0.0.1", 0)


@attrs.define(eq=False)
class FakeControls:
    """Notes what it is asked to do; refuses what `refuses` says."""

    refuses: str = ""
    wishes: dict[str, Wanted] = attrs.Factory(dict)
    asked: list[tuple[Any, ...]] = attrs.Factory(list)
    reloaded: LastReload | None = None
    node: Node | None = None
    """Whose sessions can be ended."""

    def set_admin(self, name: str, state: Wish, who: str, reason: str, until_s: float | None) -> None:
        if self.refuses:
            raise ControlError(self.refuses)
        self.asked.append((name, state, who, reason, until_s))
        self.wishes[name] = Wanted(state, who, reason, until_s)

    def wish(self, name: str) -> Wanted | None:
        return self.wishes.get(name)

    def order_queue(self, queue: str, order: Order | None, *, who: str, reason: str) -> None:
        if self.refuses:
            raise ControlError(self.refuses)
        self.asked.append((queue, order, who, reason))

    def note_look_up(self, what: str, known: str, *, who: str, values: bool) -> None:
        self.asked.append(("look up", what, known, who, values))

    def end_session(self, session: str, *, who: str, reason: str) -> bool:
        self.asked.append(("end", who, reason))
        assert self.node is not None
        assert self.node.cache is not None
        return self.node.cache.store.drop_session(trio.current_time(), session)

    def last_reload(self) -> LastReload | None:
        return self.reloaded

    async def reload(self, who: str) -> Sequence[str]:
        if self.refuses:
            raise ControlError(self.refuses)
        self.asked.append(("reload", who))
        return ["b9 is new"]


@attrs.define(eq=False)
class Site:
    node: Node
    web: Web
    address: Address
    http: httpx.AsyncClient
    nursery: trio.Nursery
    log: structlog.testing.LogCapture

    def report(self, name: str, users: int = 0) -> None:
        """Have a probe of a backend succeed."""
        now = trio.current_time()
        self.node.pool.record_report(now, random.Random(1), name, users, now, ("10.0.0.1", 9001))
        self.node.observer.became(name, self.node.pool[name].state(now), None)


@asynccontextmanager
async def _site(
    *names: str,
    controls: FakeControls | None = None,
    deadlines: Deadlines = DEADLINES,
    first_round_s: float = 0.0,
    panic_threshold: float = 0.0,
    capacity: int | None = None,
    queue: QueueConfig | None = None,
    cache_node: CacheNodeConfig = CacheNodeConfig(),  # noqa: B008 - a frozen value
    **policy: Any,
) -> AsyncIterator[Site]:
    members = tuple(BackendConfig(name, f"h{i}", 9001, capacity=capacity) for i, name in enumerate(names))
    choice = ChoiceConfig(
        first_round_s=first_round_s, panic_threshold=panic_threshold, session_s=policy.pop("session_s", None)
    )
    http = HttpPolicy(listen=LOCAL, **policy)
    config = Config(backends=members, choice=choice, http=http, queue=queue, cache_node=cache_node)
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(None, processors=[capture])
    node = Node(config, rng=random.Random(1), log=log)
    if node.waiting is not None:
        node.waiting.queues.numbers.add(NumberBlock(1, 1 << 40))
    web = Web(node, http, log, controls, deadlines)
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(web.run, open_http_listeners(LOCAL, deadlines))
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            yield Site(node, web, address, client, nursery, capture)
        told_at = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - told_at < 2  # whoever still reads, and however slowly


SiteMaker = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
def site() -> SiteMaker:
    return _site


@pytest.fixture
def make_controls() -> type[FakeControls]:
    return FakeControls
