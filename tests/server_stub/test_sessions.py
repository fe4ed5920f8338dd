"""Sessions of a backend's users: who gets one, who goes on with his, and what is said where nobody knows.

The file is long because each answer of the service, and its silence, is played to the one backend.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu import keys
from lambdamu.messages import AUTH, SESSION, TURN, USER_MAIL, USER_NAME, Command, Message
from lambdamu.objects import Farewell, Later, Peer, Reply
from lambdamu.testing import virtual_clock
from lambdamu.turns import NOBODY, Signer, Verifier
from master.cache.warm_types import NotServed, Warm, Why
from server_stub.screen import Screen
from server_stub.sessions import Sessions
from server_stub.users import Auth, System, TurnGate, Users
from tests.master.cache.wire import FakeWarm
from tests.server_stub.cache import DirectCache
from tests.server_stub.conftest import ASK_COUNT

TTL_S = 1800.0


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock()


class Backend:
    """The objects of one, without a port."""

    def __init__(
        self, cache: Any, name: str, nursery: trio.Nursery, capacity: int | None = None, gate: TurnGate | None = None
    ) -> None:
        users = Users(0, capacity, "probe@example.org")
        self.sessions = Sessions(cache, name, nursery, random.Random(1))
        self.auth = Auth(users, gate, self.sessions)
        self.system = System(users)
        self.screen = Screen(self.sessions, cache, (1, 2), nursery)

    def begin(self, peer: Peer, session: Any, mail: Any = "ann@example.org", name: str = "ann") -> Reply:
        """Say all that a login takes, and return what the last of it gets."""
        said = ((SESSION, session), (USER_NAME, name), (USER_MAIL, mail))
        replies = [
            self.auth.handle(Message(AUTH, Command.SET, what, text), trio.current_time(), peer)
            for what, text in said
            if text is not None
        ]
        assert not any(replies[:-1])
        return replies[-1]

    async def log_in(self, peer: Peer, session: Any, mail: Any = "ann@example.org", name: str = "ann") -> Any:
        """Return what is said of the Task and of the session, or the Code of an Error that ends the connection."""
        answers = await paid(self.begin(peer, session, mail, name))
        if answers[0].command == Command.ERROR:
            assert isinstance(answers, Farewell)
            self.leave(peer)
            return answers[0].data["Code"]
        assert [(each.object, each.command) for each in answers] == [(AUTH, Command.VALUE)] * len(answers)
        assert [each.name for each in answers] == ["TaskObject", "Session"][: len(answers)]
        return tuple(each.data for each in answers)

    async def show(self, peer: Peer, device: Any = "a phone") -> Any:
        """Return the Data of the first screen, or the Code of the Error."""
        asked = Message("Screen", Command.EVENT, "First", {"Device": device})
        [answer] = await paid(self.screen.handle(asked, trio.current_time(), peer))
        return answer.data["Code"] if answer.command == Command.ERROR else answer.data

    def leave(self, peer: Peer) -> None:
        self.auth.disconnected(peer)

    def users(self) -> int:
        [answer] = self.system.handle(ASK_COUNT, 0.0, Peer("192.0.2.9", 9))
        return int(answer.data)


async def paid(reply: Reply) -> Sequence[Message]:
    """Return what was owed, when it comes."""
    if not isinstance(reply, Later):
        return reply
    told: list[Sequence[Message]] = []
    came = trio.Event()

    def take(messages: Sequence[Message]) -> None:
        told.append(messages)
        came.set()

    reply.attach(take)
    await came.wait()
    return told[0]


def somebody() -> Peer:
    return Peer("192.0.2.1", 40000)


@asynccontextmanager
async def house(cache: DirectCache, *names: str, capacity: int | None = None) -> AsyncIterator[list[Backend]]:
    """Backends that share a cache."""
    async with trio.open_nursery() as nursery:
        yield [Backend(cache, name, nursery, capacity) for name in names or ("b1", "b2")]
        nursery.cancel_scope.cancel()


async def test_a_session_goes_on_at_another_backend_without_a_login(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    async with house(cache) as (one, other):
        ann = somebody()
        task, session = await one.log_in(ann, "")
        assert (task, session) == ("Task-1", "s1")
        assert await cache.backend(session) == b"b1"
        one.leave(ann)
        again = somebody()
        assert await other.log_in(again, session, mail="") == ("Task-1", session)
        assert await cache.backend(session) == b"b2"
        assert (one.users(), other.users()) == (0, 1)


LOGINS = [
    pytest.param("s1", "", "ann", ("Task-2", "s1"), 1, id="a live session gives the right alone"),
    pytest.param("s1", "ann@example.org", "ann", ("Task-2", "s1"), 1, id="and beside what does"),
    pytest.param("s9", "", "ann", ("", None), 0, id="one that is gone gives none"),
    pytest.param("s9", "ann@example.org", "ann", ("Task-2", None), 1, id="the login counts without it"),
    pytest.param("", "ann@example.org", "ann", ("Task-2", "s2"), 1, id="none: a new one"),
    pytest.param("s1", "", "bob", "NotYours", 0, id="that of another"),
    pytest.param("s" * 200, "", "ann", "BadData", 0, id="what cannot be one"),
    pytest.param(None, "ann@example.org", "ann", ("Task-2",), 1, id="nothing said of sessions"),
    pytest.param("", "probe@example.org", "ann", ("Task-2",), 0, id="the probe has none"),
]


@pytest.mark.parametrize(("session", "mail", "name", "told", "users"), LOGINS)
async def test_each_login_is_told_what_becomes_of_its_session(
    clock: trio.testing.MockClock, session: Any, mail: str, name: str, told: Any, users: int
) -> None:
    cache = DirectCache()
    async with house(cache, "b1") as (backend,):
        ann = somebody()
        await backend.log_in(ann, "")
        backend.leave(ann)
        assert await backend.log_in(somebody(), session, mail, name) == told
        assert backend.users() == users


@pytest.mark.parametrize("session", ["", "s1"])
@pytest.mark.parametrize("delay_s", [0.0, 60.0], ids=["not there", "silent"])
async def test_that_nobody_knows_is_no_word_of_the_session(
    clock: trio.testing.MockClock, session: str, delay_s: float
) -> None:
    cache = DirectCache()
    async with house(cache) as (one, other):
        ann = somebody()
        await one.log_in(ann, "")
        cache.down, cache.delay_s = True, delay_s
        assert await other.log_in(somebody(), session, mail="" if session else "ann@example.org") == "NoStore"
        assert other.users() == 0
        cache.down, cache.delay_s = False, 0.0
        assert await other.log_in(somebody(), "s1", mail="") == ("Task-2", "s1")


async def test_a_turn_is_used_by_whoever_is_let_in_and_by_nobody_else(clock: trio.testing.MockClock) -> None:
    key = keys.Signer.generate("k1")
    turns = [Signer(key).sign(number, NOBODY, "b1", 2_000_000_000) for number in range(2)]
    gate = TurnGate(Verifier({"k1": key.verifier()}, "b1"), lambda: 1_999_999_970.0)
    cache = DirectCache()
    async with trio.open_nursery() as nursery:
        backend = Backend(cache, "b1", nursery, None, gate)

        async def comes(turn: str | None, session: str, mail: str) -> Any:
            ann = somebody()
            shown = () if turn is None else backend.auth.handle(Message(AUTH, Command.SET, TURN, turn), 0.0, ann)
            assert not isinstance(shown, Later)
            if shown:
                return shown[0].data["Code"]
            told = await backend.log_in(ann, session, mail)
            backend.leave(ann)
            return told

        assert await comes(None, "", "ann@example.org") == "TurnMissing"
        cache.down = True
        assert await comes(turns[0], "", "ann@example.org") == "NoStore"
        cache.down = False
        assert await comes(turns[0], "s9", "") == ("", None)
        assert await comes(turns[0], "", "ann@example.org") == ("Task-3", "s1")
        assert await comes(turns[0], "s1", "") == "TurnUsed"
        assert await comes(turns[1], "s1", "") == ("Task-4", "s1")
        assert backend.users() == 0
        nursery.cancel_scope.cancel()


async def test_a_full_backend_makes_no_session(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    async with house(cache, "b1", capacity=0) as (backend,):
        [answer] = await paid(backend.begin(somebody(), ""))
    assert answer.data["Code"] == "Full"
    assert cache.asked == []


async def test_somebody_who_leaves_before_his_answer_is_nobody(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    cache.delay_s = 1.0
    async with house(cache, "b1", capacity=1) as (backend,):
        ann, reply = somebody(), backend.begin(somebody(), "")
        assert isinstance(reply, Later)
        reply.attach(lambda _: pytest.fail("nobody waits for it"))
        await trio.sleep(0.5)
        reply.cancel()
        backend.leave(ann)
        await trio.sleep(10 * TTL_S)
        assert cache.count("Session.Touch") == 0


async def test_a_session_lives_while_its_user_is_there_and_its_time_after_that(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    async with house(cache) as (one, other):
        ann = somebody()
        _, session = await one.log_in(ann, "")
        await trio.sleep(20 * TTL_S)
        assert 70 <= cache.count("Session.Touch") <= 110, "some four times in its time to live"
        one.leave(ann)
        await trio.sleep(0.7 * TTL_S)
        assert await other.log_in(somebody(), session, mail="") == ("Task-1", session)
        bob = somebody()
        _, other_session = await one.log_in(bob, "", "bob@example.org", "bob")
        one.leave(bob)
        await trio.sleep(1.1 * TTL_S)
        assert await one.log_in(somebody(), other_session, "", "bob") == ("", None)


async def test_a_cache_that_is_away_for_less_than_that_costs_nobody_his_session(
    clock: trio.testing.MockClock,
) -> None:
    cache = DirectCache()
    async with house(cache, "b1") as (backend,):
        _, session = await backend.log_in(somebody(), "")
        for _ in range(5):
            cache.down = True
            await trio.sleep(0.7 * TTL_S)
            cache.down = False
            await trio.sleep(0.1 * TTL_S)
        assert await cache.backend(session) == b"b1"


async def test_where_somebody_is_gets_written_when_the_cache_is_back(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    async with house(cache, "b1") as (backend,):
        cache.away = {"Cache.Put"}
        _, session = await backend.log_in(somebody(), "")
        cache.away = set()
        await trio.sleep(TTL_S / 4)
        assert await cache.backend(session) == b"b1"


async def test_the_first_screen_has_its_data_and_counts_on_wherever_it_is_shown(clock: trio.testing.MockClock) -> None:
    warm = FakeWarm()
    warm.at_once = Warm(b"data")
    cache = DirectCache(warm)
    data = [{"Type": 1, "Value": "data"}, {"Type": 2, "Value": "data"}]
    async with house(cache) as (one, other):
        ann = somebody()
        _, session = await one.log_in(ann, "")
        assert await one.show(ann) == {"Count": 1, "Types": data}
        assert await one.show(ann) == {"Count": 2, "Types": data}
        one.leave(ann)
        again = somebody()
        await other.log_in(again, session, mail="")
        assert await other.show(again) == {"Count": 3, "Types": data}
    assert cache.count("Device.Bind") == 3


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (NotServed(Why.UPSTREAM, "it is silent"), "Upstream"),
        (NotServed(Why.NOT_FOUND, "no such type"), "NotFound"),
        (NotServed(Why.EXPIRED, "too late"), "NoStore"),
    ],
)
async def test_data_that_are_not_there_leave_a_gap(clock: trio.testing.MockClock, given: NotServed, word: str) -> None:
    warm = FakeWarm()
    warm.at_once = given
    async with house(DirectCache(warm), "b1") as (backend,):
        ann = somebody()
        await backend.log_in(ann, "")
        assert (await backend.show(ann))["Types"] == [{"Type": 1, "Code": word}, {"Type": 2, "Code": word}]


async def test_a_screen_needs_a_session_that_is_there_and_a_device(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    async with house(cache, "b1") as (backend,):
        ann = somebody()
        assert await backend.show(ann) == "SessionGone"
        _, session = await backend.log_in(ann, "")
        assert (
            await backend.show(ann, 7) == await backend.show(ann, "") == await backend.show(ann, "x" * 129) == "BadData"
        )
        cache.down = True
        assert await backend.show(ann) == "NoStore"
        cache.down = False
        await cache.drop(session)
        cache.away = {"Device.Bind"}
        assert await backend.show(ann) == "SessionGone", "what is known counts, whatever else is not"
        await trio.sleep(2 * TTL_S)
        assert cache.count("Session.Touch") <= 1, "nobody keeps alive what is gone"


async def test_who_goes_in_the_moment_of_the_answer_leaves_nothing_behind(clock: trio.testing.MockClock) -> None:
    cache = DirectCache()
    ask, ann = cache.ask, somebody()
    async with house(cache, "b1") as (backend,):

        async def ask_and_go(thing: str, name: str, **data: Any) -> Any:
            found = await ask(thing, name, **data)
            if (thing, name) == ("Cache", "Put"):
                assert isinstance(reply, Later)
                reply.cancel()
                backend.leave(ann)
            return found

        cache.ask = ask_and_go  # type: ignore[method-assign]
        reply = backend.begin(ann, "")
        await trio.sleep(2 * TTL_S)
        assert cache.count("Session.Touch") == 0
        assert await backend.show(ann) == "SessionGone"


@pytest.mark.parametrize("session", [None, "s9"])
async def test_another_user_of_a_connection_has_not_the_session_of_the_first(
    clock: trio.testing.MockClock, session: str | None
) -> None:
    async with house(DirectCache(), "b1") as (backend,):
        peer = somebody()
        await backend.log_in(peer, "")
        await backend.log_in(peer, session)
        assert backend.sessions.of(peer) == "s1", "it is he himself"
        assert (await backend.log_in(peer, session, "bob@example.org", "bob"))[0] == "Task-1"
        assert await backend.show(peer) == "SessionGone"


async def test_data_that_do_not_come_leave_room_for_logins(clock: trio.testing.MockClock) -> None:
    warm = FakeWarm()
    cache = DirectCache(warm)
    async with house(cache, "b1") as (backend,):
        peers = [Peer("192.0.2.1", 1000 + number) for number in range(300)]
        for peer in peers:
            await backend.log_in(peer, "")
        shown: list[Any] = []

        async def show(peer: Peer) -> None:
            shown.append(await backend.show(peer))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(show, peer)
            await trio.sleep(1.0)
            assert len(warm.owed) == 500
            for _, answer in warm.owed:
                answer(Warm(b"data"))
        parts = [part for each in shown for part in each["Types"]]
        assert [sum(key in part for part in parts) for key in ("Value", "Code")] == [500, 100]
        warm.at_once = Warm(b"data")
        assert (await backend.show(peers[0]))["Types"] == [{"Type": 1, "Value": "data"}, {"Type": 2, "Value": "data"}]
