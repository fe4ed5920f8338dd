"""The upstream over real sockets: a backend with its Products, and peers that answer what they should not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.breaker import BreakerPolicy, State
from lambdamu.datapack import encode
from lambdamu.messages import Command, Message
from lambdamu.tcp_server import open_listeners
from master.cache.upstream import UpstreamError, WireUpstream
from master.cache.warm_types import NotServed, Warm, WarmType, Why
from server_stub.backend import ServerOptions, serve
from server_stub.products import ProductsFault
from tests.master.cache.house import house, kinds

ACCOUNTS = WarmType(1, "Accounts", "Products")
KEY = ("ann", 1, 1)
OpenBackend = Callable[..., AbstractAsyncContextManager[Any]]


async def fetch(upstream: WireUpstream, kind: WarmType = ACCOUNTS, within_s: float = 5.0, client: str = "ann") -> Any:
    return json.loads(await upstream.fetch(kind, (client, kind.type, 1), None, within_s))


async def test_the_data_of_a_client_come_over_one_connection_that_is_kept(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as peer:
        upstream = WireUpstream([peer.address])
        for serial in (1, 2, 3):
            assert await fetch(upstream) == {"client": "ann", "of": "Accounts", "serial": serial}
        assert len(upstream.peers[0].idle) == 1
        await upstream.aclose()
        assert not upstream.peers[0].idle


async def test_data_longer_than_a_value_are_none(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as peer:
        free = WireUpstream([peer.address])
        whole = len(await free.fetch(ACCOUNTS, KEY, None, 5.0))
        exact, short = (WireUpstream([peer.address], value_bytes=most) for most in (whole, whole - 1))
        assert len(await exact.fetch(ACCOUNTS, KEY, None, 5.0)) == whole
        with pytest.raises(UpstreamError, match=f"sent {whole} bytes, and a value has at most {whole - 1}$"):
            await short.fetch(ACCOUNTS, KEY, None, 5.0)
        for upstream in (free, exact, short):
            await upstream.aclose()


async def test_many_at_once_do_not_hold_each_other_up_and_nobody_gets_the_data_of_another(backend: OpenBackend) -> None:
    async with backend(products_s=0.1) as peer:
        upstream, got = WireUpstream([peer.address]), {}

        async def one(client: str) -> None:
            got[client] = (await fetch(upstream, client=client))["client"]

        clients = [f"client {number}" for number in range(30)]
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(one, client)
        assert got == {client: client for client in clients}
        assert len(upstream.peers[0].idle) <= 30
        await upstream.aclose()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ProductsFault.ERROR, "Products.Accounts: the upstream says Full: no data now, as it was told"),
        (ProductsFault.EMPTY, "Products.Accounts: the upstream sent no text with its answer"),
        (ProductsFault.NUMBER, "Products.Accounts: the upstream sent no text with its answer"),
    ],
)
async def test_an_answer_without_data_is_an_error_in_one_line(
    backend: OpenBackend, fault: ProductsFault, says: str
) -> None:
    async with backend(products_s=0.0, products_fault=fault) as peer:
        upstream = WireUpstream([peer.address])
        for _ in range(10):
            with pytest.raises(UpstreamError, match=says):
                await fetch(upstream)
        # It is there, and has no data: that is not for a breaker.
        assert upstream.peers[0].breaker.state(trio.current_time()) is State.CLOSED
        await upstream.aclose()


async def test_what_it_does_not_know_is_an_error(backend: OpenBackend) -> None:
    async with backend() as peer:
        upstream = WireUpstream([peer.address])
        with pytest.raises(UpstreamError, match="UnknownObject"):
            await fetch(upstream)
        await upstream.aclose()


async def test_a_silent_one_costs_its_deadline_and_then_nothing_until_it_is_tried_again(backend: OpenBackend) -> None:
    async with backend(products_s=0.0, products_fault=ProductsFault.SILENT) as peer:
        policy = BreakerPolicy(consecutive=2, same_event_s=0.0, open_s=60.0)
        upstream = WireUpstream([peer.address], policy=policy)
        for _ in range(2):
            with pytest.raises(UpstreamError, match="did not answer within"):
                await fetch(upstream, within_s=0.05)
        with (  # a whole queue may be refused so
            trio.testing.assert_checkpoints(),
            pytest.raises(UpstreamError, match="none of its peers may be called now"),
        ):
            await fetch(upstream)
        assert not upstream.peers[0].idle


async def test_one_that_was_silent_is_tried_for_half_the_time(backend: OpenBackend) -> None:
    """Those who come meanwhile are refused: it is to be over before the time that they may wait is."""
    async with backend(products_s=0.0, products_fault=ProductsFault.SILENT) as peer:
        upstream = WireUpstream([peer.address], policy=BreakerPolicy(consecutive=1, open_s=0.01))
        with pytest.raises(UpstreamError, match=r"did not answer within 0\.[34]"):
            await fetch(upstream, within_s=0.4)
        await trio.sleep(0.02)
        with pytest.raises(UpstreamError, match=r"did not answer within 0\.(2|1)"):
            await fetch(upstream, within_s=0.4)


async def test_who_warms_up_from_a_silent_one_leaves_it_alone(backend: OpenBackend) -> None:
    async with backend(products_s=0.0, products_fault=ProductsFault.SILENT) as peer:
        upstream = WireUpstream([peer.address], policy=BreakerPolicy(consecutive=2, same_event_s=0.0, open_s=60.0))
        async with house(upstream, types=kinds(lifetime_s=0.1)) as made:
            session = made.log_in("ann")
            for number in (1, 2):
                assert isinstance(await made.warmer.get(session, number, 1), NotServed)
            with trio.fail_after(5):
                while upstream.peers[0].breaker.state(trio.current_time()) is not State.OPEN:  # noqa: ASYNC110 - it tells nobody
                    await trio.sleep(0.01)
            answer = await made.warmer.get(session, 3, 1)
            assert isinstance(answer, NotServed)
            assert answer.why is Why.UPSTREAM
            assert "none of its peers may be called now" in answer.text


async def test_the_next_one_is_asked_where_one_is_not_there(backend: OpenBackend, nobody: Address) -> None:
    async with backend(products_s=0.0) as peer:
        upstream = WireUpstream([nobody, peer.address])
        for _ in range(4):
            assert (await fetch(upstream))["client"] == "ann"
        await upstream.aclose()
    with pytest.raises(UpstreamError, match="refused"):
        await fetch(WireUpstream([nobody]))


async def test_a_restart_of_the_peer_is_not_noticed() -> None:
    async with trio.open_nursery() as nursery:
        options, stop = ServerOptions(Address("127.0.0.1", 0), products_s=0.0), trio.Event()
        [address] = await nursery.start(serve, options, open_listeners(options.listen), stop)
        upstream = WireUpstream([address])
        await fetch(upstream)
        stop.set()
    async with trio.open_nursery() as nursery:
        [again] = await nursery.start(serve, options, open_listeners(address), trio.Event())
        assert again == address
        assert (await fetch(upstream))["serial"] == 1
        await upstream.aclose()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def scripted(*says: bytes) -> AsyncIterator[tuple[Address, list[int]]]:
    """Serve connections that answer the first question of each with the next of `says`; yield how many there were."""
    connections: list[int] = []

    async def meet(stream: trio.SocketStream) -> None:
        connections.append(len(connections))
        said = says[min(len(connections), len(says)) - 1]
        async for _ in stream:
            await stream.send_all(said)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, meet, 0, host="127.0.0.1"))
        host, port = listener.socket.getsockname()[:2]
        yield Address(host, port), connections
        nursery.cancel_scope.cancel()


def value(data: Any) -> bytes:
    return encode([Message("Products", Command.VALUE, "Accounts", data)])


async def test_an_answer_too_many_is_never_the_next_answer() -> None:
    async with scripted(value('{"n": 1}') + value('{"n": 2}'), value('{"n": 3}')) as (address, connections):
        upstream = WireUpstream([address])
        assert await fetch(upstream) == {"n": 1}
        assert await fetch(upstream) == {"n": 3}
        assert await fetch(upstream) == {"n": 3}
        assert len(connections) == 2
        await upstream.aclose()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (b"\xc1", "does not speak the protocol"),
        (value(None), "sent no text"),
        (value({"a": 1}), "sent no text"),
        (encode([Message("Other", Command.VALUE, "Accounts", "x")]), "sent no text"),
        (encode([]), "sent no text"),
        (encode([Message("Products", Command.ERROR, "Accounts", 7)]), "says no, and not why"),
        (encode([Message("Products", Command.ERROR, "Accounts", {"Text": "a\nb" * 500})]), "says a ba ba b"),
    ],
)
async def test_what_is_no_answer_is_an_error_in_one_short_line(said: bytes, says: str) -> None:
    async with scripted(said) as (address, _):
        upstream = WireUpstream([address])
        with pytest.raises(UpstreamError, match=says) as caught:
            await fetch(upstream)
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)
        await upstream.aclose()


def test_an_upstream_has_an_address() -> None:
    with pytest.raises(ValueError, match="at least one address"):
        WireUpstream([])


async def test_warm_data_come_from_a_backend(backend: OpenBackend) -> None:
    async with backend(products_s=0.0) as peer:
        upstream = WireUpstream([peer.address])
        async with house(upstream, types=kinds()) as made:
            made.log_in("ann", "phone")
            assert made.warmer.app_start("phone", 1) == 5
            for number in range(1, 6):
                answer = await made.warmer.get(made.log_in("ann"), number, 1)
                assert isinstance(answer, Warm)
                assert json.loads(answer.value)["client"] == "ann"
            assert made.warmer.fetches.counts.calls == 5
        await upstream.aclose()
