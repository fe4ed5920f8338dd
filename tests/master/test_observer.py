"""What operators are told of each backend: an event for each change of state, and no flood. In virtual time."""

from __future__ import annotations

import random
from typing import Any

import structlog
import trio

from lambdamu.address import Address
from lambdamu.errors import LinkError
from lambdamu.messages import LinkFault
from master.config import BackendConfig, ChoiceConfig, Config, MasterPolicy, ProbePolicy
from master.core.admin import Admin, Wish
from master.core.ejection import Verdict
from master.core.health import Said
from master.core.pool import Ask, Assignment, State
from master.node import Node

LATE = LinkError(LinkFault.TIMEOUT, "no answer within 1 s")
REFUSED = LinkError(LinkFault.REFUSED, "it refused")
NAMES = ("b0", "b1", "b2", "b3")


class Stage:
    """A master that nobody asks and that probes nobody; what it would find is told to its pool and its observer."""

    def __init__(self) -> None:
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        backends = tuple(BackendConfig(name, "h", i + 1) for i, name in enumerate(NAMES))
        config = Config(
            MasterPolicy(listen=Address("127.0.0.1", 0)),
            probe=ProbePolicy(fall=9, stale_after_s=5.0),
            choice=ChoiceConfig(first_round_s=0.0, slow_start_s=0.0),
            backends=backends,
        )
        self.node = Node(config, rng=random.Random(1), log=log)
        self.rng = random.Random(1)
        for name in NAMES:
            self.report(name)

    def report(self, name: str) -> State:
        now = trio.current_time()
        return self.node.pool.record_report(now, self.rng, name, 1, now, (f"10.0.0.{name[1:]}", 9001))

    async def pass_time(self, seconds: float, *but: str) -> None:
        """Have good probes come in meanwhile, but of some."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            for name in NAMES:
                if name not in but:
                    self.report(name)
            await trio.sleep(1.0)

    def told(self, name: str) -> list[str]:
        """Return the kinds of the events of a backend; the log has the same, but for what operators and clients do."""
        kinds = [event.kind for event in self.node.events.last(999) if event.backend == name]
        logged = [entry["event"] for entry in self.capture.entries if entry.get("backend") == name]
        assert kinds == logged
        return kinds

    def have_ejected(self, name: str) -> None:
        """Have clients of enough networks complain."""
        now, pool = trio.current_time(), self.node.pool
        for network in range(3):
            for _ in range(1000):
                client = f"{self.rng.getrandbits(64):x}"
                answer = pool.assign(now, self.rng, Ask(client=client))
                if isinstance(answer, Assignment) and answer.place.name == name:
                    break
            failed = [(f"10.0.0.{name[1:]}", 9001)]
            for accused, verdict in pool.hear(now, self.rng, client, f"192.0.{network}.7", failed):
                self.node.observer.accused(accused, verdict)


async def running(nursery: trio.Nursery) -> Stage:
    stage = Stage()
    nursery.start_soon(stage.node.watch._tell_news)
    await stage.pass_time(2.0)
    return stage


async def test_a_report_that_grows_old_and_a_fresh_one_are_an_event_each(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        await stage.pass_time(8.0, "b1")
        assert stage.told("b1") == ["backend_stale"]
        stage.report("b1")  # which its monitor does not tell of: it has never told that it did not work
        await stage.pass_time(3.0)
        assert stage.told("b1") == ["backend_stale", "backend_fresh"]
        assert stage.told("b0") == []
        nursery.cancel_scope.cancel()


async def test_the_same_fact_told_by_its_probes_is_no_second_event(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        observer = stage.node.observer
        await stage.pass_time(8.0, "b1")
        observer.became("b1", stage.node.pool.record_failure(trio.current_time(), "b1"), LATE)
        await stage.pass_time(3.0, "b1")
        assert stage.told("b1") == ["backend_stale"]
        assert observer.whys == {"b1": str(LATE)}
        observer.became("b1", stage.report("b1"), None)
        await stage.pass_time(3.0)
        assert stage.told("b1") == ["backend_stale", "backend_fresh"]
        assert observer.whys == {}
        nursery.cancel_scope.cancel()


async def test_a_failed_probe_may_be_the_first_to_find_it_stale(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = Stage()
        await stage.pass_time(8.0, "b1")
        stage.node.observer.became("b1", State.STALE, LATE)
        nursery.start_soon(stage.node.watch._tell_news)
        await stage.pass_time(3.0, "b1")
        assert stage.told("b1") == ["backend_stale"]
        nursery.cancel_scope.cancel()


async def test_what_is_down_after_it_was_stale_is_up_again_and_not_fresh(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        await stage.pass_time(8.0, "b1")
        for _ in range(9):
            stage.node.pool.record_failure(trio.current_time(), "b1")
        stage.node.observer.became("b1", State.DOWN, REFUSED)
        await stage.pass_time(8.0, "b1")
        stage.node.observer.became("b1", stage.report("b1"), None)
        await stage.pass_time(3.0)
        assert stage.told("b1") == ["backend_stale", "backend_down", "backend_up"]
        nursery.cancel_scope.cancel()


async def test_one_that_is_set_aside_while_it_is_stale_is_told_to_be_fresh_at_once(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        await stage.pass_time(8.0, "b1")
        stage.node.pool.set_admin(trio.current_time(), "b1", Admin(Wish.DRAIN, "ann", "a new disk"))
        await stage.pass_time(3.0)
        assert stage.told("b1") == ["backend_stale", "backend_fresh"]
        nursery.cancel_scope.cancel()


async def test_an_ejection_is_one_event_and_its_end_another(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        stage.have_ejected("b2")
        assert stage.told("b2") == ["backend_ejected"]
        await stage.pass_time(20.0)
        assert stage.told("b2") == ["backend_ejected"]
        await stage.pass_time(20.0)  # its time is over, and it waits for its trial
        while stage.node.pool.assign(trio.current_time(), stage.rng, Ask()).place.name != "b2":  # type: ignore[union-attr]
            pass
        await stage.pass_time(20.0)  # of which nobody complains
        assert stage.told("b2") == ["backend_ejected", "backend_back"]
        value = stage.node.metrics.registry.get_sample_value
        assert [value("lambdamu_backend_ejections_total", {"backend": name}) for name in ("b1", "b2")] == [0, 1]
        nursery.cancel_scope.cancel()


async def test_where_nobody_else_works_the_ejected_are_back(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        stage.have_ejected("b2")
        for name in ("b0", "b1", "b3"):
            stage.node.pool.record_lost(trio.current_time(), name)
        await trio.sleep(1.5)
        assert stage.told("b2") == ["backend_ejected", "backend_back"]
        nursery.cancel_scope.cancel()


async def test_an_accusation_that_comes_to_nothing_is_no_ejection(autojump_clock: object) -> None:
    stage = Stage()
    for verdict in (Verdict.NEEDED, Verdict.COUNTED, Verdict.TRIAL_FAILED):
        stage.node.observer.accused("b1", verdict)
    assert stage.told("b1") == ["backend_accused", "backend_accused"]


async def test_what_an_operator_wanted_ends_with_an_event_of_its_time(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        until = trio.current_time() + 10.5
        stage.node.pool.set_admin(trio.current_time(), "b1", Admin(Wish.DRAIN, "ann", "a new\ndisk", until))
        await stage.pass_time(9.0)
        assert stage.told("b1") == []
        await stage.pass_time(5.0)
        assert stage.told("b1") == ["admin_ended"]
        [event] = stage.node.events.last(1)
        assert event.at == until
        assert event.text == "drain by ann, its time is over: a new\ndisk"
        nursery.cancel_scope.cancel()


async def test_what_time_changes_is_told_while_nothing_else_happens(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        until = trio.current_time() + 3.0
        stage.node.pool.set_admin(trio.current_time(), "b1", Admin(Wish.DRAIN, "ann", "a new disk", until))
        await trio.sleep(4.5)
        assert stage.told("b1") == ["admin_ended"]
        await trio.sleep(2.5)
        assert {name: stage.told(name)[-1:] for name in NAMES} == {name: ["backend_stale"] for name in NAMES}
        nursery.cancel_scope.cancel()


async def test_a_backend_that_drains_by_its_own_word_is_an_event(autojump_clock: object) -> None:
    stage = Stage()
    for said in (Said(cpu=0.5), Said(drain=True), Said(drain=True, cpu=0.7), Said()):
        stage.node.observer.said("b1", said)
    assert stage.told("b1") == ["backend_drains", "backend_drains_no_more"]


async def test_restless_backends_leave_room_for_others_and_their_last_change_is_told(autojump_clock: object) -> None:
    stage = Stage()
    observer, events = stage.node.observer, stage.node.events
    observer.became("b0", State.DOWN, REFUSED)
    for i in range(1001):
        for name in ("b1", "b2"):
            observer.became(name, *((State.DOWN, REFUSED) if i % 2 == 0 else (State.READY, None)))
            observer.said(name, Said(drain=i % 2 == 0))
        await trio.sleep(0.1)
        observer.say_rest(trio.current_time())
    await trio.sleep(20.0)
    observer.say_rest(trio.current_time())
    assert stage.told("b0") == ["backend_down"]
    for name in ("b1", "b2"):
        kinds = stage.told(name)
        assert len(kinds) < 40
        assert {"backend_down", "backend_drains"} == {kinds[-1], kinds[-2]}
    left_out = [entry["left_out"] for entry in stage.capture.entries if entry["backend"] == "b1"]
    assert len(left_out) + sum(left_out) == 2002
    last = events.last(1)[0]
    assert "left out" in last.text


async def test_nothing_is_kept_or_told_of_a_backend_that_is_gone(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        stage = await running(nursery)
        stage.have_ejected("b2")
        await stage.pass_time(8.0, "b1")
        observer, node = stage.node.observer, stage.node
        observer.said("b1", Said(drain=True))
        kept = [each for each in NAMES if each not in ("b1", "b2")]
        before = {name: stage.told(name) for name in ("b1", "b2")}
        node.pool.change(trio.current_time(), [node.pool[name].backend for name in kept])
        observer.forget(("b1", "b2"))
        for _ in range(5):
            for name in kept:
                stage.report(name)
            await trio.sleep(1.0)
        assert {name: stage.told(name) for name in ("b1", "b2")} == before
        assert not observer.stale
        held = (observer._throttles, observer._unsaid, observer._out, observer._draining, observer.whys)
        assert not any("b1" in str(each) or "b2" in str(each) for each in held)
        nursery.cancel_scope.cancel()
