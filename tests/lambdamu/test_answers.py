"""What batches mean to a client."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, explain, read_answer, read_task
from lambdamu.messages import AUTH, MASTER, SERVER, SYSTEM, TASK_OBJECT, USER_COUNT, Command, Message, Result

COUNT = Message(SYSTEM, Command.VALUE, USER_COUNT, 7)


def server(data: Any) -> Message:
    return Message(MASTER, Command.VALUE, SERVER, data)


def task(data: Any) -> Message:
    return Message(AUTH, Command.VALUE, TASK_OBJECT, data)


def refusal(data: Any) -> Message:
    return Message(MASTER, Command.ERROR, "Error", data)


def ok(ip: Any, port: Any, **more: Any) -> Message:
    return server({"Result": "OK", "Data": {"IP": ip, "Port": port, **more}})


@pytest.mark.parametrize(
    ("batch", "result", "endpoint"),
    [
        ([ok("192.0.2.1", 9001)], Result.OK, "192.0.2.1:9001"),
        ([ok("2001:db8::7", 1)], Result.OK, "[2001:db8::7]:1"),
        ([ok(b"192.0.2.1", 65535)], Result.OK, "192.0.2.1:65535"),
        ([ok("192.0.2.1", 9001, Name="b1", TTL=2.0)], Result.OK, "192.0.2.1:9001"),
        ([server({b"Result": b"OK", b"Data": {b"IP": b"192.0.2.1", b"Port": 9001}})], Result.OK, "192.0.2.1:9001"),
        ([COUNT, ok("192.0.2.1", 9001), ok("192.0.2.2", 9002)], Result.OK, "192.0.2.1:9001"),
        ([server({"Result": "NoServer", "Data": {"RetryAfter": 2.0}})], Result.NO_SERVER, None),
        ([server({"Result": "NoServer"})], Result.NO_SERVER, None),
        ([server({"Result": "Wait", "Data": []})], Result.WAIT, None),
        ([server({"Result": "Closed", "Data": "late"})], Result.CLOSED, None),
        ([server({"Result": "Denied", "Data": {"IP": "192.0.2.1", "Port": 9001}})], Result.DENIED, None),
    ],
)
def test_an_answer_is_read(batch: list[Message], result: Result, endpoint: str | None) -> None:
    answer = read_answer(batch)
    assert isinstance(answer, Answer)
    assert answer.result is result
    assert answer.endpoint == (Address.parse(endpoint) if endpoint else None)


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [COUNT],
        [Message(MASTER, Command.VALUE, "Weather", {"Result": "OK"})],
        [Message("Servant", Command.VALUE, SERVER, {"Result": "OK"})],
        [Message(MASTER, Command.EVENT, SERVER, {"Result": "OK"})],
    ],
)
def test_what_is_about_other_things_is_no_answer(batch: list[Message]) -> None:
    assert read_answer(batch) is None


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (server(None), "no map but None"),
        (server("OK"), "no map but 'OK'"),
        (server([1]), "no map but [1]"),
        (server([]), "unknown result None"),
        (server({"Result": "Maybe"}), "unknown result 'Maybe'"),
        (server({"Result": "ok"}), "unknown result 'ok'"),
        (server({"Result": True}), "unknown result True"),
        (server({"Result": []}), "unknown result []"),
        (server({"Result": "OK"}), "the IP None"),
        (server({"Result": "OK", "Data": 7}), "the IP None"),
        (ok("backend.example.org", 9001), "the IP 'backend.example.org'"),
        (ok("[::1]", 9001), "the IP '[::1]'"),
        (ok(b"\xff", 9001), "the IP b'\\xff'"),
        (ok(2130706433, 9001), "the IP 2130706433"),
        (ok("192.0.2.1", 0), "the port 0"),
        (ok("192.0.2.1", 65536), "the port 65536"),
        (ok("192.0.2.1", -1), "the port -1"),
        (ok("192.0.2.1", "9001"), "the port '9001'"),
        (ok("192.0.2.1", 9001.0), "the port 9001.0"),
        (ok("192.0.2.1", True), "the port True"),
        (ok("192.0.2.1", None), "the port None"),
    ],
)
def test_an_answer_not_to_the_protocol_is_a_final_failure(message: Message, part: str) -> None:
    failure = read_answer([message])
    assert isinstance(failure, Failure)
    assert failure.final
    assert part in failure.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"Code": "Limit", "Text": "too many"}, "it answered the error Limit: too many"),
        ({b"Code": b"Limit", b"Text": b"too many"}, "it answered the error Limit: too many"),
        ({"Code": "Full"}, "it answered the error Full"),
        ({"Code": 7}, "it answered the error {'Code': 7}"),
        (None, "it answered the error None"),
        ({"Code": "Bad\n", "Text": "\x1b[31m"}, "it answered the error Bad\\n: \\x1b[31m"),
        ({"Code": "Long", "Text": "x" * 500}, ("it answered the error Long: " + "x" * 500)[:197] + "..."),
    ],
)
def test_an_error_is_told_in_one_line_and_may_pass(data: Any, text: str) -> None:
    assert read_answer([refusal(data)]) == read_task([refusal(data)]) == Failure(text, final=False)


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        ([task("Task-3")], "Task-3"),
        ([task(b"Task-3")], "Task-3"),
        ([COUNT, task("Task-3")], "Task-3"),
        ([COUNT], None),
        ([], None),
        ([Message(AUTH, Command.VALUE, "Session", "s1")], None),
    ],
)
def test_a_task_is_read(batch: list[Message], name: str | None) -> None:
    assert read_task(batch) == name


@pytest.mark.parametrize("data", [None, "", b"", 7, True, [], {"Name": "Task-3"}, b"\xff"])
def test_what_names_no_task_is_a_final_failure(data: Any) -> None:
    failure = read_task([task(data)])
    assert isinstance(failure, Failure)
    assert failure.final
    assert "named no Task object" in failure.text


@pytest.mark.parametrize(
    ("result", "data", "text"),
    [
        (Result.NO_SERVER, {}, "it answered NoServer"),
        (Result.NO_SERVER, {"RetryAfter": 1.23456}, "it answered NoServer; ask again in 1.2 s"),
        (Result.NO_SERVER, {"RetryAfter": "soon"}, "it answered NoServer"),
        (Result.NO_SERVER, {"RetryAfter": True}, "it answered NoServer"),
        (Result.NO_SERVER, {"RetryAfter": math.nan}, "it answered NoServer"),
        (Result.NO_SERVER, {"RetryAfter": -1.0}, "it answered NoServer"),
        (Result.NO_SERVER, {"RetryAfter": 1e300}, "it answered NoServer"),
        (Result.DENIED, {"Reason": "Used"}, "it answered Denied, Used"),
        (
            Result.CLOSED,
            {"Reason": b"Night", "Text": "come\ntomorrow", "RetryAfter": 3600},
            "it answered Closed, Night: come\\ntomorrow; ask again in 3600.0 s",
        ),
    ],
)
def test_an_answer_without_a_backend_is_explained(result: Result, data: dict[str, Any], text: str) -> None:
    assert explain(Answer(result, None, None, data)) == text


def test_a_failure_names_its_author_once() -> None:
    address = Address("127.0.0.1", 7000)
    assert (
        Failure(f"{address}: Connection refused").of("master", address).text == f"master {address}: Connection refused"
    )
    assert Failure(f"{address} is silent").of("master", address).text == f"master {address}: is silent"
    assert Failure("is silent", final=True).of("master", address) == Failure(f"master {address}: is silent", final=True)


def answered(data: dict[Any, Any], result: str = "OK") -> Answer:
    answer = read_answer([server({"Result": result, "Data": data})])
    assert isinstance(answer, Answer)
    return answer


@pytest.mark.parametrize(
    ("alternates", "more"),
    [
        (None, []),
        ([], []),
        ("192.0.2.2", []),
        ([{"IP": "192.0.2.2", "Port": 2, "Name": "b2"}], [("192.0.2.2:2", "b2")]),
        ({1: {b"IP": b"192.0.2.2", b"Port": 2}}, [("192.0.2.2:2", None)]),
        ([{"IP": "nowhere", "Port": 2}, 7, [], {"IP": "192.0.2.3", "Port": 3, "Name": 7}], [("192.0.2.3:3", None)]),
        (
            [{"IP": "192.0.2.2", "Port": port} for port in range(1, 99)],
            [(f"192.0.2.2:{i}", None) for i in range(1, 17)],
        ),
    ],
)
def test_the_places_are_the_best_and_then_its_alternates(alternates: Any, more: list[tuple[str, str | None]]) -> None:
    answer = answered({"IP": "192.0.2.1", "Port": 1, "Name": b"b1", "Alternates": alternates})
    assert [(str(address), name) for address, name in answer.places] == [("192.0.2.1:1", "b1"), *more]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (2, 2.0),
        (0.5, 0.5),
        (0, 0.0),
        (-1, None),
        (math.nan, None),
        (math.inf, None),
        (True, None),
        ("2", None),
        (None, None),
    ],
)
def test_seconds_are_numbers_that_are_not_negative(value: Any, seconds: float | None) -> None:
    answer = answered({"RetryAfter": value, "TTL": value}, "NoServer")
    assert (answer.retry_after_s, answer.ttl_s) == (seconds, seconds)


@pytest.mark.parametrize(
    ("value", "ticket"), [("t1", "t1"), (b"t1", "t1"), ("", None), (7, None), ("x" * 201, None), (None, None)]
)
def test_a_ticket_and_a_turn_are_texts_that_would_be_taken(value: Any, ticket: str | None) -> None:
    assert answered({"Ticket": value}, "Wait").ticket == ticket
    assert answered({"IP": "192.0.2.1", "Port": 1, "Turn": value}).turn == ticket
