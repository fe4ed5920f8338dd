"""What is asked of the cache service, and what it answers: each operation, each word for a failure.

The file is long because each operation has its answers, and each field its faults, in tables.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.messages import Command, Message, Transport
from lambdamu.objects import Farewell, Later, Peer
from master.cache.objects import Objects, Times, new_id
from master.cache.rows import Row, Table
from master.cache.service import CacheService, Guard, NoStoreError
from master.cache.store import CacheStore, StorePolicy
from master.cache.warm_types import NotServed, Warm, Why
from tests.master.cache.wire import PEER, VALUE_BYTES, FakeWarm, make_service, question

NOW = 1000.0


def ask(service: CacheService, where: str, data: Any = None, now: float = NOW, **header: Any) -> Message:
    """Return the one answer, which names the question."""
    message = question(where, data, **header)
    (answer,) = service.handle(message, now, PEER)  # type: ignore[misc]
    assert isinstance(answer, Message)
    assert (answer.object, answer.command, answer.name) == (message.object, Command.VALUE, message.name)
    assert answer.header["Request"] == "r"
    return answer


def told(answer: Message) -> Any:
    """Return the data of an answer that has some, or the word or number of what is wrong."""
    if answer.header["Error"]:
        assert not answer.header["DataError"]
        assert answer.data.keys() == {"Text", "RetryAfter"}
        return Transport(answer.header["Error"])
    if answer.header["DataError"]:
        assert answer.data.keys() == {"Code", "Text"}
        return str(answer.data["Code"])
    return answer.data


def with_session(service: CacheService | None = None) -> CacheService:
    """Return a service that has the session s1 of the client c1."""
    service = service or make_service()
    assert told(ask(service, "Session.Create", {"Client": "c1", "Version": 3, "Type": 4, "Value": b"v"})) == {
        "Session": "s1",
        "TTL": 1800.0,
    }
    return service


S1 = {"Session": "s1"}
A_KEY = {**S1, "Key": "k"}
LONG = "x" * 129


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        ([], {"Session": "s1", "Client": "c1", "Type": 4, "Version": 3, "TTL": 1800.0, "Value": b"v"}),
        ([("Session.Touch", {**S1, "TTL": 5}, {**S1, "TTL": 5.0})], None),
        (
            [("Session.Set", {**S1, "Value": b"w"}, {**S1, "TTL": 1800.0})],
            {"Session": "s1", "Client": "c1", "Type": 4, "Version": 3, "TTL": 1800.0, "Value": b"w"},
        ),
        (
            [("Session.Set", {**S1, "Value": b"", "TTL": 9.5, "Version": 0, "Type": 0}, {**S1, "TTL": 9.5})],
            {"Session": "s1", "Client": "c1", "Type": 0, "Version": 0, "TTL": 9.5, "Value": b""},
        ),
        ([("Session.Drop", S1, {"Dropped": True}), ("Session.Drop", S1, {"Dropped": False})], "SessionGone"),
        ([("Session.Drop", {**S1, "Client": "c2"}, "NotYours")], None),
        ([("Session.List", {"Client": "c1"}, {"Sessions": ["s1"], "More": False})], None),
        ([("Session.List", {"Client": "c2"}, {"Sessions": [], "More": False})], None),
        (
            [
                ("Cache.Put", {**A_KEY, "Value": b"1", "Type": 7, "Version": 8, "TTL": 60}, {"Key": "k", "TTL": 60.0}),
                ("Cache.Get", A_KEY, {"Key": "k", "Type": 7, "Version": 8, "TTL": 60.0, "Value": b"1"}),
                ("Cache.Drop", A_KEY, {"Dropped": True}),
                ("Cache.Drop", A_KEY, {"Dropped": False}),
                ("Cache.Get", A_KEY, "NotFound"),
            ],
            None,
        ),
        (
            [
                ("Cache.Put", {**A_KEY, "Value": b"1"}, {"Key": "k", "TTL": 1800.0}),
                ("Session.Drop", S1, {"Dropped": True}),
                ("Cache.Get", A_KEY, "SessionGone"),
                ("Cache.Put", {**A_KEY, "Value": b"1"}, "SessionGone"),
                ("Cache.Drop", A_KEY, "SessionGone"),
            ],
            "SessionGone",
        ),
        (
            [
                ("Device.Bind", {**S1, "Device": "d"}, {"Device": "d", "Client": "c1", "TTL": 30 * 86400.0}),
                ("Device.Unbind", {**S1, "Device": "d"}, {"Dropped": True}),
                ("Device.Unbind", {**S1, "Device": "d"}, {"Dropped": False}),
            ],
            None,
        ),
        ([("Device.Bind", {"Session": "s2", "Device": "d"}, "SessionGone")], None),
        ([("Device.Unbind", {"Session": "s2", "Device": "d"}, "SessionGone")], None),
        ([("Session.Get", {**S1, "Client": "c2"}, "NotYours")], None),
        ([("Session.Touch", {**S1, "Client": "c2"}, "NotYours")], None),
        ([("Session.Set", {**S1, "Client": "c2", "Value": b""}, "NotYours")], None),
        ([("Cache.Get", {**A_KEY, "Client": "c2"}, "NotYours")], None),
        ([("Device.Bind", {**S1, "Client": "c2", "Device": "d"}, "NotYours")], None),
        ([("Warm.Get", {**S1, "Type": 1, "Client": "c2"}, "NotYours")], None),
        ([("Warm.Get", {"Session": "s2", "Type": 1}, "SessionGone")], None),
        ([("Warm.Get", {**S1, "Type": 1}, Transport.NO_WORKER)], None),
        ([("Session.Set", {"Session": "s2", "Value": b""}, "SessionGone")], None),
        ([("Session.Touch", {"Session": "s2"}, "SessionGone")], None),
        ([("Session.Set", {**S1, "Value": bytes(VALUE_BYTES + 1)}, Transport.TOO_BIG)], None),
        ([("Session.Set", {**S1, "Value": bytes(VALUE_BYTES)}, {**S1, "TTL": 1800.0})], None),
        ([("Cache.Put", {**A_KEY, "Value": bytes(VALUE_BYTES + 1)}, Transport.TOO_BIG)], None),
        ([("Session.Create", {"Client": "c", "Value": bytes(VALUE_BYTES + 1)}, Transport.TOO_BIG)], None),
    ],
)
def test_what_is_asked_gets_its_answer(steps: list[tuple[str, Any, Any]], answer: Any) -> None:
    """`answer`: of Session.Get at the end; None where that is not looked at."""
    service = with_session()
    for where, data, wanted in steps:
        assert told(ask(service, where, data)) == wanted
    if answer is not None:
        assert told(ask(service, "Session.Get", S1)) == answer


@pytest.mark.parametrize(
    ("where", "data", "text"),
    [
        ("Session.Create", None, "Data must be a map"),
        ("Session.Create", [1], "Data must be a map"),
        ("Session.Create", {}, "Client is missing"),
        ("Session.Create", [], "Client is missing"),
        ("Session.Create", {"Client": 5}, "Client must be a text"),
        ("Session.Create", {"Client": b"\xff"}, "Client must be a text"),
        ("Session.Create", {"Client": ""}, "Client must be from 1 to 128 bytes long"),
        ("Session.Create", {"Client": LONG}, "Client must be from 1 to 128 bytes long"),
        ("Session.Create", {"Client": "ж" * 65}, "Client must be from 1 to 128 bytes long"),
        ("Session.Create", {"Client": "c", "TTL": 0}, "TTL must be a number of seconds, above 0 and at most 31622400"),
        ("Session.Create", {"Client": "c", "TTL": float("nan")}, "TTL must be a number"),
        ("Session.Create", {"Client": "c", "TTL": True}, "TTL must be a number"),
        ("Session.Create", {"Client": "c", "TTL": 31622401}, "TTL must be a number"),
        ("Session.Create", {"Client": "c", "TTL": 10**400}, "TTL must be a number"),
        ("Session.Create", {"Client": "c", "Version": -1}, "Version must be a whole number from 0 to below 2^53"),
        ("Session.Create", {"Client": "c", "Type": 2**53}, "Type must be a whole number"),
        ("Session.Create", {"Client": "c", "Type": True}, "Type must be a whole number"),
        ("Session.Create", {"Client": "c", "Value": "text"}, "Value must be bin: bytes, and no text"),
        ("Session.Set", S1, "Value is missing"),
        ("Session.Get", {}, "Session is missing"),
        ("Session.List", {}, "Client is missing"),
        ("Cache.Put", {**S1, "Value": b""}, "Key is missing"),
        ("Cache.Put", {**S1, "Value": b"", "Key": "k" * 257}, "Key must be from 1 to 256 bytes long"),
        ("Device.Bind", S1, "Device is missing"),
        ("Warm.Get", S1, "Type is missing"),
        ("Warm.Get", {**S1, "Type": "1"}, "Type must be a whole number"),
    ],
)
def test_data_that_are_not_right_are_told_by_name(where: str, data: Any, text: str) -> None:
    answer = ask(with_session(), where, data)
    assert told(answer) == "BadData"
    assert answer.data["Text"].startswith(text)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (question("Nothing.Get"), "UnknownObject"),
        (question("Session.Fly"), "UnknownName"),
        (question("Warm.Put"), "UnknownName"),
        (attrs.evolve(question("Session.Get", S1), command="Get"), "UnknownCommand"),
        (attrs.evolve(question("Warm.AppStart"), command="Set"), "UnknownCommand"),
        (attrs.evolve(question("Session.Get", S1), command="Do"), "UnknownCommand"),
        (question("Session.Get", S1, Version=2), Transport.VERSION),
        (question("Session.Get", S1, Version="1"), Transport.VERSION),
    ],
)
def test_what_is_not_known_here_is_told(message: Message, word: Any) -> None:
    service = with_session()
    (answer,) = service.handle(message, NOW, PEER)  # type: ignore[misc]
    assert told(answer) == word
    assert answer.header["Request"] == "r"


def test_an_answer_to_an_answer_there_is_none() -> None:
    for command in (Command.VALUE, Command.ERROR):
        assert make_service().handle(attrs.evolve(question("Session.Get"), command=command), NOW, PEER) == ()


@pytest.mark.parametrize(
    "header",
    [None, {}, [], 5, {"Request": ""}, {"Request": 5}, {"Request": "x" * 129}, {"Request": b"\xff"}, {"request": "r"}],
)
def test_without_a_header_that_names_the_question_the_connection_ends(header: Any) -> None:
    reply = make_service().handle(attrs.evolve(question("Session.Get", S1), header=header), NOW, PEER)
    assert isinstance(reply, Farewell)
    (last,) = reply
    assert (last.object, last.command, last.data["Code"]) == ("Master", "Error", "BadMessage")


def test_the_header_goes_back_as_it_came_and_decides_nothing() -> None:
    answer = ask(with_session(), "Session.Get", S1, Type=9, Session="other", System="me", Error=5, DataError=True)
    assert answer.header == {
        "Version": 1,
        "System": "Cache",
        "Type": 9,
        "Error": 0,
        "Request": "r",
        "Session": "other",
        "DataError": False,
    }
    assert answer.data["Session"] == "s1"
    odd = ask(with_session(), "Session.Get", S1, Type="x", Session=7)
    assert (odd.header["Type"], odd.header["Session"]) == (0, "")


def test_texts_may_come_as_raw_bytes_and_maps_as_empty_arrays() -> None:
    service = with_session()
    message = Message("Session", "Event", "Get", {b"Session": b"s1"}, {b"Request": b"r", b"Version": 1})
    (answer,) = service.handle(message, NOW, PEER)  # type: ignore[misc]
    assert told(answer)["Session"] == "s1"
    assert answer.header["Request"] == "r"


def test_a_session_lives_from_its_last_question_on_and_is_gone_at_its_end() -> None:
    service = with_session()
    for i in range(5):
        assert told(ask(service, "Session.Get", S1, NOW + 1799 * (i + 1)))["TTL"] == 1800.0
    assert told(ask(service, "Cache.Put", {**A_KEY, "Value": b""}, NOW + 9000, TTL=1)) == {"Key": "k", "TTL": 1800.0}
    assert told(ask(service, "Session.Get", S1, NOW + 9000 + 1800.1)) == "SessionGone"
    assert told(ask(service, "Session.Touch", S1, NOW + 9000 + 1800.2)) == "SessionGone"


def test_what_a_session_has_put_is_not_renewed_by_reading() -> None:
    service = with_session()
    ask(service, "Cache.Put", {**A_KEY, "Value": b"1", "TTL": 30})
    for second in range(30):
        assert told(ask(service, "Cache.Get", A_KEY, NOW + second))["TTL"] == 30.0 - second
    assert told(ask(service, "Cache.Get", A_KEY, NOW + 30.1)) == "NotFound"


def test_a_stranger_does_not_renew_a_session() -> None:
    service = with_session()
    assert told(ask(service, "Session.Touch", {**S1, "Client": "c2"}, NOW + 1700)) == "NotYours"
    assert told(ask(service, "Session.Get", S1, NOW + 1801)) == "SessionGone"


def test_a_logout_is_not_undone_by_what_was_on_its_way() -> None:
    service = with_session()
    ask(service, "Session.Drop", S1)
    for where, data in (("Session.Touch", {}), ("Session.Set", {"Value": b""}), ("Device.Bind", {"Device": "d"})):
        assert told(ask(service, where, {**S1, **data})) == "SessionGone"
    assert told(ask(service, "Session.List", {"Client": "c1"}))["Sessions"] == []


def test_more_sessions_of_a_client_than_are_listed_are_told() -> None:
    service = make_service()
    for _ in range(101):
        ask(service, "Session.Create", {"Client": "c"})
    listed = told(ask(service, "Session.List", {"Client": "c"}))
    assert len(listed["Sessions"]) == 100
    assert listed["More"]


def test_ids_have_128_bits_of_chance() -> None:
    seen = {new_id() for _ in range(1000)}
    assert len(seen) == 1000
    assert all(len(each) == 22 for each in seen)
    assert not [each for each in seen if each.startswith("-")], "it would be an option on a command line"


def test_a_full_store_refuses_and_says_when_to_come_again() -> None:
    service = make_service(store=CacheStore(StorePolicy(max_bytes=20_000)))
    answers = [ask(service, "Session.Create", {"Client": "c", "Value": bytes(5000)}) for _ in range(5)]
    assert told(answers[-1]) == Transport.FULL
    assert 0.5 <= answers[-1].data["RetryAfter"] <= 1.5


def test_a_store_that_cannot_be_used_does_not_say_that_a_session_is_gone() -> None:
    class Broken(CacheStore):
        def touch(self, now: float, table: Table, key: Any, ttl_s: float | None = None) -> Row | None:
            raise NoStoreError("the store is away")

    service = make_service(store=Broken(StorePolicy()))
    assert told(ask(service, "Session.Get", S1)) == Transport.NO_STORE


# Warm data.


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Warm(b"d"), {"Type": 1, "Version": 3, "Stale": False, "Value": b"d"}),
        (Warm(b"d", stale=True), {"Type": 1, "Version": 3, "Stale": True, "Value": b"d"}),
        (NotServed(Why.NOT_FOUND, "t"), "NotFound"),
        (NotServed(Why.UPSTREAM, "t"), "Upstream"),
        (NotServed(Why.SESSION_GONE, "t"), "SessionGone"),
        (NotServed(Why.NOT_YOURS, "t"), "NotYours"),
        (NotServed(Why.FULL, "t", 2.0), Transport.FULL),
        (NotServed(Why.EXPIRED, "t", 2.0), Transport.EXPIRED),
        (NotServed(Why.STOPPING, "t", 2.0), Transport.STOPPING),
    ],
)
def test_warm_data_come_at_once_or_later_and_so_does_what_is_wrong(given: Any, wanted: Any, *, at_once: bool) -> None:
    warm = FakeWarm()
    service = with_session(make_service(warm))
    warm.at_once = given if at_once else None
    reply = service.handle(question("Warm.Get", {**S1, "Type": 1}), NOW, PEER)
    if at_once:
        (answer,) = reply  # type: ignore[misc]
    else:
        assert isinstance(reply, Later)
        heard: list[Any] = []
        reply.attach(heard.extend)
        assert not heard
        ((number, tell),) = warm.owed
        assert number == 1
        tell(given)
        (answer,) = heard
    assert told(answer) == wanted
    if isinstance(wanted, Transport):
        assert answer.data["RetryAfter"] == 2.0


def test_who_waits_no_more_has_it_said_once() -> None:
    warm = FakeWarm()
    reply = with_session(make_service(warm)).handle(question("Warm.Get", {**S1, "Type": 1}), NOW, PEER)
    assert isinstance(reply, Later)
    reply.cancel()
    reply.cancel()
    assert warm.left == [1]
    warm.owed[0][1](Warm(b"late"))  # nobody hears it


@pytest.mark.parametrize("data", [{"Device": "d", "Version": 2}, {"Device": 5}, {}, None, [1]])
def test_an_app_start_is_never_answered(data: Any) -> None:
    warm = FakeWarm()
    for header in ({}, {"Version": 9}):
        assert make_service(warm).handle(question("Warm.AppStart", data, **header), NOW, PEER) == ()
    good = isinstance(data, dict) and data.get("Device") == "d"
    assert [start[:2] for start in warm.starts] == ([("d", 2)] if good else [])
    assert make_service().handle(question("Warm.AppStart", data), NOW, PEER) == ()


# Who may ask.


def auth(secret: Any) -> Message:
    return Message("Auth", "Set", "UserMail", secret)


def test_with_a_secret_nobody_is_answered_before_he_has_said_it() -> None:
    service = make_service(guard=Guard("secret"))
    reply = service.handle(question("Session.Create", {"Client": "c"}), NOW, PEER)
    assert isinstance(reply, Farewell)
    assert told(reply[0]) == "NotYours"
    assert service.handle(Message("Auth", "Set", "UserName", "front-1"), NOW, PEER) == ()
    (answer,) = service.handle(auth("secret"), NOW, PEER)  # type: ignore[misc]
    assert (answer.object, answer.name, answer.data, answer.header) == ("Auth", "TaskObject", "Cache", None)
    assert told(ask(service, "Session.Create", {"Client": "c"}))["Session"] == "s1"
    other = service.handle(question("Session.Get", S1), NOW, Peer("127.0.0.1", 4))
    assert isinstance(other, Farewell)
    service.disconnected(PEER)
    assert isinstance(service.handle(question("Session.Get", S1), NOW, PEER), Farewell)


@pytest.mark.parametrize("wrong", ["", "secre", "secret ", "Secret", "сек"])
def test_a_wrong_secret_ends_the_connection(wrong: str) -> None:
    reply = make_service(guard=Guard("secret")).handle(auth(wrong), NOW, PEER)
    assert isinstance(reply, Farewell)
    assert reply[0].data["Code"] == "NotYours"
    assert "secret" not in str(attrs.evolve(reply[0], data=reply[0].data["Code"]))


def test_a_wrong_secret_after_the_right_one_ends_it_too() -> None:
    service = make_service(guard=Guard("secret"))
    service.handle(auth("secret"), NOW, PEER)
    assert isinstance(service.handle(auth("other"), NOW, PEER), Farewell)
    assert isinstance(service.handle(question("Session.Get", S1), NOW, PEER), Farewell)


def test_a_certificate_is_enough_where_one_is_wanted() -> None:
    service = make_service(guard=Guard("", certificates=True))
    assert isinstance(service.handle(question("Session.List", {"Client": "c"}), NOW, PEER), Farewell)
    known = Peer("127.0.0.1", 4, "front-1")
    (answer,) = service.handle(question("Session.List", {"Client": "c"}), NOW, known)  # type: ignore[misc]
    assert told(answer)["Sessions"] == []
    idle = make_service(guard=Guard("secret"))
    assert isinstance(idle.handle(question("Session.List", {"Client": "c"}), NOW, known), Farewell)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Message("Auth", "Get", "UserMail"), "UnknownCommand"),
        (Message("Auth", "Set", "Turn", "t"), "UnknownName"),
        (Message("Auth", "Set", "UserMail", 5), "BadData"),
    ],
)
def test_other_things_of_auth_are_refused(message: Message, code: str) -> None:
    (answer,) = make_service().handle(message, NOW, PEER)  # type: ignore[misc]
    assert (answer.command, answer.data["Code"]) == ("Error", code)


def test_answers_are_counted_by_what_came_of_them_and_unknown_names_together() -> None:
    service = with_session()
    ask(service, "Session.Get", {"Session": "s9"})
    for i in range(50):
        ask(service, f"Session.N{i}")
        ask(service, f"O{i}.N")
    assert service.answered["Session", "Create", ""] == 1
    assert service.answered["Session", "Get", "SessionGone"] == 1
    assert service.answered["", "", "UnknownName"] == service.answered["", "", "UnknownObject"] == 50
    assert len(+service.answered) == 4


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
OPERATIONS = [("Warm", "Get"), ("Warm", "AppStart"), *Objects(CacheStore(StorePolicy()), Times(), 100).operations]
KEYS = ("Client", "Device", "Session", "Key", "Type", "Version", "TTL", "Value")


@given(st.sampled_from(OPERATIONS), st.dictionaries(st.sampled_from(KEYS), ANY) | ANY, ANY)
def test_whatever_is_asked_there_is_one_answer_and_no_accident(which: tuple[str, str], data: Any, header: Any) -> None:
    service = with_session(make_service(FakeWarm()))
    message = question(".".join(which), data)
    reply = service.handle(message, NOW, PEER)
    if which == ("Warm", "AppStart"):
        assert reply == ()
    elif not isinstance(reply, Later):
        assert len(reply) == 1
        assert reply[0].header["Request"] == "r"
    assert isinstance(service.handle(attrs.evolve(message, header=header), NOW, PEER), (Farewell, Later, tuple))
