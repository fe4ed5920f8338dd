"""A cache on another node is told what devices come, over real sockets; nobody waits for it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trustme

from lambdamu.address import Address
from lambdamu.datapack import encode_alone
from lambdamu.messages import Message
from lambdamu.port import PortLimits
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock
from lambdamu.tls import TlsDoor, TlsPolicy
from master.cache.port import CachePort
from master.cache.service import Guard
from master.config_cache import CacheNodeConfig
from master.warm_call import FRESH_S, WarmCaller
from tests.master.cache.wire import FakeWarm, make_service
from tests.papers import write_papers

LOCAL = Address("127.0.0.1", 0)
NETWORK = bytes([192, 0, 2, 0])


@pytest.fixture
def autojump_clock() -> Any:
    return virtual_clock(SOCKET_SETTLE_S)


class Cache:
    """A cache node that hears AppStarts. `port`: as it serves now."""

    def __init__(self, secret: str = "", tls: TlsDoor | None = None) -> None:
        self.warm = FakeWarm()
        self.address = LOCAL
        self._guard = Guard(secret)
        self._tls = tls
        self.port = self._make_port()

    def _make_port(self) -> CachePort:
        service = make_service(self.warm, self._guard)
        limits = PortLimits(idle_s=1e6)
        return CachePort(service, limits, 1000, knows=self._guard.lets_in, tls=self._tls)

    @property
    def devices(self) -> list[str]:
        return [device for device, _, _ in self.warm.starts]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.port = self._make_port()
        async with trio.open_nursery() as nursery:
            [self.address] = await nursery.start(self.port.serve, open_listeners(self.address))
            yield
            nursery.cancel_scope.cancel()


class Master:
    def __init__(self, cache: Cache, secret: str = "", **config: Any) -> None:
        self.log = structlog.testing.LogCapture()
        log = structlog.wrap_logger(None, processors=[self.log])
        node = CacheNodeConfig(cache.address, **config)
        self.caller = WarmCaller(node, random.Random(1), log, user_name="master", secret=secret)

    @property
    def logged(self) -> list[str]:
        return [entry["event"] for entry in self.log.entries]

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[WarmCaller]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.caller.run)
            yield self.caller
            nursery.cancel_scope.cancel()


async def tell_until_connected(caller: WarmCaller) -> None:
    """Tell of "now" again and again, as devices come to a master, until that is heard."""
    while not caller.connected:
        caller.tell("now")
        await trio.sleep(FRESH_S / 2)
    await trio.sleep(1.0)


@pytest.mark.parametrize("secret", ["", "open sesame"])
async def test_it_is_told_each_device_over_one_connection(secret: str, autojump_clock: Any) -> None:
    cache = Cache(secret)
    async with cache.serving(), Master(cache, secret).calling() as caller:
        await trio.sleep(1.0)
        assert caller.connected
        for number in range(200):
            caller.tell(f"d{number}")
        await trio.sleep(1.0)
        caller.tell("ж" * 64, NETWORK)
        await trio.sleep(1.0)
        assert cache.devices == [*(f"d{number}" for number in range(200)), "ж" * 64]
        assert {start[1:] for start in cache.warm.starts} == {(None, None)}  # versions and networks are for others
        assert cache.port.connections == 1
        assert (caller.counts.sent, caller.counts.dropped, caller.used) == (201, 0, 0.0)


@pytest.mark.parametrize(
    ("secret", "why"),
    [("wrong", "this is not the secret"), ("", "say the secret first, as Auth.Set UserName and UserMail")],
)
async def test_a_wrong_secret_tells_nothing_and_is_said_once(secret: str, why: str, autojump_clock: Any) -> None:
    cache = Cache("right")
    async with cache.serving():
        master = Master(cache, secret)
        async with master.calling() as caller:
            caller.tell("d")
            await trio.sleep(60.0)
            assert not caller.connected
            assert cache.devices == []
            assert master.logged == ["cache_node_unreachable"]
            assert master.log.entries[0]["error"].endswith(f"NotYours: {why}")
            assert caller.fault == master.log.entries[0]["error"]


async def test_who_came_too_long_ago_is_left_out_and_the_others_are_told_when_it_is_there(autojump_clock: Any) -> None:
    cache = Cache()
    async with cache.serving():
        pass  # it has an address, and is down
    master = Master(cache)
    async with master.calling() as caller:
        await trio.sleep(1.0)
        caller.tell("early")
        await trio.sleep(60.0)
        assert master.logged == ["cache_node_unreachable"]
        async with cache.serving():
            await tell_until_connected(caller)
            assert set(cache.devices) == {"now"}
            assert caller.counts.late >= 1
            assert caller.counts.sent == len(cache.devices)
            assert master.logged == ["cache_node_unreachable", "cache_node_reached"]


async def test_a_restart_of_the_cache_is_got_over(autojump_clock: Any) -> None:
    cache = Cache()
    async with cache.serving():
        pass
    async with Master(cache).calling() as caller:
        for device in ("before", "after"):
            async with cache.serving():
                await trio.sleep(30.0)
                caller.tell(device)
                await trio.sleep(1.0)
            await trio.sleep(1.0)
            assert not caller.connected
        assert cache.devices == ["before", "after"]


async def test_who_came_too_long_ago_holds_no_place_while_the_cache_is_down(autojump_clock: Any) -> None:
    cache = Cache()
    async with cache.serving():
        pass
    async with Master(cache, length=10).calling() as caller:
        for number in range(10):
            caller.tell(f"early {number}")
        await trio.sleep(FRESH_S + 60.0)
        async with cache.serving():
            await tell_until_connected(caller)
        assert set(cache.devices) == {"now"}
        assert caller.counts.late >= 10
        assert caller.counts.dropped == 0


async def test_the_queue_is_bounded(autojump_clock: Any) -> None:
    cache = Cache()
    async with cache.serving():
        caller = Master(cache, length=3).caller
        for number in range(5):
            caller.tell(f"d{number}")
        assert caller.used == 1.0
        assert caller.counts.dropped == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.run)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert cache.devices == ["d0", "d1", "d2"]


async def test_a_network_tells_no_more_than_its_share_and_one_that_does_not_count_is_not_counted() -> None:
    caller = Master(Cache(), app_starts_per_network_per_s=1.0).caller
    for _ in range(150):
        caller.tell("d", NETWORK)
    assert caller.counts.held_back == 50
    for _ in range(150):
        caller.tell("d", None)
    assert caller.counts.held_back == 50
    caller.tell("d", bytes([192, 0, 3, 0]))
    assert caller.counts.held_back == 50


async def test_what_is_said_to_it_is_heard_by_nobody(autojump_clock: Any) -> None:
    """A peer that answers, against the rules, does not fill any memory of ours, and is told on."""
    heard: list[bytes] = []

    async def talk(stream: trio.SocketStream) -> None:
        with trio.move_on_after(100.0):
            await stream.receive_some()
            await stream.send_all(encode_alone(Message("Auth", "Value", "TaskObject", "Cache")))
            for _ in range(10):
                await stream.send_all(b"\x90" * 1000)
            while True:
                heard.append(bytes(await stream.receive_some()))

    cache = Cache()
    async with trio.open_nursery() as nursery:
        [port] = await nursery.start(_serve, talk)
        cache.address = Address("127.0.0.1", port)
        async with Master(cache).calling() as caller:
            await trio.sleep(1.0)
            caller.tell("d")
            await trio.sleep(1.0)
            assert caller.counts.sent == 1
            assert b"AppStart" in b"".join(heard)
        nursery.cancel_scope.cancel()


async def _serve(talk: Any, *, task_status: trio.TaskStatus[list[int]]) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started([listener.socket.getsockname()[1] for listener in listeners])
    await trio.serve_listeners(talk, listeners)


@pytest.mark.parametrize(("name", "told"), [("localhost", ["d"]), ("cache.example", [])])
async def test_by_tls_it_has_to_be_who_it_should_be(
    name: str, told: list[str], autojump_clock: Any, tmp_path: Path
) -> None:
    authority = trustme.CA()
    files = write_papers(tmp_path, authority, authority.issue_cert("localhost"))
    policy = TlsPolicy(certificate=files["certificate"], key=files["key"])
    cache = Cache(tls=TlsDoor(policy))
    async with cache.serving():
        master = Master(cache, tls=True, ca_file=files["client_ca"], tls_name=name)
        async with master.calling() as caller:
            await trio.sleep(10.0)
            caller.tell("d")
            await trio.sleep(1.0)
            assert cache.devices == told
