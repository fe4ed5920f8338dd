"""Doors x rights: nothing is written, answered or learned without the right that the configuration asks for.

A door is a way to ask, a right what the one who asks has. To add one, add a row to `DOORS` or `RIGHTS`.
The file is long because each door has its own way to ask, and to show a right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from lambdamu.datapack import Decoder, encode
from lambdamu.keys import Signer
from lambdamu.messages import Message, Reason, Result
from lambdamu.objects import Peer
from lambdamu.passes import Pass, PassVerifier, make_pass
from lambdamu.tcp_server import PortLimits
from master.access import Access, Credentials, SharedTokens
from master.answer_log import AnswerLog, hash_of
from master.config import AccessPolicy
from master.core.backend import Backend
from master.core.ejection import Verdict
from master.core.fair import FairPolicy, NetworkRates
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.doors import Doors, make_doors
from master.service import AnswerPolicy, Master

KEY = Signer.generate("k1")
NOW = 1_800_000_000
TOKEN = "correct-horse-battery"
CLIENT = "an-id-of-128-random-bits"
FAILED = [{"IP": "10.0.0.1", "Port": 9001, "Why": "refused"}]
HOST = "192.0.2.9"


class Heard:
    def __init__(self) -> None:
        self.results: list[Result] = []
        self.denials: list[Reason] = []
        self.accused_of: list[tuple[str, Verdict]] = []

    def answered(self, result: Result) -> None:
        self.results.append(result)

    def denied(self, reason: Reason) -> None:
        self.denials.append(reason)

    def accused(self, name: str, verdict: Verdict) -> None:
        self.accused_of.append((name, verdict))


@attrs.define
class House:
    """A master with one backend, and all that it could learn by an ask."""

    doors: Doors | None
    heard: Heard = attrs.Factory(Heard)
    log: AnswerLog = attrs.Factory(AnswerLog)
    pool: Pool = attrs.field(init=False)
    master: Master = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = Pool([Backend("b1")], HealthPolicy(), LoadPolicy())
        self.report(0.0)
        self.master = Master(self.pool, AnswerPolicy(2.0, 2.0), random.Random(1), self.heard, self.log, self.doors)

    def report(self, now: float) -> None:
        self.pool.record_report(now, random.Random(1), "b1", 5, now, ("10.0.0.1", 9001))

    def ask(self, data: Any = None, *, subject: str = "", now: float = 0.0, host: str = HOST) -> Any:
        message, peer = Message("Master", "Event", "DoSendServer", data), Peer(host, 5, subject)
        reply = self.master.handle(message, now, peer)
        assert isinstance(reply, list)
        return unpacked(encode(reply))

    def ask_quickly(self, *, subject: str = "", now: float = 0.0, host: str = HOST) -> Any:
        """Ask as the port does with a question that it knows: the subject is not known there."""
        quick = self.master.prepare(Message("Master", "Event", "DoSendServer"))
        if quick is None:
            return self.ask(subject=subject, now=now, host=host)
        return unpacked(quick(now, 4, (host, 5)))

    def learned(self) -> dict[str, Any]:
        """Return what could have been learned of an ask: what it is known by, and what it moves."""
        member = self.pool["b1"]
        return {
            "asks": self.pool._asks.count,
            "reserved": member.reservations.total,
            "sent": len(self.pool.ejections),
            "accused": list(self.heard.accused_of),
            "named": len(self.log._named),
        }


def unpacked(data: bytes) -> Any:
    ((message,),) = Decoder().feed(data)
    return message.data


def doors_of(**policy: Any) -> Doors:
    access = AccessPolicy(**policy)
    passes = PassVerifier({"k1": KEY.verifier()}, frozenset({"p9"})) if access.keys_file else None
    tokens = SharedTokens({"phones": TOKEN}) if access.tokens_file else None
    credentials = Credentials(passes, tokens, frozenset({"p9", "CN=eve"}))
    return Doors(random.Random(1), access=Access(access, credentials), wall=lambda: NOW)


def text(**values: Any) -> str:
    made = {"id": "p1", "subject": "ann", "rights": ("access",), "expires": NOW + 60, **values}
    return make_pass(KEY, Pass(**made))


@attrs.frozen
class Right:
    """What one has who asks, and the reason why it is not enough; None: it is."""

    data: dict[str, Any] = attrs.Factory(dict)
    subject: str = ""
    denied: Reason | None = None


RIGHTS = {
    "pass": Right({"Pass": text()}),
    "token": Right({"Pass": TOKEN}),
    "certificate": Right(subject="CN=ann"),
    "certificate and an expired pass": Right({"Pass": text(expires=NOW - 60)}, "CN=ann"),
    "nothing": Right(denied=Reason.PASS_MISSING),
    "rubbish": Right({"Pass": "rubbish"}, denied=Reason.PASS_FOREIGN),
    "no text": Right({"Pass": ""}, denied=Reason.PASS_FOREIGN),
    "expired": Right({"Pass": text(expires=NOW - 60)}, denied=Reason.PASS_EXPIRED),
    "revoked": Right({"Pass": text(id="p9")}, denied=Reason.PASS_REVOKED),
    "too little": Right({"Pass": text(rights=("vip",))}, denied=Reason.PASS_TOO_LITTLE),
    "foreign": Right(
        {"Pass": make_pass(Signer.generate("k1"), Pass("p1", "ann", ("access",), NOW))}, denied=Reason.PASS_FOREIGN
    ),
    "revoked certificate": Right(subject="CN=eve", denied=Reason.PASS_REVOKED),
}
"""With every way switched on."""

Door = Callable[[House, Right], Any]
DOORS: dict[str, Door] = {
    "ask with Data": lambda house, right: house.ask(right.data, subject=right.subject),
    "ask with Client": lambda house, right: house.ask({"Client": CLIENT, **right.data}, subject=right.subject),
    "ask with all": lambda house, right: house.ask(
        {"Client": CLIENT, "Zone": "a", "Want": ["Name", "Alternates"], **right.data}, subject=right.subject
    ),
    "Failed": lambda house, right: house.ask({"Client": CLIENT, "Failed": FAILED, **right.data}, subject=right.subject),
    "Leave": lambda house, right: house.ask({"Client": CLIENT, "Leave": True, **right.data}, subject=right.subject),
}
PLAIN_DOORS: dict[str, Door] = {
    "plain ask": lambda house, right: house.ask(subject=right.subject),
    "plain ask, quickly": lambda house, right: house.ask_quickly(subject=right.subject),
}
"""A plain ask says nothing, so the connection alone can give the right."""
ROWS = [
    *((door, DOORS[door], right, RIGHTS[right]) for door in DOORS for right in RIGHTS),
    *(
        (door, PLAIN_DOORS[door], right, RIGHTS[right])
        for door in PLAIN_DOORS
        for right in RIGHTS
        if not RIGHTS[right].data
    ),
]


@pytest.mark.parametrize(("door", "right"), [row[1::2] for row in ROWS], ids=[f"{row[0]}, {row[2]}" for row in ROWS])
def test_doors_and_rights(door: Door, right: Right) -> None:
    house = House(doors_of(keys_file="k", tokens_file="t", client_certificates=True))
    house.ask({"Client": CLIENT, "Pass": TOKEN})  # so that there is something that Failed could tell of
    before, answered = house.learned(), len(house.heard.results)
    answer = door(house, right)
    assert len(house.heard.results) == answered + 1
    if right.denied is None:
        assert answer["Result"] in ("OK", "Closed")
        assert house.heard.denials == []
        assert answer["Result"] == "Closed" or house.learned() != before
        return
    assert answer == {"Result": "Denied", "Data": {"Reason": right.denied, "RetryAfter": None}}
    assert house.learned() == before
    assert house.heard.results[-1] is Result.DENIED
    assert house.heard.denials == [right.denied]


def test_without_doors_everybody_comes_in_whatever_he_sends() -> None:
    house = House(None)
    for right in RIGHTS.values():
        assert house.ask(right.data)["Result"] == "OK"
    assert house.ask_quickly()["Result"] == "OK"


@pytest.mark.parametrize("policy", [{"keys_file": "k"}, {"tokens_file": "t"}])
def test_plain_asks_are_denied_quickly_where_only_a_pass_gives_the_right(policy: dict[str, Any]) -> None:
    house = House(doors_of(**policy))
    assert house.master.prepare(Message("Master", "Event", "DoSendServer")) is not None
    before = house.learned()
    answer = {"Result": "Denied", "Data": {"Reason": "PassMissing", "RetryAfter": None}}
    assert house.ask_quickly() == house.ask() == answer
    assert house.ask(subject="CN=ann") == answer
    assert house.learned() == before


def test_a_certificate_that_counts_is_looked_at_for_each_plain_ask() -> None:
    house = House(doors_of(client_certificates=True))
    assert house.master.prepare(Message("Master", "Event", "DoSendServer")) is None


def test_a_denial_is_noted_with_its_reason_and_pushes_nobody_out() -> None:
    house = House(doors_of(keys_file="k"))
    house.ask({"Client": "ann", "Pass": text()}, now=1.0)
    for i in range(5000):
        house.ask({"Client": "eve", "Zone": "z", "Pass": "rubbish"}, now=2.0 + i)
    house.ask_quickly(now=9000.0)
    assert [answer.result for answer in house.log.search("ann", 9)] == ["OK"]
    noted = house.log.search("eve", 1)[0]
    assert noted[1:] == (hash_of("eve"), "192.0.2.0/24", "z", Result.DENIED, Reason.PASS_MALFORMED, None, ())
    assert house.log.search(HOST, 1)[0].reason == Reason.PASS_MISSING


def test_data_that_is_wrong_is_told_so_and_nothing_is_learned() -> None:
    house = House(doors_of(keys_file="k"))
    before = house.learned()
    assert house.ask({"Pass": "x" * 513})["Code"] == "BadData"
    assert house.learned() == before


def limited(per_s: float = 1.0, burst: int = 2, **access: Any) -> House:
    rates = NetworkRates(FairPolicy(per_s, burst))
    doors = Doors(random.Random(1), rates=rates, wall=lambda: NOW)
    if access:
        doors.access = doors_of(**access).access
    return House(doors)


@pytest.mark.parametrize(
    "ask", [lambda house, **at: house.ask_quickly(**at), lambda house, **at: house.ask({"Client": CLIENT}, **at)]
)
def test_who_asks_too_fast_is_told_when_to_come_back_and_is_let_in_then(ask: Any) -> None:
    house = limited()
    assert [ask(house, now=1.0)["Result"] for _ in range(2)] == ["OK", "OK"]
    before, waits = house.learned(), []
    for _ in range(100):
        answer = ask(house, now=1.0)
        assert (answer["Result"], answer["Data"]["Reason"]) == ("Denied", "TooFast")
        waits.append(answer["Data"]["RetryAfter"])
    assert house.learned() == before
    assert house.heard.denials == [Reason.TOO_FAST] * 100
    assert 1.0 <= min(waits) < 1.05
    assert 1.45 < max(waits) <= 1.5
    assert ask(house, now=1.0, host="192.0.2.10")["Result"] == "OK"
    assert ask(house, now=1.0 + min(waits))["Result"] == "OK"


def test_too_fast_comes_before_the_look_at_a_pass() -> None:
    house = limited(keys_file="k")
    good = {"Pass": text()}
    assert [house.ask(data)["Data"].get("Reason") for data in (good, {"Pass": "x"}, good)] == [
        None,
        "PassMalformed",
        "TooFast",
    ]
    assert house.ask(1)["Data"]["Reason"] == "TooFast"


def test_an_ipv6_client_is_its_64_and_a_mapped_one_its_ipv4() -> None:
    house = limited(burst=1)
    hosts = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "192.0.2.1", "::ffff:192.0.2.1"]
    assert [house.ask_quickly(host=host)["Result"] for host in hosts] == ["OK", "Denied", "OK", "OK", "Denied"]


def test_doors_are_made_of_the_configuration_and_none_where_nothing_is_asked_for() -> None:
    rng = random.Random(1)
    assert make_doors(PortLimits(), AccessPolicy(), rng) is None
    doors = make_doors(PortLimits(asks_per_network_per_s=1.0, asks_burst=1, ipv4_prefix=24), AccessPolicy(), rng)
    assert doors is not None
    assert [doors.too_fast(0.0, host) is None for host in ("192.0.2.1", "192.0.2.2", "192.0.3.1")] == [
        True,
        False,
        True,
    ]
    assert doors.without_right(None, "") is None
    certificates = make_doors(PortLimits(), AccessPolicy(client_certificates=True), rng)
    assert certificates is not None
    assert certificates.too_fast(0.0, HOST) is None
    assert certificates.without_right(None, "") is not None


@pytest.mark.parametrize(
    ("client", "failed", "after_s", "counts"),
    [
        (CLIENT, FAILED, 14.9, True),
        (CLIENT, FAILED, 15.1, False),
        ("a stranger", FAILED, 1.0, False),
        (CLIENT, [{"IP": "10.0.0.2", "Port": 9001}], 1.0, False),
        (None, FAILED, 1.0, False),
    ],
)
def test_failed_counts_only_from_a_client_that_was_sent_there_a_moment_ago(
    client: str | None, failed: Any, after_s: float, counts: bool
) -> None:
    house = House(None)
    assert house.ask({"Client": CLIENT})["Result"] == "OK"
    house.report(after_s)
    assert house.ask({"Client": client, "Failed": failed}, now=after_s)["Result"] == "OK"
    assert bool(house.heard.accused_of) is counts
