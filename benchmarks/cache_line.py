"""Connections to the cache service that cost their client little: many questions unanswered on each, packed beforehand.

A question is spliced from what is the same in all of its kind, so that a client on one core does not bound a service on
another.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import msgpack

from lambdamu.messages import Transport

_READ_BYTES: Final = 262144
_CONNECT_S: Final = 10.0
_NUMBER: Final = "%08x"
_PLACE: Final = _NUMBER % 0

Answer = Mapping[str, Any]
Hear = Callable[[float, Answer], object]
"""Is called with the seconds that an answer took, and the answer."""


class Question:
    """What is asked; `bytes` in `data` travel as `bin`."""

    def __init__(self, thing: str, name: str, data: Mapping[str, Any]) -> None:
        message = {"Object": thing, "Command": "Event", "Name": name, "Header": {"Request": _PLACE}, "Data": data}
        self._head, _, self._tail = msgpack.packb([message]).partition(_PLACE.encode())

    def packed(self, request: str) -> bytes:
        return b"".join((self._head, request.encode(), self._tail))


class Line:
    """One connection. `owed`: when each question without an answer was due, and who hears the answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.owed: dict[str, tuple[float, Hear]] = {}
        self._unpacker = msgpack.Unpacker()
        self._out = b""
        self._asked: list[bytes] = []
        self._count = 0

    def ask(self, question: Question, hear: Hear, at: float) -> None:
        """Have it go out with the next `flush`."""
        self._count += 1
        request = _NUMBER % self._count
        self.owed[request] = at, hear
        self._asked.append(question.packed(request))

    def tell(self, question: Question) -> None:
        """Ask what has no answer."""
        self._asked.append(question.packed(_PLACE))

    def flush(self) -> bool:
        """Send; return whether all was taken."""
        if self._asked:
            self._out += b"".join(self._asked)
            self._asked.clear()
        if self._out:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except BlockingIOError:
                return False
        return not self._out

    def take_in(self) -> None:
        """Hear what there is. Raise ConnectionError when the connection is over."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the cache service has ended the connection")
        now = time.perf_counter()
        self._unpacker.feed(data)
        for batch in self._unpacker:
            for answer in batch:
                at, hear = self.owed.pop(answer["Header"]["Request"])
                hear(now - at, answer)


class Lines:
    """Several of them, and the wait for all."""

    def __init__(self, port: int, count: int) -> None:
        self.all = [Line(port) for _ in range(count)]
        self._by_fd = {line.socket.fileno(): line for line in self.all}
        self._epoll = select.epoll()
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for line in self.all:
            line.socket.close()

    @property
    def owed(self) -> int:
        return sum(len(line.owed) for line in self.all)

    def turn(self, within_s: float) -> None:
        """Send what was asked, and hear what comes; wait for it for so long at most."""
        for fd, line in self._by_fd.items():
            if line.flush():
                self._epoll.modify(fd, select.EPOLLIN)
            else:
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        for fd, events in self._epoll.poll(max(0.0, within_s)):
            if events & ~select.EPOLLOUT:
                self._by_fd[fd].take_in()

    def settle(self, within_s: float) -> int:
        """Wait until all is answered; return how many are not by then."""
        end = time.perf_counter() + within_s
        while self.owed and (left := end - time.perf_counter()) > 0:
            self.turn(left)
        return self.owed

    def ask_all(self, questions: list[Question]) -> list[Answer]:
        """Ask the first line all of them at once; return the answers in the order of the questions."""
        answers: list[Answer] = [{}] * len(questions)

        def keep(i: int) -> Hear:
            return lambda _, answer: answers.__setitem__(i, answer)

        for i, question in enumerate(questions):
            self.all[0].ask(question, keep(i), time.perf_counter())
        if self.settle(_CONNECT_S):
            raise ConnectionError(f"{self.owed} questions have no answer after {_CONNECT_S:g} s")
        return answers


def word_of(answer: Answer) -> str:
    """Return what came of a question: `data`, or why there are none."""
    header, data = answer["Header"], answer["Data"]
    if header["Error"]:
        return Transport(header["Error"]).word
    return str(data["Code"]) if header["DataError"] else "data"
