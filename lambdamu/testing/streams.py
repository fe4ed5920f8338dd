"""Streams without sockets: a pair of ends in memory that half-close, cut what is written, clog, and reset."""

from __future__ import annotations

import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import trio
import trio.lowlevel

Cut = Callable[[bytes], Iterable[bytes]]
"""How one write is cut into the pieces that the reader gets one at a time."""


def whole(data: bytes) -> Iterable[bytes]:
    """Cut nothing: one write is one read."""
    return (data,)


def every_byte(data: bytes) -> Iterable[bytes]:
    """Cut at every byte."""
    return (data[i : i + 1] for i in range(len(data)))


def at_random(rng: random.Random) -> Cut:
    """Return a way to cut at random places, the same ones for the same seed; a piece has 1 to all bytes."""

    def cut(data: bytes) -> Iterator[bytes]:
        while data:
            size = rng.randint(1, len(data))
            yield data[:size]
            data = data[size:]

    return cut


def memory_pair(*, cut: Cut = whole, window_bytes: int = 65536) -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a connection.

    Each way holds `window_bytes` that were written and not read yet; a write beyond it waits, so that a peer that
    never reads is one whose end nobody reads from.
    """
    there, back = _Pipe(cut, window_bytes), _Pipe(cut, window_bytes)
    return MemoryStream(there, back), MemoryStream(back, there)


class _Pipe:
    """One way of a connection."""

    def __init__(self, cut: Cut, window_bytes: int) -> None:
        self._cut = cut
        self._room = window_bytes
        self._pieces: deque[bytes] = deque()
        self._moved = trio.lowlevel.ParkingLot()
        self._eof = False
        self._broken = False

    async def write(self, data: bytes, check_open: Callable[[], None]) -> None:
        for cut_piece in self._cut(data):
            piece = cut_piece
            while piece:
                await self.wait_room(check_open)
                part, piece = piece[: self._room], piece[self._room :]
                self._room -= len(part)
                self._pieces.append(part)
                self.wake()

    async def wait_room(self, check_open: Callable[[], None]) -> None:
        while True:
            check_open()
            if self._broken:
                raise trio.BrokenResourceError("the other end does not read any more")
            if self._room:
                return
            await self._moved.park()

    async def read(self, max_bytes: int | None, check_open: Callable[[], None]) -> bytes:
        while not self._pieces:
            check_open()
            if self._broken:
                raise trio.BrokenResourceError("the connection was reset")
            if self._eof:
                return b""
            await self._moved.park()
        piece = self._pieces.popleft()
        if max_bytes is not None and len(piece) > max_bytes:
            self._pieces.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self._room += len(piece)
        self.wake()
        return piece

    def end(self) -> None:
        """Let the reader find the end of the stream after what was written."""
        self._eof = True
        self.wake()

    def break_off(self) -> None:
        """Lose what was not read yet, and fail every later read and write."""
        self._broken = True
        self._pieces.clear()
        self.wake()

    def wake(self) -> None:
        self._moved.unpark_all()


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of a connection in memory; see `memory_pair`."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._out = outgoing
        self._in = incoming
        self._closed = False
        self._eof_sent = False
        self._sending = False
        self._receiving = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._one_sender():
            self._check_may_send()
            await trio.lowlevel.checkpoint()
            await self._out.write(bytes(data), self._check_may_send)
            self._check_may_send()

    async def wait_send_all_might_not_block(self) -> None:
        with self._one_sender():
            self._check_may_send()
            await trio.lowlevel.checkpoint()
            await self._out.wait_room(self._check_may_send)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._receiving:
            raise trio.BusyResourceError("another task is reading from this end")
        self._receiving = True
        try:
            self._check_open()
            await trio.lowlevel.checkpoint()
            return await self._in.read(max_bytes, self._check_open)
        finally:
            self._receiving = False

    async def send_eof(self) -> None:
        with self._one_sender():
            self._check_open()
            self._eof_sent = True
            self._out.end()
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.end()
            self._in.break_off()
        await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """End the connection without a goodbye: what is under way is lost, the other end gets BrokenResourceError."""
        self._closed = True
        self._in.break_off()
        self._out.break_off()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")

    def _check_may_send(self) -> None:
        self._check_open()
        if self._eof_sent:
            raise trio.ClosedResourceError("the end of the stream was sent")

    @contextmanager
    def _one_sender(self) -> Iterator[None]:
        if self._sending:
            raise trio.BusyResourceError("another task is writing to this end")
        self._sending = True
        try:
            yield
        finally:
            self._sending = False
