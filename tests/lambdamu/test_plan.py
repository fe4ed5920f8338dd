"""What a client does next, without a wire and without a clock.

The file is long because each situation of a client is a row or a test of the one plan.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdamu.address import Address
from lambdamu.answers import Answer, Failure
from lambdamu.breaker import BreakerPolicy, Fault, Permit, State
from lambdamu.errors import ConnectError, DeniedError, NoServerError, UnreachableError
from lambdamu.identity import Identity
from lambdamu.messages import Result
from lambdamu.peers import Breakers, ClientObserver, ClientPolicy, Peers
from lambdamu.plan import Ask, GiveUp, Go, Pause, Plan
from lambdamu.retry import Backoff, BudgetPolicy

M1, M2, M3 = (Address("192.0.2.1", port) for port in (7001, 7002, 7003))
B1, B2, B3 = (Address("198.51.100.1", port) for port in (9001, 9002, 9003))
SILENT = Failure("is silent", why="timeout")
FULL = Failure("is full", why="Full", fault=Fault.LOGIC)
OURS = Failure("no descriptor is left", why="no_descriptor", fault=None)
OFFLINE = Failure("Network is unreachable", why="unreachable", fault=None)
BROKEN = Failure("not to the protocol", final=True)
STEP_S = 0.1

Said = Answer | Failure


def ok(best: Address, *alternates: Address, **more: Any) -> Answer:
    others = [{"IP": each.host, "Port": each.port, "Name": f"alt-{each.port}"} for each in alternates]
    data = {"IP": best.host, "Port": best.port, "Name": f"best-{best.port}", "Alternates": others, **more}
    return Answer(Result.OK, best.host, best.port, data)


def no(result: Result = Result.NO_SERVER, **data: Any) -> Answer:
    return Answer(result, None, None, data)


class World:
    """Masters and backends that answer as they are told, and the time that passes with it."""

    def __init__(self, *masters: Address, peers: Peers | None = None, seed: int = 0, **policy: Any) -> None:
        self.masters = masters or (M1,)
        self.peers = peers or Peers(ClientPolicy(**policy))
        self.identity = Identity("ann")
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.asks: list[tuple[Address, dict[str, Any]]] = []
        self.asked_at: list[float] = []
        self.went: list[Address] = []
        self.pauses: list[float] = []

    def run(
        self, ask: Callable[[int, Address], Said], go: Callable[[Address], Failure | None] = lambda backend: None
    ) -> Go | ConnectError:
        """Follow a plan to its end. `ask`: what the n-th ask of it, from 0, is answered."""
        plan = Plan(self.now, self.identity, self.masters, self.peers, self.rng)
        number = 0
        while True:
            step = plan.next(self.now)
            match step:
                case Ask():
                    self.asks.append((step.master, step.data))
                    self.asked_at.append(self.now)
                    self.now += STEP_S
                    said = ask(number, step.master)
                    number += 1
                    if isinstance(said, Failure):
                        plan.ask_failed(self.now, step, said)
                    else:
                        plan.answered(self.now, step, said)
                case Go():
                    self.went.append(step.backend)
                    self.now += STEP_S
                    failure = go(step.backend)
                    if failure is None:
                        plan.logged_in(self.now, step)
                        return step
                    plan.login_failed(self.now, step, failure)
                case Pause(for_s):
                    assert for_s > 0
                    self.pauses.append(for_s)
                    assert len(self.pauses) < 10000
                    self.now += for_s
                case GiveUp(error):
                    assert plan.next(self.now) == step
                    return error

    def asked(self) -> list[Address]:
        return [master for master, _ in self.asks]


def in_turn(*says: Said) -> Callable[[int, Address], Said]:
    """The n-th ask gets the n-th of these; the last one ever after."""
    return lambda number, master: says[min(number, len(says) - 1)]


def test_it_asks_one_master_and_goes_where_that_sends_it() -> None:
    world = World(M1, M2, M3)
    step = world.run(in_turn(ok(B1)))
    assert isinstance(step, Go)
    assert (step.backend, step.name) == (B1, "best-9001")
    assert (len(world.asks), world.went, world.pauses) == (1, [B1], [])


def test_a_turn_is_for_the_first_place_of_its_answer_alone() -> None:
    world, shown = World(M1), []
    plan = Plan(world.now, world.identity, world.masters, world.peers, world.rng)
    for answer in (ok(B1, B2, Turn="t1"), ok(B1), ok(B3, Turn="x" * 201), ok(B3, Turn=b"t2")):
        while not isinstance(step := plan.next(world.now), Ask):
            world.now += step.for_s if isinstance(step, Pause) else 0.0
        assert "Turn" in step.data["Want"]
        plan.answered(world.now, step, answer)
        while isinstance(step := plan.next(world.now), Go):
            shown.append((step.backend, step.turn))
            plan.login_failed(world.now, step, Failure("is over", why="TurnExpired", fault=Fault.LOGIC))
    assert shown == [(B1, "t1"), (B2, None), (B1, None), (B3, None), (B3, "t2")]
    assert [place.why for place in world.identity.failed] == ["TurnExpired"]


def test_masters_that_fail_are_passed_over_without_a_pause() -> None:
    for seed in range(20):
        world = World(M1, M2, M3, seed=seed)
        step = world.run(lambda number, master: ok(B1) if master == M3 else SILENT)
        assert isinstance(step, Go)
        assert len(set(world.asked())) == len(world.asked())
        assert world.pauses == []


def test_masters_are_asked_in_an_order_of_chance() -> None:
    worlds = [World(M1, M2, M3, seed=seed) for seed in range(40)]
    for world in worlds:
        world.run(in_turn(ok(B1)))
    assert {world.asked()[0] for world in worlds} == {M1, M2, M3}


def test_the_master_that_answered_last_is_asked_first_for_a_minute() -> None:
    for seed in range(20):
        world = World(M1, M2, M3, seed=seed)
        for _ in range(5):
            world.run(in_turn(ok(B1)))
        world.run(in_turn(no(), ok(B1)))
        assert len(set(world.asked())) == 1
    last = set()
    for seed in range(40):
        world = World(M1, M2, M3, seed=seed)
        world.run(lambda number, master: ok(B1) if master == M1 else SILENT)
        world.now += 61.0
        world.run(in_turn(ok(B1)))
        last.add(world.asked()[-1])
    assert last == {M1, M2, M3}


def test_alternates_are_tried_in_their_order_and_without_a_pause() -> None:
    world = World()
    step = world.run(in_turn(ok(B1, B2, B3)), lambda backend: None if backend == B3 else SILENT)
    assert isinstance(step, Go)
    assert (world.went, step.name, len(world.asks), world.pauses) == ([B1, B2, B3], "alt-9003", 1, [])


def test_what_failed_is_told_at_the_next_ask_and_then_no_more() -> None:
    world = World(backoff=Backoff(0.01, 0.01))
    world.run(in_turn(ok(B1, B2), SILENT, no(), ok(B3)), lambda backend: {B1: SILENT, B2: FULL}.get(backend))
    told = [data.get("Failed") for _, data in world.asks]
    both = [{"IP": B1.host, "Port": 9001, "Why": "timeout"}, {"IP": B2.host, "Port": 9002, "Why": "Full"}]
    assert told == [None, both, both, None]  # the second ask got no answer, so nobody knows whether it was heard


def test_what_failed_is_told_by_the_next_attempt_too_unless_it_is_old_news() -> None:
    world = World()
    world.run(in_turn(ok(B1, B2)), lambda backend: SILENT if backend == B1 else None)
    world.now += 30.0
    world.run(in_turn(SILENT, ok(B2)))
    assert [len(data.get("Failed", ())) for _, data in world.asks] == [0, 1, 1]
    world.run(in_turn(ok(B1, B2)), lambda backend: SILENT if backend == B1 else None)
    world.now += 60.0
    world.run(in_turn(ok(B2)))
    assert "Failed" not in world.asks[-1][1]


def test_so_many_failures_are_told_and_no_more() -> None:
    world = World(budget=BudgetPolicy(most=99.0))
    places = [Address("198.51.100.1", port) for port in range(9001, 9013)]
    world.run(in_turn(ok(*places), ok(B1)), lambda backend: SILENT if len(world.went) <= len(places) else None)
    assert [each["Port"] for each in world.asks[-1][1]["Failed"]] == list(range(9005, 9013))


def test_a_shortage_of_our_own_is_no_failure_of_a_backend() -> None:
    world = World()
    world.run(in_turn(ok(B1, B2)), lambda backend: OURS if backend == B1 else None)
    world.run(in_turn(ok(B1)))
    assert "Failed" not in world.asks[-1][1]
    assert world.peers.backends.of(B1).counts(world.now).system == 0


def test_a_device_that_was_offline_asks_as_soon_as_it_is_back() -> None:
    world = World(M1, M2, within_s=10.0)
    for _ in range(9):
        assert isinstance(world.run(in_turn(OFFLINE)), UnreachableError)
        world.now += 60.0
    assert isinstance(world.run(in_turn(ok(B1))), Go)
    assert world.peers.masters.of(M1).state(world.now) is State.CLOSED


def test_every_ask_carries_the_same_id() -> None:
    world = World(M1, M2, M3)
    world.run(in_turn(SILENT, SILENT, no(), ok(B1)))
    world.run(in_turn(ok(B1)))
    assert [data["Client"] for _, data in world.asks] == ["ann"] * 5


def test_the_ticket_of_a_queue_is_shown_also_after_it_was_used() -> None:
    world = World()
    world.run(in_turn(no(Result.WAIT, Ticket="t1", RetryAfter=0.1), no(Result.WAIT, Ticket="t2"), ok(B1)))
    world.run(in_turn(ok(B1)))
    assert [data.get("Ticket") for _, data in world.asks] == [None, "t1", "t2", "t2"]


@pytest.mark.parametrize("result", [Result.NO_SERVER, Result.WAIT, Result.CLOSED, Result.DENIED])
def test_nobody_comes_back_before_the_master_said(result: Result) -> None:
    for seed in range(20):
        world = World(M1, M2, seed=seed)
        assert isinstance(world.run(in_turn(no(result, RetryAfter=4.0), ok(B1))), Go)
        first, second = world.asked_at
        assert 4.0 <= second - first <= 4.0 + STEP_S + 1e-9


def test_when_it_may_come_back_too_late_only_it_gives_up_at_once() -> None:
    world = World(within_s=30.0)
    error = world.run(in_turn(no(Result.CLOSED, Reason="Night", RetryAfter=3600.0)))
    assert isinstance(error, NoServerError)
    assert (error.result, error.reason, error.retry_after_s) == ("Closed", "Night", 3600.0)
    assert str(error) == f"master {M1}: it answered Closed, Night; ask again in 3600.0 s"
    assert (len(world.asks), world.pauses) == (1, [])


def test_a_pass_is_shown_at_every_ask_and_kept_out_of_sight() -> None:
    identity = Identity("ann", pass_text="a-pass")
    assert identity.data()["Pass"] == "a-pass"
    assert "a-pass" not in repr(identity)
    assert "Pass" not in Identity("ann").data()


def test_who_was_too_fast_comes_back_when_told_and_whose_pass_is_over_does_not() -> None:
    world = World()
    assert isinstance(world.run(in_turn(no(Result.DENIED, Reason="TooFast", RetryAfter=3.0), ok(B1))), Go)
    error = World().run(in_turn(no(Result.DENIED, Reason="PassExpired", RetryAfter=None)))
    assert isinstance(error, DeniedError)
    assert error.reason == "PassExpired"
    assert "Denied, PassExpired" in str(error)


def test_denied_for_good_is_final() -> None:
    world = World(M1, M2)
    error = world.run(in_turn(no(Result.DENIED, Reason="Used")))
    assert isinstance(error, DeniedError)
    assert (error.reason, error.retry_after_s, len(world.asks)) == ("Used", None, 1)


def test_pauses_are_any_part_of_a_bound_that_doubles() -> None:
    backoff = Backoff(first_s=1.0, most_s=4.0)
    seen: list[list[float]] = [[] for _ in range(4)]
    for seed in range(300):
        world = World(seed=seed, backoff=backoff, within_s=100.0, masters=BreakerPolicy(consecutive=99, buckets=1))
        world.run(in_turn(no(), no(), no(), no(), ok(B1)))
        for i, pause in enumerate(world.pauses):
            seen[i].append(pause)
    for i, pauses in enumerate(seen):
        longest = min(4.0, 2.0**i)
        assert 0.0 < min(pauses) < 0.05 * longest
        assert 0.95 * longest < max(pauses) <= longest


def test_a_pause_is_never_none_whatever_chance_says() -> None:
    class Never(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a

    world = World(M1, within_s=0.05)
    world.rng = Never(0)
    while isinstance(world.peers.masters.of(M1).acquire(world.now, world.rng), Permit):
        pass  # until all its places are taken
    assert isinstance(world.run(in_turn(ok(B1))), UnreachableError)
    assert 45 <= len(world.pauses) <= 50


def test_a_master_that_does_not_speak_the_wire_is_asked_once() -> None:
    world = World(M1, M2)
    world.run(lambda number, master: BROKEN if master == M1 else no() if number < 8 else ok(B1))
    assert world.asked().count(M1) <= 1
    error = World(M1, M2).run(in_turn(BROKEN))
    assert isinstance(error, UnreachableError)
    assert str(error) == "not to the protocol; not to the protocol"


def test_retries_end_with_the_budget_and_first_asks_do_not() -> None:
    policy = {"budget": BudgetPolicy(share=0.0, per_s=0.0, most=4.0), "backoff": Backoff(0.01, 0.01)}
    world = World(M1, **policy)
    error = world.run(in_turn(no()))
    assert isinstance(error, NoServerError)
    assert len(world.asks) == 1 + 4
    error = world.run(in_turn(FULL))
    assert isinstance(error, UnreachableError)
    assert str(error) == "there were too many retries; is full"
    assert len(world.asks) == 1 + 4 + 1
    assert isinstance(world.run(in_turn(ok(B1))), Go)


def test_each_attempt_brings_a_part_of_a_retry() -> None:
    world = World(M1, budget=BudgetPolicy(share=0.5, per_s=0.0, most=1.0), backoff=Backoff(0.01, 0.01))
    asks = []
    for _ in range(5):
        before = len(world.asks)
        world.run(in_turn(no()))
        asks.append(len(world.asks) - before)
    assert asks == [2, 1, 2, 1, 2]


def test_alternates_are_retries_too() -> None:
    world = World(budget=BudgetPolicy(share=0.0, per_s=0.0, most=1.0))
    assert isinstance(world.run(in_turn(ok(B1, B2, B3)), lambda backend: FULL), UnreachableError)
    assert world.went == [B1, B2]


def test_a_backend_that_failed_often_is_passed_over() -> None:
    world = World(backends=BreakerPolicy(consecutive=3, open_s=60.0, max_open_s=60.0))
    for _ in range(3):
        world.run(in_turn(ok(B1, B2)), lambda backend: SILENT if backend == B1 else None)
    assert world.peers.backends.of(B1).state(world.now) is State.OPEN
    world.went.clear()
    world.run(in_turn(ok(B1, B2)))
    assert world.went == [B2]


def test_a_backend_that_says_no_is_there_and_is_not_passed_over() -> None:
    world = World()
    for _ in range(9):
        world.run(in_turn(ok(B1, B2)), lambda backend: FULL if backend == B1 else None)
    assert world.went == [B1, B2] * 9


def test_a_master_that_failed_often_is_passed_over() -> None:
    world = World(M1, M2, masters=BreakerPolicy(consecutive=3, open_s=60.0, max_open_s=60.0))
    for _ in range(20):
        world.run(lambda number, master: SILENT if master == M1 else ok(B1))
        world.identity.master = None
    assert world.asked().count(M1) == 3


def test_when_no_master_may_be_asked_it_waits_until_the_first_one_may() -> None:
    world = World(M1, M2, masters=BreakerPolicy(jitter=0.0, open_s=5.0))
    world.peers.masters.of(M1).trip(world.now, world.rng)
    world.peers.masters.of(M2).trip(world.now - 2.0, world.rng)
    assert isinstance(world.run(in_turn(ok(B1))), Go)
    assert world.pauses == [pytest.approx(3.0)]
    assert world.asked() == [M2]


def test_when_none_may_be_asked_in_time_it_says_when() -> None:
    world = World(M1, within_s=10.0, masters=BreakerPolicy(jitter=0.0, open_s=20.0))
    world.peers.masters.of(M1).trip(world.now, world.rng)
    error = world.run(in_turn(ok(B1)))
    assert isinstance(error, UnreachableError)
    assert (str(error), error.retry_after_s, world.asks) == ("nobody may be called again yet", 20.0, [])


def test_an_answer_is_not_used_for_longer_than_it_holds() -> None:
    world = World()
    world.run(in_turn(ok(B1, B2, TTL=0.05), ok(B3)), lambda backend: SILENT if backend == B1 else None)
    assert world.went == [B1, B3]


def test_a_deadline_that_passes_tells_what_is_known() -> None:
    peers = Peers()
    plan = Plan(0.0, Identity("ann"), [M1], peers, random.Random(0))
    assert str(plan.timed_out()) == "there was no connection within 30 s"
    plan = Plan(0.0, Identity("ann"), [M1], peers, random.Random(0))
    step = plan.next(0.0)
    assert isinstance(step, Ask)
    plan.answered(0.0, step, no(RetryAfter=1.0))
    assert isinstance(plan.timed_out(), NoServerError)


def test_so_many_peers_are_remembered_and_no_more() -> None:
    breakers = Breakers(BreakerPolicy(), ClientObserver(), most=10)
    first = breakers.of(B1)
    for port in range(1, 100):
        breakers.of(Address("192.0.2.9", port))
        assert breakers.of(B1) is first
        assert len(breakers) <= 10


def test_an_answer_that_holds_for_no_time_is_tried_once_and_not_asked_for_again_without_a_pause() -> None:
    plan = Plan(0.0, Identity("ann"), [M1], Peers(), random.Random(0))
    step = plan.next(0.0)
    assert isinstance(step, Ask)
    plan.answered(0.1, step, ok(B1, TTL=0.0))
    assert isinstance(plan.next(0.1001), Go)
    for backends in ((B1,), (B1, B2)):
        world = World(within_s=5.0)
        world.run(in_turn(ok(*backends, TTL=0.0)), lambda backend: SILENT)
        assert len(world.pauses) >= len(world.asks) - 1


SAYS = st.sampled_from([ok(B1), ok(B1, B2, B3), no(), no(RetryAfter=3.0), no(Result.WAIT), SILENT, FULL, OURS, BROKEN])
GOES = st.sampled_from([None, SILENT, FULL, OURS, SILENT])


@settings(deadline=None)
@given(
    seed=st.integers(0, 999),
    masters=st.integers(1, 3),
    says=st.lists(SAYS, min_size=1),
    goes=st.lists(GOES, min_size=1),
)
def test_it_ends_in_time_within_its_budget_and_gives_all_permits_back(
    seed: int, masters: int, says: list[Said], goes: list[Failure | None]
) -> None:
    world = World(*(M1, M2, M3)[:masters], seed=seed, within_s=20.0, budget=BudgetPolicy(0.2, 0.2, 6.0))
    began, answers = world.now, 0

    def ask(number: int, master: Address) -> Said:
        nonlocal answers
        said = says[number % len(says)]
        answers += isinstance(said, Answer) and said.result is Result.OK
        return said

    world.run(ask, lambda backend: goes[len(world.went) % len(goes)])
    assert world.now <= began + 20.0 + STEP_S + 1e-9
    retries = len(world.asks) - 1 + max(0, len(world.went) - answers)
    assert retries <= 6.0 + 0.2 * (world.now - began) + 1e-9
    for peer in (M1, M2, M3, B1, B2, B3):
        assert world.peers.masters.of(peer).in_flight(world.now) == 0
        assert world.peers.backends.of(peer).in_flight(world.now) == 0


@pytest.mark.parametrize("wrong", [{"within_s": 0.0}, {"within_s": math.inf}, {"step_s": math.nan}, {"step_s": 10.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'"):
        ClientPolicy(**wrong)
