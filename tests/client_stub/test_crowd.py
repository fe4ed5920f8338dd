"""A crowd without a wire and without a clock: who asks when, with what, and what is counted."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from client_stub.crowd import Crowd
from client_stub.crowd_member import CrowdPolicy, Member
from client_stub.crowd_tally import CrowdTally, Front, Promise, Sample
from lambdamu.address import Address
from lambdamu.answers import Answer
from lambdamu.messages import Result

BACKEND = Address("198.51.100.1", 9001)


def wait(retry_after_s: float = 2.0, **data: Any) -> Answer:
    return Answer(Result.WAIT, None, None, {"Ticket": "t1", "RetryAfter": retry_after_s, **data})


def ok(**data: Any) -> Answer:
    return Answer(Result.OK, BACKEND.host, BACKEND.port, data)


def no(result: Result, **data: Any) -> Answer:
    return Answer(result, None, None, data)


class World:
    """A crowd with a clock of its own."""

    def __init__(self, clients: int = 1, masters: int = 1, **policy: Any) -> None:
        self.now = 0.0
        ids = [f"c{i}" for i in range(clients)]
        self.crowd = Crowd(0.0, CrowdPolicy(clients, **policy), ids, masters, random.Random(0))
        self.asks: list[tuple[float, dict[str, Any]]] = []

    @property
    def tally(self) -> CrowdTally:
        return self.crowd.tally

    def next(self) -> tuple[Member, dict[str, Any]]:
        """Go on to the next ask."""
        master = min((0, 1)[: len(self.crowd._due)], key=self.crowd.next_due)
        self.now = max(self.now, self.crowd.next_due(master))
        [member] = self.crowd.take(self.now, master, 1)
        said = self.crowd.asks(self.now, member)
        self.asks.append((self.now, said))
        return member, said

    def answer(self, *answers: Answer) -> Member:
        """Give each to the next ask."""
        for answer in answers:
            member, _ = self.next()
            self.crowd.answered(self.now, member, answer)
        return member

    @property
    def gaps(self) -> list[float]:
        return [after - before for (before, _), (after, _) in pairwise(self.asks)]


def test_each_asks_when_it_was_told_with_its_ticket() -> None:
    world = World(said={"Queue": "concert"})
    world.answer(wait(2.0), wait(30.5, Ticket="t2"), wait(0.0), ok(Turn="turn"))
    assert world.gaps == pytest.approx([2.0, 30.5, 0.1])
    assert [said.get("Ticket") for _, said in world.asks] == [None, "t1", "t2", "t1"]
    assert {(said["Client"], said["Queue"]) for _, said in world.asks} == {("c0", "concert")}
    assert world.crowd.is_over
    assert (world.tally.let_in, world.tally.joined, world.tally.wait_s) == (1, 1, pytest.approx([32.6]))


def test_they_set_out_at_their_rate_and_nobody_before_he_is_due() -> None:
    world = World(4, rate=2.0)
    assert [member.number for member in world.crowd.take(0.6, 0, 99)] == [0, 1]
    assert world.crowd.next_due(0) == 1.0
    assert [member.number for member in world.crowd.take(9.0, 0, 1)] == [2]


def test_who_goes_away_says_so_at_once_is_silent_and_comes_back_once() -> None:
    world = World(away_s=60.0)
    world.answer(wait(2.0), wait(3.0), wait(4.0), wait(5.0), ok())
    assert world.gaps == [0.0, 60.0, 4.0, 5.0]
    assert [said.get("Away") for _, said in world.asks] == [None, True, None, None, None]


def test_who_has_waited_for_so_long_leaves() -> None:
    world = World(wait_s=9.0)
    world.answer(wait(4.0), wait(4.0), wait(4.0, ETA90=500.0), no(Result.CLOSED, Reason="Left"))
    assert world.gaps == [4.0, 4.0, 1.0]
    assert [said.get("Leave") for _, said in world.asks] == [None, None, None, True]
    assert (world.tally.ended["left"], world.tally.waiting, world.tally.promises) == (1, 0, 0)
    assert world.crowd.is_over
    assert world.tally.exit_code() == 4


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        (no(Result.NO_SERVER, RetryAfter=1.0), "no_server"),
        (no(Result.CLOSED, Reason="Full", RetryAfter=40.0), "closed"),
        (no(Result.DENIED, Reason="NoQueue"), "denied"),
        (no(Result.WAIT, Ticket="t1"), "failed"),
    ],
)
def test_it_is_over_for_whoever_gets_no_place(answer: Answer, how: str) -> None:
    world = World()
    world.answer(answer)
    assert world.crowd.is_over
    assert world.tally.to_json()[how] == 1
    assert world.tally.exit_code() == (1 if how == "failed" else 3)


def test_whoever_has_a_place_keeps_it_through_other_answers() -> None:
    world = World()
    world.answer(wait(), no(Result.NO_SERVER, RetryAfter=3.0), no(Result.CLOSED, RetryAfter=7.0), ok())
    assert world.gaps == [2.0, 3.0, 7.0]
    assert world.tally.errors == {"NoServer": 1, "Closed": 1}
    assert world.tally.exit_code() == 0


def test_a_call_that_fails_is_made_again_at_the_other_master_and_not_for_ever() -> None:
    world = World(masters=2)
    asked = []
    while not world.crowd.is_over:
        member, _ = world.next()
        asked.append(member.master)
        world.crowd.call_failed(world.now, member, "refused")
    assert len(asked) == 13
    assert all(one != other for one, other in pairwise(asked))
    assert (world.tally.ended["failed"], world.tally.errors["refused"]) == (1, 13)
    assert world.tally.exit_code() == 1


def test_who_loses_his_backend_shows_his_turn_and_stays_for_the_rest() -> None:
    world = World(stay_s=60.0)
    member = world.answer(wait(), ok(Turn="turn-1"))
    world.crowd.connected(member, BACKEND)
    assert (world.tally.staying, world.tally.waiting) == (1, 0)
    world.crowd.stayed(world.now, member, BACKEND, 20.0, "closed")
    assert world.tally.staying == 0
    world.answer(wait(Ticket="t2"), ok(Turn="turn-2"))
    _, again = world.asks[2]
    assert (again["Ticket"], again["Failed"]) == ("turn-1", [{"IP": BACKEND.host, "Port": 9001, "Why": "closed"}])
    assert world.asks[3][1].get("Failed") is None
    assert member.stays_s == 40.0
    world.crowd.connected(member, BACKEND)
    world.crowd.stayed(world.now, member, BACKEND, 40.0, None)
    assert world.crowd.is_over
    assert (world.tally.let_in, world.tally.lost, len(world.tally.wait_s)) == (1, 1, 1)
    assert world.tally.backends[BACKEND].connected == 2


def test_backends_that_cannot_be_used_are_not_tried_for_ever() -> None:
    world = World(stay_s=60.0)
    for _ in range(13):
        member = world.answer(ok(Turn="turn"))
        world.crowd.login_failed(world.now, member, BACKEND, "TurnExpired")
    assert world.crowd.is_over
    assert (world.tally.ended["failed"], world.tally.backends[BACKEND].failed) == (1, 13)
    assert world.asks[1][1]["Failed"][0]["Why"] == "TurnExpired"


def test_who_waits_while_somebody_is_in_who_came_after_him_was_overtaken() -> None:
    for in_order in (True, False):
        world = World(2, rate=1.0)
        first = world.answer(wait(3.0))  # at 0 s, and the other at 1 s
        world.answer(ok() if not in_order else wait(9.0))
        assert world.answer(wait(5.0)) is first
        assert world.tally.overtaken == (not in_order)
        assert world.answer(wait(5.0)) is first
        assert world.tally.overtaken == (not in_order)  # each counts once


def test_no_order_is_asked_of_two_who_came_together_or_of_one_who_was_late() -> None:
    together = World(2)
    first, second = together.crowd.take(0.0, 0, 2)
    for member in (first, second):
        together.crowd.asks(0.0, member)
    together.crowd.answered(0.1, first, wait(1.0))
    together.crowd.answered(0.1, second, ok())
    together.answer(wait())
    assert together.tally.overtaken == 0
    late = World(2, rate=1.0)
    late.answer(wait(2.0), ok())
    late.now = 9.0
    late.answer(wait(2.0), wait(2.0))
    assert late.tally.overtaken == 0


def test_promises_are_judged_once_for_each_who_got_in_or_waited_too_long() -> None:
    world = World(3)
    kept, broken, open_still = world.crowd.take(0.0, 0, 3)
    for member, eta90_s in ((kept, 10.0), (broken, 4.0), (open_still, 99.0)):
        world.crowd.asks(0.0, member)
        world.crowd.answered(0.0, member, wait(5.0, ETA90=eta90_s))
    for member in world.crowd.take(5.0, 0, 2):
        world.crowd.asks(5.0, member)
        world.crowd.answered(5.0, member, ok())
    assert (world.tally.promises, world.tally.kept) == (2, 1)
    world.crowd.leave_all(6.0)
    assert (world.tally.promises, world.tally.kept) == (2, 1)


def test_all_leave_whether_they_wait_or_are_just_asking() -> None:
    world = World(4, rate=1.0)
    world.answer(wait(99.0))
    asking, _ = world.next()
    assert world.crowd.leave_all(1.5) == 2
    leaving = world.crowd.take(1.5, 0, 9)
    assert {member.number for member in leaving} == {0, 1}
    assert asking in leaving
    for member in leaving:
        assert world.crowd.asks(1.5, member)["Leave"]
        world.crowd.answered(1.6, member, no(Result.CLOSED, Reason="Left"))
    assert world.crowd.is_over
    assert (world.tally.ended["left"], world.tally.waiting) == (2, 0)


def test_one_promise_of_many_is_kept_each_with_the_same_chance() -> None:
    rng, kept = random.Random(1), [0, 0, 0, 0]
    for _ in range(4000):
        promise = Promise()
        for by in range(4):
            promise.show(by, rng)
        kept[int(promise.by)] += 1
    assert min(kept) > 850


def test_a_front_knows_who_was_in_before_a_moment() -> None:
    front = Front()
    for now, joined_at in ((10.0, 3.0), (11.0, 2.0), (12.0, 5.0)):
        front.entered(now, joined_at)
    assert [front.latest(before) for before in (10.0, 10.5, 12.0, 13.0)] == [float("-inf"), 3.0, 3.0, 5.0]


def test_a_sample_is_bounded_and_keeps_the_largest() -> None:
    sample = Sample(random.Random(0))
    assert sample.quantiles() == {"p50": None, "p90": None, "p99": None, "max": None}
    for value in range(50_000):
        sample.add(float(value))
    found = sample.quantiles()
    assert found["max"] == 49_999.0
    assert 23_000 < (found["p50"] or 0) < 27_000
    assert len(sample._values) == 10_000
