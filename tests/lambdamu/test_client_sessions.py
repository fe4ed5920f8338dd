"""Clients with sessions: what they show to backends, and what they make of each answer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from lambdamu.address import Address
from lambdamu.client import Client, Peers
from lambdamu.errors import LinkError, UnreachableError
from lambdamu.machine import LogicalMachine
from lambdamu.messages import AUTH, SESSION, TASK_OBJECT, TURN, USER_MAIL, USER_NAME, Code, Command, Message, error
from lambdamu.objects import NOTHING, Farewell, Later, LMObject, Peer, Reply
from lambdamu.peers import ClientPolicy
from lambdamu.tcp_server import PortLimits, TCPServer, open_listeners
from lambdamu.testing import SOCKET_SETTLE_S, virtual_clock

WHO: dict[str, Any] = {"user_name": "ann", "user_mail": "ann@example.org"}
Said = dict[str, Any]


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return virtual_clock(SOCKET_SETTLE_S)


def value(name: str, data: Any) -> Message:
    return Message(AUTH, Command.VALUE, name, data)


def let_in(session: Any, task: Any = "Task") -> list[Message]:
    return [value(TASK_OBJECT, task), value(SESSION, session)]


class Backend(LMObject):
    """Answers each login by the next function, the last one again and again; `logins` is what was said."""

    def __init__(self, *plays: Callable[[Said], Reply]) -> None:
        names = (TURN, SESSION, USER_NAME, USER_MAIL)
        super().__init__(AUTH, settable=dict.fromkeys(names, self._set), gettable={"Bye": self._bye})
        self._plays = plays
        self._said: Said = {}
        self.logins: list[Said] = []
        self.address = Address("127.0.0.1", 0)

    def _set(self, message: Message, now: float, peer: Peer) -> Reply:
        self._said[message.name] = message.data
        if message.name != USER_MAIL:
            return NOTHING
        said, self._said = self._said, {}
        self.logins.append(said)
        return self._plays[min(len(self.logins), len(self._plays)) - 1](said)

    def _bye(self, message: Message, now: float, peer: Peer) -> Reply:
        return Farewell([value("Bye", None)])


@asynccontextmanager
async def serving(*plays: Callable[[Said], Reply]) -> AsyncIterator[Backend]:
    backend = Backend(*plays)
    machine = LogicalMachine("backend")
    machine.add(backend)
    async with trio.open_nursery() as nursery:
        server = TCPServer(machine, PortLimits(idle_s=10000.0))
        [backend.address] = await nursery.start(server.serve, open_listeners(backend.address))
        yield backend
        nursery.cancel_scope.cancel()


def to(*backends: Backend) -> dict[str, Any]:
    first, *others = [{"IP": each.address.host, "Port": each.address.port} for each in backends]
    return {"Result": "OK", "Data": {**first, "Alternates": others}}


def client(master: Any, session: str | None = "", **policy: Any) -> Client:
    return Client([master.address], session=session, peers=Peers(ClientPolicy(**policy)), rng=random.Random(0), **WHO)


def gives(session: Any, task: Any = "Task") -> Callable[[Said], Reply]:
    return lambda _: let_in(session, task)


async def test_a_session_is_asked_for_kept_and_shown_without_what_gives_the_right(
    master: Any, clock: trio.testing.MockClock
) -> None:
    async with serving(gives("s1")) as backend, master(to(backend)) as asked:
        ann = client(asked)
        async with ann.connect() as connection:
            assert (connection.task, connection.resumed, connection.gone, ann.session) == ("Task", False, False, "s1")
        async with ann.connect() as connection:
            assert (connection.task, connection.resumed, connection.gone, ann.session) == ("Task", True, False, "s1")
        assert "s1" not in repr(ann._identity)
    assert [list(login.items()) for login in backend.logins] == [
        [(SESSION, ""), (USER_NAME, "ann"), (USER_MAIL, "ann@example.org")],
        [(SESSION, "s1"), (USER_NAME, "ann"), (USER_MAIL, "")],
    ]


@pytest.mark.parametrize("task", ["", "Task-7"], ids=["no right without it", "let in all the same"])
async def test_one_that_is_gone_has_the_user_log_in_anew_over_the_same_connection(
    master: Any, clock: trio.testing.MockClock, task: str
) -> None:
    async with serving(gives(None, task), gives("s2", "Task-8")) as backend, master(to(backend)) as asked:
        ann = client(asked, "s1")
        async with ann.connect() as connection:
            assert (connection.task, connection.resumed, connection.gone, ann.session) == ("Task-8", False, True, "s2")
    assert [(login[SESSION], login[USER_MAIL]) for login in backend.logins] == [("s1", ""), ("", "ann@example.org")]
    assert len(asked.asks) == 1


def is_of_another(said: Said) -> Reply:
    return Farewell([Message(AUTH, Command.ERROR, USER_MAIL, {"Code": Code.NOT_YOURS, "Text": "that of another"})])


async def test_one_of_another_user_is_put_aside_and_the_user_logs_in_anew(
    master: Any, clock: trio.testing.MockClock
) -> None:
    async with serving(is_of_another, gives("s2")) as backend, master(to(backend)) as asked:
        ann = client(asked, "s1")
        async with ann.connect() as connection:
            assert (connection.resumed, connection.gone, ann.session) == (False, True, "s2")
    assert [(login[SESSION], login[USER_MAIL]) for login in backend.logins] == [("s1", ""), ("", "ann@example.org")]
    assert len(asked.asks) == 1


def knows_none(said: Said) -> Reply:
    return [value(TASK_OBJECT, "Task")] if said[USER_MAIL] else NOTHING


@pytest.mark.parametrize(("session", "within_s"), [("", 1.5), ("s1", 6.5)])
async def test_a_backend_that_keeps_none_lets_in_and_takes_none_away(
    master: Any, clock: trio.testing.MockClock, session: str, within_s: float
) -> None:
    async with serving(knows_none) as backend, master(to(backend)) as asked:
        ann = client(asked, session)
        began = trio.current_time()
        async with ann.connect() as connection:
            assert (connection.task, connection.resumed, connection.gone, ann.session) == (
                "Task",
                False,
                False,
                session,
            )
        assert trio.current_time() - began < within_s


async def test_the_two_answers_may_come_apart(master: Any, clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:

        async def later(owed: Later, answers: list[Message]) -> None:
            await trio.sleep(0.5)
            owed.answer(answers)

        def plays(_: Said) -> Reply:
            owed = Later()
            nursery.start_soon(later, owed, let_in("s1"))
            return owed

        async with serving(plays) as backend, master(to(backend)) as asked:
            ann = client(asked)
            async with ann.connect():
                assert ann.session == "s1"


async def test_that_nobody_knows_now_takes_nothing_away_and_another_is_tried(
    master: Any, clock: trio.testing.MockClock
) -> None:
    mail = Message(AUTH, Command.SET, USER_MAIL)
    down = [lambda _: Farewell([error(mail, "NoStore", "not now")])]
    async with serving(*down) as first, serving(*down, gives("s1")) as second, master(to(first, second)) as asked:
        ann = client(asked, "s1")
        async with ann.connect() as connection:
            assert (connection.resumed, ann.session, connection.backend) == (True, "s1", second.address)
    assert {login[SESSION] for login in (*first.logins, *second.logins)} == {"s1"}
    assert [failed["Why"] for failed in asked.asks[-1].data["Failed"]] == ["NoStore", "NoStore"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (let_in("s1", task=7), "named no Task object"),
        (let_in(7), "named no session"),
        (let_in(""), "named no session"),
        (let_in("s1", task=""), "named no Task object"),
        ([value(SESSION, "s1")], "did not answer"),
        ([], "did not answer"),
    ],
)
async def test_what_is_not_to_the_protocol_is_told(
    master: Any, clock: trio.testing.MockClock, told: list[Message], why: str
) -> None:
    async with serving(lambda _: told) as backend, master(to(backend)) as asked:
        ann = client(asked, within_s=12.0)
        with pytest.raises(UnreachableError, match=why):
            async with ann.connect():
                pass
        assert ann.session == ""


async def test_a_backend_that_ends_the_connection_is_told_of_at_the_next_ask(
    master: Any, clock: trio.testing.MockClock
) -> None:
    async with serving(gives("s1")) as backend, master(to(backend)) as asked:
        ann = client(asked)
        async with ann.connect() as connection:
            with pytest.raises(LinkError):
                await connection.receive(within_s=1.0)  # it is silent, which is no failure
            await connection.send(Message(AUTH, Command.GET, "Bye"))
            await connection.receive(within_s=1.0)
            with pytest.raises(LinkError):
                await connection.receive(within_s=1.0)
        async with ann.connect() as connection:
            assert connection.resumed
        async with ann.connect():
            pass
    first, second, third = (ask.data for ask in asked.asks)
    ended = {"IP": backend.address.host, "Port": backend.address.port, "Why": "closed"}
    assert ("Failed" in first, second["Failed"], "Failed" in third) == (False, [ended], False)


@pytest.mark.parametrize("session", ["s" * 129, "\udcff"])
def test_a_session_that_cannot_be_one_is_refused(session: str) -> None:
    with pytest.raises(ValueError, match="'session'"):
        Client(["127.0.0.1:7000"], session=session, **WHO)
