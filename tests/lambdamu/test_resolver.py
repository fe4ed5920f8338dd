"""The resolver. The look-up of the system is replaced by one that hangs for names that say so, until it is let go."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault
from lambdamu.resolver import Resolver


class System:
    """The look-up of names, on whose `getaddrinfo` the threads of the resolver call."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """The most look-ups of a name that ran at one time."""
        self.calls: Counter[str] = Counter()
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self._really = socket.getaddrinfo

    def getaddrinfo(self, host: str, port: int, **options: Any) -> list[Any]:
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return self._really(host, port, **options)
        with self._lock:
            self.calls[host] += 1
            self.running[host] += 1
            self.most[host] = max(self.most[host], self.running[host])
        try:
            if host.startswith("hangs"):
                self._go_on.wait(30)
            if host not in self.addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.addresses[host], port))]
        finally:
            with self._lock:
                self.running[host] -= 1

    def let_go(self) -> None:
        """Let every look-up that hangs end, and hang no more."""
        self._go_on.set()

    @property
    def hanging(self) -> int:
        return sum(self.running.values())


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    system = System()
    monkeypatch.setattr(socket, "getaddrinfo", system.getaddrinfo)
    yield system
    system.let_go()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what threads do."""
    with trio.fail_after(30):
        while not holds():  # noqa: ASYNC110 - a thread that hangs in the system sets no event
            await trio.sleep(0.001)


async def give_up_on(system: System, resolver: Resolver, host: str) -> None:
    """Look a name up that hangs, and give it up then, as a probe does at its deadline."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(resolver.resolve, host, 7000)
        await until(lambda: bool(system.running[host]))
        nursery.cancel_scope.cancel()


async def test_names_that_hang_hold_up_nobody_else(system: System) -> None:
    good = {f"good{i}.example": f"192.0.2.{i}" for i in range(1, 6)}
    numeric = ["127.0.0.1", "127.0.0.2", "198.51.100.7", "::1", "2001:db8::7"]
    system.addresses = good
    resolver = Resolver()
    async with trio.open_nursery() as nursery:
        for i in range(60):
            nursery.start_soon(give_up_on, system, resolver, f"hangs{i}.example")
    assert system.hanging == 60  # they hold their threads; the system cannot be told to stop
    with trio.fail_after(20):
        for host, address in good.items():
            assert await resolver.resolve(host, 7000) == [(socket.AF_INET, (address, 7000))]
        for host in numeric:
            [(_, target)] = await resolver.resolve(host, 7000)
            assert target[:2] == (host, 7000)
    assert system.hanging == 60


async def test_a_name_has_one_look_up_at_a_time_however_often_it_is_asked_for(system: System) -> None:
    resolver = Resolver()
    before = threading.active_count()
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for i in range(10):
                nursery.start_soon(give_up_on, system, resolver, f"hangs{i % 2}.example")
    assert system.most == {"hangs0.example": 1, "hangs1.example": 1}
    assert threading.active_count() <= before + 2


async def test_who_asks_while_a_name_is_looked_up_gets_the_same_answer_with_its_own_port(system: System) -> None:
    system.addresses["hangs.example"] = "192.0.2.1"
    resolver = Resolver()
    found = []

    async def ask(port: int) -> None:
        found.extend(await resolver.resolve("hangs.example", port))

    await give_up_on(system, resolver, "hangs.example")
    async with trio.open_nursery() as nursery:
        for port in (7000, 7001):
            nursery.start_soon(ask, port)
        await trio.testing.wait_all_tasks_blocked()
        system.let_go()
    assert sorted(target for _, target in found) == [("192.0.2.1", 7000), ("192.0.2.1", 7001)]
    assert system.calls["hangs.example"] == 1
    await resolver.resolve("hangs.example", 7000)
    assert system.calls["hangs.example"] == 2


async def test_as_many_look_ups_as_are_allowed_may_hang_and_no_more(system: System) -> None:
    system.addresses = {f"good{i}": "192.0.2.1" for i in range(10)}
    resolver = Resolver(look_ups=3)
    for i in range(10):
        assert await resolver.resolve(f"good{i}", 7000)  # those that are done do not count
    for i in range(3):
        await give_up_on(system, resolver, f"hangs{i}")
    with pytest.raises(LinkError, match="3 look-ups hang already") as caught:
        await resolver.resolve("good0", 7000)
    assert caught.value.why == LinkFault.NO_ADDRESS
    assert await resolver.resolve("127.0.0.1", 7000)
    await give_up_on(system, resolver, "hangs0")
    assert system.hanging == 3

    system.let_go()
    await until(lambda: not system.hanging)
    # The look-ups are over; that they are comes to the loop from their threads.
    with trio.fail_after(30):
        while True:
            with suppress(LinkError):
                assert await resolver.resolve("good0", 7000)
                break
            await trio.sleep(0.001)


async def test_a_name_is_looked_up_anew_each_time(system: System) -> None:
    resolver = Resolver()
    for address in ("192.0.2.2", "192.0.2.3"):
        system.addresses["moves.example"] = address
        assert await resolver.resolve("moves.example", 7000) == [(socket.AF_INET, (address, 7000))]


@pytest.mark.parametrize(
    "host",
    ["nowhere.example", "a..b", "a" * 64 + ".example", "\udcff.example", ".", ""],
    ids=["unknown", "empty label", "long label", "surrogate", "a dot", "nothing"],
)
async def test_what_has_no_address_is_a_fault_of_the_link(system: System, host: str) -> None:
    with pytest.raises(LinkError) as caught:
        await Resolver().resolve(host, 7000)
    assert caught.value.why == LinkFault.NO_ADDRESS
    assert "\n" not in str(caught.value)


async def test_addresses_of_both_families_come_in_the_order_of_the_system_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 7000, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 7000))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [six, four, six])
    assert await Resolver().resolve("both.example", 7000) == [
        (socket.AF_INET6, ("2001:db8::1", 7000, 0, 0)),
        (socket.AF_INET, ("192.0.2.1", 7000)),
    ]
