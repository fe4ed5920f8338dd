"""What a client does next while a queue holds it, without a wire and without a clock."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, Place
from lambdamu.breaker import Fault
from lambdamu.errors import DeniedError, NoServerError, UnreachableError
from lambdamu.messages import Result
from lambdamu.peers import ClientPolicy
from lambdamu.plan import Ask, Go, Pause, Plan
from lambdamu.retry import BudgetPolicy
from tests.lambdamu.test_plan import B1, B2, M1, M2, M3, SILENT, STEP_S, Said, World, in_turn, no, ok


def wait(retry_after_s: float = 2.0, ticket: str = "t1", **data: Any) -> Answer:
    return no(Result.WAIT, RetryAfter=retry_after_s, Ticket=ticket, **data)


def shown(world: World) -> list[Any]:
    return [data.get("Ticket") for _, data in world.asks]


def test_it_polls_when_it_was_told_and_at_no_other_time() -> None:
    told = [2.0, 0.5, 30.0, 7.25, 1.0, 60.0, 0.1]
    world = World(M1, M2)
    assert isinstance(world.run(in_turn(*map(wait, told), ok(B1))), Go)
    asked = world.asked_at
    assert [after - before - STEP_S for before, after in pairwise(asked)] == pytest.approx(told)


def test_a_wait_lasts_as_long_as_answers_come_and_costs_no_retries() -> None:
    world = World(M1, M2, within_s=30.0, budget=BudgetPolicy(0.0, 0.0, 1.0))
    began = world.now
    assert isinstance(world.run(in_turn(*[wait(25.0)] * 400, ok(B1))), Go)
    assert world.now - began > 10000.0
    assert len(world.asks) == 401


def test_an_application_may_bound_the_wait() -> None:
    world = World(wait_s=60.0)
    began = world.now
    error = world.run(in_turn(wait(7.0, Reason="NoPlace")))
    assert isinstance(error, NoServerError)
    assert (error.result, error.reason, error.retry_after_s) == ("Wait", "NoPlace", 7.0)
    assert 60.0 - 7.0 - STEP_S <= world.now - began <= 60.0
    world.run(in_turn(ok(B1)))
    assert shown(world)[-1] == "t1"


def test_whoever_gets_in_with_the_last_poll_has_the_time_to_log_in() -> None:
    world = World(wait_s=10.0)
    assert isinstance(world.run(in_turn(wait(4.0), wait(4.0), ok(B1, B2)), lambda to: SILENT if to == B1 else None), Go)


def test_the_other_master_is_asked_with_the_same_ticket_when_one_dies() -> None:
    for seed in range(10):
        world = World(M1, M2, M3, seed=seed)
        first = None

        def ask(number: int, master: Address) -> Said:
            nonlocal first
            first = first or master
            if number < 3:
                return wait(80.0)  # longer than it is remembered who answered, were it not for the wait
            return SILENT if master == first else ok(B1)

        assert isinstance(world.run(ask), Go)
        assert world.asked()[:4] == [first] * 4
        assert world.asked()[4] != first
        assert shown(world) == [None, "t1", "t1", "t1", "t1"]
        assert world.pauses == pytest.approx([80.0] * 3)


def test_when_all_masters_die_it_says_so_and_the_ticket_is_kept() -> None:
    world = World(M1, M2, within_s=20.0)
    error = world.run(lambda number, master: wait(5.0) if number < 9 else SILENT)
    assert isinstance(error, UnreachableError)
    assert "is silent" in str(error)
    world.run(in_turn(ok(B1)))
    assert shown(world)[-1] == "t1"


def test_a_master_that_did_not_speak_the_wire_is_asked_again_after_a_wait() -> None:
    broken = Failure("not to the protocol", final=True)
    world = World(M1, M2)
    says: dict[Address, list[Said]] = {M1: [broken, ok(B1)], M2: [wait(), SILENT]}
    first = next(seed for seed in range(99) if World(M1, M2, seed=seed).rng.sample([M1, M2], 2)[-1] == M1)
    world.rng.seed(first)
    assert isinstance(world.run(lambda number, master: says[master].pop(0)), Go)
    assert world.asked() == [M1, M2, M2, M1]


def test_no_other_answer_loses_the_ticket() -> None:
    world = World()
    closed = no(Result.CLOSED, Reason="Closed", RetryAfter=2.0, Text="Back at nine")
    world.run(in_turn(wait(), no(RetryAfter=1.0), closed, no(Result.DENIED, Reason="TooFast", RetryAfter=1.0), ok(B1)))
    assert shown(world) == [None, "t1", "t1", "t1", "t1"]


@pytest.mark.parametrize("last", [no(Result.CLOSED, Reason="Left"), no(Result.DENIED, Reason="Used")])
def test_a_ticket_that_is_worth_nothing_any_more_is_shown_no_more(last: Answer) -> None:
    world = World(within_s=5.0)
    world.run(in_turn(wait(), last))
    asked = len(world.asks)
    world.run(in_turn(ok(B1)))
    assert shown(world)[1] == "t1"
    assert shown(world)[asked:] == [None]


def test_used_is_final() -> None:
    error = World().run(in_turn(wait(), no(Result.DENIED, Reason="Used")))
    assert isinstance(error, DeniedError)


@pytest.mark.parametrize("result", [Result.WAIT, Result.CLOSED, Result.DENIED])
def test_however_often_it_was_told_to_come_again_no_pause_grows_beyond_that(result: Result) -> None:
    for seed in range(10):
        world = World(seed=seed, within_s=50.0)
        world.run(in_turn(*[no(result, RetryAfter=0.5)] * 15, ok(B1)))
        assert world.pauses == pytest.approx([0.5] * 15)


def test_a_wait_without_a_time_is_not_to_the_protocol_and_is_waited_for_no_longer_than_usual() -> None:
    world = World(within_s=20.0)
    began = world.now
    assert isinstance(world.run(in_turn(no(Result.WAIT, Ticket="t1"))), NoServerError)
    assert world.now - began <= 20.0


def test_whatever_a_master_says_it_is_asked_neither_without_a_pause_nor_never_again() -> None:
    world = World()
    world.run(in_turn(wait(0.0), wait(1e300), ok(B1)))
    assert world.pauses == pytest.approx([0.1, 3600.0])


def test_who_was_in_with_a_turn_shows_that() -> None:
    world = World()
    world.run(in_turn(wait(), ok(B1, Turn="turn-1")))
    world.run(in_turn(wait(ticket="t2"), ok(B1, Turn="turn-2")))
    world.run(in_turn(ok(B1)))
    world.run(in_turn(ok(B1)))
    assert shown(world) == [None, "t1", "turn-1", "t2", "turn-2", "t2"]
    assert "turn-2" not in repr(world.identity)


@pytest.mark.parametrize("code", ["TurnExpired", "TurnUsed", "TurnForeign", "TurnMissing"])
def test_a_turn_that_was_refused_is_told_by_its_word(code: str) -> None:
    world = World()
    world.run(
        in_turn(ok(B1, Turn="turn-1"), ok(B2, Turn="turn-2")),
        lambda backend: Failure("no", why=code, fault=Fault.LOGIC) if backend == B1 else None,
    )
    [_, (_, second)] = world.asks
    assert second["Failed"] == [{"IP": B1.host, "Port": B1.port, "Why": code}]
    assert second["Ticket"] == "turn-1"


def test_what_is_said_of_the_place_is_kept_while_it_waits() -> None:
    world = World()
    says = [
        wait(Position=0, ETA=0.0, ETA90=4, Reason="NoPlace", Queue="default"),
        wait(3.0, Position=-1, ETA=math.inf, ETA90="soon"),
        ok(B1),
    ]
    seen = []

    def ask(number: int, master: Address) -> Said:
        seen.append(world.identity.place)
        return says[number]

    world.run(ask)
    assert seen == [None, Place(0, 0.0, 4.0, 2.0, "NoPlace", "default"), Place(None, None, None, 3.0)]
    assert world.identity.place is None


class Turning:
    """One plan that is asked for its steps by hand."""

    def __init__(self) -> None:
        self.world = World()
        self.plan = Plan(0.0, self.world.identity, [M1], self.world.peers, self.world.rng)

    def ask(self, now: float, said: Said) -> Any:
        """Answer the ask that is due now; return what it said of being away."""
        step = self.plan.next(now)
        assert isinstance(step, Ask)
        if isinstance(said, Failure):
            self.plan.ask_failed(now, step, said)
        else:
            self.plan.answered(now, step, said)
        return step.data.get("Away")

    def pause_s(self, now: float) -> float:
        step = self.plan.next(now)
        assert isinstance(step, Pause)
        return step.for_s


def test_going_away_and_coming_back_are_told_at_once_and_each_once() -> None:
    turning = Turning()
    assert turning.ask(0.0, wait(20.0)) is None
    turning.world.identity.away = True
    assert turning.ask(5.0, wait(20.0)) is True
    assert turning.pause_s(5.5) == 19.5
    turning.world.identity.away = False
    assert turning.pause_s(5.5) == 0.5  # not twice within a second
    assert turning.ask(6.0, wait(20.0)) is None
    assert turning.pause_s(6.0) == 20.0


def test_what_was_not_heard_is_told_again() -> None:
    turning = Turning()
    turning.ask(0.0, wait(20.0))
    turning.world.identity.away = True
    assert turning.ask(5.0, SILENT) is True
    assert turning.ask(6.5, wait(20.0)) is True
    assert turning.pause_s(6.5) == 20.0


def test_who_does_not_wait_in_a_queue_tells_nobody_at_once() -> None:
    turning = Turning()
    turning.ask(0.0, no(RetryAfter=9.0))
    turning.world.identity.away = True
    assert turning.pause_s(1.0) >= 8.0


POLLS = st.sampled_from([wait(2.0), wait(40.0), ok(B1), no(), no(RetryAfter=3.0), SILENT])


@settings(deadline=None)
@given(seed=st.integers(0, 999), masters=st.integers(1, 3), says=st.lists(POLLS, min_size=1, max_size=30))
def test_it_ends_within_its_time_after_the_last_poll_and_its_retries_within_the_budget(
    seed: int, masters: int, says: list[Said]
) -> None:
    world = World(*(M1, M2, M3)[:masters], seed=seed, within_s=20.0, budget=BudgetPolicy(0.2, 0.2, 6.0))
    began = polled_by = world.now
    free = 1

    def ask(number: int, master: Address) -> Said:
        nonlocal polled_by, free
        said = says[number] if number < len(says) else no()
        if isinstance(said, Answer) and said.place is not None:
            polled_by, free = world.now + said.place.retry_after_s, free + 1
        return said

    world.run(ask)
    assert world.now <= polled_by + 20.0 + STEP_S + 1e-9
    assert len(world.asks) - free <= 6.0 + 0.2 * (world.now - began) + 1e-9
    for master in (M1, M2, M3):
        assert world.peers.masters.of(master).in_flight(world.now) == 0


@pytest.mark.parametrize("wait_s", [0.0, -1.0, math.nan])
def test_a_bound_that_means_nothing_is_refused(wait_s: float) -> None:
    with pytest.raises(ValueError, match="'wait_s'"):
        ClientPolicy(wait_s=wait_s)
