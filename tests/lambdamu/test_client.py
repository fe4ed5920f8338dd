"""The client that an application embeds, against masters and backends that listen on this machine.

The file is long because every way in which a master or a backend fails is played to the one client.
"""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.testing

import lambdamu
from lambdamu.address import Address
from lambdamu.breaker import BreakerPolicy, Event, State, Why
from lambdamu.client import Client, Connection, Peers
from lambdamu.errors import ConnectError, DeniedError, LinkError, NoServerError, UnreachableError
from lambdamu.messages import SYSTEM, USER_COUNT, Command, Message
from lambdamu.peers import ClientObserver, ClientPolicy
from lambdamu.retry import Backoff, BudgetPolicy
from lambdamu.testing import SOCKET_SETTLE_S, FakeBackend, Script, Stats, virtual_clock

WHO: dict[str, Any] = {"user_name": "ann", "user_mail": "ann@example.org"}
NO_SERVER = {"Result": "NoServer", "Data": {"RetryAfter": 4.0}}


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


class Heard(ClientObserver):
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def answered(self, master: Address, result: str, took_s: float) -> None:
        self.told.append(("answered", master, result))

    def ask_failed(self, master: Address, why: str, took_s: float) -> None:
        self.told.append(("ask_failed", master, why))

    def connected(self, backend: Address, took_s: float) -> None:
        self.told.append(("connected", backend))

    def login_failed(self, backend: Address, why: str, took_s: float) -> None:
        self.told.append(("login_failed", backend, why))

    def paused(self, for_s: float) -> None:
        self.told.append(("paused",))

    def gave_up(self, error: ConnectError) -> None:
        self.told.append(("gave_up", type(error)))

    def skipped(self, peer: Address, why: Why) -> None:
        self.told.append(("skipped", peer, why))

    def breaker_moved(self, peer: Address, state: State, event: Event) -> None:
        self.told.append(("moved", peer, state))

    def crowded(self, peer: Address, in_flight: int) -> None:
        self.told.append(("crowded", peer, in_flight))


def at(backend: FakeBackend) -> Address:
    return Address(*backend.address)


def send_to(best: Address, *alternates: Address, **more: Any) -> dict[str, Any]:
    others = [{"IP": each.host, "Port": each.port, "Name": str(each.port)} for each in alternates]
    return {"Result": "OK", "Data": {"IP": best.host, "Port": best.port, "Alternates": others, **more}}


async def closed(backend: FakeBackend) -> Stats:
    """Wait until the backend has no connection left."""
    with trio.fail_after(5.0):
        return await backend.until(lambda stats: stats.open_now == 0)


def client(*masters: Address, observer: ClientObserver | None = None, **policy: Any) -> Client:
    return Client(masters, peers=Peers(ClientPolicy(**policy), observer), rng=random.Random(0), **WHO)


async def test_it_connects_and_logs_in(master: Any) -> None:
    async with FakeBackend() as backend, master(send_to(at(backend), Name="one")) as asked:
        async with lambdamu.connect([str(asked.address)], **WHO) as connection:
            assert isinstance(connection, Connection)
            assert (connection.task, connection.backend, connection.name) == ("Task", at(backend), "one")
            await connection.send(Message(SYSTEM, Command.GET, USER_COUNT))
            assert await connection.receive(within_s=5.0) == [Message(SYSTEM, Command.VALUE, USER_COUNT, 10)]
        stats = await closed(backend)
    assert (stats.user_name, stats.user_mail) == ("ann", "ann@example.org")
    [ask] = asked.asks
    assert ask.data["Want"] == ["Name", "Alternates", "TTL", "Turn"]
    assert len(ask.data["Client"]) == 32


async def test_a_turn_is_handed_on_before_the_name_and_only_where_it_holds(master: Any, nobody: Address) -> None:
    async with FakeBackend() as backend:
        says = send_to(at(backend), Turn="a-turn"), send_to(nobody, at(backend), Turn="another"), send_to(at(backend))
        async with master(*says) as asked:
            ann = client(asked.address)
            shown = []
            for _ in says:
                async with ann.connect() as connection:
                    assert connection.task == "Task"
                    shown.append(backend.stats().last_question)
    assert [b"\xa4Turn\xa4Data\xa6a-turn\x84" in question for question in shown] == [True, False, False]
    assert shown[1] == shown[2]
    assert shown[0].index(b"Turn") < shown[0].index(b"UserName") < shown[0].index(b"UserMail")


async def test_another_master_is_asked_when_one_fails(master: Any, nobody: Address) -> None:
    async with FakeBackend() as backend, master(send_to(at(backend))) as asked:
        for _ in range(8):
            async with client(nobody, asked.address).connect() as connection:
                assert connection.backend == at(backend)


async def test_an_alternate_is_used_when_the_best_fails_and_that_is_told_at_the_next_ask(
    master: Any, nobody: Address
) -> None:
    async with FakeBackend() as backend, master(send_to(nobody, at(backend))) as asked:
        ann = client(asked.address)
        for _ in range(2):
            async with ann.connect() as connection:
                assert (connection.backend, connection.name) == (at(backend), str(at(backend).port))
    first, second = (ask.data for ask in asked.asks)
    assert "Failed" not in first
    assert second["Failed"] == [{"IP": nobody.host, "Port": nobody.port, "Why": "refused"}]
    assert first["Client"] == second["Client"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (Script(drop="auth"), "timeout"),  # type: ignore[arg-type]
        (Script(close=True), "closed"),
        (Script(task=7), "bad_auth"),
        (Script(garbage=b"\xc1"), "not_the_protocol"),
    ],
)
async def test_a_backend_that_fails_in_any_way_is_left_for_the_next(
    master: Any, script: Script, why: str, clock: trio.testing.MockClock
) -> None:
    heard = Heard()
    async with (
        FakeBackend(script) as bad,
        FakeBackend() as good,
        master(send_to(at(bad), at(good))) as asked,
        client(asked.address, observer=heard).connect() as connection,
    ):
        assert connection.backend == at(good)
    assert heard.told[1:] == [("login_failed", at(bad), why), ("connected", at(good))]


async def test_nobody_comes_back_before_the_master_said(master: Any, clock: trio.testing.MockClock) -> None:
    heard = Heard()
    async with (
        FakeBackend() as backend,
        master(NO_SERVER, send_to(at(backend))) as asked,
        client(asked.address, observer=heard).connect(),
    ):
        first, second = asked.asked_at
    assert 4.0 <= second - first < 5.0
    assert [each[0] for each in heard.told] == ["answered", "paused", "answered", "connected"]
    assert asked.asks[0].data["Client"] == asked.asks[1].data["Client"]


async def test_when_nothing_comes_of_it_in_time_the_last_answer_is_the_error(
    master: Any, clock: trio.testing.MockClock
) -> None:
    heard = Heard()
    began = trio.current_time()
    async with master(NO_SERVER) as asked:
        with pytest.raises(NoServerError) as caught:
            async with client(asked.address, observer=heard).connect():
                raise AssertionError
    assert 20.0 < trio.current_time() - began <= 31.0
    assert (caught.value.result, caught.value.retry_after_s) == ("NoServer", 4.0)
    assert heard.told[-1] == ("gave_up", NoServerError)


async def test_denied_is_an_error_at_once(master: Any) -> None:
    async with master({"Result": "Denied", "Data": {"Reason": "Used"}}) as asked:
        with pytest.raises(DeniedError, match="it answered Denied, Used"):
            async with client(asked.address).connect():
                raise AssertionError
    assert len(asked.asks) == 1


async def test_masters_that_are_silent_take_no_longer_than_was_said(master: Any, clock: trio.testing.MockClock) -> None:
    async with master(None) as one, master(None) as other:
        ann = client(one.address, other.address, within_s=12.0, step_s=5.0)
        began = trio.current_time()
        with pytest.raises(UnreachableError, match=r"no connection within 12 s; .*did not answer within 5 s"):
            async with ann.connect():
                raise AssertionError
        assert trio.current_time() - began == pytest.approx(12.0, abs=0.5)


async def test_retries_end_with_the_budget(master: Any, clock: trio.testing.MockClock) -> None:
    budget = BudgetPolicy(share=0.0, per_s=0.0, most=3.0)
    async with master({"Result": "NoServer"}) as asked:
        with pytest.raises(NoServerError):
            async with client(asked.address, budget=budget, backoff=Backoff(0.1, 0.1)).connect():
                raise AssertionError
        assert len(asked.asks) == 4


async def test_a_backend_that_failed_often_is_skipped(master: Any, nobody: Address) -> None:
    heard = Heard()
    async with FakeBackend() as backend, master(send_to(nobody, at(backend))) as asked:
        ann = client(asked.address, observer=heard)
        for _ in range(4):
            async with ann.connect():
                pass
    assert heard.told.count(("login_failed", nobody, "refused")) == 3
    assert ("moved", nobody, State.OPEN) in heard.told
    assert heard.told[-2:] == [("skipped", nobody, Why.OPEN), ("connected", at(backend))]


async def test_clients_of_one_process_share_what_they_learn(master: Any, nobody: Address) -> None:
    heard = Heard()
    peers = Peers(ClientPolicy(backends=BreakerPolicy(workers=2, crowded_share=0.5, full_share=1.0)), heard)
    async with FakeBackend() as backend, master(send_to(nobody, at(backend))) as asked:
        for i in range(9):
            async with Client([asked.address], client_id=f"user-{i}", peers=peers, **WHO).connect():
                pass
    assert [ask.data["Client"] for ask in asked.asks] == [f"user-{i}" for i in range(9)]
    assert heard.told.count(("login_failed", nobody, "refused")) == 4
    assert ("crowded", at(backend), 1) in heard.told


async def test_a_crowd_sends_one_to_try_a_master_that_was_left_alone(
    master: Any, clock: trio.testing.MockClock
) -> None:
    peers = Peers(ClientPolicy(masters=BreakerPolicy(open_s=5.0, jitter=0.0)))
    async with FakeBackend() as backend, master(send_to(at(backend))) as asked:
        began = trio.current_time()
        peers.masters.of(asked.address).trip(began, random.Random(0))

        async def connect(number: int) -> None:
            async with Client([asked.address], client_id=f"user-{number}", peers=peers, **WHO).connect():
                pass

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(connect, number)
        first, *others = asked.asked_at
        assert len(others) == 49
        assert began + 5.0 <= first < min(others)
        assert trio.current_time() < began + 15.0


async def test_to_be_cancelled_leaves_no_connection_and_no_failure(master: Any) -> None:
    heard = Heard()
    async with FakeBackend(Script(drop="auth")) as backend, master(send_to(at(backend))) as asked:  # type: ignore[arg-type]
        ann = client(asked.address, observer=heard)

        async def connect() -> None:
            async with ann.connect():
                raise AssertionError

        for _ in range(9):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect)
                await backend.until(lambda stats: stats.open_now == 1)
                nursery.cancel_scope.cancel()
            await closed(backend)
        now = trio.current_time()
        breaker = ann._peers.backends.of(at(backend))
        assert (breaker.state(now), breaker.in_flight(now), breaker.counts(now).calls) == (State.CLOSED, 0, 0)
    assert {each[0] for each in heard.told} == {"answered"}


async def test_an_error_of_the_block_comes_out_as_it_is(master: Any) -> None:
    async with FakeBackend() as backend, master(send_to(at(backend))) as asked:
        with pytest.raises(KeyError, match="mine"):
            async with client(asked.address).connect():
                raise KeyError("mine")
        await closed(backend)


async def test_a_connection_that_breaks_says_so(master: Any, clock: trio.testing.MockClock) -> None:
    async with FakeBackend() as backend, master(send_to(at(backend))) as asked:
        async with client(asked.address).connect() as connection:
            with pytest.raises(LinkError, match="within 2 s") as caught:
                await connection.receive(within_s=2.0)
            assert caught.value.why == "timeout"
        async with client(asked.address).connect() as connection:
            backend.hang_up()
            with pytest.raises(LinkError, match="closed"):
                await connection.receive(within_s=2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"masters": []},
        {"masters": ["192.0.2.1"]},
        {"user_name": ""},
        {"user_mail": "\udcff"},
        {"client_id": "x" * 129},
        {"zone": ""},
        {"device": "ä" * 65},
        {"pass_text": ""},
        {"pass_text": "x" * 513},
    ],
)
def test_values_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'|master|host:port"):
        Client(**{"masters": ["192.0.2.1:7000"], **WHO, **wrong})


def test_to_import_the_package_costs_next_to_nothing() -> None:
    program = "import lambdamu, sys; print([name for name in ('trio', 'msgpack', 'attrs') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lambdamu.nothing  # noqa: B018
