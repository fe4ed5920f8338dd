"""What a monitor is told while it works: maintenance, other settings, the end. In virtual time."""

from __future__ import annotations

import attrs
import pytest
import trio

from lambdamu.datapack import DEFAULT_LIMITS
from master.config import Mode
from master.core.admin import READY, Admin, Wish
from master.core.pool import State
from master.probe import Questions
from master.probing import Probing
from tests.master.test_monitor import BOTH, Watched, autojump_clock, watched

__all__ = ["autojump_clock"]


def want(scene: Watched, admin: Admin) -> None:
    scene.pool.set_admin(trio.current_time(), "a", admin)
    scene.monitor.heed_operator(trio.current_time())


def adopt(scene: Watched, mail: str = "master@localhost", **policy: float) -> None:
    probing = Probing(
        policy=attrs.evolve(scene.policy, **policy),
        questions=Questions.of("lambdamu-master", mail),
        limits=DEFAULT_LIMITS,
        pool=scene.pool,
        poller=scene.poller,
        rng=scene.rng,
        observer=scene.seen,
    )
    scene.monitor.adopt(trio.current_time(), probing)


@BOTH
async def test_in_maintenance_nothing_is_asked_and_no_connection_is_there(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode) as scene:
        await trio.sleep(5.0)
        want(scene, Admin(Wish.MAINT))
        await trio.sleep(0.1)
        assert scene.backend.open == 0
        asked, connected = len(scene.backend.asked_at), len(scene.backend.connected_at)
        await scene.backend.close_all()
        await trio.sleep(100.0)
        assert (len(scene.backend.asked_at), len(scene.backend.connected_at)) == (asked, connected)
        assert scene.seen.failures == []
        want(scene, READY)
        assert await scene.until(scene.named) < 1.1
        assert [good for _, good, _ in scene.seen.changes] == [True, True]


async def test_a_probe_that_is_under_way_when_maintenance_begins_is_no_failure(autojump_clock: object) -> None:
    async with watched() as scene:
        scene.backend.silent = True
        await trio.sleep(0.7)
        want(scene, Admin(Wish.MAINT))
        await trio.sleep(10.0)
        assert scene.seen.failures == []


async def test_maintenance_that_ends_by_itself_is_followed_by_a_probe(autojump_clock: object) -> None:
    async with watched() as scene:
        await trio.sleep(5.0)
        want(scene, Admin(Wish.MAINT, until=trio.current_time() + 10.0))
        await trio.sleep(9.9)
        assert scene.backend.open == 0
        await trio.sleep(1.3)
        assert scene.named()


async def test_maintenance_that_nobody_told_the_monitor_of_holds_from_the_next_tick_on(autojump_clock: object) -> None:
    async with watched() as scene:
        scene.pool.set_admin(trio.current_time(), "a", Admin(Wish.MAINT))
        await trio.sleep(10.0)
        assert scene.backend.asked_at == []


async def test_a_drained_one_is_probed_as_ever_and_its_death_and_return_are_told(autojump_clock: object) -> None:
    async with watched() as scene:
        await trio.sleep(1.0)
        want(scene, Admin(Wish.DRAIN))
        await trio.sleep(10.0)
        assert len(scene.backend.asked_at) >= 10
        scene.backend.alive = False
        await scene.backend.close_all()
        await trio.sleep(5.0)
        scene.backend.alive = True
        await trio.sleep(2.0)
        assert [good for _, good, _ in scene.seen.changes] == [True, False, False, True]
        assert scene.pool["a"].state(trio.current_time()) is State.DRAIN
        assert not scene.named()


@pytest.mark.parametrize("interval_s", [0.5, 4.0])
async def test_another_interval_holds_at_once(interval_s: float, autojump_clock: object) -> None:
    async with watched(stale_after_s=60.0) as scene:
        await trio.sleep(5.0)
        before = len(scene.backend.asked_at)
        adopt(scene, interval_s=interval_s)
        await trio.sleep(20.0)
        gaps = [
            b - a for a, b in zip(scene.backend.asked_at[before:], scene.backend.asked_at[before + 1 :], strict=False)
        ]
        assert gaps
        assert all(0.9 * interval_s < gap < 1.001 * interval_s for gap in gaps)
        assert scene.backend.open == 1


async def test_an_interval_that_changes_while_a_probe_is_under_way_makes_no_second_one(autojump_clock: object) -> None:
    async with watched(stale_after_s=60.0) as scene:
        scene.backend.delay_s = 0.4
        await trio.sleep(0.6)
        adopt(scene, interval_s=0.5)
        await trio.sleep(10.0)
        assert scene.seen.failures == []
        assert scene.backend.most_open == 1


async def test_other_credentials_are_used_from_the_next_tick_on_over_a_new_connection(autojump_clock: object) -> None:
    async with watched() as scene:
        await trio.sleep(5.0)
        adopt(scene, mail="other@localhost")
        await trio.sleep(1.1)
        assert (scene.backend.auths, len(scene.backend.connected_at), scene.backend.open) == (2, 2, 1)
        await trio.sleep(10.0)
        assert scene.backend.auths == 2
        assert scene.seen.failures == []


async def test_the_same_settings_again_change_nothing(autojump_clock: object) -> None:
    async with watched() as scene:
        await trio.sleep(5.0)
        for _ in range(50):
            adopt(scene)
            await trio.sleep(0.2)
        assert len(scene.backend.connected_at) == 1
        assert 14 <= len(scene.backend.asked_at) <= 16


async def test_one_that_is_closed_does_nothing_more_from_that_moment_on(autojump_clock: object) -> None:
    async with watched() as scene:
        scene.backend.delay_s = 0.2
        await trio.sleep(0.6)
        scene.monitor.close()
        scene.monitor.close()
        await trio.sleep(10.0)
        assert len(scene.backend.connected_at) == 1
        assert (scene.seen.good, scene.seen.failures, scene.backend.open) == (0, [], 0)


@BOTH
async def test_who_is_trusted_anew_is_connected_to_anew_at_once_or_by_the_tick(
    mode: Mode, autojump_clock: object
) -> None:
    async with watched(mode=mode) as scene:
        await trio.sleep(5.0)
        connected = len(scene.backend.connected_at)
        scene.monitor.adopt_tls(trio.current_time(), None)
        await trio.sleep(1.1)
        assert len(scene.backend.connected_at) > connected
        assert scene.seen.failures == []
        begun = len(scene.backend.connected_at) + 1
        scene.backend.connect_hangs = True
        await scene.backend.close_all()
        await scene.until(lambda: len(scene.backend.connected_at) == begun)
        scene.backend.connect_hangs = False
        scene.monitor.adopt_tls(trio.current_time(), None)
        await trio.sleep(0.01)
        assert len(scene.backend.connected_at) == begun + 1
        assert scene.backend.open <= 1
