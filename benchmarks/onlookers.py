"""Operators of a master, as a process: readers of its events, one of them stalled, and a scrape each second.

`python -m benchmarks.onlookers PORT`: prints a line when all readers have the beginning, and one with what they
got when its input ends.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from functools import partial
from typing import Final

import trio

READERS: Final = 5
_SCRAPE_EVERY_S: Final = 1.0
_READ_BYTES: Final = 65536
_STALLED_BYTES: Final = 4096


class Onlookers:
    """What they have got so far."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.events = 0
        self.scrapes: list[float] = []
        self.scraped_bytes = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._stall)
            for _ in range(READERS - 1):
                await nursery.start(self._read)
            nursery.start_soon(self._scrape)
            print(json.dumps({"readers": READERS}), flush=True)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        slowest = max(self.scrapes, default=0.0)
        told = {"events": self.events, "scrapes": len(self.scrapes), "bytes": self.scraped_bytes, "slowest_s": slowest}
        print(json.dumps(told), flush=True)

    async def _ask(self, path: str, receive_bytes: int = 0) -> trio.SocketStream:
        sock = trio.socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await sock.connect(("127.0.0.1", self._port))
        stream = trio.SocketStream(sock)
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        return stream

    async def _stall(self, task_status: trio.TaskStatus[None]) -> None:
        """Ask for the events again and again, and read nothing: the master ends each such reader in its time."""
        while True:
            async with await self._ask("/api/v1/events", _STALLED_BYTES):
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await trio.sleep(10.0)

    async def _read(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            async with await self._ask("/api/v1/events") as stream:
                seen = b""
                async for data in stream:
                    self.events += data.count(b"\nevent: ")
                    seen = (seen + data)[-_READ_BYTES:]
                    if b"event: complete" in seen:
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED

    async def _scrape(self) -> None:
        due = time.monotonic()
        while True:
            begun = time.monotonic()
            async with await self._ask("/metrics") as stream:
                async for data in stream:
                    self.scraped_bytes += len(data)
            self.scrapes.append(time.monotonic() - begun)
            due = max(due + _SCRAPE_EVERY_S, time.monotonic())
            await trio.sleep(due - time.monotonic())


if __name__ == "__main__":
    trio.run(partial(Onlookers(int(sys.argv[1])).run))
