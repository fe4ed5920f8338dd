"""A client that says its device: its data are warmed when it is sent to a backend, and it goes back to its session."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lambdamu.messages import BACKEND
from lambdamu.messages import Reason as Word
from lambdamu.networks import Networks
from master.access import Denied
from master.cache.fields import Fields
from master.cache.homes import Homes
from master.cache.objects import Objects, Times
from master.cache.store import CacheStore, StorePolicy
from master.core.admin import Admin
from master.core.backend import Backend
from master.core.pool import Ask, Reason, Wish
from master.devices import Devices
from master.doors import Doors
from tests.master.cache.wire import ids
from tests.master.waiting.house import House


class Town:
    """A master, with a queue or without, and the cache beside it; backends b0, b1... with ten users each."""

    def __init__(self, *capacities: int | None, queue: bool = False, **config: Any) -> None:
        self.house = House(*(capacities or (None, None, None)), **config)
        self.pool, self.master = self.house.pool, self.house.master
        if not queue:
            self.master.desk = None
        for name in self.house.users:
            self.house.users[name] = 10
        self.house.tick()
        store = CacheStore(StorePolicy())
        self.objects = Objects(store, Times(session_s=1e6), 1000, ids())
        self.told: list[tuple[str, bytes | None]] = []
        devices = Devices(lambda *told: self.told.append(told), Networks(24, 48), Homes(store, 4))
        self.master.devices = self.house.room.desk.devices = devices

    def cache(self, where: str, operation: str, **data: Any) -> Any:
        return self.objects.operations[where, operation](self.house.now, Fields(data))

    def log_in(self, backend: str, device: str = "d", client: str = "ann") -> str:
        """Do as a backend does with a client that has come to it."""
        session: str = self.cache("Session", "Create", Client=client)["Session"]
        self.cache("Device", "Bind", Session=session, Device=device)
        self.resume(session, backend)
        return session

    def resume(self, session: str, backend: str) -> None:
        self.cache("Cache", "Put", Session=session, Key=BACKEND, Value=backend.encode())

    def ask(self, device: str | None = "d", **data: Any) -> str:
        answer = self.house.ask(**({"Device": device} if device else {}), Want=["Name"], **data)
        assert answer["Result"] == "OK"
        name: str = answer["Data"]["Name"]
        return name


@pytest.mark.parametrize("queue", [False, True])
def test_a_client_is_sent_back_to_its_session(queue: bool) -> None:
    town = Town(queue=queue)
    town.log_in("b1")
    town.house.users["b1"] = 12
    town.house.tick()
    assert town.ask(device=None, Client="me") != "b1"
    assert [town.ask(Client=f"c{number}") for number in range(2)] == ["b1", "b1"]
    assert town.pool.answers[Reason.SESSION] == 2


def full(town: Town) -> None:
    town.pool.change(town.house.now, [Backend("b0"), Backend("b1", capacity=10), Backend("b2")])


def draining(town: Town) -> None:
    town.pool.set_admin(town.house.now, "b1", Admin(Wish.DRAIN))


def ejected(town: Town) -> None:
    town.pool.bar(town.house.now, "b1", town.house.now + 60.0)


def stale(town: Town) -> None:
    town.house.dead.add("b1")
    town.house.tick(4.0)


def overloaded(town: Town) -> None:
    town.house.users["b1"] = 30
    town.house.tick()


def removed(town: Town) -> None:
    town.pool.change(town.house.now, [Backend("b0"), Backend("b2")])


def reused(town: Town) -> None:
    """The address is that of another entry now."""
    removed(town)
    town.pool.change(town.house.now, [Backend("b0"), Backend("b2"), Backend("b4")])
    town.pool.record_report(town.house.now, town.house.rng, "b4", 10, town.house.now, ("10.0.0.1", 9001))


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("trouble", [full, draining, ejected, stale, overloaded, removed, reused])
def test_where_its_backend_is_no_good_it_gets_another_and_belongs_there_from_then_on(
    queue: bool, trouble: Callable[[Town], None]
) -> None:
    town = Town(queue=queue)
    session = town.log_in("b1")
    assert town.ask(Client="before") == "b1"
    trouble(town)
    town.house.room.desk.adopt_backends()
    town.house.settle()
    other = town.ask(Client="after")
    assert other != "b1"
    assert town.pool.answers[Reason.SESSION] == 1
    town.resume(session, other)
    assert town.ask(Client="later") == other
    assert town.pool.answers[Reason.SESSION] == 2


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("why", ["refused", "Full"])
def test_who_could_not_use_it_is_not_sent_back(queue: bool, why: str) -> None:
    town = Town(queue=queue)
    town.log_in("b1")
    town.house.users["b1"] = 11
    town.house.tick()
    assert town.ask(Client="me") == "b1"
    failed = [{"IP": "10.0.0.1", "Port": 9001, "Why": why}]
    assert town.ask(Client="me", Failed=failed) != "b1"
    # Of an address that is not its own it is not said.
    assert town.ask(Client="you", Failed=[{"IP": "10.0.0.1", "Port": 9002}]) == "b1"


def test_a_thousand_devices_of_one_backend_are_shared_when_its_neighbours_come_back() -> None:
    town = Town()
    for number in range(1000):
        town.log_in("b1", f"d{number}", f"client {number}")
    town.house.users.update(b0=0, b1=500, b2=0)
    town.house.tick(1.0)
    names = [town.ask(f"d{number}") for number in range(1000)]
    assert town.pool.answers[Reason.SESSION] == 0
    assert names.count("b1") < 340  # its share, since all are given more than the cap has for them
    town.house.users.update(b0=0, b1=0, b2=0)
    town.house.tick(20.0)
    names = [town.ask(f"d{number}") for number in range(1000)]
    assert names.count("b1") <= 1.25 * 1000 / 3 + 1


def test_its_data_are_warmed_in_the_same_moment_for_its_network() -> None:
    town = Town()
    town.house.ask(host="192.0.2.77", Device="d")
    assert town.told == [("d", bytes([192, 0, 2, 0]))]


def test_nobody_is_warmed_who_is_not_sent_anywhere() -> None:
    town = Town()
    for data in ({}, {"Device": ""}, {"Device": "d", "Leave": True}):
        town.house.ask(**data)
    town.pool.change(town.house.now, [])
    assert town.house.ask(Device="d")["Result"] == "NoServer"
    assert town.told == []


def test_nobody_is_warmed_who_is_denied() -> None:
    town = Town()
    town.master.doors = doors = Doors(random.Random(1))
    denied = Denied(Word.TOO_FAST, 1.0)
    doors.judge = lambda *_: denied  # type: ignore[method-assign, assignment]
    town.master.observer.denied = lambda _: None  # type: ignore[method-assign]
    assert town.house.ask(Device="d")["Result"] == "Denied"
    assert town.told == []


def test_who_waits_is_warmed_when_it_is_let_in() -> None:
    town = Town(10, queue=True, target_load=1.0)
    town.log_in("b0")
    for _ in range(3):
        assert town.house.ask("me", Device="d")["Result"] == "Wait"
        town.house.tick(1.0)
    assert town.told == []
    town.house.users["b0"] = 5
    while town.house.ask("me", Device="d")["Result"] == "Wait":
        town.house.tick(1.0)
    assert [device for device, _ in town.told] == ["d"]
    assert town.pool.answers[Reason.SESSION] == 1
    town.house.ask("me", Device="d", Leave=True)
    assert len(town.told) == 1


def test_without_sessions_to_look_for_nothing_is_preferred() -> None:
    town = Town()
    town.log_in("b1")
    town.master.devices = Devices(None, Networks())
    assert town.master.devices.seek(town.house.now, Ask(), {"Device": "d"}) == Ask()
    town.ask()
    assert town.told == []
