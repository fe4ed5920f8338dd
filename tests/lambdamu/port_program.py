"""A port as a program, for tests that need a real process: `port_program.py MODULE CLASS ORDER`.

ORDER is a JSON object, every key optional: `limits`, the `ports` to listen on, and how many `descriptors` the process
may have. It writes the ports it listens on, and ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from lambdamu.address import Address
from lambdamu.machine import LogicalMachine
from lambdamu.messages import Message
from lambdamu.objects import LMObject, Peer
from lambdamu.port import PortLimits, PortObserver
from lambdamu.tcp_server import open_listeners


class Desk(LMObject):
    """Answers, and says what the process uses up."""

    def __init__(self, observer: Observer) -> None:
        super().__init__("Desk", gettable={"Echo": self._echo, "Long": self._long, "Usage": self._usage})
        self._observer = observer
        # Opened before descriptors may be short.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY) if Path("/proc/self/statm").exists() else -1

    def _echo(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return [Message("Desk", "Value", "Echo", message.data)]

    def _long(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        return [Message("Desk", "Value", "Long", "x" * message.data)]

    def _usage(self, message: Message, now: float, peer: Peer) -> Sequence[Message]:
        pages = int(os.pread(self._statm, 100, 0).split()[1])
        usage = {
            "cpu_s": time.process_time(),
            "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "shortages": self._observer.shortages,
        }
        return [Message("Desk", "Value", "Usage", usage)]


class Observer(PortObserver):
    def __init__(self) -> None:
        self.shortages = 0

    def cannot_accept(self, error: OSError) -> None:
        self.shortages += 1


async def main() -> None:
    module, name, order_text = sys.argv[1:]
    order = json.loads(order_text)
    observer = Observer()
    machine = LogicalMachine("desk")
    machine.add(Desk(observer))
    port_class = getattr(importlib.import_module(module), name)
    server = port_class(machine, PortLimits(**order.get("limits", {})), observer=observer)
    listeners = [
        listener for port in order.get("ports", [0]) for listener in open_listeners(Address("127.0.0.2", port))
    ]
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(server.serve, listeners)
        if "descriptors" in order:
            resource.setrlimit(resource.RLIMIT_NOFILE, (order["descriptors"],) * 2)
        print(json.dumps([address.port for address in addresses]), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        server.stop()


if __name__ == "__main__":
    trio.run(main)
