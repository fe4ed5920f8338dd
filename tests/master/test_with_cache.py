"""A master and a cache as they are configured: on one node, on two, and what the configuration says of that."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from lambdamu.address import Address
from lambdamu.datapack import Decoder, encode, encode_alone
from lambdamu.messages import BACKEND, Message
from lambdamu.tcp_server import open_listeners
from lambdamu.testing import FakeBackend, Script
from master.config_file import ConfigError, load, parse
from master.config_notes import describe
from master.core.pool import State
from master.entrances import Entrance, open_sockets
from master.node import Node
from master.reload import compare
from server_stub.backend import ServerOptions, serve
from tests.master.cache.wire import question

WARM = '[[cache.warm]]\ntype = 1\nobject = "Products"\nname = "Cards"\n'
CACHE = '[cache]\nlisten = "127.0.0.1:0"\n'
POOL = '[master]\nlisten = "127.0.0.1:0"\n'


@asynccontextmanager
async def running(text: str, *backends: FakeBackend) -> AsyncIterator[tuple[Node, dict[Entrance, Address]]]:
    for number, backend in enumerate(backends):
        host, port = backend.address
        text += f'[[backend]]\nname = "b{number}"\nhost = "{host}"\nport = {port}\n'
    config = parse(text)
    log: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    node = Node(config, rng=random.Random(1), log=log)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(node.run, open_sockets(config))
        await until(lambda: all(each.state(trio.current_time()) is State.READY for each in node.pool))
        yield node, {entrance: each[0] for entrance, each in addresses.items()}
        node.stop()
        await node.finished.wait()


async def until(done: Any) -> None:
    with trio.fail_after(10):
        while not done():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.005)


class Peer:
    """Asks one question after another."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = Decoder()

    async def say(self, message: Message) -> Any:
        await self._stream.send_all(encode([message]) if message.header is None else encode_alone(message))
        with trio.fail_after(10):
            while True:
                for batch in self._decoder.feed(bytes(await self._stream.receive_some())):
                    return batch[0].data

    async def ask(self, where: str, **data: Any) -> Any:
        return await self.say(question(where, data))

    async def where(self, **data: Any) -> Any:
        answer = await self.say(Message("Master", "Event", "DoSendServer", {"Want": ["Name"], **data}))
        assert answer["Result"] == "OK"
        return answer["Data"]["Name"]


@asynccontextmanager
async def at(address: Address) -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        yield Peer(stream)


@asynccontextmanager
async def products() -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        options = ServerOptions(Address("127.0.0.1", 0), products_s=0.0)
        [address] = await nursery.start(serve, options, open_listeners(options.listen), trio.Event(), None)
        yield address
        nursery.cancel_scope.cancel()


async def log_in(front: Peer, backend: str) -> str:
    session: str = (await front.ask("Session.Create", Client="ann", Version=3))["Session"]
    await front.ask("Device.Bind", Session=session, Device="phone")
    await front.ask("Cache.Put", Session=session, Key=BACKEND, Value=backend.encode())
    return session


async def test_beside_the_pool_data_are_warm_when_the_client_comes_and_it_comes_back_to_its_session() -> None:
    async with products() as upstream, FakeBackend(Script(users=10)) as one, FakeBackend(Script(users=9)) as other:
        text = f'{CACHE}upstream = ["{upstream}"]\n{WARM}{POOL}'
        async with running(text, one, other) as (node, addresses):
            assert node.cache is not None
            warm = node.cache.warm
            assert warm is not None
            async with at(addresses[Entrance.CACHE]) as front, at(addresses[Entrance.CLIENTS]) as client:
                session = await log_in(front, "b0")
                assert await client.where() == "b1"
                assert warm.counts.app_starts == 0
                assert await client.where(Device="phone") == "b0"
                assert warm.counts.warmed == 1
                await until(lambda: warm.fetches.counts.published == 1)
                got = await front.ask("Warm.Get", Session=session, Type=1)
                assert got["Version"] == 3  # of the session: the client has said none
                assert warm.counts.hits == 1


async def test_the_cache_of_another_node_is_told_and_sends_nobody_back(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame 1234\n")
    async with products() as upstream, FakeBackend(Script(users=10)) as one, FakeBackend(Script(users=9)) as other:
        secret = f'secret_file = "{tmp_path}/secret"\n'
        async with running(f'{CACHE}{secret}upstream = ["{upstream}"]\n{WARM}') as (cache, places):
            text = f'{POOL}[cache_node]\naddress = "{places[Entrance.CACHE]}"\n{secret}'
            async with running(text, one, other) as (node, addresses), at(addresses[Entrance.CLIENTS]) as client:
                caller = node.warm_call
                assert caller is not None
                await until(lambda: caller.connected)
                assert await client.where(Device="phone") == "b1"
                assert cache.cache is not None
                warm = cache.cache.warm
                assert warm is not None
                await until(lambda: warm.counts.app_starts == 1)
                sample = node.metrics.registry.get_sample_value
                assert node.metrics.bounds["cache_node_calls"]() == 0
                assert node.metrics.bounds["cache_node_networks"]() > 0
                assert sample("lambdamu_cache_node_connected") == 1
                assert sample("lambdamu_cache_node_calls_total", {"step": "sent"}) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[cache]\n[cache_node]\naddress = "h:1"', "[cache_node]: address: must not stand beside [cache]"),
        ('[cache_node]\naddress = "h:1"\nca_file = "ca.pem"', "[cache_node]: ca_file: needs tls = true"),
        ('[cache_node]\naddress = "h:1"\ntls_name = "n"', "[cache_node]: tls_name: needs tls = true"),
        ('[cache_node]\naddress = "h:0"', "[cache_node]: address: a port must be from 1 to 65535"),
        ('[cache_node]\naddress = "0.0.0.0:1"', '"0.0.0.0" is the address of no one machine'),
    ],
)
def test_what_cannot_be_is_told_by_name(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("length = 5", "[cache_node] has no address: no cache is told anything"),
        ('address = "h:1"', "[cache_node] has no secret_file: a cache on another machine wants one"),
        ('address = "h:1"\nsecret_file = "s"', "[cache_node] calls another machine without tls"),
        ('address = "localhost:1"', ""),
    ],
)
def test_what_looks_like_a_mistake_is_said(text: str, warning: str) -> None:
    said = [each for each in parse(f"[cache_node]\n{text}").warnings if "cache_node" in each]
    assert [each.startswith(warning) for each in said] == [True] * bool(warning)


def test_check_says_who_is_told_and_looks_at_the_files(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[cache_node]\naddress = "h:1"\nsecret_file = "s"\ntls = true\nca_file = "ca.pem"\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    text = str(caught.value)
    assert f"{file}: [cache_node]: secret_file: {tmp_path / 's'}" in text
    assert f"{file}: [cache_node]: ca_file: {tmp_path / 'ca.pem'}" in text
    node = parse('[cache_node]\naddress = "h:1"\ntls = true')
    assert "cache: the one at h:1 by TLS, checked by the authorities of this system, is told what devices come" in (
        describe(node)
    )


def test_nothing_of_it_changes_without_a_restart() -> None:
    difference = compare(parse('[cache_node]\naddress = "h:1"'), parse('[cache_node]\naddress = "i:1"\nlength = 5'))
    assert not difference
    assert difference.lines() == [
        '! [cache_node]: address: "h:1" -> "i:1" (needs a restart)',
        "! [cache_node]: length: 1000 -> 5 (needs a restart)",
    ]
    assert difference.config.cache_node.length == 1000
