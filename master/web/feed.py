"""What the status page hears as it happens: one set of frames for all readers, made once a second and at each event.

A reader that falls behind, or comes back, begins anew with everything; so nothing is kept for it, and what it shows is
right again after each beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Final

import trio
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from master.core.member import Member
from master.core.pool import Pool
from master.event_log import Event
from master.waiting.room import WaitingRoom
from master.web.cache_minute import LastMinute
from master.web.cache_views import cache_overview, cache_summary, cache_verdict
from master.web.desk import Desk
from master.web.queue_views import overview, summary_row
from master.web.views import Json, backend_row, dumps, event_row, parts, pool_row

if TYPE_CHECKING:
    from master.cache.house import CacheHouse

_EVERY_S: Final = 1.0
_FRAMES: Final = 128
"""A reader may be so many frames behind."""
_ROWS: Final = 200
"""So many backends are told of in a second, in turn; and up to five times as many whose state has changed."""
_QUEUES: Final = 20
"""So many queues are told of in a second, the fullest."""
_LAST_EVENTS: Final = 50
_SMOOTHING: Final = 0.3
"""What the last second counts in a rate that is shown."""


def frame(kind: str, data: object) -> bytes:
    """Return one event as it goes over the wire; JSON has no line breaks."""
    return b"event: " + kind.encode() + b"\ndata: " + dumps(data) + b"\n\n"


class Rates:
    """How fast counters grow, smoothed."""

    def __init__(self) -> None:
        self.per_s: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def take(self, name: str, total: int, seconds: float) -> None:
        per_s = (total - self._seen.get(name, 0)) / seconds
        before = self.per_s.get(name, per_s)
        self.per_s[name] = before + _SMOOTHING * (per_s - before)
        self._seen[name] = total

    def keep(self, pool: Pool) -> None:
        """Forget backends that are gone."""
        if len(self.per_s) > len(pool):
            names = {member.backend.name for member in pool}
            for name in self.per_s.keys() - names:
                del self.per_s[name], self._seen[name]


class Feed:
    """Makes the frames. Readers take those after the last one they have."""

    def __init__(self, desk: Desk) -> None:
        self.readers = 0
        self.limit = desk.policy.connections // 2
        self.stopped = False
        self.backends, self.results = Rates(), Rates()
        self.minute = LastMinute()
        self._desk = desk
        self._frames: deque[bytes] = deque(maxlen=_FRAMES)
        self._number = 0
        """Of the last frame."""
        self._bell = trio.Event()
        self._states: dict[str, str] = {}
        self._turn = 0
        desk.events.listen(self._hear)

    async def run(self) -> None:
        before = trio.current_time()
        while True:
            await trio.sleep(_EVERY_S)
            now = trio.current_time()
            await self._count(now - before)
            before = now
            if self.readers:
                await self._tell(now)

    def stop(self) -> None:
        """End every reader."""
        self.stopped = True
        self._ring()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield everything, and then what happens, until the reader falls behind or all ends."""
        number = self._number
        async with aclosing(self._everything()) as everything:
            async for piece in everything:
                yield piece
        while not self.stopped:
            missed = self._number - number
            if missed > len(self._frames):
                return
            fresh = list(islice(self._frames, len(self._frames) - missed, None))
            number += len(fresh)
            if fresh:
                yield b"".join(fresh)
            else:
                await self._bell.wait()

    async def _everything(self) -> AsyncGenerator[bytes, None]:
        desk, now = self._desk, trio.current_time()
        yield b"retry: 1000\n\n" + frame("begin", {"count": len(desk.pool)}) + frame("pool", self.pool(now))
        if desk.room is not None:
            yield await self._queue(desk.room, now)
        if desk.cache is not None:
            yield self._cache(desk.cache, now)
        for part in parts(list(desk.pool)):
            yield frame("backends", self._rows(part, trio.current_time()))
        events = [event_row(event) for event in desk.events.last(_LAST_EVENTS)]
        yield frame("log", events) + frame("complete", {})

    async def _count(self, seconds: float) -> None:
        for result, count in self._desk.metrics.asks.items():
            self.results.take(result.value, count, seconds)
        if self._desk.cache is not None:
            self.minute.take(trio.current_time(), self._desk.cache)
        for part in parts(list(self._desk.pool), 500):
            for member in part:
                self.backends.take(member.backend.name, member.reservations.total, seconds)
            await trio.lowlevel.checkpoint()
        self.backends.keep(self._desk.pool)

    async def _tell(self, now: float) -> None:
        """Tell of the pool, of those whose state has changed, and of some others in their turn."""
        self._publish(frame("pool", self.pool(now)))
        if self._desk.room is not None:
            self._publish(await self._queue(self._desk.room, now))
        if self._desk.cache is not None:
            self._publish(self._cache(self._desk.cache, now))
        changed: list[Member] = []
        others: list[Member] = []
        for part in parts(list(self._desk.pool), 500):
            for member in part:
                fresh = member.state(now).value != self._states.get(member.backend.name)
                (changed if fresh else others).append(member)
            await trio.lowlevel.checkpoint()
        start = self._turn % len(others) if others else 0
        in_turn = (others[start:] + others[:start])[:_ROWS]
        self._turn = start + len(in_turn)
        for rows in parts(changed[: 5 * _ROWS] + in_turn):
            told = self._rows(rows, trio.current_time())
            self._states.update((row["name"], row["state"]) for row in told)
            self._publish(frame("backends", told))
            await trio.lowlevel.checkpoint()
        if len(self._states) > 2 * len(self._desk.pool):
            self._states.clear()

    def pool(self, now: float) -> Json:
        """Return what is said of the pool as a whole, with how many asks are answered a second, of queue and cache."""
        rates = {result: round(per_s, 2) for result, per_s in self.results.per_s.items()}
        cache = cache_summary(self._desk.cache, now, self.minute)
        row = pool_row(self._desk, now) | {"asks_per_s": rates, "queue": summary_row(self._desk.room), "cache": cache}
        if self._desk.alone and cache is not None:
            row["verdict"] = cache_verdict(cache)
        return row

    async def _queue(self, room: WaitingRoom, now: float) -> bytes:
        """Return what is said of the virtual queue and its fullest queues."""
        return b"event: queue\ndata: " + await overview(room, now, _QUEUES) + b"\n\n"

    def _cache(self, house: CacheHouse, now: float) -> bytes:
        return b"event: cache\ndata: " + cache_overview(house, now, self.minute) + b"\n\n"

    def _rows(self, members: list[Member], now: float) -> list[Json]:
        return [backend_row(self._desk, member, now, self.backends.per_s) for member in members]

    def _hear(self, event: Event) -> None:
        if self.readers:
            self._publish(frame("log", [event_row(event)]))

    def _publish(self, piece: bytes) -> None:
        self._frames.append(piece)
        self._number += 1
        self._ring()

    def _ring(self) -> None:
        self._bell.set()
        self._bell = trio.Event()


class Events:
    """The route of the feed: server-sent events until the reader goes, falls behind, or all ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        feed = self._feed
        if feed.stopped or feed.readers >= feed.limit:
            refusal = JSONResponse({"error": "no more readers now"}, 503, {"Retry-After": "5"})
            await refusal(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        feed.readers += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, receive, nursery.cancel_scope)
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                if scope["method"] != "HEAD":
                    async with aclosing(feed.frames()) as frames:
                        async for piece in frames:
                            await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                nursery.cancel_scope.cancel()
        finally:
            feed.readers -= 1

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()
