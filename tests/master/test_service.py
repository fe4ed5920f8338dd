"""The Master object: what a client is answered."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lambdamu.datapack import Decoder, encode
from lambdamu.messages import Message, Reason, Result
from lambdamu.objects import Peer
from master.ask_data import BadDataError, read_ask
from master.core.backend import Backend
from master.core.ejection import Verdict
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.service import AnswerPolicy, Master

V4, V6 = Peer("192.0.2.9", 5), Peer("2001:db8::9", 5)


class Answers:
    def __init__(self) -> None:
        self.results: list[Result] = []
        self.accused_of: list[tuple[str, Verdict]] = []

    def answered(self, result: Result) -> None:
        self.results.append(result)

    def denied(self, reason: Reason) -> None:
        raise AssertionError(reason)

    def accused(self, name: str, verdict: Verdict) -> None:
        self.accused_of.append((name, verdict))


def make_master(*counts: int, **backend: Any) -> tuple[Master, Answers]:
    rng, answers = random.Random(1), Answers()
    pool = Pool([Backend(f"b{i}", **backend) for i in range(len(counts))], HealthPolicy(), LoadPolicy())
    for i, count in enumerate(counts):
        pool.record_report(0.0, rng, f"b{i}", count, 0.0, (f"10.0.0.{i}", 9000 + i))
    return Master(pool, AnswerPolicy(ttl_s=2.0, retry_after_s=2.0), rng, answers), answers


def ask(master: Master, data: Any = None, peer: Peer = V4) -> dict[str, Any]:
    """Return the `Data` of the one answer, after a way over the wire."""
    reply = master.handle(Message("Master", "Event", "DoSendServer", data), 0.0, peer)
    assert isinstance(reply, list)
    (message,) = next(Decoder().feed(encode(reply)))
    assert (message.object, message.name) == ("Master", "Server" if message.command == "Value" else "DoSendServer")
    data = message.data
    assert isinstance(data, dict)
    return data


def test_a_plain_ask_gets_the_address_and_nothing_else() -> None:
    master, answers = make_master(5, 3, 4)
    assert ask(master) == {"Result": "OK", "Data": {"IP": "10.0.0.1", "Port": 9001}}
    assert answers.results == [Result.OK]


def test_no_backend_is_an_answer_with_a_jittered_time_to_come_back() -> None:
    master, answers = make_master()
    times = []
    for _ in range(200):
        answer = ask(master)
        assert answer["Result"] == "NoServer"
        assert answer["Data"].keys() == {"RetryAfter"}
        times.append(answer["Data"]["RetryAfter"])
    assert 1.0 <= min(times) < 1.2
    assert 2.8 < max(times) <= 3.0
    assert answers.results == [Result.NO_SERVER] * 200


@pytest.mark.parametrize("data", [{}, [], {"Unknown": 1}, {1: 2}, {"Want": []}, {"Want": ["Later"]}, {"Client": None}])
def test_what_a_client_does_not_want_it_does_not_get(data: Any) -> None:
    assert ask(make_master(5)[0], data) == {"Result": "OK", "Data": {"IP": "10.0.0.0", "Port": 9000}}


def test_a_client_gets_the_extra_keys_that_it_wants() -> None:
    answer = ask(make_master(1, 2, 3, 4)[0], {"Want": ["Name", "Alternates", "TTL", "Turn"]})["Data"]
    assert answer == {
        "IP": "10.0.0.0",
        "Port": 9000,
        "Name": "b0",
        "TTL": 2.0,
        "Alternates": [
            {"IP": "10.0.0.1", "Port": 9001, "Name": "b1"},
            {"IP": "10.0.0.2", "Port": 9002, "Name": "b2"},
        ],
    }


def test_a_lua_client_may_send_its_wants_as_a_map_and_its_texts_as_bytes() -> None:
    assert ask(make_master(1)[0], {b"Want": {1: b"Name", 2: b"TTL"}})["Data"].keys() == {"IP", "Port", "Name", "TTL"}


def test_a_client_is_sent_to_its_zone() -> None:
    rng = random.Random(1)
    pool = Pool([Backend("b0", zone="a"), Backend("b1", zone="b")], HealthPolicy(), LoadPolicy())
    for name, count in (("b0", 100), ("b1", 110)):
        pool.record_report(0.0, rng, name, count, 0.0, ("10.0.0.1", 1))
    master = Master(pool, AnswerPolicy(ttl_s=2.0, retry_after_s=2.0), rng, Answers())
    for zone, name in (("b", "b1"), (b"a", "b0")):
        assert ask(master, {"Zone": zone, "Want": ["Name"]})["Data"]["Name"] == name


def test_before_the_first_round_of_probes_nobody_is_sent_anywhere() -> None:
    rng, answers = random.Random(1), Answers()
    pool = Pool([Backend("b0"), Backend("b1")], HealthPolicy(), LoadPolicy())
    pool.record_report(0.0, rng, "b0", 5, 0.0, ("10.0.0.1", 1))
    master = Master(pool, AnswerPolicy(ttl_s=2.0, retry_after_s=2.0), rng, answers)
    assert ask(master)["Result"] == "NoServer"
    pool.record_failure(0.0, "b1")
    assert ask(master)["Result"] == "OK"
    assert answers.results == [Result.NO_SERVER, Result.OK]


def test_each_family_is_told_its_own_address() -> None:
    master, _ = make_master(1, advertise=(("203.0.113.7", 1), ("2001:db8::7", 2)))
    assert ask(master, peer=V4)["Data"] == {"IP": "203.0.113.7", "Port": 1}
    assert ask(master, peer=V6)["Data"] == {"IP": "2001:db8::7", "Port": 2}


def test_a_client_that_leaves_is_told_so_and_takes_no_place() -> None:
    master, answers = make_master(1)
    answer = ask(master, {"Leave": True})
    assert answer["Result"] == "Closed"
    assert answer["Data"]["Reason"] == "Left"
    assert answer["Data"]["RetryAfter"] is None
    assert answers.results == [Result.CLOSED]
    assert ask(master, {"Leave": False})["Result"] == "OK"


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (5, "Data"),
        ("x", "Data"),
        ([1], "Data"),
        (True, "Data"),
        ({"Client": 5}, "Client"),
        ({"Client": b"\xff"}, "Client"),
        ({"Client": "x" * 129}, "Client"),
        ({"Device": "ü" * 65}, "Device"),
        ({"Zone": []}, "Zone"),
        ({"Queue": True}, "Queue"),
        ({"Ticket": "x" * 201}, "Ticket"),
        ({"Pass": "x" * 513}, "Pass"),
        ({"Away": 1}, "Away"),
        ({"Leave": "yes"}, "Leave"),
        ({"Want": "Name"}, "Want"),
        ({"Want": [1]}, "Want"),
        ({"Want": {"a": "Name"}}, "Want"),
        ({"Failed": {"IP": "x"}}, "Failed"),
        ({"Failed": [{"IP": "1.2.3.4", "Port": True}]}, "Failed"),
        ({"Failed": [{"IP": "1.2.3.4", "Port": 0}]}, "Failed"),
        ({"Failed": [{"IP": 5, "Port": 5}]}, "Failed"),
        ({"Failed": [5]}, "Failed"),
        ({"Failed": [{"IP": "1.2.3.4", "Port": 5, "Why": False}]}, "Why"),
        ({"Failed": [{"IP": "1.2.3.4", "Port": 5, "Why": 0}]}, "Why"),
    ],
)
def test_bad_data_gets_an_error_that_names_the_key_and_takes_no_place(data: Any, key: str) -> None:
    master, answers = make_master(1)
    error = ask(master, data)
    assert error["Code"] == "BadData"
    assert key in error["Text"]
    assert answers.results == []


def test_all_keys_at_their_limits_are_read() -> None:
    data = {
        "Client": "c" * 128,
        "Device": "d" * 128,
        "Zone": "z",
        "Queue": "q",
        "Ticket": "t" * 200,
        "Pass": "p" * 512,
        "Away": True,
        "Leave": False,
        "Failed": [{"IP": "10.0.0.1", "Port": 9001, "Why": "refused"}, {"IP": b"::1", "Port": 1, "Why": None}],
        "Want": ["Name"],
        "More": {"x": 1},
    }
    read = read_ask(data)
    assert read.pop("Failed") == [("10.0.0.1", 9001, "refused"), ("::1", 1, "")]
    assert read == {key: data[key] for key in read} | {"Want": {"Name"}}
    assert "More" not in read


def test_bad_data_is_an_error_of_its_own_kind() -> None:
    with pytest.raises(BadDataError, match="Want"):
        read_ask({"Want": 7})


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        ("Get", "DoSendServer", "UnknownCommand"),
        ("Set", "DoSendServer", "UnknownCommand"),
        ("Do", "DoSendServer", "UnknownCommand"),
        ("Event", "DoSend", "UnknownName"),
        ("Get", "Server", "UnknownName"),
    ],
)
def test_what_the_master_does_not_know_gets_an_error_of_the_same_name(command: str, name: str, code: str) -> None:
    reply = make_master(1)[0].handle(Message("Master", command, name), 0.0, V4)
    assert isinstance(reply, list)
    assert (reply[0].object, reply[0].command, reply[0].name) == ("Master", "Error", name)
    assert reply[0].data["Code"] == code


def test_a_client_is_known_again_by_its_id_and_heard_on_where_it_was_sent() -> None:
    master, answers = make_master(5, 5)
    first = ask(master, {"Client": "ann"})["Data"]
    assert ask(master, {"Client": "ann"})["Data"] == first
    failed = {"IP": first["IP"], "Port": first["Port"], "Why": "refused"}
    second = ask(master, {"Client": "ann", "Failed": [failed]})["Data"]
    assert second != first
    assert [verdict for _, verdict in answers.accused_of] == [Verdict.COUNTED]


@pytest.mark.parametrize(
    "why", ["Full", "TurnMissing", "TurnUsed", "TurnForeign", "TurnExpired", "NoStore", "NotYours"]
)
def test_a_backend_that_works_and_lets_nobody_in_is_not_accused_and_nobody_without_an_id_is_heard(why: str) -> None:
    master, answers = make_master(5, 5)
    place = ask(master, {"Client": "ann"})["Data"]
    failed = [{"IP": place["IP"], "Port": place["Port"], "Why": why}]
    assert ask(master, {"Client": "ann", "Failed": failed})["Data"] != place  # asking again for 15 s, and no place
    ask(master, {"Failed": [{"IP": place["IP"], "Port": place["Port"], "Why": "refused"}]})
    assert answers.accused_of == []


@pytest.mark.parametrize("ip", ["::ffff:zz", "::ffff:", "::FFFF:1.2.3", "", "chat.example", "::ffff:1.2.3.4%"])
def test_a_failed_place_that_is_no_address_is_nobodys(ip: str) -> None:
    master, answers = make_master(5, 5)
    ask(master, {"Client": "ann"})
    assert ask(master, {"Client": "ann", "Failed": [{"IP": ip, "Port": 9001}]})["Result"] == Result.OK
    assert answers.accused_of == []


def test_of_many_failed_places_the_last_are_heard() -> None:
    master, answers = make_master(5, 5)
    place = ask(master, {"Client": "ann"})["Data"]
    others = [{"IP": "192.0.2.1", "Port": port} for port in range(1, 65)]
    ask(master, {"Client": "ann", "Failed": [place, *others]})
    assert answers.accused_of == []
    ask(master, {"Client": "ann", "Failed": [*others, place]})
    assert len(answers.accused_of) == 1


def test_the_id_of_a_client_is_kept_nowhere() -> None:
    master, _ = make_master(5)
    ask(master, {"Client": "a-very-secret-id"})
    assert "a-very-secret-id" not in repr(vars(master._pool.ejections._sendings))
