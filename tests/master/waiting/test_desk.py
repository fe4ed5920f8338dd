"""What clients are answered where there is a queue.

The file is long because each answer, and each way to lose a place or not, has its test here.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from lambdamu.datapack import Decoder
from lambdamu.messages import Message
from lambdamu.objects import Later
from lambdamu.turns import Turn, TurnFault, client_hash
from master.core.backend import Backend
from master.queue.limits import Room
from master.queue.policy import Mode, TemplatePolicy
from master.service import Master
from master.told import AnswerPolicy
from master.waiting.orders import Order
from tests.master.waiting.house import EPOCH_S, House, said


def test_who_finds_room_goes_straight_in_with_what_he_wants() -> None:
    house = House(10)
    answer = house.ask("ann", Want=["Name", "TTL", "Turn", "Alternates"])
    turn = answer["Data"].pop("Turn")
    assert answer == {"Result": "OK", "Data": {"IP": "10.0.0.1", "Port": 9000, "Name": "b0", "TTL": 2.0}}
    checked = house.verifier("b0").check(house.now + EPOCH_S, turn)
    assert isinstance(checked, Turn)
    assert checked.client == client_hash("ann")
    assert isinstance(house.verifier("b1").check(house.now + EPOCH_S, turn), TurnFault)


def test_alternates_come_where_no_turn_is_wanted_or_can_be_signed() -> None:
    assert len(House(10, 10).ask("ann", Want=["Alternates"])["Data"]["Alternates"]) == 1
    answer = House(10, 10, keys=None).ask("ann", Want=["Alternates", "Turn"])
    assert len(answer["Data"]["Alternates"]) == 1
    assert "Turn" not in answer["Data"]


def test_the_rest_wait_in_order_and_enter_when_somebody_has_left() -> None:
    house = House(2, target_load=1.0)
    for name in ("ann", "bob"):
        house.arrive(house.ask(name))
    waits = [house.ask(name) for name in ("cid", "dan")]
    assert [wait["Result"] for wait in waits] == ["Wait", "Wait"]
    assert [wait["Data"]["Position"] for wait in waits] == [0, 1]
    assert {*waits[0]["Data"]} == {"Queue", "Ticket", "Position", "ETA", "ETA90", "RetryAfter", "Reason"}
    assert waits[0]["Data"]["Queue"] == "default"
    assert waits[0]["Data"]["Reason"] == "NoPlace"
    house.tick(3)
    assert house.ask("dan")["Result"] == "Wait"
    house.users["b0"] -= 1
    house.tick(1)
    assert house.ask("dan")["Result"] == "Wait"
    assert house.ask("cid")["Result"] == "OK"
    assert house.ask("dan")["Data"]["Position"] == 0


def test_the_holder_of_a_ticket_needs_no_id_and_others_cannot_use_it() -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("ann"))
    ticket = house.ask()["Data"]["Ticket"]
    assert house.ask(Ticket=ticket)["Data"]["Position"] == 0
    mine = house.ask("bob")["Data"]["Ticket"]
    assert house.ask("eve", Ticket=mine)["Data"]["Position"] == 2
    assert house.ask("bob", Ticket="rubbish")["Data"]["Position"] == 1
    house.users["b0"] = 0
    house.tick(3)
    assert house.ask(Ticket=ticket)["Result"] == "OK"
    assert house.ask("fay", Ticket=ticket) == {"Result": "Denied", "Data": {"Reason": "Used", "RetryAfter": None}}


def test_who_was_let_in_and_asks_again_is_told_the_same() -> None:
    house = House(10, 10)
    first = house.ask("ann", Want=["Turn", "Name"])
    house.tick(5)
    assert house.ask("ann", Want=["Turn", "Name"]) == first
    assert house.room.queues.tally.claimed == 1
    assert house.ask("ann", Want=["Name"])["Data"]["Name"] == first["Data"]["Name"]


def test_a_turn_is_signed_for_who_comes_to_want_it_later_and_once() -> None:
    house = House(10)
    house.ask("ann")
    house.room.queues.take_changes()
    turns = {house.ask("ann", Want=["Turn"])["Data"]["Turn"] for _ in range(3)}
    assert len(turns) == 1
    [row] = house.room.queues.take_changes().rows
    assert turns.pop() in (row.grant or ""), "nor is there a second one after a restart"


@pytest.mark.parametrize("others", [0, 5])
def test_who_was_called_finds_his_place_though_those_before_him_are_counted_twice(others: int) -> None:
    house, names = House(10, target_load=1.0), [f"p{number}" for number in range(8)]
    house.users["b0"] = 10
    house.tick(3)
    assert {house.ask(name)["Result"] for name in names} == {"Wait"}
    house.users["b0"] = 0
    house.tick()
    for name in names[:5]:
        house.arrive(house.ask(name))
    house.users["b0"] += others  # who come by no queue fill it
    house.tick(1)  # the report has the five, and they are on their way still as far as anybody knows
    assert house.pool["b0"].users(house.now) == 10 + others
    results = [house.ask(name)["Result"] for name in names[5:]]
    assert results == (["Wait"] * 3 if others else ["OK"] * 3)
    assert house.room.queues.tally.put_back == (3 if others else 0)


@pytest.mark.parametrize("why", ["TurnExpired", "TurnUsed", "Full"])
def test_who_was_not_let_in_by_the_backend_stands_where_he_stood_once(why: str) -> None:
    house = House(1, target_load=1.0)
    first = house.ask("ann", Want=["Turn"])
    house.ask("bob")
    house.users["b0"] = 1  # somebody else was quicker
    house.tick(3)
    failed = [{"IP": "10.0.0.1", "Port": 9000, "Why": why}]
    again = house.ask("ann", Want=["Turn"], Failed=failed)
    assert (again["Result"], again["Data"]["Position"]) == ("Wait", 0)
    house.users["b0"] = 0
    house.tick(1)
    second = house.ask("ann", Want=["Turn"])
    assert second["Result"] == "OK"
    assert second["Data"]["Turn"] != first["Data"]["Turn"]
    house.users["b0"] = 1
    house.tick(3)
    assert house.ask("ann", Failed=failed)["Data"]["Position"] == 1, "behind bob, the second time"


@pytest.mark.parametrize("want", [["Turn"], []])
def test_an_answer_that_is_over_gives_a_new_place_and_not_a_second_backend_slot(want: list[str]) -> None:
    house = House(1, target_load=1.0, turn_s=10.0)
    house.ask("ann", Want=want)
    house.tick(11)
    assert house.ask("bob")["Result"] == "OK", "ann never came"
    assert house.ask("ann", Want=["Turn"])["Result"] == "Wait"
    house.tick(11)
    assert house.ask("ann", Want=want)["Result"] == "OK", "nor did bob, and she stands before all others"


@pytest.mark.parametrize("shown", ["ticket", "turn", "failed", "nothing"])
def test_only_proof_leads_into_the_lane_of_those_whose_backend_has_died(shown: str) -> None:
    house = House(1, 1, target_load=1.0)
    data = {name: house.ask(name, Want=["Turn", "Name"])["Data"] for name in ("ann", "bob")}
    house.users = {"b0": 1, "b1": 1}
    house.tick(3)
    house.ask("cid")  # waits
    lost = data["ann"]
    house.kill(lost["Name"])
    house.tick()
    if shown in ("turn", "failed", "nothing"):
        house.tick(200)  # her ticket is forgotten
        house.ask("cid")
    more: dict[str, Any] = {"turn": {"Ticket": lost["Turn"]}}.get(shown, {})
    if shown == "failed":
        more = {"Failed": [{"IP": lost["IP"], "Port": lost["Port"], "Why": "closed"}]}
    answer = house.ask("ann", **more)
    assert answer["Result"] == "Wait"
    assert answer["Data"]["Position"] == (0 if shown in ("ticket", "turn") else 1)
    assert answer["Data"]["Reason"] == "FewerBackends"
    if shown == "turn":
        assert house.ask("eve", Ticket=lost["Turn"])["Data"]["Position"] == 2, "it is ann's"


def test_a_turn_to_a_backend_that_lives_is_no_proof() -> None:
    house = House(1, target_load=1.0)
    turn = house.ask("ann", Want=["Turn"])["Data"]["Turn"]
    house.users["b0"] = 1
    house.tick(200)
    house.ask("bob")
    assert house.ask("ann", Ticket=turn)["Data"]["Position"] == 1


def test_all_down_is_a_wait_and_not_an_error() -> None:
    house = House(10)
    house.kill("b0")
    house.tick(1)
    assert house.ask("ann")["Data"]["Reason"] == "NoBackend"
    house.dead.clear()
    house.tick(1)
    assert house.ask("ann")["Result"] == "OK"


@pytest.mark.parametrize(
    ("mode", "result", "reason"),
    [
        (Mode.HOLD, "Wait", "Held"),
        (Mode.CLOSED, "Closed", "Closed"),
        (Mode.PASS, "OK", None),
        (Mode.AUTO, "OK", None),
        (Mode.QUEUE_ALL, "Wait", "InLine"),
    ],
)
def test_modes(mode: Mode, result: str, reason: str | None) -> None:
    house = House(10, mode=mode, text="back at nine" if mode is Mode.CLOSED else "")
    answer = house.ask("ann")
    assert answer["Result"] == result
    assert answer["Data"].get("Reason") == reason
    if mode is Mode.CLOSED:
        assert answer["Data"]["Text"] == "back at nine"
        assert answer["Data"]["RetryAfter"] > 0
    if mode is Mode.QUEUE_ALL:
        house.tick(1)
        assert house.ask("ann")["Result"] == "OK"


def test_leaving_is_confirmed_whoever_leaves() -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("ann"))
    left = {"Result": "Closed", "Data": {"Reason": "Left", "RetryAfter": None, "Text": "the client has left"}}
    house.ask("bob")
    house.ask("cid")
    assert house.ask("bob", Leave=True) == left
    assert house.ask("cid")["Data"]["Position"] == 0
    assert house.ask("nobody", Leave=True) == left


def test_no_template_fits() -> None:
    house = House(10, templates=(TemplatePolicy("event-*"),))
    assert house.ask("ann", Queue="event-1")["Result"] == "OK"
    assert house.ask("bob", Queue="other") == {"Result": "Denied", "Data": {"Reason": "NoQueue", "RetryAfter": None}}


def test_a_plain_client_is_owed_its_answer_until_it_is_called() -> None:
    house = House(1, target_load=1.0)
    house.arrive(said(house.reply()))
    _, first = house.plain()
    _, second = house.plain("198.51.100.1")
    house.tick(5)
    assert not first
    house.users["b0"] = 0
    house.tick(1)
    assert first == [{"Result": "OK", "Data": {"IP": "10.0.0.1", "Port": 9000}}]
    assert not second
    assert house.room.desk.held == 1


def test_a_plain_client_that_has_waited_for_long_is_told_to_come_again() -> None:
    house = House(0, hold_plain_s=60.0)
    _, answers = house.plain()
    house.tick(59)
    assert not answers
    house.tick(2)
    assert [answer["Result"] for answer in answers] == ["NoServer"]
    assert answers[0]["Data"].keys() == {"RetryAfter"}
    assert house.room.desk.held == 0
    assert house.room.queues.book.waiting == 0


def test_with_its_connection_goes_its_place() -> None:
    house = House(0)
    later, answers = house.plain()
    assert later.fin_cancels
    later.cancel()
    assert house.room.queues.book.waiting == 0
    house.tick(100)
    assert not answers


def test_no_more_are_held_than_may_be() -> None:
    house = House(0, max_held=2)
    house.plain()
    house.plain()
    assert said(house.reply())["Result"] == "NoServer"
    assert house.room.desk.turned_away == 1
    assert house.room.queues.book.waiting == 2


def test_who_waits_on_his_connection_is_told_to_come_again_when_the_master_stops() -> None:
    house = House(0)
    _, answers = house.plain()
    house.room.desk.release(house.now)
    assert [answer["Result"] for answer in answers] == ["NoServer"]


def test_where_nobody_may_be_held_a_plain_ask_gets_a_ticket() -> None:
    house = House(0)
    reply = house.reply(None, hold=False)
    assert not isinstance(reply, Later)
    ticket = said(reply)["Data"]["Ticket"]
    assert house.ask(Ticket=ticket)["Data"]["Position"] == 0


def test_a_shown_ticket_brings_back_a_place_of_which_nothing_was_kept() -> None:
    house, lost = House(0), House(0)
    for room in (house.room, lost.room):
        room.adopt_secrets([b"s" * 32])
    lost.ask("ann")
    ticket = lost.ask("bob")["Data"]["Ticket"]
    house.now += 10
    house.ask("cid")
    from master.queue.numbers import NumberBlock  # noqa: PLC0415

    house.room.queues.numbers.lose([NumberBlock(1, 1000)])
    assert house.ask("bob", Ticket=ticket)["Data"]["Position"] == 0
    assert house.ask("cid")["Data"]["Position"] == 0, "what was shown never rises"


def test_a_step_of_the_wall_clock_changes_nothing_for_those_who_wait() -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("ann"))
    house.ask("bob")
    house.wall_off_s = -86400.0
    house.ask("cid")
    house.wall_off_s = 86400.0
    assert [house.ask(name)["Data"]["Position"] for name in ("bob", "cid")] == [0, 1]


def test_a_plain_ask_is_answered_from_memory_only_while_nobody_waits_and_nothing_binds() -> None:
    house = House(4, target_load=0.5)
    quick = house.master.prepare(Message("Master", "Event", "DoSendServer"))
    assert quick is not None
    where = 4, ("192.0.2.9", 5)
    house.now += 1
    assert quick(house.now, *where) is None, "one in 10 ms is noted"
    said(house.reply())
    answer = quick(house.now, *where)
    assert answer is not None
    assert next(Decoder().feed(answer))[0].data["Result"] == "OK"
    tally = house.room.queues.tally
    assert (tally.joined, tally.called, tally.claimed) == (2, 2, 2)
    assert quick(house.now, *where) is None, "two places in four are to be used"
    house.plain()
    house.now += 0.001
    assert quick(house.now, *where) is None
    house.users["b0"] = 0
    house.pool.record_report(house.now, house.rng, "b0", 0, house.now, ("10.0.0.1", 9000))
    assert quick(house.now, *where) is None, "somebody waits"
    for mode in (Mode.HOLD, Mode.CLOSED, Mode.QUEUE_ALL):
        house.room.order(house.now, "", Order("ops", "test", 0.0, mode=mode))
        assert quick(house.now, *where) is None


def test_those_who_are_answered_from_memory_take_their_part_of_the_rate() -> None:
    house = House(1000, per_minute=60.0, burst=1)
    quick = house.master.prepare(Message("Master", "Event", "DoSendServer"))
    assert quick is not None
    said(house.reply())
    house.master.answers.plain_due = math.inf  # none is noted
    let_in = 0
    for _ in range(100):
        house.now += 0.1
        house.tick()
        let_in += sum(quick(house.now, 4, ("192.0.2.9", 5)) is not None for _ in range(3))
    assert 9 <= let_in <= 10


def test_between_a_death_and_the_next_look_at_the_room_nobody_is_let_in() -> None:
    house = House(4, 4, target_load=0.5)
    house.users = {"b0": 0, "b1": 2}
    house.tick(1)
    house.kill("b0")
    assert house.ask("ann")["Result"] == "Wait", "the two places were those of b0"
    quick = house.master.prepare(Message("Master", "Event", "DoSendServer"))
    assert quick is not None
    assert quick(house.now, 4, ("192.0.2.9", 5)) is None
    house.tick(1)
    assert house.ask("ann")["Data"]["Reason"] == "FewerBackends"


@pytest.mark.parametrize("way", ["leaves", "goes to another queue"])
def test_each_turn_has_a_place_of_its_own(way: str) -> None:
    house = House(10, target_load=1.0, templates=(TemplatePolicy("*"),))
    turns: set[str] = set()
    for number in range(30):
        queue = f"q{number}" if way == "goes to another queue" else "default"
        turns.add(house.ask("ann", Queue=queue, Want=["Turn"])["Data"].get("Turn", ""))
        if way == "leaves":
            house.ask("ann", Leave=True)
        house.settle()
    turns.discard("")
    assert len(turns) == house.pool["b0"].users(house.now) == 10


def test_who_cannot_reach_the_backend_is_not_sent_there_again_for_all_the_time_that_it_is_remembered() -> None:
    house = House(10, 10)
    first = house.ask("ann")["Data"]
    failed = [{**first, "Why": "refused"}]
    second = house.ask("ann", Failed=failed)["Data"]
    assert second["Port"] != first["Port"]
    assert house.ask("ann", Failed=failed)["Data"] == second, "the same ask once more"
    assert house.room.queues.tally.claimed == 2


def test_a_turn_leads_into_the_lane_of_those_whose_backend_has_died_once() -> None:
    house = House(100, 100, 100, target_load=1.0)
    first = house.ask("ann", Want=["Turn", "Name"])["Data"]
    house.users = dict.fromkeys(house.users, 100)
    house.kill(first["Name"])
    house.tick(130)  # her ticket is forgotten
    house.ask("bob")
    assert house.ask("ann", Ticket=first["Turn"])["Data"]["Position"] == 0
    house.users.update({name: 99 for name in house.users if name not in house.dead})
    house.tick(1)
    second = house.ask("ann", Want=["Turn", "Name"])["Data"]
    house.ask("bob")
    house.users = dict.fromkeys(house.users, 100)
    house.kill(second["Name"])
    house.tick(130)
    house.ask("cid")
    assert house.ask("ann", Ticket=first["Turn"])["Data"]["Position"] == 1, "she has come back for that one"
    house.ask("ann", Leave=True)
    assert house.ask("ann", Ticket=second["Turn"])["Data"]["Position"] == 0


def test_who_opens_all_the_queues_there_may_be_shuts_nobody_out_who_names_none() -> None:
    house = House(1000, templates=(TemplatePolicy("*"),), max_queues=5)
    for number in range(10):
        house.ask(f"c{number}", Queue=f"q{number}")
    assert house.ask("dan", Queue="another")["Data"]["Reason"] == "Full"
    assert house.ask("ann")["Result"] == "OK"
    assert said(house.reply())["Result"] == "OK"


def test_who_was_called_twice_between_two_looks_and_is_back_in_his_place_is_still_held() -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("ann"))
    _, answers = house.plain()
    for mode in (Mode.AUTO, Mode.HOLD, Mode.AUTO):
        house.room.order(house.now, "", Order("ops", "test", 0.0, mode=mode))
        house.room.queues.settle(house.now, Room(1))
    house.tick()  # ann is there after all
    assert not answers
    house.users["b0"] = 0
    house.tick(3)
    assert [answer["Result"] for answer in answers] == ["OK"]
    assert not house.room.queues.book.places


def test_who_waits_on_his_connection_takes_no_place_from_those_who_poll() -> None:
    house = House(0)
    for _ in range(50):
        house.plain()
    assert not len(house.room.estimates.calendar)


@pytest.mark.parametrize("died", [False, True])
def test_who_was_let_in_before_a_restart_is_told_the_same_when_it_is_known_what_became_of_his_backend(
    died: bool,
) -> None:
    before, house = House(10, 10), House(10, 10, probed=False)
    first = before.ask("ann", Want=["Name", "Turn"])
    house.room.queues.restore(house.now, before.room.queues.take_changes().rows, ())
    house.settle()
    assert house.ask("ann", Want=["Name", "Turn"])["Result"] == "NoServer"
    if died:
        house.dead.add(first["Data"]["Name"])
        house.pool.record_failure(house.now, first["Data"]["Name"])
    house.tick()
    again = house.ask("ann", Want=["Name", "Turn"])
    assert again["Result"] == "OK"
    assert (again == first) is not died


@pytest.mark.parametrize("client", ["ann", None])
def test_a_ticket_that_is_shown_to_two_masters_of_one_queue_lets_in_once(client: str | None) -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("bob"))
    ticket = house.ask(client)["Data"]["Ticket"]
    house.users["b0"] = 0
    house.tick(3)
    another = Master(house.pool, AnswerPolicy(2.0, 2.0), house.rng, house.ears, None, None, house.room.desk)
    first = house.ask(client, Ticket=ticket, Want=["Turn"])
    assert first["Result"] == "OK"
    house.master = another
    second = house.ask(client, Ticket=ticket, Want=["Turn"])
    used = {"Result": "Denied", "Data": {"Reason": "Used", "RetryAfter": None}}
    assert second == (first if client else used)
    assert house.ask(None, Ticket=ticket) == used
    assert house.room.queues.tally.claimed == 2


def test_who_hangs_up_at_the_moment_of_his_call_and_comes_again_has_one_place() -> None:
    house = House(1, target_load=1.0)
    house.arrive(house.ask("bob"))
    first, answers = house.plain()
    house.plain("198.51.100.1")
    house.users["b0"] = 0
    house.pool.record_report(house.now, house.rng, "b0", 0, house.now, ("10.0.0.1", 9000))
    first.cancel()
    house.plain()
    house.tick(3)
    assert not answers
    assert house.room.queues.tally.claimed == 2
    assert house.room.desk.held == house.room.queues.book.waiting == 1


def test_all_who_wait_are_answered_when_the_pool_is_emptied_and_filled_again() -> None:
    house = House(200, target_load=1.0)
    house.kill("b0")
    house.tick(1)
    held = [house.plain(f"192.0.{number}.1")[1] for number in range(100)]
    tickets = [house.ask(f"c{number}", host=f"198.51.{number}.1")["Data"]["Ticket"] for number in range(100)]
    house.pool.change(house.now, [], frozenset())
    house.room.desk.adopt_backends()
    house.users.clear()
    house.tick(2)
    assert not any(held)
    house.pool.change(house.now, [Backend("b1", capacity=200)], frozenset())
    house.room.desk.adopt_backends()
    house.users["b1"] = 0
    house.tick(2)
    assert {answer["Result"] for [answer] in held} == {"OK"}
    assert {house.ask(f"c{number}", Ticket=ticket)["Result"] for number, ticket in enumerate(tickets)} == {"OK"}


def test_while_no_backend_is_there_nobody_is_promised_anything_and_the_first_look_again_soon() -> None:
    house = House(1, target_load=1.0)
    first = house.rush()[0]
    assert house.ask(first)["Data"]["ETA"] > 0
    house.kill("b0")
    house.tick(31)
    wait = house.ask(first)["Data"]
    assert (wait["ETA"], wait["ETA90"], wait["Reason"]) == (None, None, "NoBackend")
    assert 1.0 <= wait["RetryAfter"] <= 2.0


def test_a_backend_that_clients_complain_of_opens_no_lane() -> None:
    house = House(1, 1, target_load=1.0)
    told = house.ask("ann", Want=["Turn", "Name"])["Data"]
    house.users = {"b0": 1, "b1": 1}
    house.tick(5)
    house.ask("cid")
    house.pool.bar(house.now, told["Name"], house.now + 1000.0)
    house.tick(6)
    house.ask("cid")
    assert house.ask("ann")["Data"]["Position"] == 0, "she is remembered, and stands where she stood"
    house.tick(200)
    house.ask("cid")
    assert house.ask("ann", Ticket=told["Turn"])["Data"]["Position"] == 1


def test_at_a_restart_nobody_is_taken_for_one_who_has_lost_his_backend() -> None:
    house = House(1, target_load=1.0)
    turn = house.ask("ann", Want=["Turn"])["Data"]["Turn"]
    fresh = House(1, target_load=1.0, probed=False)
    fresh.ask("bob")
    assert fresh.ask("ann", Ticket=turn)["Data"]["Position"] == 1
