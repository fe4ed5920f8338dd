"""What a peer may take of the operators' side: connections, time, memory; and how all ends."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest
import trio

from master.web.server import Deadlines

SHORT = Deadlines(head_s=0.15, send_s=0.15)


async def ends(stream: trio.SocketStream) -> bytes:
    """Return what comes until the other side ends."""
    data = b""
    with trio.fail_after(30):
        while True:
            try:
                piece = await stream.receive_some(65536)
            except trio.BrokenResourceError:
                return data
            if not piece:
                return data
            data += piece


async def connect(here: Any) -> trio.SocketStream:
    return await trio.open_tcp_stream(here.address.host, here.address.port)


async def until(here: Any, connections: int) -> None:
    with trio.fail_after(5):
        while here.web.server.connections != connections:  # noqa: ASYNC110
            await trio.sleep(0.005)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /livez HTT", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=["nothing", "half a head", "one request and no other", "another protocol"],
)
async def test_who_says_nothing_more_is_let_go(site: Any, said: bytes) -> None:
    async with site("b1", deadlines=SHORT) as here:
        async with await connect(here) as stream:
            if said:
                await stream.send_all(said)
            answer = await ends(stream)
            assert answer.startswith(b"HTTP/1.1 200") == said.endswith(b"a\r\n\r\n")
        await until(here, 0)


@pytest.mark.parametrize("upgrade", [b"h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"websocket"])
async def test_other_protocols_are_not_spoken(site: Any, upgrade: bytes) -> None:
    async with site("b1") as here:
        async with await connect(here) as stream:
            key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "
            await stream.send_all(head + upgrade + b"\r\n" + key + b"\r\n")
            assert b"200" not in await ends(stream)
        await until(here, 0)


async def test_who_asks_and_says_no_more_is_answered(site: Any) -> None:
    async with site("b1") as here:
        for _ in range(20):
            async with await connect(here) as stream:
                await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await stream.send_eof()
                assert (await ends(stream)).endswith(b"ok\n")


async def test_many_connections_one_after_the_other_find_room(site: Any) -> None:
    async with site("b1", connections=4) as here:
        for _ in range(100):
            async with await connect(here) as stream:
                await stream.send_all(b"GET /livez HTTP/1.0\r\n\r\n")
                assert (await ends(stream)).endswith(b"ok\n")
        assert here.web.server.refused == 0


async def test_a_body_that_does_not_come_is_not_waited_for(site: Any, autojump_clock: object) -> None:
    async with site("b1") as here:
        async with await connect(here) as stream:
            head = b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{"
            await stream.send_all(head)
            assert (await ends(stream)).startswith(b"HTTP/1.1 413")
        await until(here, 0)


async def test_a_peer_that_sends_without_end_takes_no_place_for_ever(site: Any) -> None:
    async with site("b1") as here:
        async with await connect(here) as stream:
            await stream.send_all(b"POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            with pytest.raises(trio.BrokenResourceError):
                await send_for_ever(stream)
        await until(here, 0)


async def send_for_ever(stream: trio.SocketStream) -> None:
    with trio.fail_after(5):
        while True:
            await stream.send_all(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")


async def test_a_head_without_end_is_refused(site: Any) -> None:
    async with site("b1") as here:
        async with await connect(here) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20000)
            assert (await ends(stream)).startswith(b"HTTP/1.1 431")
        await until(here, 0)


async def test_one_too_many_is_closed_and_others_are_served_when_there_is_room(site: Any) -> None:
    async with site("b1", connections=4) as here:
        streams = [await connect(here) for _ in range(4)]
        await until(here, 4)
        async with await connect(here) as fifth:
            assert await ends(fifth) == b""
        assert here.web.server.refused == 1
        metric = here.node.metrics.registry.get_sample_value
        assert metric("lambdamu_http_connections_refused_total") == 1
        ratio = metric("lambdamu_bound_ratio", {"bound": "http_connections"})
        assert ratio == 1.0
        for stream in streams:
            await stream.aclose()
        await until(here, 0)
        assert (await here.http.get("/livez")).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="the option is Linux's")
async def test_the_kernel_gives_up_on_who_takes_nothing(site: Any) -> None:
    async with site("b1") as here, await connect(here):
        await until(here, 1)
        [connection] = here.web.server._open
        assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


async def stalled_reader(here: Any) -> trio.SocketStream:
    """Return a connection on which events are asked for and never read, with more to say than the kernel takes."""
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await raw.connect((here.address.host, here.address.port))
    stream = trio.SocketStream(raw)
    await stream.send_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with trio.fail_after(5):
        while not here.web.feed.readers:  # noqa: ASYNC110
            await trio.sleep(0.005)
    [connection] = [each for each in here.web.server._open if each.socket.getpeername() == raw.getsockname()]
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for _ in range(20):
        here.node.events.add(trio.current_time(), "operator", "x" * 100_000)
        await trio.testing.wait_all_tasks_blocked()
    return stream


async def test_a_reader_that_has_stalled_holds_up_no_stop(site: Any) -> None:
    async with site("b1") as here:
        stream = await stalled_reader(here)
        assert here.web.feed.readers == 1
        # the site ends within two seconds, though a send may take ten
    await stream.aclose()


async def test_a_reader_that_has_stalled_is_let_go(site: Any) -> None:
    async with site("b1", deadlines=Deadlines(send_s=0.2)) as here:
        stream = await stalled_reader(here)
        with trio.fail_after(5):
            while here.web.feed.readers:  # noqa: ASYNC110
                await trio.sleep(0.005)
        await until(here, 0)
        await stream.aclose()
