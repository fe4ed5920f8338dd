"""Times calls of the virtual queue; run by the interpreter under test, with how many wait. Prints {figure: value}."""

from __future__ import annotations

import gc
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

from master.queue.answers import Answer, Go, QueueAsk
from master.queue.estimator import NoEstimate
from master.queue.limits import Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import QueuePolicy, TemplatePolicy
from master.queue.queues import Queues

_CALLS: Final = 100_000
_STEP_S: Final = 20e-6
"""Of the queue's clock, between two calls: a port that is as busy as it can be."""
_POLL_S: Final = 200.0
"""A million who are asked to come every 200 s poll 5,000 times a second."""


def main() -> None:
    print(json.dumps(measure(int(sys.argv[1]))), flush=True)


def measure(size: int) -> dict[str, float]:
    """Return the microseconds of each call with `size` people in one queue, and the bytes that one of them takes."""
    rng = random.Random(size)
    before = _resident()
    crowd = Crowd(size, rng)
    figures = {"bytes_each": (_resident() - before) / size}
    for name, call in crowd.calls.items():
        figures |= _time(name, call, min(_CALLS, size // 4))
    figures["max_us"] = max(figures[f"{name}_max_us"] for name in crowd.calls)
    return figures


class Crowd:
    """A queue with people in it, and whom to call it for."""

    def __init__(self, size: int, rng: random.Random) -> None:
        policy = QueuePolicy(max_tickets=2 * size, templates=(TemplatePolicy(max_waiting=2 * size),))
        self._queues = Queues(1000.0, policy, NoEstimate(_POLL_S), Numbers([NumberBlock(1, 10 * size)]))
        self._rng = rng
        self._now = 1000.0
        self._joined = 0
        self._served = 0
        self._here: list[bytes] = []
        for _ in range(size):
            self.join()
        self.calls = {"join": self.join, "poll": self.poll, "leave": self.leave, "next": self.next}

    def join(self) -> None:
        self._joined += 1
        client = _client(self._joined)
        self._here.append(client)
        self._ask(QueueAsk("", client, client[-4:]))

    def poll(self) -> None:
        """One of all who wait asks again, whoever it is."""
        self._ask(QueueAsk("", self._rng.choice(self._here)))

    def leave(self) -> None:
        """One of the later half leaves, whoever it is."""
        here = self._here
        at = self._rng.randrange(len(here) // 2, len(here))
        here[at], here[-1] = here[-1], here[at]
        self._ask(QueueAsk("", here.pop(), leave=True))

    def next(self) -> None:
        """The next one is called, comes, and is let in."""
        queues, now = self._queues, self._tick()
        queues.settle(now, Room(1))
        self._served += 1
        answer = queues.ask(now, self._rng, QueueAsk("", _client(self._served)))
        if not isinstance(answer, Go):
            raise TypeError(f"the next one was told {answer}")
        queues.claim(now, answer.ticket.number, "b1")

    def _ask(self, ask: QueueAsk) -> Answer:
        return self._queues.ask(self._tick(), self._rng, ask)

    def _tick(self) -> float:
        self._now += _STEP_S
        return self._now


def _client(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _time(name: str, call: Callable[[], None], times: int) -> dict[str, float]:
    """Time calls by the CPU that they take, garbage collection included, and others on this core not."""
    clock, took = time.thread_time_ns, []
    for _ in range(times):
        began = clock()
        call()
        took.append(clock() - began)
    took.sort()
    points = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {f"{name}_{point}_us": took[min(int(part * times), times - 1)] / 1e3 for point, part in points.items()}


def _resident() -> int:
    """Return the bytes of memory that the process has now."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
