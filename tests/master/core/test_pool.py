"""The pool: whom it names, and when.

The file is long because each rule of the pool as a whole has its test here.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Ask, Assignment, Pool, Reason, Refused, State

ASK = Ask()
PLAIN = ChoicePolicy(join_cap=math.inf, first_round_s=0.0)
"""Nobody has to wait, and load alone decides."""


class Bench:
    """A pool with one random source, and short words for what happens to it."""

    def __init__(
        self,
        *backends: Backend,
        seed: int = 1,
        health: HealthPolicy | None = None,
        loads: LoadPolicy | None = None,
        choice: ChoicePolicy = PLAIN,
    ) -> None:
        self.rng = random.Random(seed)
        self.pool = Pool(backends, health or HealthPolicy(), loads or LoadPolicy(), choice)

    def report(self, now: float, asked_at: float | None = None, **counts: int) -> None:
        for name, count in counts.items():
            self.pool.record_report(now, self.rng, name, count, now if asked_at is None else asked_at, (name, 9001))

    def assign(self, now: float) -> str | None:
        assignment = self.pool.assign(now, self.rng, ASK)
        return assignment.place.name if isinstance(assignment, Assignment) else None

    def assign_many(self, now: float, times: int) -> Counter[str | None]:
        return Counter(self.assign(now) for _ in range(times))


def backends(*names: str) -> list[Backend]:
    return [Backend(name) for name in names]


def test_an_empty_pool_refuses() -> None:
    assert Bench().pool.assign(0.0, random.Random(1), ASK) == Refused(Reason.NO_CANDIDATE)
    assert not Bench().pool.works(0.0)


def test_a_backend_is_no_candidate_before_its_first_good_probe() -> None:
    bench = Bench(*backends("a", "b"))
    assert bench.assign(0.0) is None
    bench.pool.record_failure(0.5, "a")
    assert bench.assign(0.6) is None
    bench.report(1.0, b=3)
    assert bench.assign_many(1.0, 5) == {"b": 5}
    assert bench.pool["a"].state(1.0) is State.UNPROBED


@pytest.mark.parametrize(("now", "name"), [(9.9, "a"), (10.0, "a"), (10.1, None), (15.0, None), (1e6, None)])
def test_a_report_is_valid_as_long_as_it_says_and_no_longer(now: float, name: str | None) -> None:
    bench = Bench(*backends("a"), health=HealthPolicy(stale_after_s=10))
    bench.report(0.0, a=0)
    assert bench.assign(now) == name


def test_age_counts_from_the_question_and_not_from_the_answer() -> None:
    bench = Bench(*backends("a"), health=HealthPolicy(stale_after_s=3))
    bench.report(5.0, asked_at=2.0, a=0)
    assert bench.assign(5.0) == "a"
    assert bench.assign(5.1) is None


def test_a_failed_probe_keeps_the_last_report_with_its_time() -> None:
    bench = Bench(*backends("a"), health=HealthPolicy(fall=3, stale_after_s=3))
    bench.report(0.0, a=7)
    bench.pool.record_failure(1.0, "a")
    assert bench.assign(1.0) == "a"
    assert bench.pool["a"].report is not None
    assert bench.pool["a"].report.asked_at == 0.0
    bench.pool.record_failure(2.0, "a")
    assert bench.assign(3.1) is None


def test_a_report_that_comes_late_does_not_replace_a_newer_one() -> None:
    bench = Bench(*backends("a"))
    bench.report(2.0, a=5)
    bench.report(2.1, asked_at=1.0, a=50)
    assert bench.pool["a"].users(2.1) == 5


def test_down_after_fall_failures_and_back_after_rise_answers() -> None:
    bench = Bench(*backends("a"), health=HealthPolicy(rise=2, fall=2, stale_after_s=100))
    bench.report(0.0, a=0)
    assert bench.assign(0.0) is None
    bench.report(1.0, a=0)
    assert bench.assign(1.0) == "a"
    bench.pool.record_failure(2.0, "a")
    bench.pool.record_failure(3.0, "a")
    assert bench.assign(3.0) is None
    bench.report(4.0, a=0)
    assert bench.assign(4.0) is None
    bench.report(5.0, a=0)
    assert bench.assign(5.0) == "a"


def test_a_lost_connection_takes_a_backend_out_at_once_and_one_answer_brings_it_back() -> None:
    bench = Bench(*backends("a", "b"), health=HealthPolicy(rise=3, fall=3))
    for now in (0.0, 0.1, 0.2):
        bench.report(now, a=0, b=100)
    assert bench.pool.record_lost(0.3, "a") is State.LOST
    assert bench.assign_many(0.3, 3) == {"b": 3}
    bench.report(0.4, a=0)
    assert bench.assign(0.4) == "a"


def test_the_least_loaded_gets_the_client() -> None:
    bench = Bench(*backends("a", "b", "c"))
    bench.report(0.0, a=12, b=3, c=7)
    assert bench.assign(0.0) == "b"


def test_between_two_probes_everybody_is_counted() -> None:
    bench = Bench(*backends("a", "b", "c"))
    bench.report(0.0, a=10, b=11, c=12)
    bench.assign_many(0.5, 300)
    users = [bench.pool[name].users(0.5) for name in "abc"]
    assert max(users) - min(users) <= 1
    assert sum(users) == 333


def test_equal_loads_are_never_given_to_the_head_of_the_list() -> None:
    first = Counter[str | None]()
    for seed in range(1000):
        bench = Bench(*backends(*"abcde"), seed=seed)
        bench.report(0.0, a=0, b=0, c=0, d=0, e=0)
        first[bench.assign(0.0)] += 1
    assert all(150 < first[name] < 250 for name in "abcde"), first


@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (1, 2), (3, 1), (100, 1), (0.5, 0.25)])
def test_shares_match_weights(weights: tuple[float, ...]) -> None:
    members = [Backend(f"b{i}", weight=weight) for i, weight in enumerate(weights)]
    bench = Bench(*members)
    bench.report(0.0, **{member.name: 0 for member in members})
    got = bench.assign_many(0.0, 10_000)
    for member in members:
        share = member.weight / sum(weights)
        assert abs(got[member.name] - 10_000 * share) <= 10


@pytest.mark.parametrize("nobody", [Backend("a", weight=0), Backend("a", capacity=0)])
def test_no_weight_or_no_capacity_means_nobody(nobody: Backend) -> None:
    bench = Bench(nobody)
    bench.report(0.0, a=0)
    assert bench.assign(0.0) is None
    assert bench.pool.works(0.0)


def test_no_capacity_given_means_no_limit() -> None:
    bench = Bench(Backend("a"))
    bench.report(0.0, a=10**9)
    assert bench.assign(0.0) == "a"
    assert bench.pool["a"].free(0.0) is None


@pytest.mark.parametrize(("count", "places"), [(0, 5), (3, 2), (4, 1), (5, 0), (9, 0)])
def test_a_full_backend_is_sent_nobody_and_free_places_are_never_negative(count: int, places: int) -> None:
    bench = Bench(Backend("a", capacity=5))
    bench.report(0.0, a=count)
    assert bench.pool["a"].free(0.0) == places
    assert bench.assign_many(0.0, 10)["a"] == places
    assert bench.pool["a"].free(0.0) == 0
    assert bench.pool["a"].state(0.0) is State.FULL


def test_a_full_backend_is_back_with_the_report_that_shows_room() -> None:
    bench = Bench(Backend("a", capacity=2))
    bench.report(0.0, a=2)
    assert bench.assign(0.0) is None
    bench.report(1.0, a=1)
    assert bench.assign_many(1.0, 3) == {"a": 1, None: 2}


def test_who_was_sent_long_enough_before_the_question_is_in_the_count() -> None:
    bench = Bench(*backends("a"), loads=LoadPolicy(connect_s=2, reservation_s=15))
    bench.report(0.0, a=0)
    bench.assign_many(0.5, 10)
    bench.report(1.0, a=0)
    assert bench.pool["a"].users(1.0) == 10
    bench.report(2.4, a=4)
    assert bench.pool["a"].users(2.4) == 14
    bench.report(2.5, a=10)
    assert bench.pool["a"].users(2.5) == 10


def test_an_assignment_that_no_report_confirms_fades() -> None:
    bench = Bench(
        Backend("a", capacity=10),
        health=HealthPolicy(stale_after_s=100),
        loads=LoadPolicy(connect_s=15, reservation_s=15),
    )
    bench.report(0.0, a=0)
    assert bench.assign_many(1.0, 20) == {"a": 10, None: 10}
    bench.report(10.0, a=0)
    assert bench.assign(10.0) is None
    assert bench.assign(15.9) is None
    assert bench.assign_many(16.0, 20) == {"a": 10, None: 10}
    assert bench.assign_many(31.0, 1) == {"a": 1}


@pytest.mark.parametrize(("at", "reservation_s"), [(1019.1, 5.0), (1022.3, 2.7), (0.1, 0.2), (1023.7, 0.7)])
def test_an_expiry_is_over_when_it_is_due_whatever_the_last_bit_says(at: float, reservation_s: float) -> None:
    loads = LoadPolicy(connect_s=0, reservation_s=reservation_s)
    bench = Bench(Backend("a", capacity=1), health=HealthPolicy(stale_after_s=1e9), loads=loads)
    bench.report(at, a=0)
    assert bench.assign(at) == "a"
    assert bench.assign(at + reservation_s) == "a"


def test_a_backend_whose_clients_never_came_gets_its_turn_again_without_a_new_report() -> None:
    bench = Bench(*backends("a", "b"), health=HealthPolicy(stale_after_s=100))
    bench.report(0.0, a=0, b=5)
    assert bench.assign_many(0.0, 5) == {"a": 5}
    bench.assign_many(1.0, 10)
    assert bench.assign_many(15.0, 5) == {"a": 5}


def test_a_count_that_falls_to_nothing_under_pending_assignments_gives_no_negative_load() -> None:
    bench = Bench(*backends("a", "b"))
    bench.report(0.0, a=50, b=50)
    bench.assign_many(0.0, 20)
    bench.report(0.5, a=0)
    assert bench.pool["a"].users(0.5) == 10
    assert bench.pool["a"].load(0.5) == pytest.approx(10, rel=0.01)
    bench.report(9.0, a=0, b=0)
    assert bench.pool["a"].load(9.0) == 0
    got = bench.assign_many(9.0, 100)
    assert abs(got["a"] - got["b"]) <= 1


def test_weight_is_kept_over_failure_and_recovery() -> None:
    bench = Bench(Backend("a", weight=10), Backend("b", weight=1))
    bench.report(0.0, a=0, b=0)
    for now in (1.0, 2.0):
        bench.pool.record_failure(now, "a")
    bench.report(30.0, a=0, b=0)
    got = bench.assign_many(30.0, 1100)
    assert abs(got["a"] - 1000) <= 2


def test_the_dead_stay_out_however_many_they_are_and_however_long_it_lasts() -> None:
    names = [f"b{i}" for i in range(20)]
    bench = Bench(*backends(*names))
    bench.report(0.0, **dict.fromkeys(names, 0))
    for hour in range(1, 5):
        now = 3600.0 * hour
        for name in names[:10]:
            bench.pool.record_failure(now, name)
        bench.report(now, **dict.fromkeys(names[10:], 0))
        assert set(bench.assign_many(now, 100)) == set(names[10:])


def test_when_most_are_stale_and_new_ones_join_nobody_stale_or_unprobed_is_named() -> None:
    old = [f"b{i}" for i in range(10)]
    bench = Bench(*backends(*old), *backends("n1", "n2", "n3"))
    bench.report(0.0, **dict.fromkeys(old, 0))
    bench.report(5.0, **dict.fromkeys(old[:4], 500))
    assert set(bench.assign_many(5.0, 100)) == set(old[:4])


@pytest.mark.parametrize(
    ("advertise", "family", "told"),
    [
        ((), 4, ("10.0.0.5", 9001)),
        ((), 6, ("10.0.0.5", 9001)),
        ((("203.0.113.7", 1),), 4, ("203.0.113.7", 1)),
        ((("203.0.113.7", 1),), 6, ("203.0.113.7", 1)),
        ((("203.0.113.7", 1), ("2001:db8::7", 2)), 4, ("203.0.113.7", 1)),
        ((("203.0.113.7", 1), ("2001:db8::7", 2)), 6, ("2001:db8::7", 2)),
        ((("2001:db8::7", 2),), 4, ("2001:db8::7", 2)),
    ],
)
def test_a_client_is_told_the_address_of_its_family(
    advertise: tuple[tuple[str, int], ...], family: int, told: tuple[str, int]
) -> None:
    rng = random.Random(1)
    pool = Pool([Backend("a", advertise=advertise)], HealthPolicy(), LoadPolicy())
    pool.record_report(0.0, rng, "a", 0, 0.0, ("10.0.0.5", 9001))
    assignment = pool.assign(0.0, rng, Ask(family=4 if family == 4 else 6))
    assert isinstance(assignment, Assignment)
    assert assignment.place.endpoint == told


def test_a_client_is_told_the_address_that_was_probed_last() -> None:
    rng = random.Random(1)
    pool = Pool(backends("a"), HealthPolicy(), LoadPolicy())
    for now, address in ((0.0, "127.0.0.2"), (1.0, "127.0.0.3")):
        pool.record_report(now, rng, "a", 0, now, (address, 9001))
        assignment = pool.assign(now, rng, ASK)
        assert isinstance(assignment, Assignment)
        assert assignment.place.endpoint == (address, 9001)


def test_alternates_are_other_usable_backends_best_first_and_hold_no_place() -> None:
    rng = random.Random(1)
    bench = Bench(*backends(*"abcd"), Backend("full", capacity=1))
    bench.report(0.0, a=1, b=2, c=3, d=4, full=1)
    assignment = bench.pool.assign(0.0, rng, Ask(alternates=2))
    assert isinstance(assignment, Assignment)
    assert [place.name for place in assignment.alternates] == ["b", "c"]
    assert [bench.pool[name].users(0.0) for name in "abc"] == [2, 2, 3]


def test_a_choice_touches_no_more_members_when_there_are_more() -> None:
    names = [f"b{i}" for i in range(1000)]
    bench = Bench(*backends(*names))
    bench.report(0.0, **{name: i for i, name in enumerate(names)})
    before = {name: bench.pool[name].stamp for name in names}
    bench.assign_many(0.2, 100)
    assert sum(bench.pool[name].stamp != before[name] for name in names) <= 100
    assert bench.pool.entries <= 1100
