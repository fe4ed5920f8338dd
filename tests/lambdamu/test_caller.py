"""Asking a master and logging in to a backend."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure
from lambdamu.breaker import Fault
from lambdamu.caller import Caller, Login
from lambdamu.errors import LinkError
from lambdamu.tcp_server import Ending, PortObserver
from lambdamu.wire import MessagePackWire

CALLER = Caller("ann", "ann@example.org", 5.0)
SOMEWHERE = Address("192.0.2.1", 7001)


async def test_an_ask_is_plain(master: Any) -> None:
    async with master(to=(SOMEWHERE,)) as asked:
        answer = await CALLER.ask(asked.address)
    assert isinstance(answer, Answer)
    assert answer.endpoint == SOMEWHERE
    assert [message.data for message in asked.asks] == [None]


async def test_a_master_that_is_not_there_is_a_failure(nobody: Address) -> None:
    assert await CALLER.ask(nobody) == Failure(f"master {nobody}: Connection refused")


async def test_a_silent_master_is_a_failure(master: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with master(None) as silent:
        assert await CALLER.ask(silent.address) == Failure(f"master {silent.address}: did not answer within 5 s")


async def test_a_master_that_closes_is_a_failure(master: Any) -> None:
    async with master(None, limits={"connections": 0}, wire=MessagePackWire(lambda _: b"")) as closing:
        failure = await CALLER.ask(closing.address)
    assert isinstance(failure, Failure)
    assert failure.text.startswith(f"master {closing.address}: has ")


async def test_a_master_that_is_full_says_so(master: Any) -> None:
    async with master(None, limits={"connections": 0}) as full:
        failure = await CALLER.ask(full.address)
    assert failure == Failure(f"master {full.address}: it answered the error Limit: too many connections are open")


@pytest.mark.parametrize(
    "garbage", [b"\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x91\x90", b"\xdd\xff\xff\xff\xff"]
)
async def test_bytes_not_to_the_protocol_are_a_final_failure(master: Any, garbage: bytes) -> None:
    async with master("never sent", wire=MessagePackWire(lambda _: garbage)) as broken:
        failure = await CALLER.ask(broken.address)
    assert isinstance(failure, Failure)
    assert failure.final
    assert failure.text.startswith(f"master {broken.address}: not to the protocol: ")


async def test_a_login_has_a_task(backend: Any) -> None:
    async with backend() as stub, CALLER.login(stub.address) as first, CALLER.login(stub.address) as second:
        assert isinstance(first, Login)
        assert isinstance(second, Login)
        assert (first.task, second.task) == ("Task-1", "Task-2")


async def test_a_login_ends_with_its_block(backend: Any) -> None:
    async with backend(capacity=1) as stub:
        async with CALLER.login(stub.address) as login:
            assert isinstance(login, Login)
            async with CALLER.login(stub.address) as refused:
                assert isinstance(refused, Failure)
        while True:
            async with CALLER.login(stub.address) as again:
                if isinstance(again, Login):
                    break


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hang-auth", "did not answer within 5 s"),
        ("half", "did not answer within 5 s"),
        ("slow:6", "did not answer within 5 s"),
        ("garbage", "not to the protocol: "),
        ("close", "has "),
    ],
)
async def test_a_backend_with_a_fault_is_a_failure(
    backend: Any, fault: str, why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend(fault) as stub, CALLER.login(stub.address) as failure:
        assert isinstance(failure, Failure)
        assert failure.text.startswith(f"backend {stub.address}: {why}")


async def test_a_full_backend_is_a_failure_that_may_pass(backend: Any) -> None:
    async with backend(capacity=0) as stub, CALLER.login(stub.address) as failure:
        assert isinstance(failure, Failure)
        assert "Full" in failure.text
        assert not failure.final


async def test_a_stay_lasts_as_long_as_it_should(backend: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with backend() as stub, CALLER.login(stub.address) as login:
        began = trio.current_time()
        assert await login.hold(30.0) is None
        assert trio.current_time() - began == pytest.approx(30.0)


async def test_a_stay_that_the_backend_ends_is_a_failure(backend: Any) -> None:
    async with backend() as stub, CALLER.login(stub.address) as login:
        stub.stop.set()
        assert await login.hold(float("inf")) == Failure(f"backend {stub.address}: has closed the connection")


async def test_an_ask_carries_what_it_is_given(master: Any) -> None:
    async with master({"Result": "NoServer"}) as asked:
        await CALLER.ask(asked.address, {"Client": "ann"})
    assert [message.data for message in asked.asks] == [{"Client": "ann"}]


async def test_a_failure_says_whose_it_is(master: Any, nobody: Address) -> None:
    missing = await CALLER.ask(nobody)
    async with master(None, limits={"connections": 0}) as full:
        refused = await CALLER.ask(full.address)
    assert isinstance(missing, Failure)
    assert isinstance(refused, Failure)
    assert (missing.why, missing.fault) == ("refused", Fault.SYSTEM)
    assert (refused.why, refused.fault) == ("Limit", Fault.LOGIC)


class Connections(PortObserver):
    """Tells when a connection of a port has been opened, and when one is over."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.over = trio.Event()

    def opened(self) -> None:
        self.open.set()

    def ended(self, how: Ending) -> None:
        self.over.set()


async def test_a_login_that_is_cancelled_leaves_no_connection(backend: Any) -> None:
    seen = Connections()
    async with backend("hang-auth", observer=seen) as stub:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(CALLER.log_in, stub.address)
            await seen.open.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5.0):
            await seen.over.wait()


@pytest.mark.parametrize(
    ("why", "fault"),
    [
        ("refused", Fault.SYSTEM),
        ("timeout", Fault.SYSTEM),
        ("connect_timeout", Fault.SYSTEM),
        ("closed", Fault.SYSTEM),
        ("no_descriptor", None),
        ("no_address", None),
        ("unreachable", None),
    ],
)
def test_what_a_device_without_a_network_meets_with_is_nobodys_fault(why: str, fault: Fault | None) -> None:
    assert Failure.from_error(LinkError(why, "text")).fault is fault
