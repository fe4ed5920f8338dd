"""Warm data: one fetch for all, how long it is good, what a failure costs, and what comes before a login.

The file is long because each rule of warm data has its test here, over one kind of upstream.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
import trio
import trio.testing

from master.cache.rows import Row, Table
from master.cache.store import CacheStore, StorePolicy
from master.cache.warm_types import Age, Answer, NotServed, Warm, WarmPolicy, WarmType, Why
from tests.master.cache.house import NETWORK, House, SlowUpstream, house, kinds

DEVICE = "phone"


async def ask(made: House, session: str, number: int, instance: int = 0) -> tuple[Answer, float]:
    began = trio.current_time()
    return await made.warmers[instance].get(session, number, 1), trio.current_time() - began


async def test_three_hundred_who_ask_two_instances_at_once_make_one_call(autojump_clock: object) -> None:
    async with house(instances=2) as made:
        session, answers = made.log_in("ann"), []

        async def one(instance: int) -> None:
            answers.append((await ask(made, session, 1, instance))[0])

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(one, number % 2)
        assert made.upstream.total == 1
        assert answers == [Warm(b"ann Accounts 1")] * 300
        assert sum(warmer.fetches.counts.waited for warmer in made.warmers) == 300
        assert [len(warmer.fetches.flights) for warmer in made.warmers] == [0, 0]


async def test_what_was_warmed_before_the_login_is_there_at_once(autojump_clock: object) -> None:
    async with house() as made:
        made.log_in("ann", DEVICE)
        cold = [(await ask(made, made.log_in("ben"), number))[1] for number in range(1, 6)]
        assert made.warmer.app_start(DEVICE, 1) == 5
        await trio.sleep(1)
        warm = [(await ask(made, made.log_in("ann"), number))[1] for number in range(1, 6)]
        assert cold == pytest.approx([0.2] * 5)
        assert warm == [0.0] * 5
        assert made.upstream.total == 10


async def test_data_are_old_then_renewed_beside_then_waited_for(autojump_clock: object) -> None:
    async with house(types=kinds(stale_s=100.0)) as made:
        session = made.log_in("ann")
        await ask(made, session, 1)
        ends = made.store.get(trio.current_time(), Table.WARM, ("ann", 1, 1)).until - 100.0  # type: ignore[union-attr]
        await trio.sleep_until(ends - 10.1)
        assert await ask(made, session, 1) == (Warm(b"ann Accounts 1"), 0.0)
        assert made.upstream.total == 1
        await trio.sleep_until(ends - 9.0)
        for _ in range(5):  # one call, however many see that it is time
            assert await ask(made, session, 1) == (Warm(b"ann Accounts 1"), 0.0)
        await trio.sleep(0.3)
        assert await ask(made, session, 1) == (Warm(b"ann Accounts 2"), 0.0)
        assert made.upstream.total == 2
        await trio.sleep(70)
        answer, took = await ask(made, session, 1)
        assert (answer, took) == (Warm(b"ann Accounts 3"), pytest.approx(0.2))


async def test_old_data_stand_in_for_a_failure_up_to_their_limit(autojump_clock: object) -> None:
    async with house(types=kinds(stale_s=100.0)) as made:
        session = made.log_in("ann")
        await ask(made, session, 1)
        await trio.sleep(61)
        made.upstream.answers = ["it is down"] * 1000
        assert (await ask(made, session, 1))[0] == Warm(b"ann Accounts 1", stale=True)
        assert await ask(made, session, 1) == (Warm(b"ann Accounts 1", stale=True), 0.0)  # it rests
        await trio.sleep(100)
        answer, _ = await ask(made, session, 1)
        assert isinstance(answer, NotServed)
        assert (answer.why, answer.text) == (Why.UPSTREAM, "it is down")
        made.upstream.answers.clear()
        await trio.sleep(answer.retry_after_s or 0)
        assert isinstance((await ask(made, session, 1))[0], Warm)


async def test_old_data_stand_in_for_a_silent_upstream(autojump_clock: object) -> None:
    async with house(SlowUpstream(), types=kinds(stale_s=100.0)) as made:
        session = made.log_in("ann")
        await ask(made, session, 1)
        await trio.sleep(61)
        made.upstream.delay_s = 1000.0
        assert await ask(made, session, 1) == (Warm(b"ann Accounts 1", stale=True), 10.0)


@pytest.mark.parametrize("failure", ["it is down", b""])
async def test_a_failure_is_kept_for_a_moment_only(autojump_clock: object, failure: str | bytes) -> None:
    async with house() as made:
        session = made.log_in("ann")
        made.upstream.answers = [failure]
        answer, _ = await ask(made, session, 1)
        assert isinstance(answer, NotServed)
        assert made.value("ann", 1) is None
        assert 0.0 < (answer.retry_after_s or 0) <= 0.5
        again, took = await ask(made, session, 1)
        assert (isinstance(again, NotServed), took, made.upstream.total) == (True, 0.0, 1)
        await trio.sleep(answer.retry_after_s or 0)
        assert (await ask(made, session, 1))[0] == Warm(b"ann Accounts 2")
        assert made.value("ann", 1) == b"ann Accounts 2"


async def test_who_fails_again_and_again_rests_longer_each_time_up_to_a_bound(autojump_clock: object) -> None:
    async with house() as made:
        session = made.log_in("ann")
        made.upstream.answers = ["it is down"] * 1000
        with trio.move_on_after(300):
            while True:
                await ask(made, session, 1)
                await trio.sleep(0.1)
        gaps = [later - sooner for sooner, later in pairwise(made.upstream.at)]
        assert gaps[0] < 1.0
        assert 5.0 < gaps[-1] < 10.5
        assert len(made.upstream.at) < 60


async def test_one_who_goes_takes_nobody_with_him(autojump_clock: object) -> None:
    async with house() as made:
        session, answers = made.log_in("ann"), []

        async def one(scope: trio.CancelScope) -> None:
            with scope:
                answers.append((await ask(made, session, 1))[0])

        scopes = [trio.CancelScope() for _ in range(10)]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(one, scope)
            await trio.sleep(0.1)
            for scope in scopes[:9]:  # the one who began is the first to go
                scope.cancel()
        assert answers == [Warm(b"ann Accounts 1")]
        assert made.upstream.total == 1
        assert made.brokers[0].core.parked == 0


async def test_a_fetch_goes_on_when_nobody_waits_for_it_any_more(autojump_clock: object) -> None:
    async with house() as made:
        session = made.log_in("ann")
        with trio.move_on_after(0.1):
            await ask(made, session, 1)
        assert made.brokers[0].core.parked == 0
        await trio.sleep(0.15)
        assert await ask(made, session, 1) == (Warm(b"ann Accounts 1"), 0.0)
        assert made.upstream.total == 1


async def test_what_was_warmed_in_one_moment_is_renewed_over_ten_seconds_and_more(autojump_clock: object) -> None:
    async with house(types=kinds(refresh_s=0.0)[:1], policy=WarmPolicy(fetches_burst=1000)) as made:
        sessions = [made.log_in(f"client {number}") for number in range(1000)]

        async def keep_asking(session: str) -> None:
            await ask(made, session, 1)
            await trio.sleep(28)  # all are fresh for so long
            while True:
                await ask(made, session, 1)
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(keep_asking, session)
            await trio.sleep(65)
            nursery.cancel_scope.cancel()
        seconds = Counter(int(at) for at in made.upstream.at if at > 30)
        assert sum(seconds.values()) == 1000
        assert max(seconds) - min(seconds) >= 10
        assert max(seconds.values()) < 200


@pytest.mark.parametrize(("ttl_s", "least_s"), [(2.0, 0.9), (30.0, 10.0), (60.0, 10.0), (600.0, 100.0)])
def test_ends_are_spread_and_no_value_lives_less_than_half_its_time(ttl_s: float, least_s: float) -> None:
    kind = WarmType(1, "Accounts", "Products", ttl_s, stale_s=7.0)
    rng = random.Random(1)
    kept = [kind.kept_s(rng) - 7.0 for _ in range(1000)]
    assert max(kept) <= ttl_s
    assert min(kept) >= ttl_s / 2
    assert max(kept) - min(kept) >= least_s


def test_the_ages_of_a_value() -> None:
    kind = WarmType(1, "Accounts", "Products", 60.0, refresh_s=10.0, stale_s=100.0)
    ages = [kind.age(now, 1000.0, 160.0) for now in (1000.0, 1049.9, 1050.0, 1059.9, 1060.0, 1100.0)]
    assert ages == [Age.FRESH, Age.FRESH, Age.AGING, Age.AGING, Age.STALE, Age.STALE]


async def test_somebody_who_waits_brings_forward_what_was_begun_for_nobody(autojump_clock: object) -> None:
    async with house(workers=1, types=kinds(lifetime_s=20.0)) as made:
        made.log_in("ann", DEVICE)
        for number in range(10):
            made.log_in(f"client {number}", f"phone {number}")
            made.warmer.app_start(f"phone {number}", 1)
        assert made.warmer.app_start(DEVICE, 1) == 5
        # One fetch is under way, and 54 stand in the queue.
        answer, took = await ask(made, made.log_in("ann"), 5)
        assert isinstance(answer, Warm)
        assert took == pytest.approx(0.4)
        await trio.sleep(60)
        assert made.upstream.total == 55
        assert set(made.upstream.calls.values()) == {1}


async def test_a_full_queue_is_told_at_once_and_so_is_one_that_took_too_long(autojump_clock: object) -> None:
    async with house(workers=1, length=1, types=kinds(lifetime_s=0.3)) as made:
        session, answers = made.log_in("ann"), {}

        async def one(number: int) -> None:
            answers[number] = await ask(made, session, number)

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(one, number)
                await trio.testing.wait_all_tasks_blocked()
            made.upstream.delay_s = 1.0
        assert answers[1] == (Warm(b"ann Accounts 1"), pytest.approx(0.2))
        # Its own time, and that of the call which began so late, are over in one moment.
        assert answers[2][0].why in (Why.EXPIRED, Why.UPSTREAM)
        assert answers[2][1] == pytest.approx(0.3)
        assert (answers[3][0].why, answers[3][1]) == (Why.FULL, 0.0)


async def test_no_call_is_begun_that_has_hardly_any_time_left(autojump_clock: object) -> None:
    async with house(workers=1, types=kinds(lifetime_s=10.0)) as made:
        made.upstream.delay_s = 9.8
        session, answers = made.log_in("ann"), {}

        async def one(number: int) -> None:
            answers[number] = await ask(made, session, number)

        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(one, number)
                await trio.testing.wait_all_tasks_blocked()
        assert isinstance(answers[1][0], Warm)
        assert (answers[2][0].why, answers[2][1]) == (Why.EXPIRED, pytest.approx(9.5))
        assert made.upstream.total == 1


async def test_at_most_so_many_data_are_awaited_at_once(autojump_clock: object) -> None:
    async with house(policy=WarmPolicy(flights=2)) as made:
        session, answers = made.log_in("ann"), []

        async def one(number: int) -> None:
            answers.append((await ask(made, session, number))[0])

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(one, number)
        assert [answer.why for answer in answers if isinstance(answer, NotServed)] == [Why.FULL]
        assert made.upstream.total == 2


async def test_who_asks_keeps_his_session_alive_and_who_has_none_is_told_so(autojump_clock: object) -> None:
    async with house() as made:
        session = made.log_in("ann", ttl_s=100.0)
        for _ in range(5):
            await trio.sleep(60)
            assert isinstance((await ask(made, session, 1))[0], Warm)
        await trio.sleep(101)
        answer, _ = await ask(made, session, 1)
        assert isinstance(answer, NotServed)
        assert answer.why is Why.SESSION_GONE
        assert made.store.get(trio.current_time(), Table.SESSION, (session,)) is None


async def test_a_type_that_there_is_not_is_told(autojump_clock: object) -> None:
    async with house() as made:
        answer, _ = await ask(made, made.log_in("ann"), 77)
        assert isinstance(answer, NotServed)
        assert answer.why is Why.NOT_FOUND


async def test_versions_of_front_servers_have_their_own_data(autojump_clock: object) -> None:
    async with house() as made:
        session = made.log_in("ann")
        first = await made.warmer.get(session, 1, 1)
        second = await made.warmer.get(session, 1, 2)
        assert first != second
        assert await made.warmer.get(session, 1, 1) == first


async def test_who_waits_gets_what_the_store_has_no_room_for(autojump_clock: object) -> None:
    store = CacheStore(StorePolicy(max_value_bytes=10))
    async with house(store=store) as made:
        session = made.log_in("ann")
        assert (await ask(made, session, 1))[0] == Warm(b"ann Accounts 1")
        assert made.value("ann", 1) is None
        assert made.warmer.fetches.counts.unkept == 1
        assert store.leases == 0


async def test_an_unknown_device_makes_nothing_happen_and_a_known_one_what_is_missing(
    autojump_clock: object,
) -> None:
    async with house() as made:
        assert made.warmer.app_start("a stranger's", 1, NETWORK) == 0
        session = made.log_in("ann", DEVICE)
        await ask(made, session, 2)
        assert made.warmer.app_start(DEVICE, 1, NETWORK) == 4
        await trio.sleep(1)
        assert set(made.upstream.calls.values()) == {1}
        await trio.sleep(31)
        assert made.warmer.app_start(DEVICE, 1, NETWORK) == 0  # all is fresh
        assert made.warmer.counts.unknown_devices == 1


async def test_stopping_answers_all_who_wait(autojump_clock: object) -> None:
    async with house(workers=1, instances=1) as made:
        session, answers = made.log_in("ann"), []

        async def one(number: int) -> None:
            answers.append((number, (await ask(made, session, number))[0]))

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(one, number)
                await trio.testing.wait_all_tasks_blocked()
            made.brokers[0].stop()
        assert dict(answers)[1] == Warm(b"ann Accounts 1")
        assert [dict(answers)[number].why for number in (2, 3)] == [Why.STOPPING] * 2  # type: ignore[union-attr]


async def test_rows_of_others_in_the_store_are_left_alone(autojump_clock: object) -> None:
    async with house() as made:
        session, now = made.log_in("ann"), trio.current_time()
        made.store.put(now, Row(Table.CACHE, (session, "cart"), b"3 pears", "ann", session, 1, 0, now, 100.0))
        await ask(made, session, 1)
        kept = made.store.get(trio.current_time(), Table.CACHE, (session, "cart"))
        assert kept is not None
        assert kept.value == b"3 pears"
