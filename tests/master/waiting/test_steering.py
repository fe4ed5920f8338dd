"""How the waiting room follows its backends: free places, the loop that the CPU steers, the estimate's plan, keys."""

from __future__ import annotations

from typing import Any

import pytest

from lambdamu.keys import Keys, Signer
from lambdamu.messages import QueueReason
from lambdamu.turns import Turn, Verifier
from master.config_queue import Control
from master.core.admin import Admin, Wish
from master.core.health import Said
from master.queue.control import Steered
from master.queue.policy import Mode, TemplatePolicy
from master.waiting.orders import WHOLE, Order
from tests.master.waiting.house import EPOCH_S, House


def say_cpu(house: House, share: float) -> None:
    """Have each backend tell the CPU that its users come to, where `share` of its capacity would use all of it."""
    for member in house.pool:
        users = house.users[member.backend.name]
        cpu = min(1.0, users / (share * (member.backend.capacity or 1)))
        house.pool.record_said(house.now, member.backend.name, Said(cpu=cpu))


@pytest.mark.parametrize(("control", "binds"), [(Control.ON, True), (Control.SHADOW, False), (Control.OFF, False)])
def test_where_backends_tell_their_cpu_fewer_are_let_in_than_the_count_would_allow(
    control: Control, binds: bool
) -> None:
    house = House(1000, control=control, target_load=0.7, max_tickets_per_network=10_000)
    house.room.asks_cpu = frozenset({"b0"})
    house.users["b0"] = 450
    house.tick()
    people = [f"person {number}" for number in range(300)]
    for _ in range(40):
        say_cpu(house, 0.6)  # users weigh more than the capacity says
        house.tick(1)
        for who in list(people):
            answer = house.ask(who)
            if answer["Result"] == "OK":
                house.arrive(answer)
                people.remove(who)
    assert house.users["b0"] <= 700
    if binds:
        assert house.users["b0"] <= 560, "a tenth of the capacity, until the CPU has told of them"
        assert house.room.plan.per_s is not None
        assert house.ask(people[0])["Data"]["Reason"] in ("Rate", "InLine")
    else:
        assert house.users["b0"] > 690
        assert house.room.plan.per_s is None
    assert (house.room.plan.planned_per_s is None) is (control is Control.OFF)


def test_a_backend_that_is_asked_for_its_cpu_is_waited_for_and_not_for_ever() -> None:
    house = House(1000, max_tickets_per_network=10_000)
    house.room.asks_cpu = frozenset({"b0"})
    house.tick()
    assert house.ask("ann")["Result"] == "Wait"
    house.tick(4)
    assert house.ask("ann")["Result"] == "Wait"
    house.tick(2)
    assert house.ask("ann")["Result"] == "OK", "it tells none"


def test_a_backend_without_capacity_takes_the_loop_out_of_the_way() -> None:
    house = House(1000, None)
    house.room.asks_cpu = frozenset({"b0", "b1"})
    say_cpu(house, 0.5)
    house.tick(1)
    assert house.ask("ann")["Result"] == "OK"


def test_without_a_cpu_the_count_is_the_limit_and_the_plan_is_only_shown() -> None:
    house = House(100, target_load=0.5, max_tickets_per_network=10_000)
    told = [house.ask(f"person {number}")["Result"] for number in range(60)]
    assert told.count("OK") == 50
    assert house.room.plan.per_s is None
    house.tick(2)
    assert house.room.plan.by is Steered.LOOP
    assert house.room.plan.planned_per_s is not None


def test_who_sets_a_rate_by_hand_is_not_held_back_by_the_loop() -> None:
    house = House(1000, target_load=0.7)
    for _ in range(30):
        say_cpu(house, 0.1)
        house.tick(1)
    house.users["b0"] = 100
    say_cpu(house, 0.1)
    house.tick(30)
    held_back = house.room.queues.limits.gate.per_minute
    house.room.order(house.now, WHOLE, Order("ops", "it lies", 0.0, per_minute=600.0))
    house.tick(1)
    assert house.room.plan.by is Steered.MANUAL
    assert house.room.queues.limits.gate.per_minute == 600.0
    assert held_back is not None
    assert held_back < 600.0
    house.room.order(house.now, WHOLE, None)
    house.tick(1)
    assert house.room.plan.by is Steered.LOOP


@pytest.mark.parametrize(
    ("change", "places", "reason"),
    [
        (lambda house: None, 60, QueueReason.NO_PLACE),
        (lambda house: house.kill("b0"), 40, QueueReason.FEWER_BACKENDS),
        (lambda house: house.pool.set_admin(house.now, "b0", Admin(Wish.DRAIN, "ops", "x")), 40, "FewerBackends"),
        (lambda house: house.pool.set_admin(house.now, "b1", Admin(Wish.MAINT, "ops", "x")), 20, "FewerBackends"),
        (lambda house: house.pool.record_said(house.now, "b1", Said(capacity=20)), 30, "NoPlace"),
        (lambda house: house.pool.bar(house.now, "b0", house.now + 1000.0), 40, "FewerBackends"),
    ],
)
@pytest.mark.parametrize("n_minus_1", [False, True])
def test_what_happens_to_backends_lowers_the_room_by_itself(
    change: Any, places: int, reason: str, n_minus_1: bool
) -> None:
    house = House(40, 80, target_load=0.5, n_minus_1=n_minus_1, max_tickets_per_network=10_000)
    change(house)
    house.tick(1)
    told = [house.ask(f"person {number}") for number in range(70)]
    alone = places in (20, 40)
    kept = 0 if not n_minus_1 or alone else 20 if places == 30 else 40
    assert [answer["Result"] for answer in told].count("OK") == places - kept
    house.tick(1)
    assert house.room.queues.reason == reason


def test_a_backend_without_capacity_means_that_only_the_rate_holds_people() -> None:
    house = House(None, 10, per_minute=60.0, burst=1)
    told = [house.ask(f"person {number}") for number in range(3)]
    assert [answer["Result"] for answer in told] == ["OK", "Wait", "Wait"]
    assert told[1]["Data"]["Reason"] == "Rate"


def test_estimates_follow_the_plan_and_are_unknown_while_nobody_is_let_in() -> None:
    house = House(100, per_minute=60.0, burst=1, target_load=1.0)
    house.users["b0"] = 50
    house.tick(5)
    waits = [house.ask(f"person {number}") for number in range(20)][1:]
    house.tick(1)
    eta = house.ask("person 19")["Data"]["ETA"]
    assert 10 < eta < 40
    assert waits[0]["Result"] == "Wait"
    house.room.order(house.now, WHOLE, Order("ops", "fire", 0.0, mode=Mode.HOLD))
    house.tick(2)
    held = house.ask("person 19")["Data"]
    assert (held["ETA"], held["ETA90"], held["Reason"]) == (None, None, "Held")
    house.room.order(house.now, WHOLE, None)
    assert house.room.queues.reason != "Held", "what is told is true at once"
    house.room.order(house.now, WHOLE, Order("ops", "fire", 0.0, mode=Mode.HOLD))
    assert house.room.queues.reason == "Held"


def test_an_estimate_is_unknown_until_somebody_has_left_and_then_by_what_was_seen() -> None:
    house = House(60, session_s=None, target_load=1.0, per_minute=6000.0, burst=1000, max_tickets_per_network=10_000)
    people = [f"person {number}" for number in range(260)]
    stays: list[float] = []

    def ask_all() -> list[Any]:
        """Have all who wait ask; return what those are told who still do."""
        told = []
        for who in list(people):
            answer = house.ask(who)
            if answer["Result"] == "OK":
                house.arrive(answer)
                people.remove(who)
                stays.append(house.now + 5.0)
            else:
                told.append(answer["Data"])
        return told

    for _ in range(5):
        assert {(data["ETA"], data["ETA90"]) for data in ask_all()} <= {(None, None)}
        house.tick(1)
    for _ in range(6):
        gone, stays[:] = sum(until <= house.now for until in stays), [until for until in stays if until > house.now]
        house.users["b0"] -= gone
        house.tick(1)
        ask_all()
    left = len(people) / 12  # 60 of them every 5 s
    assert left / 2 < house.ask(people[-1])["Data"]["ETA"] < 5 * left, (
        "by the assumption it would be a hundred times that"
    )


def test_of_one_queue_the_rate_is_set_and_the_others_go_on() -> None:
    house = House(None, templates=(TemplatePolicy("event-*", per_minute=6000.0), TemplatePolicy()))
    for queue in ("event-1", "event-[x]"):
        assert house.ask("ann", Queue=queue)["Result"] == "OK"
    house.room.order(house.now, "event-[x]", Order("ops", "x", 0.0, per_minute=0.0))
    house.tick(1)
    assert house.ask("bob", Queue="event-[x]")["Result"] == "Wait"
    assert house.ask("cid", Queue="event-1")["Result"] == "OK"
    house.room.order(house.now, "event-[x]", None)
    house.tick(1)
    assert house.ask("bob", Queue="event-[x]")["Result"] == "OK"


def test_keys_are_changed_with_overlap() -> None:
    house = House(10, mode=Mode.HOLD)
    ticket = house.ask("ann")["Data"]["Ticket"]
    new = Signer.generate("k2")
    [old] = house.room._keys.signers if house.room._keys is not None else []
    house.room.adopt_keys(Keys((new, old), {"k1": old.verifier(), "k2": new.verifier()}))
    assert house.ask(Ticket=ticket)["Data"]["Position"] == 0, "a ticket by the old key is still one"
    assert house.ask("ann")["Data"]["Ticket"] != ticket
    house.room.order(house.now, WHOLE, Order("ops", "x", 0.0, mode=Mode.AUTO))
    house.tick(1)
    turn = house.ask("ann", Want=["Turn"])["Data"]["Turn"]
    assert isinstance(Verifier({"k2": new.verifier()}, "b0").check(house.now + EPOCH_S, turn), Turn)
    house.room.adopt_keys(Keys((new,), {"k2": new.verifier()}))
    house.room.order(house.now, WHOLE, Order("ops", "x", 0.0, mode=Mode.HOLD))
    house.tick(200)
    assert house.ask(Ticket=ticket)["Data"]["Position"] == 0, "by a key that is gone it is none: a new place"
    assert house.room.queues.tally.joined == 2
