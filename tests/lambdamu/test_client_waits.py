"""The client that an application embeds, while a queue holds it: against scripted masters, and against the queue."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.answers import Place
from lambdamu.client import LEAVE_S, Client, Peers
from lambdamu.errors import LinkError, NoServerError
from lambdamu.machine import LogicalMachine
from lambdamu.messages import AUTH, TURN, USER_MAIL, USER_NAME, Code, Message, error
from lambdamu.objects import LMObject, Peer, Reply
from lambdamu.peers import ClientObserver, ClientPolicy
from lambdamu.tcp_server import PortLimits, TCPServer, open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, FakeBackend, virtual_clock
from master.queue.answers import QueueAsk
from tests.queue_master import queue_master

WHO: dict[str, Any] = {"user_name": "ann", "user_mail": "ann@example.org"}


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


class Heard(ClientObserver):
    def __init__(self) -> None:
        self.places: list[Place] = []
        self._told = trio.lowlevel.ParkingLot()

    def waits(self, place: Place) -> None:
        self.places.append(place)
        self._told.unpark_all()

    async def told(self, times: int) -> None:
        """Wait until the client was told so often where it stands."""
        with trio.fail_after(1000.0):
            while len(self.places) < times:
                await self._told.park()


def at(backend: FakeBackend) -> Address:
    return Address(*backend.address)


def client(*masters: Address, observer: ClientObserver | None = None, **policy: Any) -> Client:
    return Client(masters, queue="concert", peers=Peers(ClientPolicy(**policy), observer), rng=random.Random(0), **WHO)


def wait(retry_after_s: float = 5.0, **data: Any) -> dict[str, Any]:
    return {"Result": "Wait", "Data": {"Ticket": "t1", "RetryAfter": retry_after_s, **data}}


def send_to(backend: FakeBackend, **data: Any) -> dict[str, Any]:
    return {"Result": "OK", "Data": {"IP": backend.address[0], "Port": backend.address[1], **data}}


async def connect(ann: Client) -> None:
    async with ann.connect():
        pass


async def test_it_waits_on_past_every_other_deadline_and_tells_where_it_stands(
    master: Any, clock: trio.testing.MockClock
) -> None:
    heard = Heard()
    says = [wait(20.0, Position=9 - i, ETA=90.0 - 10 * i, ETA90=120.0, Reason="NoPlace") for i in range(10)]
    async with FakeBackend() as backend, master(*says, send_to(backend, Turn="turn")) as asked:
        ann = client(asked.address, observer=heard, within_s=10.0)
        async with ann.connect() as connection:
            assert connection.backend == at(backend)
            assert ann.place is None
        assert b"turn" in backend.stats().last_question
    assert heard.places == [Place(9 - i, 90.0 - 10 * i, 120.0, 20.0, "NoPlace") for i in range(10)]
    between = [after - before for before, after in pairwise(asked.asked_at)]
    assert all(20.0 <= gap < 20.5 for gap in between)
    assert [ask.data["Queue"] for ask in asked.asks] == ["concert"] * 11
    assert [ask.data.get("Ticket") for ask in asked.asks] == [None, *["t1"] * 10]


async def test_a_bound_on_the_wait_ends_it_and_the_place_can_be_given_up(
    master: Any, clock: trio.testing.MockClock
) -> None:
    left = {"Result": "Closed", "Data": {"Reason": "Left"}}
    async with master(wait(), wait(), wait(), left) as asked:
        ann = client(asked.address, wait_s=12.0)
        with pytest.raises(NoServerError, match="it answered Wait; ask again in 5"):
            await connect(ann)
        assert ann.place is not None
        assert "Leave" not in asked.asks[-1].data
        assert await ann.leave()
        assert (asked.asks[-1].data["Ticket"], asked.asks[-1].data["Leave"]) == ("t1", True)
        assert ann.place is None
        assert not await ann.leave()
        assert len(asked.asks) == 4


async def test_to_cancel_the_wait_gives_the_place_up(clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend)) as asked:
        ann = client(asked.address)
        with trio.move_on_after(30.0) as scope:
            await connect(ann)
        assert scope.cancelled_caught
        assert asked.asks[-1]["Leave"]
        assert asked.answers[-1]["Data"]["Reason"] == "Left"
        assert asked.queues.book.waiting == 0


async def test_to_give_it_up_takes_no_longer_than_that_where_no_master_hears(
    master: Any, clock: trio.testing.MockClock
) -> None:
    async with master(wait(), None) as asked:
        ann = client(asked.address)
        began = trio.current_time()
        with trio.move_on_after(2.5):
            await connect(ann)
        assert trio.current_time() - began <= 2.5 + LEAVE_S + 0.5
        assert len(asked.asks) == 2


async def test_whoever_is_cancelled_elsewhere_leaves_nothing(master: Any, clock: trio.testing.MockClock) -> None:
    async with master(wait(1.0), {"Result": "NoServer", "Data": {"RetryAfter": 9.0}}) as waits:
        ann = client(waits.address)
        with trio.move_on_after(5.0):
            await connect(ann)
        assert "Leave" in waits.asks[-1].data  # its place is as good as before
    async with master({"Result": "NoServer", "Data": {"RetryAfter": 9.0}}) as asked:
        with trio.move_on_after(5.0):
            await connect(client(asked.address))
        assert len(asked.asks) == 1


async def test_the_application_goes_away_and_comes_back(clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, queue_master(at(backend)) as asked, trio.open_nursery() as nursery:
        for other in range(300):
            asked.queues.ask(0.0, random.Random(0), _ask(other))
        heard = Heard()
        ann = client(asked.address, observer=heard)
        nursery.start_soon(connect, ann)
        await heard.told(1)
        before = trio.current_time()
        ann.away = True
        ann.away = True
        await heard.told(2)
        assert asked.asked_at[1] - before <= 1.1
        assert ann.away
        ann.away = False
        await heard.told(3)
        assert [ask.get("Away") for ask in asked.asks] == [None, True, None]
        assert len({ask["Client"] for ask in asked.asks}) == 1
        nursery.cancel_scope.cancel()


def _ask(number: int) -> Any:
    return QueueAsk(client=bytes([number // 256, number % 256]))


async def test_whoever_was_in_and_lost_the_backend_comes_in_before_the_others(clock: trio.testing.MockClock) -> None:
    heard = Heard()
    async with FakeBackend() as backend, queue_master(at(backend), places=1) as asked:
        ann = client(asked.address, observer=heard)
        async with ann.connect() as connection:
            backend.hang_up()
            with pytest.raises(LinkError):
                await connection.receive(within_s=5.0)
        for other in range(50):
            asked.queues.ask(trio.current_time(), random.Random(0), _ask(other))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, ann)
            await heard.told(1)
            assert asked.asks[1]["Ticket"] == "turn-0"
            assert ann.place is not None
            assert ann.place.position == 0
            asked.gone()
        assert len(asked.entered) == 2
        assert len(set(asked.entered)) == 1


async def test_a_turn_that_its_backend_refuses_is_told_by_its_word(master: Any, clock: trio.testing.MockClock) -> None:
    def refuse(message: Message, now: float, peer: Peer) -> Reply:
        return [error(message, Code.TURN_EXPIRED, "it is over")]

    machine = LogicalMachine("backend")
    machine.add(LMObject(AUTH, settable=dict.fromkeys((TURN, USER_NAME, USER_MAIL), refuse)))
    async with FakeBackend() as good, trio.open_nursery() as nursery:
        [bad] = await nursery.start(TCPServer(machine, PortLimits()).serve, open_listeners(Address("127.0.0.1", 0)))
        says = {"Result": "OK", "Data": {"IP": bad.host, "Port": bad.port, "Turn": "turn-1"}}
        async with master(says, send_to(good, Turn="turn-2")) as asked:
            await connect(client(asked.address))
        nursery.cancel_scope.cancel()
    second = asked.asks[1].data
    assert (second["Failed"][0]["Why"], second["Ticket"]) == ("TurnExpired", "turn-1")


async def test_the_other_master_is_asked_with_the_same_ticket_when_one_dies(
    master: Any, clock: trio.testing.MockClock
) -> None:
    heard = Heard()
    async with FakeBackend() as backend, master(send_to(backend)) as other, trio.open_nursery() as nursery:
        async with master(wait()) as dies:  # it ends before the client does
            ann = client(dies.address, other.address, observer=heard)
            ann._identity.master, ann._identity.answered_at = dies.address, trio.current_time()
            nursery.start_soon(connect, ann)
            await heard.told(1)
        assert len(dies.asks) == 1
    assert [ask.data["Ticket"] for ask in other.asks] == ["t1"]
