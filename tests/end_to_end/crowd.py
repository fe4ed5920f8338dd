"""Thousands of asks over few connections, on plain sockets, by code that shares nothing with what it tests."""

from __future__ import annotations

import base64
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgpack

_BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


def ask(**data: Any) -> bytes:
    message = {"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": data}
    packed: bytes = msgpack.packb([message])
    return packed


def number_of(ticket: str) -> int:
    """Return the number in the text of a ticket."""
    return int.from_bytes(base64.urlsafe_b64decode(ticket)[1:9])


def exchange(port: int, asks: Sequence[bytes], connections: int = 50, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Send all of them, spread over the connections, and return the `Data` of the answers, in the order of the asks."""
    answers: list[dict[str, Any] | None] = [None] * len(asks)
    with selectors.DefaultSelector() as selector:
        for part in range(min(connections, len(asks))):
            sock = socket.create_connection(("127.0.0.1", port), 10)
            sock.setblocking(False)
            numbers = range(part, len(asks), connections)
            out = memoryview(b"".join(asks[number] for number in numbers))
            selector.register(sock, _BOTH, [out, iter(numbers), msgpack.Unpacker()])
        left, end = len(asks), time.monotonic() + seconds
        while left:
            assert time.monotonic() < end, f"{left} of {len(asks)} were not answered"
            for key, events in selector.select(1.0):
                left -= _go_on(selector, key, events, answers)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return [answer for answer in answers if answer is not None]


def _go_on(selector: Any, key: Any, events: int, answers: list[dict[str, Any] | None]) -> int:
    out, numbers, unpacker = key.data
    if events & selectors.EVENT_WRITE:
        key.data[0] = out = out[key.fileobj.send(out[:65536]) :]
        if not out:
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
    if not events & selectors.EVENT_READ:
        return 0
    data = key.fileobj.recv(1 << 18)
    assert data, "the connection was closed"
    unpacker.feed(data)
    count = 0
    for [message] in unpacker:
        answers[next(numbers)] = message["Data"]
        count += 1
    return count
