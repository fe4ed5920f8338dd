"""Asking masters and logging in to backends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from client_stub.answers import Answer, Failure
from client_stub.caller import BACKOFF_S, MAX_BACKOFF_S, ROUNDS, Caller, Login, ask_any
from lambdamu.address import Address
from lambdamu.messages import Result

CALLER = Caller("ann", "ann@example.org", 5.0)
MASTERS = [Address("192.0.2.1", port) for port in (7001, 7002, 7003)]
NO_SERVER = Answer(Result.NO_SERVER, None, None, {})


class Masters:
    """Answers for masters without a wire: `good` ones answer, `hopeless` ones fail for good, others fail."""

    def __init__(self, good: Sequence[Address] = (), hopeless: Sequence[Address] = ()) -> None:
        self.good = good
        self.hopeless = hopeless
        self.asked: list[Address] = []
        self.asked_at: list[float] = []

    async def ask(self, master: Address) -> Answer | Failure:
        await trio.lowlevel.checkpoint()
        self.asked.append(master)
        self.asked_at.append(trio.current_time())
        if master in self.good:
            return NO_SERVER
        return Failure(f"{master} fails", final=master in self.hopeless)


class Longest(random.Random):
    """Has everyone wait as long as may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


async def test_a_master_that_fails_is_skipped() -> None:
    for seed in range(20):
        masters = Masters(good=MASTERS[2:])
        assert await ask_any(masters.ask, MASTERS, random.Random(seed)) == (MASTERS[2], NO_SERVER)
        assert len(masters.asked) == len(set(masters.asked))


async def test_the_first_answer_is_enough() -> None:
    masters = Masters(good=MASTERS)
    await ask_any(masters.ask, MASTERS, random.Random(0))
    assert len(masters.asked) == 1


async def test_the_order_is_left_to_chance() -> None:
    first = set()
    for seed in range(40):
        masters = Masters(good=MASTERS)
        await ask_any(masters.ask, MASTERS, random.Random(seed))
        first.add(masters.asked[0])
    assert first == set(MASTERS)


async def test_masters_that_all_fail_are_tried_in_a_few_rounds(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters()
    failure = await ask_any(masters.ask, [*MASTERS, MASTERS[0]], random.Random(0))
    assert isinstance(failure, Failure)
    assert all(f"{master} fails" in failure.text for master in MASTERS)
    rounds = [masters.asked[i : i + 3] for i in range(0, len(masters.asked), 3)]
    assert [set(each) for each in rounds] == [set(MASTERS)] * ROUNDS


async def test_one_that_fails_for_good_is_asked_once(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters(hopeless=MASTERS[:1])
    await ask_any(masters.ask, MASTERS, random.Random(0))
    assert [masters.asked.count(master) for master in MASTERS] == [1, ROUNDS, ROUNDS]


async def test_when_all_fail_for_good_nobody_waits(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters(hopeless=MASTERS)
    await ask_any(masters.ask, MASTERS, Longest())
    assert trio.current_time() == masters.asked_at[0]
    assert len(masters.asked) == len(MASTERS)


async def test_the_longest_wait_doubles_up_to_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    masters = Masters()
    await ask_any(masters.ask, MASTERS[:1], Longest())
    waits = [after - before for before, after in zip(masters.asked_at, masters.asked_at[1:], strict=False)]
    assert waits == pytest.approx([min(MAX_BACKOFF_S, BACKOFF_S * 2**i) for i in range(ROUNDS - 1)])


async def test_a_wait_is_any_part_of_the_longest_one(autojump_clock: trio.testing.MockClock) -> None:
    waits = []
    for seed in range(50):
        masters = Masters()
        await ask_any(masters.ask, MASTERS[:1], random.Random(seed))
        waits.append(masters.asked_at[1] - masters.asked_at[0])
    assert min(waits) < 0.2 * BACKOFF_S
    assert max(waits) > 0.8 * BACKOFF_S
    assert max(waits) <= BACKOFF_S


async def test_no_master_is_a_failure_too() -> None:
    assert await ask_any(Masters().ask, [], random.Random(0)) == Failure("there is no master to ask")


async def test_an_ask_is_plain(master: Any) -> None:
    async with master(to=(MASTERS[0],)) as asked:
        answer = await CALLER.ask(asked.address)
    assert isinstance(answer, Answer)
    assert answer.endpoint == MASTERS[0]
    assert [message.data for message in asked.asks] == [None]


async def test_a_master_that_is_not_there_is_a_failure(nobody: Address) -> None:
    assert await CALLER.ask(nobody) == Failure(f"master {nobody}: Connection refused")


async def test_a_silent_master_is_a_failure(master: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with master(None) as silent:
        assert await CALLER.ask(silent.address) == Failure(f"master {silent.address}: did not answer within 5 s")


async def test_a_master_that_closes_is_a_failure(master: Any) -> None:
    async with master(None, limits={"connections": 0}, pack=lambda _: b"") as closing:
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
    async with master("never sent", pack=lambda _: garbage) as broken:
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
