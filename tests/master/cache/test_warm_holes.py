"""What went wrong, or could have, in the service before this one: each test holds here, and fails there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from master.cache.leases import Held, Lease
from master.cache.rows import Table
from master.cache.warm_types import NotServed, Warm, WarmPolicy, Why
from tests.master.cache.house import NETWORK, SlowUpstream, house, kinds
from tests.master.cache.seed_warm import SeedStore, seed


async def _wait_here() -> float:
    async with house(instances=2, workers=4, types=kinds(lifetime_s=30.0)) as made:
        made.upstream.delay_s = 10.0
        ann, ben = made.log_in("ann"), made.log_in("ben")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.warmers[0].get, ann, 1, 1)
            await trio.sleep(0.1)
            for _ in range(8):
                nursery.start_soon(made.warmers[1].get, ann, 1, 1)
            await trio.sleep(0.1)
            made.upstream.delay_s = 0.2
            began = trio.current_time()
            assert isinstance(await made.warmers[1].get(ben, 1, 1), Warm)
            return trio.current_time() - began


async def _wait_there() -> float:
    upstream, store = SlowUpstream(10.0), SeedStore()
    async with (
        seed(store, upstream, kinds(), 4) as first,
        seed(store, upstream, kinds(), 4) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(first.get, "ann", 1)
        await trio.sleep(0.1)
        for _ in range(8):
            nursery.start_soon(second.get, "ann", 1)
        await trio.sleep(0.1)
        upstream.delay_s = 0.2
        began = trio.current_time()
        assert await second.get("ben", 1) is not None
        return trio.current_time() - began


@pytest.mark.parametrize(("wait", "holds"), [(_wait_here, True), (_wait_there, False)])
async def test_those_who_wait_for_a_fetch_of_another_hold_no_worker(
    autojump_clock: object, wait: Callable[[], Awaitable[float]], holds: bool
) -> None:
    assert (await wait() < 0.5) is holds


async def _dead_fetcher_here() -> float:
    async with house() as made:
        session = made.log_in("ann")
        # Another process took the lease of the data, and was killed.
        taken = made.store.lease(trio.current_time(), ("ann", 1, 1), "the dead", 5.0)
        assert isinstance(taken, Lease)
        began = trio.current_time()
        assert isinstance(await made.warmer.get(session, 1, 1), Warm)
        return trio.current_time() - began


async def _dead_fetcher_there() -> float:
    store, began = SeedStore(), trio.current_time()
    store.updating.add(("ann", 1, 1))
    async with seed(store, SlowUpstream(), kinds(), 4) as service:
        for _ in range(3):  # and so on
            assert await service.get("ann", 1) is None
        return trio.current_time() - began


@pytest.mark.parametrize(("wait", "holds"), [(_dead_fetcher_here, True), (_dead_fetcher_there, False)])
async def test_a_fetcher_that_died_is_replaced_when_its_lease_ends(
    autojump_clock: object, wait: Callable[[], Awaitable[float]], holds: bool
) -> None:
    assert (await wait() < 6.0) is holds


async def _paused_fetcher_here() -> bytes | None:
    """Return what stands there after a fetcher that was paused has written."""
    paused, upstream = SlowUpstream(20.0), SlowUpstream()
    paused.shielded = True
    async with house(paused, instances=1) as first, house(upstream, store=first.store) as second:
        session = first.log_in("ann")
        paused.answers, upstream.answers = [b"old"], [b"new"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.warmer.get, session, 1, 1)
            await trio.sleep(10.6)
            assert await second.warmer.get(session, 1, 1) == Warm(b"new")
        await trio.sleep(10)
        assert first.warmer.fetches.counts.overtaken == 1
        return first.value("ann", 1)


async def _paused_fetcher_there() -> bytes | None:
    store, slow, quick = SeedStore(), SlowUpstream(20.0), SlowUpstream()
    slow.shielded, slow.answers, quick.answers = True, [b"old"], [b"new"]
    async with seed(store, slow, kinds(), 4) as first, seed(store, quick, kinds(), 4) as second:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.get, "ann", 1)
            await trio.sleep(10.6)
            store.updating.clear()  # by hand, as there is no deadline
            assert await second.get("ann", 1) == b"new"
        return store.values["ann", 1, 1]


@pytest.mark.parametrize(("write", "holds"), [(_paused_fetcher_here, True), (_paused_fetcher_there, False)])
async def test_a_fetcher_that_was_paused_does_not_overwrite_newer_data(
    autojump_clock: object, write: Callable[[], Awaitable[bytes | None]], holds: bool
) -> None:
    assert (await write() == b"new") is holds


async def test_who_waited_for_a_paused_fetcher_gets_what_the_next_one_brought(autojump_clock: object) -> None:
    paused, upstream = SlowUpstream(10.2), SlowUpstream(0.05)
    paused.shielded = True
    paused.answers, upstream.answers = [b"old"], [b"new"]
    async with house(paused, types=kinds(lifetime_s=10.0)) as first, house(upstream, store=first.store) as second:
        session = first.log_in("ann")
        answers: list[object] = []

        async def late() -> None:
            answers.append(await first.warmer.get(session, 1, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.warmer.get, session, 1, 1)
            await trio.sleep(9.9)
            # The lease is taken from it, as when the process stood still while it ended.
            held = first.store.lease(trio.current_time(), ("ann", 1, 1), "test", 1.0)
            assert isinstance(held, Held)
            del first.store._leases._held["ann", 1, 1]
            nursery.start_soon(late)
            nursery.start_soon(second.warmer.get, session, 1, 1)
        assert answers == [Warm(b"new")]
        assert first.warmer.fetches.counts.overtaken == 1


async def test_a_late_fetcher_does_not_end_the_lease_of_the_next_one(autojump_clock: object) -> None:
    paused, slow = SlowUpstream(12.0), SlowUpstream(5.0)
    paused.shielded = True
    async with house(paused) as first, house(slow, store=first.store) as second:
        session = first.log_in("ann")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.warmer.get, session, 1, 1)
            await trio.sleep(10.6)
            nursery.start_soon(second.warmer.get, session, 1, 1)
            await trio.sleep(1.9)  # the first is over
            assert first.warmer.fetches.counts.overtaken == 1
            assert isinstance(first.store.lease(trio.current_time(), ("ann", 1, 1), "a third", 1.0), Held)
        assert second.warmer.fetches.counts.published == 1


async def _next_owner_here() -> bool:
    """Return whether the next owner of a phone got the data of the one before, without a login of hers."""
    async with house() as made:
        made.log_in("ann", "phone")
        made.warmer.app_start("phone", 1)
        await trio.sleep(1)
        ben = made.log_in("ben", "phone")
        answers = [
            await made.warmer.get(ben, 1, 1, client="ann"),
            await made.warmer.get("", 1, 1, client="ann"),
            await made.warmer.get("ann", 1, 1),
            await made.warmer.get(ben, 1, 1),
        ]
        assert [answer.why for answer in answers if isinstance(answer, NotServed)] == [
            Why.NOT_YOURS,
            Why.SESSION_GONE,
            Why.SESSION_GONE,
        ]
        return any(isinstance(answer, Warm) and b"ann" in answer.value for answer in answers)


async def _next_owner_there() -> bool:
    store = SeedStore()
    store.clients["phone"] = ["ann"]
    async with seed(store, SlowUpstream(), kinds(), 4) as service:
        service.app_start("phone")
        await trio.sleep(1)
        return b"ann" in (await service.get("ann", 1) or b"")


@pytest.mark.parametrize(("reads", "holds"), [(_next_owner_here, True), (_next_owner_there, False)])
async def test_data_are_read_only_in_a_session_of_their_client(
    autojump_clock: object, reads: Callable[[], Awaitable[bool]], holds: bool
) -> None:
    assert (not await reads()) is holds


async def test_data_that_nobody_reads_do_not_stay(autojump_clock: object) -> None:
    async with house(types=kinds(stale_s=30.0)) as made:
        made.log_in("ann", "phone")
        made.warmer.app_start("phone", 1)
        await trio.sleep(1)
        assert made.store.counts(Table.WARM).rows == 5
        await trio.sleep(91)
        made.store.sweep(trio.current_time(), 1000)
        assert made.store.counts(Table.WARM).rows == 0


POLICY = WarmPolicy(fetches_per_s=10.0, fetches_burst=50, network_per_s=5.0, network_burst=20)
STORM_S = 20.0


async def _storm_here() -> tuple[int, float]:
    """Return the calls of the upstream in a storm of AppStarts, and how long somebody waited who had logged in."""
    async with house(policy=POLICY, workers=10) as made:
        for number in range(1000):
            made.log_in(f"client {number}", f"phone {number}")
        session = made.log_in("ann")
        with trio.move_on_after(STORM_S):
            for turn in range(10_000):
                made.warmer.app_start(f"phone {turn % 1000}", 1, NETWORK)
                await trio.sleep(0.01)
        began, calls = trio.current_time(), made.upstream.total
        await made.warmer.get(session, 1, 1)
        return calls, trio.current_time() - began


async def _storm_there() -> tuple[int, float]:
    upstream, store = SlowUpstream(), SeedStore()
    store.clients = {f"phone {number}": [f"client {number}"] for number in range(1000)}
    async with seed(store, upstream, kinds(), 10) as service:
        with trio.move_on_after(STORM_S):
            for turn in range(10_000):
                service.app_start(f"phone {turn % 1000}")
                await trio.sleep(0.01)
        began, calls = trio.current_time(), upstream.total
        await service.get("ann", 1)
        return calls, trio.current_time() - began


@pytest.mark.parametrize(("storm", "holds"), [(_storm_here, True), (_storm_there, False)])
async def test_app_starts_of_a_stranger_cost_little_and_hold_up_nobody(
    autojump_clock: object, storm: Callable[[], Awaitable[tuple[int, float]]], holds: bool
) -> None:
    calls, took = await storm()
    most = POLICY.fetches_burst + POLICY.fetches_per_s * STORM_S
    assert (calls <= most and took < 0.5) is holds


@pytest.mark.parametrize(
    ("devices", "clients", "most"),
    [
        (1, 1, 5 * 3),  # a device in 30 s, 70 s long
        (20, 1, 5 * 3),  # a client in 30 s, whatever devices he has
        (1, 20, 5 * 4 * 3),  # of a device four clients at most
    ],
)
async def test_app_starts_are_bounded_by_device_and_by_client(
    autojump_clock: object, devices: int, clients: int, most: int
) -> None:
    async with house(types=kinds(ttl_s=0.1, refresh_s=0.0)) as made:
        for device in range(devices):
            for client in range(clients):
                made.log_in(f"client {client}", f"phone {device}")
        for turn in range(700):
            made.warmer.app_start(f"phone {turn % devices}", 1, bytes([turn % 256, turn // 256, 0, 0]))
            await trio.sleep(0.1)
        assert most / 2 < made.upstream.total <= most


async def _answers_here() -> list[object]:
    async with house(types=kinds(lifetime_s=1.0)) as made:
        session, heard = made.log_in("ann"), []
        made.upstream.delay_s, made.upstream.shielded = 2.0, True
        made.warmer.ask(session, 1, 1, heard.append)
        await trio.sleep(5)
        return heard


async def _answers_there() -> list[object]:
    """The broker there answers what has expired, and hands on what a worker answers: it remembers neither."""
    heard: list[object] = []
    async with seed(SeedStore(), SlowUpstream(2.0), kinds(), 1) as service, trio.open_nursery() as nursery:

        async def answer() -> None:
            heard.append(await service.get("ann", 1))

        nursery.start_soon(answer)
        await trio.sleep(1.0)
        heard.append("expired")
    return heard


@pytest.mark.parametrize(("answers", "holds"), [(_answers_here, True), (_answers_there, False)])
async def test_nobody_is_answered_twice(
    autojump_clock: object, answers: Callable[[], Awaitable[list[object]]], holds: bool
) -> None:
    assert (len(await answers()) == 1) is holds
