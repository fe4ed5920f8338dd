"""The ring of answers: what is kept, who is found in it, and that an ask fills it with what was compared."""

from __future__ import annotations

import random

import pytest

from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message
from lambdamu.objects import Peer
from master.answer_log import PLAIN_EVERY_S, Answer, AnswerLog, hash_of, network_of, network_of_peer
from master.config import BackendConfig, Config
from master.core.pool import Reason
from master.event_log import Event, EventLog
from master.node import make_pool
from master.service import AnswerPolicy, Master


def answer(at: float, client: str | None = None, network: str = "10.0.0.0/24") -> Answer:
    return Answer(at, hash_of(client) if client else None, network, "", "OK", "best", "b1")


def test_the_newest_are_kept_and_come_first() -> None:
    log = AnswerLog(named=3, plain=2)
    for at in range(5):
        log.note(answer(at, "ann"))
        log.note_plain(answer(at + 0.5))
    assert [each.at for each in log.newest()] == [4.5, 4, 3.5, 3, 2]
    assert len(log) == log.limit == 5
    assert [each.at for each in log.search("", 2)] == [4.5, 4]


def test_many_plain_asks_push_out_no_named_client() -> None:
    log = AnswerLog(named=2, plain=2)
    log.note(answer(0, "ann"))
    for at in range(1, 100):
        log.note_plain(answer(at))
    assert [each.at for each in log.search("ann", 9)] == [0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann", {1}),
        (hash_of("ann"), {1}),
        (hash_of("ann")[:8], {1}),
        (hash_of("ann")[:7], set()),
        ("deadbeef", {3}),
        ("10.0.0.77", {1, 2}),
        ("10.0.0.0/24", {1, 2}),
        ("::ffff:10.0.0.9", {1, 2}),
        ("10.0.1.77", set()),
        ("2001:db8:1:ffff::9", {3}),
        ("nobody", set()),
        ("", {1, 2, 3}),
    ],
)
def test_a_client_is_found_by_id_hash_address_or_network(text: str, found: set[int]) -> None:
    log = AnswerLog()
    log.note(answer(1, "ann"))
    log.note_plain(answer(2))
    log.note(answer(3, "deadbeef", "2001:db8:1::/48"))
    assert {each.at for each in log.search(text, 10)} == found


@pytest.mark.parametrize(
    ("host", "network"),
    [("10.1.2.3", "10.1.2.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48"), ("fe80::1%eth0", "fe80::/48")],
)
def test_a_network_is_a_24_or_a_48(host: str, network: str) -> None:
    assert network_of(host) == network_of_peer(host) == network
    assert network_of("ann") is None


def master(log: AnswerLog, *names: str) -> Master:
    rng = random.Random(1)
    pool = make_pool(Config(backends=tuple(BackendConfig(name, name, 1) for name in names)))
    for users, name in enumerate(names):
        pool.record_report(1.0, rng, name, 10 * users, 1.0, ("10.9.9.9", 1))

    class Deaf:
        def answered(self, result: object) -> None: ...

        def denied(self, reason: object) -> None: ...

        def accused(self, name: str, verdict: object) -> None: ...

    return Master(pool, AnswerPolicy(1.0, 1.0), rng, Deaf(), log)


def ask(data: object = None) -> Message:
    return Message(MASTER, Command.EVENT, DO_SEND_SERVER, data)


def test_an_ask_with_data_is_noted_with_the_loads_that_were_compared() -> None:
    log = AnswerLog()
    master(log, "a", "b", "c", "d").do_send_server(ask({"Client": "ann", "Zone": "z"}), 1.0, Peer("10.1.2.3", 5))
    (noted,) = log.search("ann", 9)
    assert (noted.network, noted.zone, noted.result, noted.reason, noted.backend) == (
        "10.1.2.0/24",
        "z",
        "OK",
        "best",
        "a",
    )
    assert noted.loads == (("a", 1.0), ("b", 10.0), ("c", 20.0))
    assert "ann" not in repr(noted)


def test_a_refusal_is_noted_with_its_reason() -> None:
    log = AnswerLog()
    door = master(log)
    door.do_send_server(ask({"Client": "ann"}), 1.0, Peer("10.1.2.3", 5))
    quick = door.prepare(ask())
    assert quick is not None
    quick(2.0, 4, ("10.1.2.3", 5))
    assert [(each.result, each.reason, each.backend) for each in log.newest()] == [
        ("NoServer", "no_candidate", None)
    ] * 2


def test_of_plain_asks_one_in_a_while_is_noted_whichever_way_it_comes() -> None:
    log = AnswerLog()
    door = master(log, "a", "b")
    quick = door.prepare(ask())
    assert quick is not None
    for step in range(100):
        quick(1.0 + step * PLAIN_EVERY_S / 10, 4, ("::ffff:10.1.2.3", 5))
    assert 9 <= len(log) <= 11
    assert {each.network for each in log.newest()} == {"10.1.2.0/24"}
    assert {each.reason for each in log.newest()} <= {Reason.BEST, Reason.EARLIEST}
    assert all(each.loads[0][0] == each.backend for each in log.newest())
    door.do_send_server(ask(), 5.0, Peer("2001:db8::1", 5))
    assert next(log.newest()).network == "2001:db8::/48"


def test_the_last_events_are_kept_and_each_is_heard_once() -> None:
    log, heard = EventLog(kept=2), list[Event]()
    log.add(1.0, "backend_up", "it answers", "b1")
    log.listen(heard.append)
    log.add(2.0, "backend_down", "it refused", "b1")
    log.add(3.0, "reload", "nothing changed")
    assert [(each.number, each.kind) for each in log.last(9)] == [(2, "backend_down"), (3, "reload")]
    assert log.last(1) == heard[1:]
