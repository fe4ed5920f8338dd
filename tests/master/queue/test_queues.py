"""The rules of the queue, one by one.

The file is long because each rule has its test here.
"""

from __future__ import annotations

import pytest

from lambdamu.messages import QueueReason, Reason
from master.queue.answers import Again, Closed, Denied, Go, Waiting
from master.queue.limits import Limit
from master.queue.policy import Mode, QueuePolicy, TemplatePolicy
from master.queue.ticket import Lane, Stage
from tests.master.queue.desk import Desk, Steady, signed

# Modes.


def test_with_room_nobody_waits() -> None:
    desk = Desk(free=2)
    assert [type(answer) for answer in desk.join("a", "b", "c")] == [Go, Go, Waiting]
    assert desk.queues.limit is Limit.PLACES


def test_before_the_room_is_known_everybody_waits() -> None:
    desk = Desk(free=0)
    assert isinstance(desk.ask("a"), Waiting)
    desk.free = None
    desk.settle()
    assert isinstance(desk.ask("a"), Go)


def test_in_queue_all_everybody_takes_a_place_first() -> None:
    desk = Desk(free=5, mode=Mode.QUEUE_ALL)
    answer = desk.ask("a")
    assert isinstance(answer, Waiting)
    assert (answer.position, answer.reason) == (0, QueueReason.IN_LINE)
    desk.settle()
    assert isinstance(desk.ask("a"), Go)


def test_in_pass_all_go_and_it_is_counted_who_would_have_waited() -> None:
    desk = Desk(free=1, mode=Mode.PASS)
    for name in "abc":
        desk.enter(name)
    assert desk.queues.tally.would_wait == 2


def test_pass_lets_through_those_who_wait_and_takes_nothing_of_the_rate() -> None:
    desk = Desk(free=None, per_minute=60.0, templates=(TemplatePolicy("*", per_minute=1.0),))
    desk.enter("a")
    desk.join("b", "c", "d")
    desk.queues.set(desk.now, QueuePolicy(mode=Mode.PASS, per_minute=60.0, templates=(TemplatePolicy("*"),)))
    assert desk.settle().called == 3
    for name in "bcd":
        desk.enter(name)
    desk.queues.set(desk.now, QueuePolicy(per_minute=60.0))
    desk.after(1.0)
    desk.enter("e")


def test_in_hold_nobody_enters_and_places_are_kept() -> None:
    desk = Desk(free=1)
    desk.join("a", "b")
    desk.queues.set(desk.now, QueuePolicy(mode=Mode.HOLD))
    desk.free = 10
    for _ in range(5):
        desk.after(20.0)
        held = desk.ask("a")
        assert isinstance(held, Waiting)
        assert (held.position, held.reason) == (0, QueueReason.HELD)
        assert desk.position("b") == 0, "it was next before, and that is not taken back"
    assert desk.position("c") == 2
    desk.queues.set(desk.now, QueuePolicy())
    desk.settle()
    assert [type(answer) for answer in desk.join("a", "b", "c")] == [Go, Go, Go]


def test_closed_takes_no_newcomers_and_takes_no_place_away() -> None:
    desk = Desk()
    desk.join("a")
    desk.queues.set(desk.now, QueuePolicy(mode=Mode.CLOSED, text="back at nine"))
    for _ in range(3):
        desk.after(25.0)
        for name in ("a", "b"):
            answer = desk.ask(name)
            assert isinstance(answer, Closed)
            assert (answer.reason, answer.text) == (QueueReason.CLOSED, "back at nine")
            assert answer.retry_after_s is not None
    desk.queues.set(desk.now, QueuePolicy())
    assert desk.line() == ["a"]


# The three limits.


def test_each_limit_binds_and_is_named() -> None:
    desk = Desk(free=2, max_calls=2, per_minute=60.0)
    desk.join("a", "b", "c", "d")
    assert desk.queues.limit is Limit.RATE
    waits = desk.ask("b")
    assert isinstance(waits, Waiting)
    assert waits.reason is QueueReason.RATE
    desk.after(1.0)
    assert desk.queues.limit is Limit.PLACES
    desk.free = 10
    desk.after(1.0)
    assert desk.queues.limit is Limit.CALLS
    waits = desk.ask("c")
    assert isinstance(waits, Waiting)
    assert waits.reason is QueueReason.CALLS


def test_the_reason_of_the_room_is_told() -> None:
    desk = Desk()
    desk.settle(why=QueueReason.FEWER_BACKENDS)
    answer = desk.ask("a")
    assert isinstance(answer, Waiting)
    assert answer.reason is QueueReason.FEWER_BACKENDS


def test_less_room_than_calls_calls_nobody_until_they_are_used_up() -> None:
    desk = Desk(free=3)
    desk.join("a", "b", "c", "d")
    desk.free = 1
    desk.settle()
    desk.free += 2
    desk.settle()
    assert desk.position("d") == 0
    desk.free += 1
    desk.settle()
    assert isinstance(desk.ask("d"), Go)


def test_when_there_is_no_backend_after_all_the_place_is_kept() -> None:
    desk = Desk(free=1, per_minute=60.0)
    desk.join("a", "b")
    go = desk.ask("a")
    assert isinstance(go, Go)
    waiting = desk.queues.put_back(desk.now, desk.rng, go.ticket.number)
    assert waiting is not None
    assert waiting.position == 0
    assert desk.position("a") == 0, "nobody is called until the next room"
    desk.settle()
    desk.enter("a")


# One client, one place.


def test_the_same_client_is_one_place_however_often_it_asks() -> None:
    desk = Desk()
    desk.join("a", "b", "a", "b", "a")
    assert desk.line() == ["a", "b"]
    assert desk.queues.book.waiting == 2


def test_asking_for_another_queue_changes_the_place_only_if_there_is_one() -> None:
    desk = Desk(templates=(TemplatePolicy("default"), TemplatePolicy("game-*", max_waiting=1)))
    desk.join("a", "b")
    desk.ask("x", queue="game-1")
    assert desk.ask("a", queue="game-1") == Closed(QueueReason.FULL, pytest.approx(45, abs=15))
    assert desk.line() == ["a", "b"]
    assert desk.position("a", queue="game-2") == 0
    assert (desk.line(), desk.line("game-2")) == (["b"], ["a"])
    assert desk.position("a") == 0, "without a queue it asks for its place, wherever that is"
    assert desk.line("game-2") == ["a"]


def test_a_ticket_is_enough_for_a_client_without_an_id() -> None:
    desk = Desk()
    waiting = desk.ask(None)
    desk.join("b")
    assert isinstance(waiting, Waiting)
    again = desk.ask(None, place=signed(waiting.ticket))
    assert isinstance(again, Waiting)
    assert again.ticket is waiting.ticket


def test_a_place_of_one_client_is_none_of_another() -> None:
    desk = Desk()
    desk.join("a", "b")
    assert desk.position("c", place=signed(desk.ticket("a"))) == 2


def test_who_was_let_in_gets_the_same_answer_and_others_with_the_ticket_are_denied() -> None:
    desk = Desk(free=1, claimed_s=120.0)
    ticket = desk.enter("a")
    assert desk.ask("a") == Again("place of a")
    assert desk.ask("a", place=signed(ticket)) == Again("place of a")
    for thief in ("b", None):
        assert desk.ask(thief, place=signed(ticket)) == Denied(QueueReason.USED)
    assert desk.queues.tally.claimed == 1
    desk.after(121.0)
    assert desk.position("a", place=signed(ticket)) == 0, "by now it is a ticket like none"


def test_a_ticket_without_a_client_belongs_to_the_first_who_shows_it_with_an_id() -> None:
    desk = Desk()
    waiting = desk.ask(None)
    assert isinstance(waiting, Waiting)
    assert desk.position("a", place=signed(waiting.ticket)) == 0
    assert desk.position("b", place=signed(waiting.ticket)) == 1
    desk.free = 1
    desk.settle()
    ticket = desk.enter("a")
    assert ticket is waiting.ticket
    assert desk.ask("a") == Again("place of a")
    assert desk.ask(None, place=signed(ticket)) == Denied(QueueReason.USED)


def test_a_ticket_without_a_client_lets_in_once() -> None:
    desk = Desk()
    waiting = desk.ask(None)
    assert isinstance(waiting, Waiting)
    desk.free = 1
    desk.settle()
    place = signed(waiting.ticket)
    desk.enter(None, place=place)
    assert desk.ask(None, place=place) == Denied(QueueReason.USED)


def test_whoever_leaves_is_gone_and_comes_last_next_time() -> None:
    desk = Desk()
    desk.join("a", "b", "c")
    assert desk.ask("a", leave=True) == Closed(Reason.LEFT)
    assert desk.ask("nobody", leave=True) == Closed(Reason.LEFT)
    assert [desk.position(name) for name in "bca"] == [0, 1, 2]


def test_a_called_one_that_leaves_makes_room_at_once() -> None:
    desk = Desk(free=1)
    desk.join("a", "b")
    desk.ask("a", leave=True)
    assert isinstance(desk.ask("b"), Go)


# Leases, calls, returns.


@pytest.mark.parametrize(
    ("retry_after_s", "away", "lease_s"),
    [(2.0, False, 30.0), (20.0, False, 40.0), (2.0, True, 600.0), (400, True, 800)],
)
def test_a_lease_is_as_long_as_is_said(retry_after_s: float, away: bool, lease_s: float) -> None:
    desk = Desk(estimator=Steady(retry_after_s))
    desk.join("a", away=away)
    desk.join("b", away=True)
    desk.after(lease_s - 0.5)
    assert desk.line() == ["a", "b"] if lease_s <= 600 else ["a"]
    desk.after(1.0)
    assert "a" not in desk.line()


def test_who_is_silent_leaves_and_those_behind_move_up() -> None:
    desk = Desk()
    desk.join("a", "b", "c")
    desk.after(20.0)
    assert (desk.position("b"), desk.position("c")) == (1, 2)
    desk.after(11.0)
    assert (desk.position("b"), desk.position("c")) == (0, 1)
    assert desk.estimator.heard == [("left", 1)]


def test_who_was_silent_for_a_while_gets_its_place_back_once() -> None:
    desk = Desk(return_s=120.0)
    desk.join("a", "b")
    desk.after(29.0)
    desk.ask("b")
    desk.after(2.0)
    assert desk.line() == ["b"]
    assert desk.position("a") == 0
    assert desk.line() == ["a", "b"]
    for _ in range(4):
        desk.after(15.0)
        desk.ask("b")
    assert desk.position("a") == 1


def test_a_call_that_nobody_comes_for_goes_to_the_next() -> None:
    desk = Desk(claim_s=20.0, mode=Mode.QUEUE_ALL)
    desk.join("a", "b", "c")
    desk.free = 1
    desk.after(1.0)
    assert desk.ticket("a").stage is Stage.CALLED
    desk.after(19.0)
    assert desk.position("b") == 0
    assert desk.position("c") == 1
    desk.after(1.0)
    desk.enter("b")
    assert desk.estimator.heard == [("called", 1), ("no_show", 1), ("called", 2), ("claimed", 2)]


def test_no_call_ends_before_its_owner_was_told_to_ask() -> None:
    desk = Desk(estimator=Steady(100.0), claim_s=20.0, mode=Mode.QUEUE_ALL)
    desk.join("a", "b")
    desk.free = 1
    desk.after(100.0)
    desk.enter("a")


def test_who_wakes_late_comes_to_the_head_once() -> None:
    desk = Desk(claim_s=20.0, return_s=120.0)
    desk.join("a", "b", "c")
    desk.free = 1
    desk.after(21.0)  # called and missed
    desk.ask("c")
    desk.enter("b")
    desk.settle()
    assert desk.position("a") == 0
    assert desk.line() == ["a", "c"]
    desk.free = 1
    desk.after(25.0)  # missed again
    assert desk.line() == []
    desk.free = 0
    desk.settle()
    desk.join("d")
    assert desk.position("a") == 1


def test_after_return_s_a_missed_one_begins_at_the_end() -> None:
    desk = Desk(claim_s=20.0, return_s=10.0)
    desk.join("a")
    desk.free = 1
    desk.after(20.0)
    desk.free = 0
    desk.after(11.0)
    desk.join("b")
    assert desk.position("a") == 1


def test_a_shown_position_never_rises() -> None:
    desk = Desk(templates=(TemplatePolicy(vip_share=1.0),))
    desk.join("a", "b")
    assert desk.position("b") == 1
    desk.join("v", "w", lane=Lane.VIP)
    assert desk.position("b") == 1
    assert desk.position("c") == 4
    desk.ask("a", leave=True)
    assert desk.position("b") == 1
    assert desk.position("c") == 3


def test_zero_is_a_position() -> None:
    desk = Desk()
    assert [desk.position("a") for _ in range(3)] == [0, 0, 0]
    assert desk.ticket("a").shown == 0


def test_going_away_keeps_the_call_and_does_not_take_the_place() -> None:
    desk = Desk(free=1, mode=Mode.QUEUE_ALL)
    desk.join("a")
    desk.settle()
    away = desk.ask("a", away=True)
    assert isinstance(away, Waiting)
    assert away.position == 0
    desk.after(5.0)
    desk.enter("a")


# Lanes.


def test_resume_goes_first_and_vip_get_their_share() -> None:
    desk = Desk(mode=Mode.QUEUE_ALL, templates=(TemplatePolicy(vip_share=0.5),))
    desk.join("p1", "p2", "p3")
    desk.join("v1", "v2", "v3", lane=Lane.VIP)
    desk.join("r", lane=Lane.RESUME)
    seen = []
    for _ in range(7):
        desk.free = 1
        desk.settle()
        (called,) = desk.queues.book.called.values()
        seen.append((called.client or b"").decode())
        desk.enter(seen[-1])
    assert seen == ["r", "v1", "p1", "v2", "p2", "v3", "p3"]


def test_where_there_is_no_vip_lane_vip_are_as_others() -> None:
    desk = Desk(templates=(TemplatePolicy(lanes=(Lane.RESUME, Lane.PLAIN)),))
    desk.join("a")
    assert desk.position("v", lane=Lane.VIP) == 1


def test_who_comes_to_have_a_right_changes_the_lane() -> None:
    desk = Desk()
    desk.join("a", "b")
    desk.ask("b", lane=Lane.VIP)
    assert desk.line() == ["b", "a"]
    assert desk.queues.book.waiting == 2


def test_who_was_let_in_to_a_backend_that_died_comes_first() -> None:
    desk = Desk(free=1)
    ticket = desk.enter("a")
    desk.join("b", "c")
    assert desk.ask("thief", lane=Lane.RESUME, place=signed(ticket)) == Denied(QueueReason.USED)
    assert desk.position("a", lane=Lane.RESUME, place=signed(ticket)) == 0
    assert desk.line() == ["a", "b", "c"]


# Queues by id.


def test_the_first_ask_opens_a_queue_from_the_template_that_fits() -> None:
    templates = (TemplatePolicy("game-vip-*", max_waiting=1), TemplatePolicy("game-*"))
    desk = Desk(templates=templates)
    assert desk.ask("a", queue="chess") == Denied(QueueReason.NO_QUEUE)
    assert desk.ask("a") == Denied(QueueReason.NO_QUEUE)
    assert desk.position("a", queue="game-1") == 0
    assert desk.position("b", queue="game-vip-1") == 0
    assert isinstance(desk.ask("c", queue="game-vip-1"), Closed)
    assert desk.ask("d", queue="GAME-1") == Denied(QueueReason.NO_QUEUE)


def test_where_no_template_fits_default_serves() -> None:
    desk = Desk()
    desk.join("a", queue="chess")
    assert desk.position("b", queue="go") == 1
    assert desk.line("default") == ["a", "b"]


def test_a_queue_whose_template_is_gone_takes_nobody_new_until_it_is_back() -> None:
    fits, others = (QueuePolicy(templates=(TemplatePolicy(pattern),)) for pattern in ("*", "default"))
    desk = Desk(templates=fits.templates)
    desk.join("a", queue="chess")
    desk.join("x")
    for name, policy, queue in (("b", others, "default"), ("c", fits, "chess"), ("d", others, "default")):
        desk.queues.set(desk.now, policy)
        desk.join(name, queue="chess")
        assert desk.line(queue)[-1] == name
    assert desk.line("chess")[0] == "a", "who was there stays"


def test_queues_are_bounded_and_an_empty_one_makes_room() -> None:
    desk = Desk(max_queues=2, templates=(TemplatePolicy("*"),), return_s=0.0)
    for name in "ab":
        desk.ask(name, queue=name)
    full = desk.ask("c", queue="c")
    assert isinstance(full, Closed)
    assert full.reason is QueueReason.FULL
    desk.ask("a", leave=True)
    assert desk.position("c", queue="c") == 0
    assert len(desk.queues.lines) == 2


@pytest.mark.parametrize(
    "bound", [{"max_tickets": 2}, {"max_tickets_per_network": 2}, {"templates": (TemplatePolicy(max_waiting=2),)}]
)
def test_each_bound_closes_the_door_and_opens_it_again(bound: dict[str, object]) -> None:
    desk = Desk(**bound)
    desk.join("a", "b", network=b"net")
    full = desk.ask("c", network=b"net")
    assert isinstance(full, Closed)
    assert full.reason is QueueReason.FULL
    assert full.retry_after_s is not None
    assert isinstance(desk.ask("a", network=b"net"), Waiting), "who has a place keeps it"
    desk.ask("a", leave=True)
    assert desk.position("c", network=b"net") == 1


def test_an_exempt_network_has_no_bound_of_its_own() -> None:
    desk = Desk(max_tickets_per_network=1)
    desk.join("a", "b", network=None)
    assert desk.queues.book.waiting == 2


def test_queues_share_by_weight_while_people_wait_in_them() -> None:
    templates = (TemplatePolicy("big", share=3.0), TemplatePolicy("small", share=1.0))
    desk = Desk(mode=Mode.QUEUE_ALL, templates=templates)
    desk.join(*(f"b{i}" for i in range(60)), queue="big")
    desk.join(*(f"s{i}" for i in range(60)), queue="small")
    desk.free = 40
    desk.settle()
    assert (len(desk.line("big")), len(desk.line("small"))) == (30, 50)


def test_a_queue_with_a_slow_rate_of_its_own_leaves_the_rest_to_the_others() -> None:
    templates = (TemplatePolicy("slow", per_minute=6.0), TemplatePolicy("fast"))
    desk = Desk(free=None, mode=Mode.QUEUE_ALL, templates=templates)
    desk.join(*(f"s{i}" for i in range(9)), queue="slow", away=True)
    desk.join(*(f"f{i}" for i in range(9)), queue="fast", away=True)
    desk.settle()
    assert (len(desk.line("slow")), len(desk.line("fast"))) == (8, 0)
    assert desk.queues.limit is Limit.QUEUE_RATE
    desk.after(19.0)
    assert len(desk.line("slow")) == 7


# Plain clients: they wait on their connection.


def test_a_plain_client_is_told_of_its_call_and_of_its_end() -> None:
    desk = Desk(hold_plain_s=60.0)
    first, second = desk.ask(None, held=True), desk.ask(None, held=True)
    assert isinstance(first, Waiting)
    assert isinstance(second, Waiting)
    assert desk.queues.take_news() == []
    desk.free = 1
    desk.after(1.0)
    assert desk.queues.take_news() == [first.ticket]
    assert desk.queues.claim(desk.now, first.ticket.number, "")
    desk.free = 0
    desk.after(60.0)
    assert desk.queues.take_news() == [second.ticket]
    assert second.ticket.stage is Stage.GONE
    assert len(desk.queues.book) == 0, "nobody could ask again, so nothing is remembered"


def test_a_plain_client_waits_no_longer_for_being_put_back() -> None:
    desk = Desk(free=1, hold_plain_s=60.0)
    waiting = desk.ask(None, held=True)
    assert isinstance(waiting, Go)
    for _ in range(61):
        desk.queues.put_back(desk.now, desk.rng, waiting.ticket.number)
        desk.after(1.0)
    assert waiting.ticket.stage is Stage.GONE


def test_a_plain_client_whose_connection_goes_leaves() -> None:
    desk = Desk()
    waiting = desk.ask(None, held=True)
    desk.join("b")
    assert isinstance(waiting, Waiting)
    desk.queues.leave(desk.now, waiting.ticket.number)
    desk.queues.leave(desk.now, waiting.ticket.number)
    assert desk.position("b") == 0
    assert not desk.queues.claim(desk.now, waiting.ticket.number, "")
    assert desk.queues.put_back(desk.now, desk.rng, waiting.ticket.number) is None


# Faults that others had.


def test_turns_pass_those_who_have_vanished() -> None:
    desk = Desk(free=10, lease_s=30.0, claim_s=20.0)
    inside = [f"i{n}" for n in range(10)]
    for name in inside:
        desk.enter(name)
    desk.join(*(f"gone{n}" for n in range(10)))
    stay = [f"stay{n}" for n in range(10)]
    desk.join(*stay)
    desk.free = 10
    served = 0
    for _ in range(50):
        desk.after(1.0)
        for name in list(stay):
            if isinstance(desk.ask(name), Go):
                desk.enter(name)
                stay.remove(name)
                served += 1
    assert served == 10


def test_every_count_comes_to_zero_when_all_have_gone() -> None:
    desk = Desk(claim_s=20.0, return_s=30.0, claimed_s=10.0)
    names = [f"n{n}" for n in range(6)]
    desk.join(*names, network=b"net")
    desk.free = 6
    desk.settle()
    for name in names[2:]:
        desk.enter(name)
    desk.after(60.0)
    book = desk.queues.book
    assert (book.waiting, book.places, book.claimed, book.missed, len(book)) == (0, 0, 0, 0, 0)
    assert (len(desk.queues.lines["default"]), desk.queues.limits.calls, book.places_of(b"net")) == (0, 0, 0)
    assert desk.queues.tally.missed == 2


def test_a_ticket_whose_call_went_to_the_next_lets_in_nobody() -> None:
    desk = Desk(claim_s=20.0, mode=Mode.QUEUE_ALL)
    desk.join("a", "b")
    place = signed(desk.ticket("a"))
    desk.free = 1
    desk.after(20.0)
    desk.ask("b")
    desk.after(5.0)
    desk.enter("b")
    desk.settle()
    assert isinstance(desk.ask("a", place=place), Waiting)


def test_all_who_wait_are_served_when_backends_come_back() -> None:
    desk = Desk()
    names = [f"n{n}" for n in range(100)]
    desk.settle(why=QueueReason.NO_BACKEND)
    desk.join(*names)
    desk.free = None
    desk.settle()
    assert all(isinstance(desk.ask(name), Go) for name in names)


def test_nobody_is_called_whose_lease_has_ended_also_when_many_end_together() -> None:
    desk = Desk(free=None, max_calls=1)
    desk.join(*(f"n{n}" for n in range(100)))
    desk.now += 31.0
    desk.ask("new")
    assert desk.queues.tally.called == 1
    assert desk.queues.book.called == {}


@pytest.mark.parametrize("limits", [{"per_minute": 60.0}, {"max_calls": 60}])
def test_half_a_crowd_of_sleepers_does_not_halve_the_throughput(limits: dict[str, float]) -> None:
    """Sixty a minute by the rate; or with sixty calls at a time, which come at the next poll or end after 20 s."""
    desk = Desk(free=None, mode=Mode.QUEUE_ALL, estimator=Steady(5.0), **limits)
    names = [f"n{n}" for n in range(600)]
    desk.join(*names, away=True)
    awake, served = set(names[::2]), list[float]()
    for second in range(240):
        desk.after(1.0)
        for name in sorted(awake):
            if desk.ticket(name).stage is Stage.CALLED and second % 5 == 0:
                desk.enter(name)
                awake.discard(name)
                served.append(desk.now)
    late = [at for at in served if at > served[0] + 60.0]
    per_minute = len(late) / (min(180.0, late[-1] - served[0] - 60.0)) * 60
    assert per_minute >= 54.0
