"""The monitor of one backend, in virtual time, against a backend at the other end of memory streams.

The file is long because the fake backend and each of its faults belong together.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.datapack import DEFAULT_LIMITS, Decoder, encode
from lambdamu.errors import LinkError
from lambdamu.link import LinkUser
from lambdamu.messages import LinkFault, Message
from lambdamu.poller import EpollPoller, Poller, TrioPoller
from master.config import Mode, ProbePolicy
from master.core.backend import Backend
from master.core.health import HealthPolicy, Said
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, State
from master.monitor import Monitor
from master.probe import Questions
from master.probing import ProbeObserver, Probing

TASK = Message("Auth", "Value", "TaskObject", "Task-1")
Stream = trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


class FakeBackend:
    """What the backend does next; the tests change it while it runs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.alive = True
        self.silent = False
        self.connect_hangs = False
        self.users: object = 5
        self.task: object = "Task-1"
        self.delay_s = 0.0
        self.double = False
        self.connections: list[Stream] = []
        self.open = 0
        self.most_open = 0
        self.connected_at: list[float] = []
        self.asked_at: list[float] = []
        self.auths = 0
        self.says: object = None
        """What answers Load: a message, "close", or nothing."""
        self.loads = 0

    async def connect(self) -> Stream:
        self.connected_at.append(trio.current_time())
        if self.connect_hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if not self.alive:
            raise LinkError(LinkFault.REFUSED, "refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self.connections.append(theirs)
        self.nursery.start_soon(self.serve, theirs)
        return ours

    async def serve(self, stream: Stream) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        decoder = Decoder()
        try:
            async for data in stream:
                for batch in decoder.feed(bytes(data)):
                    await self.answer(stream, batch)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.open -= 1

    async def answer(self, stream: Stream, batch: list[Message]) -> None:
        if batch[0].name == "Load":
            self.loads += 1
            if self.says == "close":
                await stream.aclose()
            elif isinstance(self.says, Message):
                await stream.send_all(encode([self.says]))
            return
        is_count = batch[0].object == "System"
        if is_count:
            self.asked_at.append(trio.current_time())
        else:
            self.auths += 1
        if self.silent:
            return
        await trio.sleep(self.delay_s)
        answer = Message("System", "Value", "UserCount", self.users) if is_count else None
        answer = answer or Message("Auth", "Value", "TaskObject", self.task)
        for _ in range(1 + self.double):
            await stream.send_all(encode([answer]))

    async def close_all(self) -> None:
        """Close every connection at once, as a process that ends does."""
        connections, self.connections = self.connections, []
        for stream in connections:
            await stream.aclose()


class MemoryLink:
    """A link to the fake backend, by a task for each connection."""

    user: LinkUser

    def __init__(self, nursery: trio.Nursery, backend: FakeBackend) -> None:
        self.address: Address | None = None
        self._nursery = nursery
        self._backend = backend
        self._stream: Stream | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        await trio.sleep_forever()

    def open(self, now: float, deadline: float) -> bool:
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._live, self._scope)
        return False

    def send(self, data: bytes) -> None:
        self._nursery.start_soon(self._send, self._stream, data)

    def close(self) -> None:
        self.address = None
        self._scope.cancel()

    def why_not_connected(self) -> LinkError:
        return LinkError(LinkFault.CONNECT_TIMEOUT, "not connected in time")

    async def _send(self, stream: Stream | None, data: bytes) -> None:
        assert stream is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # then the end is read, too
            await stream.send_all(data)

    async def _live(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                stream = self._stream = await self._backend.connect()
            except LinkError as exc:
                self.user.broken(trio.current_time(), exc)
                return
            try:
                self.address = Address("127.0.0.1", 9001)
                self.user.connected(trio.current_time())
                async for data in stream:
                    self.user.received(trio.current_time(), bytes(data))
                self.close()
                self.user.broken(trio.current_time(), LinkError(LinkFault.CLOSED, "closed"))
            finally:
                await trio.aclose_forcefully(stream)


class Seen(ProbeObserver):
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.good = 0
        self.changes: list[tuple[float, bool, str]] = []
        self.words: list[Said] = []

    def probed(self, name: str, failure: LinkError | None, took_s: float) -> None:
        if failure is None:
            self.good += 1
        else:
            self.failures.append(failure.why)

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        self.changes.append((round(trio.current_time() - START, 3), why is None, why.why if why else ""))

    def said(self, name: str, said: Said) -> None:
        self.words.append(said)


START = 0.0


class Watched:
    def __init__(
        self, nursery: trio.Nursery, policy: ProbePolicy, poller: Poller | None = None, load: bool = False
    ) -> None:
        global START  # noqa: PLW0603 - one test runs at a time, and its clock starts anywhere
        START = trio.current_time()
        self.policy = policy
        self.rng = random.Random(4)
        self.pool = Pool([Backend("a")], HealthPolicy(policy.rise, policy.fall, policy.stale_after_s), LoadPolicy())
        self.backend = FakeBackend(nursery)
        self.poller = poller or TrioPoller()
        self.seen = Seen()
        self.monitor = Monitor(
            "a",
            MemoryLink(nursery, self.backend),
            first_s=0.5,
            probing=Probing(
                policy=policy,
                questions=Questions.of("lambdamu-master", "master@localhost"),
                limits=DEFAULT_LIMITS,
                pool=self.pool,
                poller=self.poller,
                rng=self.rng,
                observer=self.seen,
            ),
            load=load,
        )

    @property
    def now(self) -> float:
        return trio.current_time() - START

    def named(self) -> bool:
        """Whether a client that asks now is sent there."""
        return isinstance(self.pool.assign(trio.current_time(), self.rng, Ask()), Assignment)

    async def until(self, condition: Callable[[], bool], most_s: float = 1000.0) -> float:
        """Return the seconds it takes until `condition` holds, looked at a thousand times a second."""
        began = trio.current_time()
        with trio.fail_after(most_s):
            while not condition():  # noqa: ASYNC110 - what is looked at has no event to wait for
                await trio.sleep(0.001)
        return trio.current_time() - began


@asynccontextmanager
async def watched(poller: Poller | None = None, *, load: bool = False, **policy: object) -> AsyncIterator[Watched]:
    async with trio.open_nursery() as nursery:
        scene = Watched(nursery, ProbePolicy(**policy), poller, load)  # type: ignore[arg-type]
        await nursery.start(scene.poller.run)
        nursery.start_soon(scene.monitor.run)
        yield scene
        nursery.cancel_scope.cancel()


BOTH = pytest.mark.parametrize("mode", list(Mode))


@BOTH
async def test_a_backend_that_answers_is_named_with_its_count(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode) as scene:
        assert not scene.named()
        await trio.sleep(0.6)
        assert scene.named()
        report = scene.pool["a"].report
        assert report is not None
        assert report.count == 5
        assert report.asked_at == scene.backend.asked_at[0]


@BOTH
async def test_the_count_is_asked_for_at_every_tick_and_never_twice_at_once(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode) as scene:
        await trio.sleep(30.0)
        gaps = [b - a for a, b in zip(scene.backend.asked_at, scene.backend.asked_at[1:], strict=False)]
        assert 29 <= len(gaps) <= 30
        assert all(0.95 < gap < 1.001 for gap in gaps)
        assert scene.backend.most_open == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only there moments lie on a grid")
@pytest.mark.parametrize("interval_s", [1.0, 1.01, 1.039])
async def test_on_a_grid_too_the_interval_is_the_longest_time_between_two_questions(
    interval_s: float, autojump_clock: object
) -> None:
    async with watched(EpollPoller(0.02), mode=Mode.HOLD, interval_s=interval_s) as scene:
        await trio.sleep(1000.0)
        gaps = [b - a for a, b in itertools.pairwise(scene.backend.asked_at)]
        assert len(gaps) > 900
        assert max(gaps) <= interval_s + 1e-6
        assert scene.seen.failures == []


async def test_reconnect_mode_connects_and_authenticates_each_time(autojump_clock: object) -> None:
    async with watched(mode=Mode.RECONNECT) as scene:
        await trio.sleep(10.2)
        assert len(scene.backend.connected_at) == scene.backend.auths == len(scene.backend.asked_at) == 10
        assert scene.backend.open == 0


async def test_hold_mode_authenticates_once_a_connection_and_renews_it(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD, renew_s=60.0) as scene:
        await trio.sleep(40.2)
        assert scene.backend.auths == 1
        await trio.sleep(80)
        assert scene.backend.auths == len(scene.backend.connected_at) >= 2
        assert scene.seen.failures == []
        assert scene.seen.changes == [(scene.seen.changes[0][0], True, "")]


async def test_renewing_checks_the_task_again(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD, renew_s=20.0, fall=1) as scene:
        await trio.sleep(1)
        scene.backend.task = ""
        assert await scene.until(lambda: not scene.named(), 25) > 5
        assert scene.seen.failures[0] == "bad_auth"


async def test_a_connection_that_breaks_takes_the_backend_out_at_once_and_one_answer_brings_it_back(
    autojump_clock: object,
) -> None:
    async with watched(mode=Mode.HOLD, fall=3, rise=3) as scene:
        await trio.sleep(3.1)
        assert scene.named()
        scene.backend.delay_s = 0.2
        await scene.backend.close_all()
        assert await scene.until(lambda: not scene.named()) < 0.01
        assert 0.4 <= await scene.until(scene.named) < 0.45  # two answers, each delayed
        assert scene.seen.failures == []


async def test_a_backend_that_died_is_probed_once_at_once_and_then_by_the_tick(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD, fall=2) as scene:
        await trio.sleep(2.0)
        scene.backend.alive = False
        connects = len(scene.backend.connected_at)
        await scene.backend.close_all()
        assert await scene.until(lambda: not scene.named()) < 0.01
        await trio.sleep(0.01)
        assert len(scene.backend.connected_at) == connects + 1
        await trio.sleep(10)
        assert 9 <= len(scene.backend.connected_at) - connects - 1 <= 11
        assert set(scene.seen.failures) == {"refused"}
        scene.backend.alive = True
        assert await scene.until(scene.named) < 1.2


async def test_a_backend_that_comes_and_goes_is_not_asked_more_often_than_twice_an_interval(
    autojump_clock: object,
) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        await trio.sleep(1.0)
        for _ in range(200):
            await scene.backend.close_all()
            await trio.sleep(0.1)
        assert len(scene.backend.asked_at) <= 2 * 21 + 1


@pytest.mark.parametrize(
    ("mode", "silence"), [(Mode.HOLD, "silent"), (Mode.RECONNECT, "silent"), (Mode.RECONNECT, "connect_hangs")]
)
async def test_silence_is_noticed_by_the_age_of_the_report_or_sooner(
    mode: Mode, silence: str, autojump_clock: object
) -> None:
    async with watched(mode=mode, fall=10, stale_after_s=3.0) as scene:
        await trio.sleep(2.0)
        last = scene.backend.asked_at[-1] - START
        setattr(scene.backend, silence, True)
        await scene.until(lambda: not scene.named())
        assert scene.now == pytest.approx(last + 3.0, abs=0.01)
        assert set(scene.seen.failures) == {"timeout" if silence == "silent" else "connect_timeout"}
        setattr(scene.backend, silence, False)
        assert await scene.until(scene.named) < 2.2


@BOTH
@pytest.mark.parametrize("users", [-1, float("nan"), "12", True, 3.5, None, 2**53])
async def test_a_wrong_count_renews_nothing(mode: Mode, users: object, autojump_clock: object) -> None:
    async with watched(mode=mode, fall=100) as scene:
        await trio.sleep(1.0)
        report = scene.pool["a"].report
        assert scene.named()
        scene.backend.users = users
        await trio.sleep(2.0)
        assert scene.pool["a"].report is report
        assert await scene.until(lambda: not scene.named()) < 2
        assert set(scene.seen.failures) == {"bad_count"}
        scene.backend.users = 7
        assert await scene.until(scene.named) < 1.2


@BOTH
@pytest.mark.parametrize("results", ["FFFSS", "FSS", "SS"])
async def test_rise_counts_the_same_in_every_mode(mode: Mode, results: str, autojump_clock: object) -> None:
    async with watched(mode=mode, rise=2) as scene:
        for result in results[:-1]:
            scene.backend.alive = result == "S"
            probes = len(scene.seen.failures) + scene.seen.good
            await scene.until(lambda probes=probes: len(scene.seen.failures) + scene.seen.good > probes)
            assert not scene.named()
        await scene.until(scene.named, 1.2)
        assert scene.seen.good == 2


@BOTH
async def test_a_backend_that_needs_longer_than_the_timeout_never_works(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode, timeout_s=0.5) as scene:
        scene.backend.delay_s = 0.55
        for _ in range(100):
            await trio.sleep(0.2)
            assert not scene.named()
        assert scene.backend.most_open == 1


@pytest.mark.parametrize(("timeout_s", "delay_s"), [(0.1, 0.098), (1.0, 0.98)])
async def test_a_backend_that_needs_nearly_the_timeout_works_all_the_time(
    timeout_s: float, delay_s: float, autojump_clock: object
) -> None:
    limits = {"interval_s": 1.0, "timeout_s": timeout_s, "stale_after_s": 1.0 + timeout_s}
    async with watched(mode=Mode.HOLD, renew_s=1e6, **limits) as scene:
        await trio.sleep(2)  # the first probe has two answers to wait for
        scene.backend.delay_s = delay_s
        await trio.sleep(2)
        for _ in range(3000):
            await trio.sleep(0.01)
            assert scene.named()


async def test_news_is_no_answer_and_the_connection_is_kept(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        await trio.sleep(1.0)
        for _ in range(10):
            await scene.backend.connections[-1].send_all(encode([Message("Chat", "Value", "News", "hello")]))
            await trio.sleep(0.3)
        assert len(scene.backend.connected_at) == 1
        assert scene.named()


async def test_a_backend_that_never_worked_is_told_of_once_with_the_reason(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD, rise=2) as scene:
        scene.backend.alive = False
        await trio.sleep(100)
        assert [(up, why) for _, up, why in scene.seen.changes] == [(False, "refused")]
        scene.backend.alive = True
        await trio.sleep(10)
        assert [(up, why) for _, up, why in scene.seen.changes] == [(False, "refused"), (True, "")]


async def test_an_answer_nobody_asked_for_is_no_report_and_has_the_connection_renewed(
    autojump_clock: object,
) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        await trio.sleep(1.0)
        await scene.backend.connections[-1].send_all(encode([Message("System", "Value", "UserCount", 77)]))
        await scene.backend.connections[-1].send_all(encode([Message("Chat", "Value", "News", "hello")]))
        await trio.sleep(0.1)
        assert scene.pool["a"].users(trio.current_time()) == 5
        await trio.sleep(1.0)
        assert len(scene.backend.connected_at) == 2
        assert scene.seen.failures == []


async def test_answers_given_twice_never_answer_the_next_question(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        scene.backend.double = True
        await trio.sleep(1.0)
        for users in range(10, 20):
            scene.backend.users = users
            asked = len(scene.backend.asked_at)
            await scene.until(lambda asked=asked: len(scene.backend.asked_at) > asked)
            await trio.sleep(0.01)
            report = scene.pool["a"].report
            assert report is not None
            assert report.count == users


@BOTH
async def test_garbage_is_a_failed_probe(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode) as scene:
        await trio.sleep(1.0)

        async def answer(stream: Stream, batch: list[Message]) -> None:
            await stream.send_all(b"\xc1")

        scene.backend.answer = answer  # type: ignore[method-assign]
        await scene.until(lambda: not scene.named(), 3)
        assert set(scene.seen.failures) == {"not_the_protocol"}


async def test_a_close_in_the_middle_of_a_probe_is_one_failure_at_most(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD, fall=2) as scene:
        await trio.sleep(1.0)
        answer: Callable[[Stream, list[Message]], Awaitable[None]] = scene.backend.answer
        broken = []

        async def close_once(stream: Stream, batch: list[Message]) -> None:
            if broken:
                await answer(stream, batch)
            else:
                broken.append(trio.current_time())
                await stream.aclose()

        scene.backend.answer = close_once  # type: ignore[method-assign]
        await trio.sleep(1.0)
        assert broken
        assert scene.seen.failures == []
        assert scene.named()
        assert [up for _, up, _ in scene.seen.changes] == [True, False, True]


async def test_a_backend_back_after_ten_minutes_is_named_within_an_interval(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        scene.backend.alive = False
        await trio.sleep(600)
        scene.backend.alive = True
        assert await scene.until(scene.named) < 1.2


async def test_a_dead_backend_is_told_of_once(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        await trio.sleep(5)
        scene.backend.alive = False
        await scene.backend.close_all()
        await trio.sleep(3600)
        assert [why for _, _, why in scene.seen.changes] == ["", "closed", "refused"]


async def test_a_new_reason_why_a_backend_is_down_is_told(autojump_clock: object) -> None:
    async with watched(mode=Mode.HOLD) as scene:
        scene.backend.alive = False
        await trio.sleep(10)
        scene.backend.alive, scene.backend.users = True, "many"
        await trio.sleep(10)
        assert [why for _, _, why in scene.seen.changes] == ["refused", "bad_count"]


async def test_a_monitor_that_is_stopped_counts_nothing_and_closes(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        scene = Watched(nursery, ProbePolicy(mode=Mode.HOLD))
        scene.backend.silent = True
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as monitors:
                await monitors.start(scene.poller.run)
                monitors.start_soon(scene.monitor.run)
                await trio.sleep(0.7)
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.backend.open == 0
        assert scene.seen.failures == []
        assert scene.seen.good == 0
        nursery.cancel_scope.cancel()


@BOTH
async def test_one_failed_probe_of_an_ejected_backend_is_no_news_and_that_it_is_down_is(
    mode: Mode, autojump_clock: object
) -> None:
    async with watched(mode=mode, fall=2, timeout_s=0.5, stale_after_s=60.0) as scene:
        await trio.sleep(2.2)
        scene.pool.bar(trio.current_time(), "a", trio.current_time() + 100.0)
        scene.backend.silent = True
        await scene.until(lambda: len(scene.seen.failures) == 1)
        scene.backend.silent = False
        await trio.sleep(5.0)
        assert [up for _, up, _ in scene.seen.changes] == [True]
        scene.backend.silent = True
        await trio.sleep(5.0)
        assert [up for _, up, _ in scene.seen.changes] == [True, False]
