"""The pollers: one contract, two ways to keep it. In virtual time; sockets of a pair carry bytes in no time.

The file is long because the one contract is held against both pollers.
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lambdamu.poller import EpollPoller, Poller, TrioPoller, make_poller
from lambdamu.testing import run_virtual, virtual_clock

GRID_S = 0.02
SLACK_S = 1e-9
"""Sums of floats differ in their last digits."""
A_CROWD = 64

MakePair = Callable[[], tuple[socket.socket, socket.socket]]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


@pytest.fixture(params=[pytest.param(lambda: EpollPoller(GRID_S), marks=LINUX), TrioPoller], ids=["epoll", "trio"])
def poller(request: pytest.FixtureRequest) -> Poller:
    made: Poller = request.param()
    return made


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock()


@pytest.fixture
def pairs() -> Iterator[MakePair]:
    """Make connected sockets that do not block; they are closed after the test."""
    made: list[socket.socket] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        both = socket.socketpair()
        for sock in both:
            sock.setblocking(False)
        made.extend(both)
        return both

    yield pair
    for sock in made:
        sock.close()


def held(poller: Poller) -> int:
    """Return how many sockets and moments it knows of."""
    if isinstance(poller, EpollPoller):
        return len(poller._calls) + len(poller._moments) + len(poller._order) + len(poller._due)
    assert isinstance(poller, TrioPoller)
    assert poller._nursery is not None
    return len(poller._scopes) + len(poller._nursery.child_tasks)


async def settle() -> None:
    """Wait until all that can be called now has been called."""
    with trio.fail_after(1000):
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def running(poller: Poller) -> AsyncIterator[None]:
    """At the end nothing may be left in it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        yield
        await settle()
        assert held(poller) == 0
        nursery.cancel_scope.cancel()


def drop(poller: Poller, sock: socket.socket) -> None:
    poller.forget(sock)
    sock.close()


class Reads:
    """A call that takes what there is, and closes at the end of it."""

    def __init__(self, poller: Poller, sock: socket.socket) -> None:
        self.seen: list[bytes] = []
        self._poller = poller
        self._sock = sock

    def __call__(self, now: float) -> None:
        with suppress(BlockingIOError):
            self.seen.append(self._sock.recv(1000))
            if not self.seen[-1]:
                drop(self._poller, self._sock)


# Moments.


@pytest.mark.parametrize("after_s", [0.5, 0.013, 1 / 3, 1.0, 0.0, -5.0], ids=str)
async def test_a_moment_is_called_once_when_it_has_come(clock: object, poller: Poller, after_s: float) -> None:
    came: list[tuple[float, float]] = []
    async with running(poller):
        start = trio.current_time()
        poller.at(start + after_s, lambda now: came.append((now, trio.current_time())))
        assert came == []  # not before whoever asked has gone on
        await trio.sleep(10)
    [(told, really)] = came
    assert told == really
    due = max(start + after_s, start)
    assert due <= really <= due + poller.grid_s + SLACK_S


@LINUX
@example([0.1 + 1e-9])  # next to the grid, on the later side
@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20))
def test_a_moment_on_the_grid_is_never_early_and_never_a_whole_grid_late(moments: list[float]) -> None:
    async def late_by() -> list[float]:
        late: list[float] = []
        poller = EpollPoller(GRID_S)
        async with running(poller):
            for moment in moments:
                poller.at(moment, lambda now, moment=moment: late.append(now - moment))
            await trio.sleep_until(max(moments) + 1)
        return late

    late = run_virtual(late_by)
    assert len(late) == len(moments)
    assert all(0 <= by < GRID_S + SLACK_S for by in late)


@LINUX
@given(st.integers(0, 10**8), st.sampled_from([0.02, 0.01, 0.0002, 1 / 7]))
def test_what_stands_on_the_grid_is_not_moved(step: int, grid_s: float) -> None:
    poller = EpollPoller(grid_s)
    poller.at(step * grid_s, lambda now: None)
    assert poller._order == [step]


async def test_moments_come_in_their_order_also_when_the_earlier_one_is_asked_for_later(
    clock: object, poller: Poller
) -> None:
    came: list[str] = []
    async with running(poller):
        start = trio.current_time()
        poller.at(start + 8, lambda now: came.append("third"))
        await trio.sleep(1)
        poller.at(start + 6, lambda now: came.append("second"))
        poller.at(start + 2, lambda now: came.append("first"))
        await trio.sleep(1.5)
        assert came == ["first"]
        await trio.sleep(10)
    assert came == ["first", "second", "third"]


@LINUX
async def test_calls_of_one_moment_come_in_the_order_they_were_asked_for(clock: object) -> None:
    poller = EpollPoller(GRID_S)
    came: list[int] = []
    async with running(poller):
        for number in range(200):
            poller.at(1.0, lambda now, number=number: came.append(number))
        await trio.sleep(2)
    assert came == list(range(200))


async def test_a_call_may_ask_for_the_next_one_even_at_once(clock: object, poller: Poller) -> None:
    came: list[float] = []

    def again(now: float) -> None:
        came.append(now)
        if len(came) < 10:
            poller.at(now, again)

    async with running(poller):
        poller.at(trio.current_time(), again)
        await trio.sleep(10 * GRID_S)
        assert len(came) == 10


@LINUX
async def test_many_calls_at_once_let_others_have_their_turn_in_between(clock: object) -> None:
    poller = EpollPoller(GRID_S, slice_s=0.0)
    called = 0
    between: list[int] = []

    def call(now: float) -> None:
        nonlocal called
        called += 1

    async with running(poller):
        for _ in range(1000):
            poller.at(1.0, call)
        await trio.sleep_until(1.0)
        before = 0
        while called < 1000:
            await trio.lowlevel.checkpoint()
            between.append(called - before)
            before = called
        assert trio.current_time() == 1.0
    assert sum(between) == 1000
    assert max(between) <= 2  # two slices, where one comes late in one turn and the next early in its own


@LINUX
async def test_later_moments_do_not_hold_up_those_that_wait_for_their_slice(clock: object) -> None:
    poller = EpollPoller(GRID_S, slice_s=0.0)
    came: list[float] = []
    async with running(poller):
        for _ in range(10 * A_CROWD):
            poller.at(1.0, came.append)
        await trio.sleep_until(1.0)
        later = 9.0
        while len(came) < 10 * A_CROWD and trio.current_time() < 2.0:
            later -= 2 * GRID_S
            poller.at(later, lambda now: None)  # each is the next one of all
            await trio.lowlevel.checkpoint()
        assert came == [1.0] * (10 * A_CROWD)
        await trio.sleep(10)


# Sockets.


async def test_what_comes_is_read_and_the_end_too(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    reads = Reads(poller, here)
    async with running(poller):
        poller.watch(here, reads, writes=False)
        await settle()
        assert reads.seen == []
        for said in (b"one", b"two"):
            there.send(said)
            await settle()
        there.close()
        await settle()
    assert reads.seen == [b"one", b"two", b""]


async def test_a_socket_has_two_directions(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    reads = Reads(poller, here)
    calls = 0

    def call(now: float) -> None:
        nonlocal calls
        calls += 1
        reads(now)
        with suppress(BlockingIOError):
            here.send(b"rest")
            poller.watch(here, reads, writes=False)

    with suppress(BlockingIOError):
        while True:
            here.send(bytes(4096))
    async with running(poller):
        poller.watch(here, call, writes=True)
        await settle()
        assert calls == 0  # there is no room
        there.send(b"news")
        await settle()
        assert reads.seen == [b"news"]
        calls = 0
        while calls == 0:
            there.recv(65536)
            await settle()
        assert calls == 1  # it is watched for reading alone since
        there.send(b"more")
        await settle()
        assert reads.seen == [b"news", b"more"]
        drop(poller, here)


async def test_watching_again_is_for_the_new_call_alone(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    old, new = Reads(poller, here), Reads(poller, here)
    async with running(poller):
        poller.watch(here, old, writes=False)
        poller.watch(here, new, writes=False)
        there.send(b"a")
        await settle()
        poller.watch(here, old, writes=False)  # it sleeps in the wait that this changes
        await settle()
        there.send(b"b")
        await settle()
        there.send(b"c")
        poller.watch(here, new, writes=False)  # the old call has come due, and is not made
        await settle()
        drop(poller, here)
    assert (old.seen, new.seen) == ([b"b"], [b"a", b"c"])


async def test_who_is_forgotten_is_called_no_more(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    reads = Reads(poller, here)
    async with running(poller):
        poller.watch(here, reads, writes=False)
        await settle()
        there.send(b"too late")
        drop(poller, here)
        await settle()
        poller.forget(here)  # and again it is nothing
    assert reads.seen == []


async def test_a_call_may_close_its_own_socket(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    calls: list[float] = []

    def close(now: float) -> None:
        calls.append(now)
        drop(poller, here)

    async with running(poller):
        poller.watch(here, close, writes=False)
        there.send(b"never read")
        await settle()
    assert len(calls) == 1


async def test_a_call_may_close_another_socket_that_is_ready_too(
    clock: object, poller: Poller, pairs: MakePair
) -> None:
    ends = [pairs() for _ in range(10)]
    calls: list[float] = []

    def close_all(now: float) -> None:
        calls.append(now)
        for here, _ in ends:
            drop(poller, here)

    async with running(poller):
        for here, _ in ends:
            poller.watch(here, close_all, writes=False)
        await settle()
        for _, there in ends:
            there.send(b"now")
        await settle()
    assert len(calls) == 1


async def test_a_moment_may_close_a_socket_that_is_ready(clock: object, poller: Poller, pairs: MakePair) -> None:
    """As at the deadline of a probe, whose answer comes at that moment."""
    order: list[str] = []
    async with running(poller):
        for _ in range(50):
            order.clear()
            here, there = pairs()

            def close(now: float, here: socket.socket = here) -> None:
                order.append("closed")
                drop(poller, here)

            def read(now: float, here: socket.socket = here) -> None:
                order.append("read")
                here.recv(10)

            poller.watch(here, read, writes=False)
            poller.at(trio.current_time() + GRID_S, close)
            await settle()
            there.send(b"a")
            clock.jump(2 * GRID_S)
            await settle()
            assert order in (["closed"], ["read", "closed"])


async def test_a_number_that_is_used_again_is_another_socket(clock: object, poller: Poller, pairs: MakePair) -> None:
    here, there = pairs()
    successors: list[tuple[socket.socket, socket.socket, Reads]] = []
    number = here.fileno()

    def replace(now: float) -> None:
        drop(poller, here)
        new, far = pairs()
        reads = Reads(poller, new)
        poller.watch(new, reads, writes=False)
        successors.append((new, far, reads))

    async with running(poller):
        poller.watch(here, replace, writes=False)
        there.send(b"old")
        await settle()
        [(new, far, reads)] = successors
        assert new.fileno() == number
        there.close()
        await settle()
        assert reads.seen == []
        far.send(b"new")
        await settle()
        assert reads.seen == [b"new"]
        drop(poller, new)


async def test_many_sockets_are_all_heard(clock: object, poller: Poller, pairs: MakePair) -> None:
    ends = [pairs() for _ in range(3 * A_CROWD)]
    reads = [Reads(poller, here) for here, _ in ends]
    async with running(poller):
        for (here, _), read in zip(ends, reads, strict=True):
            poller.watch(here, read, writes=False)
        for _, there in random.Random(1).sample(ends, len(ends)):
            there.send(b"hello")
        await settle()
        for here, _ in ends:
            drop(poller, here)
    assert all(read.seen == [b"hello"] for read in reads)


# Ends.


def fails(now: float) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("by", ["moment", "socket"])
async def test_an_exception_out_of_a_call_ends_it(clock: object, poller: Poller, pairs: MakePair, by: str) -> None:
    here, there = pairs()
    there.send(b"a")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(poller.run)
            if by == "moment":
                poller.at(trio.current_time() + 1, fails)
            else:
                poller.watch(here, fails, writes=False)
            await trio.sleep(1000)

    with pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert caught.value.split(ZeroDivisionError)[1] is None
    poller.forget(here)  # whoever is stopped by this closes what it has


@LINUX
async def test_it_gives_its_descriptor_back(clock: object) -> None:
    poller = make_poller(GRID_S)
    assert isinstance(poller, EpollPoller)
    async with running(poller):
        assert not poller._epoll.closed
    assert poller._epoll.closed
