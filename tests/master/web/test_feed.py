"""The events that the page hears."""

from __future__ import annotations

import json
from typing import Any

import trio

from master.web.feed import Rates


class Reader:
    """A browser's `EventSource`, on a plain socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._rest, self._kind = b"", ""

    @classmethod
    async def of(cls, here: Any) -> Reader:
        stream = await trio.open_tcp_stream(here.address.host, here.address.port)
        await stream.send_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return cls(stream)

    async def next(self) -> tuple[str, Any] | None:
        """Return the next frame, None at the end."""
        while True:
            line, end, rest = self._rest.partition(b"\n")  # the lengths of chunks are lines, too
            if not end:
                more = await self.stream.receive_some(65536)
                if not more:
                    return None
                self._rest += more
                continue
            self._rest = rest
            if line == b"0\r":  # the last chunk
                return None
            if line.startswith(b"event: "):
                self._kind = line[7:].decode()
            elif line.startswith(b"data: "):
                return self._kind, json.loads(line[6:])

    async def until(self, kind: str) -> list[tuple[str, Any]]:
        """Return the frames up to the first of a kind."""
        found = []
        with trio.fail_after(10):
            while (frame := await self.next()) is not None:
                found.append(frame)
                if frame[0] == kind:
                    return found
        raise AssertionError(f"no {kind}: {found}")


async def test_a_reader_is_told_everything_and_then_what_happens(site: Any) -> None:
    names = [f"b{i}" for i in range(120)]
    async with site(*names) as here:
        here.report("b7")
        reader = await Reader.of(here)
        first = await reader.until("complete")
        assert [kind for kind, _ in first] == ["begin", "pool", *["backends"] * 3, "log", "complete"]
        assert [row["name"] for kind, rows in first if kind == "backends" for row in rows] == names
        assert first[-2][1][-1]["backend"] == "b7"
        here.report("b8")
        [news] = [data for kind, data in await reader.until("log") if kind == "log"]
        assert (news[0]["kind"], news[0]["backend"]) == ("backend_up", "b8")
        rows = [row for kind, data in await reader.until("backends") if kind == "backends" for row in data]
        assert {row["name"]: row["state"] for row in rows}["b8"] == "ready"
        await reader.stream.aclose()


async def test_a_change_of_state_in_a_large_pool_is_told_before_the_others_have_their_turn(site: Any) -> None:
    async with site(*(f"b{i}" for i in range(1000))) as here:
        feed = here.web.feed
        await feed._tell(trio.current_time())
        here.report("b999")
        told = len(feed._frames)
        await feed._tell(trio.current_time())
        first = next(piece for piece in list(feed._frames)[told:] if piece.startswith(b"event: backends"))
        assert json.loads(first.partition(b"data: ")[2])[0]["name"] == "b999"
        turns: set[str] = set()
        for _ in range(6):
            told = len(feed._frames)
            await feed._tell(trio.current_time())
            for piece in list(feed._frames)[told:]:
                if piece.startswith(b"event: backends"):
                    turns.update(row["name"] for row in json.loads(piece.partition(b"data: ")[2]))
        assert len(turns) == 1000


async def test_a_stop_ends_every_reader_and_lets_no_new_one_in(site: Any) -> None:
    async with site("b1") as here:
        reader = await Reader.of(here)
        await reader.until("complete")
        here.web.stop()
        with trio.fail_after(5):
            while await reader.next() is not None:
                pass
        await reader.stream.aclose()
        assert (await here.http.get("/api/v1/events")).status_code == 503
        assert here.web.feed.readers == 0


async def test_a_reader_who_leaves_makes_room(site: Any) -> None:
    async with site("b1", connections=4) as here:
        readers = [await Reader.of(here) for _ in range(2)]
        for each in readers:
            await each.until("complete")
        assert (await here.http.get("/api/v1/events")).status_code == 503
        for each in readers:
            await each.stream.aclose()
        with trio.fail_after(5):
            while here.web.feed.readers:  # noqa: ASYNC110
                await trio.sleep(0.005)
        again = await Reader.of(here)
        await again.until("complete")
        await again.stream.aclose()


async def test_a_reader_that_falls_behind_is_ended_so_that_it_begins_anew(site: Any) -> None:
    async with site("b1") as here:
        frames = here.web.feed.frames()
        here.web.feed.readers += 1
        async for piece in frames:
            if b"event: complete" in piece:
                break
        for _ in range(200):
            here.node.events.add(trio.current_time(), "operator", "again")
        assert [piece async for piece in frames] == []
        await frames.aclose()
        here.web.feed.readers -= 1


def test_what_came_before_the_first_look_is_in_the_rate() -> None:
    rates = Rates()
    rates.take("OK", 5, 2.0)
    assert rates.per_s == {"OK": 2.5}
