"""What an operator wants of a backend, apart from what its probes find: drain, maintenance, and back."""

from __future__ import annotations

import math
import random

import pytest

from master.core.admin import READY, Admin, Wish
from master.core.backend import Backend
from master.core.choice import ChoicePolicy, Panic
from master.core.ejection import Verdict
from master.core.health import HealthPolicy, Report, Said
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, Reason, Refused, State

PROBED = ("10.0.0.1", 9001)
DRAIN = Admin(Wish.DRAIN, "ann", "a new release")
MAINT = Admin(Wish.MAINT, "ann", "a new disk")
PLAIN = ChoicePolicy(join_cap=math.inf, first_round_s=0.0, slow_start_s=0.0)


class Bench:
    def __init__(self, *names: str, choice: ChoicePolicy = PLAIN, health: HealthPolicy | None = None) -> None:
        self.rng = random.Random(1)
        self.pool = Pool([Backend(name) for name in names], health or HealthPolicy(), LoadPolicy(), choice)

    def report(self, now: float, **counts: int) -> None:
        for name, count in counts.items():
            self.pool.record_report(now, self.rng, name, count, now, (f"10.0.0.{ord(name)}", 9001))

    def ask(self, now: float, client: str | None = None) -> str:
        answer = self.pool.assign(now, self.rng, Ask(client=client, alternates=2))
        assert isinstance(answer, Assignment | Refused)
        return answer.place.name if isinstance(answer, Assignment) else answer.why.value

    def reasons(self, now: float) -> dict[str, Reason]:
        return {each.name: each.reason for each in self.pool.explain(now, Ask())}


@pytest.mark.parametrize(("admin", "state"), [(DRAIN, State.DRAIN), (MAINT, State.MAINT)])
def test_who_is_set_aside_gets_no_new_client_and_explain_says_why(admin: Admin, state: State) -> None:
    bench = Bench("a", "b")
    bench.report(0.0, a=0, b=100)
    assert bench.pool.set_admin(0.1, "a", admin) is state
    assert {bench.ask(0.2) for _ in range(20)} == {"b"}
    assert bench.reasons(0.2) == {"a": Reason(state.value), "b": Reason.BEST}
    assert bench.pool["a"].admin == admin
    answer = bench.pool.assign(0.2, bench.rng, Ask(alternates=2))
    assert isinstance(answer, Assignment)
    assert answer.alternates == ()


def test_a_client_that_asks_again_is_not_sent_to_one_that_is_drained_meanwhile() -> None:
    bench = Bench("a", "b")
    bench.report(0.0, a=0, b=100)
    assert bench.ask(0.1, "c") == "a"
    bench.pool.set_admin(0.2, "a", DRAIN)
    assert bench.ask(0.3, "c") == "b"


def test_a_drained_one_goes_on_reporting_and_is_back_when_the_operator_says() -> None:
    bench = Bench("a", "b")
    bench.report(0.0, a=0, b=100)
    bench.pool.set_admin(0.1, "a", DRAIN)
    bench.report(1.0, a=7, b=100)
    assert bench.pool["a"].users(1.0) == 7
    assert bench.pool.set_admin(1.1, "a", READY) is State.READY
    assert bench.ask(1.1) == "a"


def test_drain_outlives_a_death_and_a_return_and_both_are_shown() -> None:
    bench = Bench("a", "b")
    bench.report(0.0, a=0, b=0)
    bench.pool.set_admin(0.1, "a", DRAIN)
    bench.pool.record_lost(0.2, "a")
    assert (bench.pool["a"].state(0.2), bench.pool["a"].admin) == (State.LOST, DRAIN)
    bench.report(0.3, a=0)
    assert (bench.pool["a"].state(0.3), bench.pool["a"].admin) == (State.DRAIN, DRAIN)
    assert bench.ask(0.3) == "b"


@pytest.mark.parametrize("admin", [DRAIN, MAINT])
def test_ready_makes_nobody_good_whose_probes_fail(admin: Admin) -> None:
    bench = Bench("a", health=HealthPolicy(fall=1))
    bench.report(0.0, a=0)
    bench.pool.set_admin(0.1, "a", admin)
    bench.pool.record_failure(0.2, "a")
    assert bench.pool.set_admin(0.3, "a", READY) is State.DOWN
    assert bench.ask(0.3) == "no_candidate"
    bench.report(0.4, a=0)
    assert bench.ask(0.4) == "a"


def test_after_maintenance_a_good_probe_has_to_come_first_and_the_slow_start_begins() -> None:
    bench = Bench("a", "b", choice=ChoicePolicy(first_round_s=0.0))
    bench.report(0.0, a=0, b=0)
    bench.report(100.0, a=0, b=0)
    bench.pool.set_admin(100.1, "a", MAINT)
    assert bench.pool.set_admin(100.2, "a", READY) is State.LOST
    assert bench.ask(100.2) == "b"
    bench.report(100.3, a=0)
    assert bench.pool["a"].state(100.3) is State.READY
    assert bench.pool["a"].permits.ramp(100.3) == pytest.approx(0.1)


def test_a_report_that_was_under_way_when_maintenance_began_ends_nothing() -> None:
    bench = Bench("a")
    bench.pool.set_admin(0.1, "a", MAINT)
    bench.report(0.2, a=0)
    assert bench.pool["a"].state(0.2) is State.MAINT
    assert bench.pool.set_admin(0.3, "a", READY) is State.LOST


@pytest.mark.parametrize(("now", "named"), [(9.9, "b"), (10.0, "a")])
def test_a_time_that_is_set_ends_it_by_itself(now: float, named: str) -> None:
    bench = Bench("a", "b", health=HealthPolicy(stale_after_s=60))
    bench.report(0.0, a=0, b=100)
    bench.pool.set_admin(0.0, "a", Admin(Wish.DRAIN, "ann", "ten seconds", until=10.0))
    assert bench.ask(now) == named
    assert bench.pool["a"].admin == (READY if named == "a" else Admin(Wish.DRAIN, "ann", "ten seconds", until=10.0))


def test_maintenance_that_ends_by_itself_waits_for_a_probe() -> None:
    bench = Bench("a", health=HealthPolicy(stale_after_s=60))
    bench.report(0.0, a=0)
    bench.pool.set_admin(0.0, "a", Admin(Wish.MAINT, until=10.0))
    assert bench.ask(11.0) == "no_candidate"
    assert bench.pool["a"].state(11.0) is State.LOST
    bench.report(12.0, a=0)
    assert bench.ask(12.0) == "a"


def test_who_is_set_aside_counts_in_no_panic() -> None:
    bench = Bench("a", "b", "c", "d", choice=ChoicePolicy(first_round_s=0.0, panic_threshold=0.6))
    bench.report(0.0, a=0, b=0, c=0, d=0)
    for name in "ab":
        bench.pool.set_admin(0.1, name, DRAIN)
    assert bench.ask(0.2) in "cd"
    bench.pool.record_lost(0.3, "c")
    assert bench.ask(0.3) == "panic"


def test_all_set_aside_is_no_panic_and_no_failed_network() -> None:
    bench = Bench("a", "b", choice=ChoicePolicy(first_round_s=0.0, panic_threshold=0.6))
    bench.report(0.0, a=0, b=0)
    for name in "ab":
        bench.pool.set_admin(0.1, name, DRAIN)
    assert bench.ask(0.2) == "no_candidate"
    assert not bench.pool.suspects_own_network(0.2)
    assert bench.pool.roll.suspicions == 0


def test_last_known_names_nobody_who_is_set_aside() -> None:
    bench = Bench("a", "b", choice=ChoicePolicy(first_round_s=0.0, panic=Panic.LAST_KNOWN))
    bench.report(0.0, a=0, b=0)
    bench.pool.set_admin(0.1, "a", DRAIN)
    assert {bench.ask(60.0) for _ in range(10)} == {"b"}


def test_one_that_is_left_and_dies_after_the_others_were_drained_is_no_failed_network() -> None:
    bench = Bench("a", "b", "c")
    bench.report(0.0, a=0, b=0, c=0)
    bench.pool.record_lost(0.1, "a")
    bench.pool.set_admin(0.2, "b", DRAIN)
    bench.report(0.2, a=0)
    bench.pool.set_admin(0.3, "a", DRAIN)
    bench.pool.record_lost(0.4, "c")
    assert not bench.pool.suspects_own_network(0.4)


def test_a_drained_one_that_answers_shows_that_the_network_is_there() -> None:
    bench = Bench("a", "b", "c")
    bench.report(0.0, a=0, b=0, c=0)
    bench.pool.set_admin(0.1, "a", DRAIN)
    for name in "bc":
        bench.pool.record_lost(0.2, name)
    assert bench.pool.suspects_own_network(0.2)
    bench.report(0.3, a=0)
    assert not bench.pool.suspects_own_network(0.3)


def test_a_drained_one_has_no_place_for_users_and_its_own_need_one_when_it_falls() -> None:
    pool = Pool([Backend(name, capacity=100) for name in "abc"], HealthPolicy(), LoadPolicy(), PLAIN)
    for name, count in (("a", 90), ("b", 50), ("c", 60)):
        pool.record_report(0.0, random.Random(1), name, count, 0.0, PROBED)
    pool.set_admin(0.0, "a", DRAIN)
    assert (pool.spare(0.0).biggest, pool.spare(0.0).room, pool.spare(0.0).fits) == ("b", 40, False)
    for name in "bc":
        pool.record_report(0.5, random.Random(1), name, 60, 0.5, PROBED)
    assert (pool.spare(0.5).biggest, pool.spare(0.5).users, pool.spare(0.5).room) == ("b", 60, 40)
    pool = Pool([Backend(name, capacity=50) for name in "bc"] + [Backend("a")], HealthPolicy(), LoadPolicy(), PLAIN)
    for name, count in (("a", 90), ("b", 10), ("c", 10)):
        pool.record_report(0.0, random.Random(1), name, count, 0.0, PROBED)
    pool.set_admin(0.0, "a", DRAIN)
    spare = pool.spare(0.0)
    assert (spare.biggest, spare.users, spare.room, spare.fits) == ("a", 90, 80, False)
    pool.set_admin(1.0, "c", MAINT)
    assert (pool.spare(1.0).biggest, pool.spare(1.0).room) == ("a", 40)
    pool.set_admin(1.0, "a", MAINT)
    assert (pool.spare(1.0).biggest, pool.spare(1.0).room) == ("b", 0)


def test_a_backend_that_is_set_aside_before_its_first_probe_keeps_nobody_out() -> None:
    bench = Bench("a", "b", choice=ChoicePolicy(first_round_s=60.0))
    bench.report(0.0, b=0)
    assert bench.ask(0.1) == "first_round"
    bench.pool.set_admin(0.2, "a", MAINT)
    assert bench.ask(0.2) == "b"


def test_complaints_of_a_drained_one_are_not_heard() -> None:
    bench = Bench("a", "b", "c", "d")
    bench.report(0.0, a=0, b=50, c=50, d=50)
    told = ("10.0.0.97", 9001)
    for i in range(3):
        assert bench.ask(0.1, f"c{i}") == "a"
    bench.pool.set_admin(0.2, "a", DRAIN)
    assert [bench.pool.hear(0.3, bench.rng, f"c{i}", f"10.{i}.0.1", [told]) for i in range(3)] == [[], [], []]
    bench.pool.set_admin(0.4, "a", READY)
    heard = [bench.pool.hear(0.5, bench.rng, f"c{i}", f"10.{i}.0.1", [told]) for i in range(3)]
    assert heard[-1] == [("a", Verdict.EJECTED)]


def test_the_share_that_may_be_ejected_is_of_those_in_service() -> None:
    bench = Bench(*"abcdefg")
    bench.report(0.0, a=0, b=50, c=50, d=50, e=50, f=50, g=50)
    for name in "defg":
        bench.pool.set_admin(0.1, name, MAINT)
    for i in range(3):
        assert bench.ask(0.2, f"c{i}") == "a"
    heard = [bench.pool.hear(0.5, bench.rng, f"c{i}", f"10.{i}.0.1", [("10.0.0.97", 9001)]) for i in range(3)]
    assert heard[-1] == [("a", Verdict.LIMIT)]


def test_what_a_backend_says_of_itself_sets_it_aside_and_makes_it_no_better() -> None:
    bench = Bench("a", "b", choice=ChoicePolicy(first_round_s=0.0, panic_threshold=0.9))
    bench.report(0.0, a=0, b=100)
    assert bench.pool.record_said(0.1, "a", Said(drain=True)) is State.DRAIN
    assert bench.ask(0.1) == "b"
    assert bench.pool["a"].admin == READY
    bench.pool.record_lost(0.2, "a")
    assert bench.pool.record_said(0.2, "a", Said(drain=False)) is State.LOST
    bench.pool.set_admin(0.3, "a", DRAIN)
    bench.report(0.4, a=0)
    assert bench.pool.record_said(0.4, "a", Said(drain=False)) is State.DRAIN
    assert bench.pool.set_admin(0.5, "a", READY) is State.READY


@pytest.mark.parametrize(("own", "said", "limit"), [(None, 5, 5), (10, 5, 5), (10, 50, 10), (10, None, 10), (0, 5, 0)])
def test_a_capacity_that_a_backend_says_can_only_lower_its_own(own: int | None, said: int | None, limit: int) -> None:
    pool = Pool([Backend("a", capacity=own)], HealthPolicy(), LoadPolicy(), PLAIN)
    pool.record_report(0.0, random.Random(1), "a", 0, 0.0, PROBED)
    pool.record_said(0.1, "a", Said(capacity=said))
    for _ in range(limit):
        assert isinstance(pool.assign(0.2, random.Random(1), Ask()), Assignment)
    assert isinstance(pool.assign(0.2, random.Random(1), Ask()), Refused)
    raised = None if own is None else own + 1
    pool.change(0.3, [Backend("a", capacity=raised)])
    assert pool["a"].free(0.3) == min(each for each in (raised, said) if each is not None) - limit
    pool.record_said(0.4, "a", Said())
    assert pool["a"].free(0.4) == (None if raised is None else raised - limit)


def test_what_an_earlier_process_left_is_trusted_only_where_last_known_is() -> None:
    bench = Bench("a", choice=ChoicePolicy(first_round_s=0.0, panic=Panic.LAST_KNOWN))
    bench.pool.restore(100.0, "a", Report(5, 40.0), PROBED)
    assert bench.pool["a"].state(100.0) is State.UNPROBED
    assert bench.ask(100.0) == "a"
    careful = Bench("a")
    careful.pool.restore(100.0, "a", Report(5, 40.0), PROBED)
    assert careful.ask(100.0) == "no_candidate"
