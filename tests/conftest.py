"""Masters and backends in the test's own loop, for a client to call."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import settings

from lambdamu.address import Address
from lambdamu.machine import LogicalMachine
from lambdamu.messages import DO_SEND_SERVER, MASTER, SERVER, Command, Message
from lambdamu.objects import NOTHING, LMObject, Peer, Reply
from lambdamu.tcp_server import PortLimits, PortObserver, TCPServer, open_listeners
from server_stub.backend import ServerOptions, serve
from server_stub.faults import parse_fault

LOCAL = Address("127.0.0.1", 0)

settings.register_profile("whole", deadline=None)  # how long one example takes says how busy the machine is
settings.register_profile("again", deadline=None, max_examples=25)
"""For what another run checks with all examples."""
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whole"))


class Master(LMObject):
    """Says to each ask the next of what it was told to say, and the last of it ever after; to None it is silent."""

    def __init__(self, *says: Any) -> None:
        super().__init__(MASTER, events={DO_SEND_SERVER: self._answer})
        self.says = list(says)
        self.asks: list[Message] = []
        self.asked_at: list[float] = []
        self.asked = trio.Event()
        self.address = LOCAL

    def _answer(self, message: Message, now: float, peer: Peer) -> Reply:
        self.asks.append(message)
        self.asked_at.append(now)
        self.asked.set()
        data = self.says[min(len(self.asks), len(self.says)) - 1]
        return NOTHING if data is None else [Message(MASTER, Command.VALUE, SERVER, data)]


def go_to(*addresses: Address) -> list[dict[str, Any]]:
    return [{"Result": "OK", "Data": {"IP": address.host, "Port": address.port}} for address in addresses]


@asynccontextmanager
async def _master(*says: Any, to: tuple[Address, ...] = (), **port: Any) -> AsyncIterator[Master]:
    master = Master(*says, *go_to(*to))
    machine = LogicalMachine("master")
    machine.add(master)
    async with trio.open_nursery() as nursery:
        server = TCPServer(machine, PortLimits(**{"idle_s": 10000.0, **port.pop("limits", {})}), **port)
        [master.address] = await nursery.start(server.serve, open_listeners(LOCAL))
        yield master
        nursery.cancel_scope.cancel()


class Backend:
    def __init__(self, address: Address, stop: trio.Event) -> None:
        self.address = address
        self.stop = stop


@asynccontextmanager
async def _backend(
    fault: str | None = None, *, observer: PortObserver | None = None, **options: Any
) -> AsyncIterator[Backend]:
    stop = trio.Event()
    given = ServerOptions(LOCAL, fault=parse_fault(fault) if fault else None, **options)
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(serve, given, open_listeners(LOCAL), stop, observer)
        yield Backend(address, stop)
        nursery.cancel_scope.cancel()


@pytest.fixture
def master() -> Callable[..., AbstractAsyncContextManager[Master]]:
    return _master


@pytest.fixture
def backend() -> Callable[..., AbstractAsyncContextManager[Backend]]:
    return _backend


@pytest.fixture
def nobody() -> Address:
    """An address of this machine at which nobody listens: its port was free a moment ago."""
    [listener] = open_listeners(LOCAL)
    with listener:
        return Address(*listener.getsockname()[:2])
