"""What "less loaded" means between two reports, and how long a session is."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.health import HealthPolicy
from master.core.load import FIRST_SESSION_S, LEAST_SESSION_S, MOST_SESSION_S, LoadPolicy, Reservations, SessionClock
from master.core.pool import Pool

PROBED = ("10.0.0.1", 9001)
PLAIN = ChoicePolicy(join_cap=math.inf, first_round_s=0.0)
PATIENT = HealthPolicy(stale_after_s=1e9)


def make_pool(*backends: Backend, **loads: float) -> Pool:
    return Pool(backends, PATIENT, LoadPolicy(**{"reservation_s": 1e9, **loads}), PLAIN)  # type: ignore[arg-type]


def test_what_is_made_at_a_moment_is_made_by_then_and_since_then() -> None:
    policy = LoadPolicy()
    made = Reservations(policy, SessionClock(policy))
    for at in (1.0, 2.0, 2.0, 3.0):
        made.add(at, 0.0)
    assert [made.made_by(at) for at in (0.5, 1.0, 2.0, 2.5, 3.0)] == [0, 1, 3, 3, 4]
    assert [made.made_since(at) for at in (0.5, 1.0, 2.0, 2.5, 3.0)] == [4, 4, 3, 1, 1]


def test_load_is_what_was_reported_and_sent_faded_by_age_and_divided_by_weight() -> None:
    rng, pool = random.Random(1), make_pool(Backend("a", weight=2), session_s=100.0, masters=3, connect_s=2.0)
    pool.record_report(0.0, rng, "a", 50, 0.0, PROBED)
    for at in (10.0, 30.0):
        assert pool.pick(at, rng) is pool["a"]
    expected = (50 * math.exp(-0.4) + 3 * (math.exp(-0.3) + math.exp(-0.1))) / 2
    assert pool["a"].load(40.0) == pytest.approx(expected)
    assert pool["a"].parts(pool.clock.at(40.0)) == pytest.approx(
        (50 * math.exp(-0.4), 3 * (math.exp(-0.3) + math.exp(-0.1)))
    )
    pool.record_report(41.0, rng, "a", 60, 31.0, PROBED)
    assert pool["a"].load(41.0) == pytest.approx((60 * math.exp(-0.1) + 3 * math.exp(-0.11)) / 2)
    pool.record_report(50.0, rng, "a", 60, 50.0, PROBED)
    assert pool["a"].load(50.0) == 30.0


def test_assignments_of_all_masters_take_room() -> None:
    rng, pool = random.Random(1), make_pool(Backend("a", capacity=10), masters=4)
    pool.record_report(0.0, rng, "a", 0, 0.0, PROBED)
    assert [pool.pick(0.0, rng) is not None for _ in range(4)] == [True, True, True, False]


def test_the_backend_that_was_asked_last_does_not_look_emptiest() -> None:
    """Both had 600 users at the same time, of whom one left in a second; one was asked 30 s earlier."""
    rng, pool = random.Random(1), make_pool(Backend("a"), Backend("b"), session_s=600.0)
    pool.record_report(0.0, rng, "a", 600, 0.0, PROBED)
    pool.record_report(30.0, rng, "b", 572, 30.0, PROBED)
    assert pool["a"].load(30.0) == pytest.approx(pool["b"].load(30.0), rel=0.01)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "report", "learn"]), st.integers(0, 3), st.floats(0.0, 50.0)), max_size=40
)


@given(EVENTS, st.integers(0, 2**16))
def test_the_order_of_the_keys_is_that_of_the_loads_at_any_later_time(
    events: list[tuple[str, int, float]], seed: int
) -> None:
    """Forward decay: between events no two loads change places, whatever D was and becomes."""
    rng = random.Random(seed)
    names = [f"b{i}" for i in range(4)]
    pool = make_pool(*(Backend(name, weight=1 + i) for i, name in enumerate(names)))
    now = 0.0
    for name in names:
        pool.record_report(now, rng, name, rng.randrange(1, 100), now, PROBED)
    for kind, which, passed in events:
        now += passed
        if kind == "join":
            pool.pick(now, rng)
        elif kind == "report":
            pool.record_report(now, rng, names[which], rng.randrange(1, 100), now, PROBED)
        else:
            pool.clock.learn(now, 10.0, rng.randrange(1000), 0, rng.randrange(1000))
        by_key = sorted(pool, key=lambda member: member.key)
        for later in (now, now + 1, now + 1000):
            loads = [member.load(later) for member in by_key]
            assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(loads))


@given(st.lists(st.floats(0.001, 20.0), max_size=60), st.floats(0.0, 5.0))
def test_what_own_assignments_weigh_is_the_sum_over_those_that_count(gaps: list[float], connect_s: float) -> None:
    policy = LoadPolicy(connect_s, reservation_s=50.0, session_s=30.0)
    clock = SessionClock(policy)
    reservations = Reservations(policy, clock)
    now, kept = 0.0, list[float]()
    for number, gap in enumerate(gaps):
        now += gap
        if number % 4 == 3:
            reservations.confirmed_by(now - 1.0)
            kept = [at for at in kept if at > now - 1.0 - connect_s]
        reservations.count(now)
        reservations.add(now, clock.at(now))
        kept = [*(at for at in kept if at + 50.0 > now), now]
        assert reservations.weigh(clock.at(now)) == pytest.approx(sum(math.exp((at - now) / 30.0) for at in kept))


def sessions(clock_s: float, truth_s: float, seconds: float, *, joins_per_s: float = 200.0, come: float = 1.0) -> float:
    """Return D after a time in which a pool of one backend is asked and probed each 5 s, in-flight answers included."""
    rng = random.Random(7)
    pool = make_pool(Backend("a"))
    pool.clock.first_s = clock_s
    leaves = [rng.expovariate(1 / truth_s) for _ in range(int(joins_per_s * come * truth_s))]
    now, asked_at = 0.0, 0.0
    pool.record_report(0.0, rng, "a", len(leaves), 0.0, PROBED)
    while now < seconds:
        now += rng.expovariate(joins_per_s)
        if now > asked_at + 5.0:
            asked_at += 5.0
            count = sum(at > asked_at for at in leaves)
            leaves = [at for at in leaves if at > asked_at]
            pool.pick(asked_at + 0.3, rng)  # made while the answer is under way
            leaves.append(asked_at + 0.3 + rng.expovariate(1 / truth_s))
            pool.record_report(asked_at + 0.4, rng, "a", count, asked_at, PROBED)
        pool.pick(now, rng)
        if rng.random() < come:
            leaves.append(now + rng.expovariate(1 / truth_s))
    return pool.clock.mean_s


@pytest.mark.parametrize("first_s", [60.0, 6000.0])
@pytest.mark.parametrize("truth_s", [100.0, 600.0])
def test_the_session_time_is_learned_to_a_tenth(first_s: float, truth_s: float) -> None:
    assert sessions(first_s, truth_s, 120.0) == pytest.approx(truth_s, rel=0.1)


def test_clients_that_never_come_are_sessions_of_no_length() -> None:
    assert sessions(600.0, 200.0, 120.0, come=0.5) == pytest.approx(100.0, rel=0.1)


def test_a_time_that_was_configured_is_not_learned() -> None:
    clock = SessionClock(LoadPolicy(session_s=50.0))
    clock.learn(10.0, 10.0, 1000, 0, 0)
    assert clock.mean_s == 50.0


@pytest.mark.parametrize(("before", "after", "bound"), [(0, 10**9, MOST_SESSION_S), (10**9, 0, LEAST_SESSION_S)])
def test_what_is_learned_stays_within_bounds(before: int, after: int, bound: float) -> None:
    clock = SessionClock(LoadPolicy())
    clock.learn(0.0, 1e-3, before, 0, after)
    assert clock.mean_s == bound


@pytest.mark.parametrize("gone", ["lost", "down", "one failure"])
def test_nothing_is_learned_from_a_count_before_and_one_after_a_backend_was_gone(gone: str) -> None:
    rng, pool = random.Random(1), make_pool(Backend("a"))
    pool.record_report(0.0, rng, "a", 100_000, 0.0, PROBED)
    if gone == "lost":
        pool.record_lost(1.0, "a")
    else:
        for now in (1.0, 2.0)[: 2 if gone == "down" else 1]:
            pool.record_failure(now, "a")
    pool.record_report(3.0, rng, "a", 0, 3.0, PROBED)
    assert pool.clock.mean_s == FIRST_SESSION_S
    pool.record_report(4.0, rng, "a", 0, 4.0, PROBED)
    assert pool.clock.mean_s == FIRST_SESSION_S


def test_joins_made_while_an_answer_is_under_way_belong_to_the_next_report(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, pool = random.Random(1), make_pool(Backend("a"))
    learned: list[tuple[float, int, int, int, int]] = []
    monkeypatch.setattr(SessionClock, "learn", lambda _clock, _now, *spell: learned.append(spell))
    pool.record_report(0.0, rng, "a", 10, 0.0, PROBED)
    pool.pick(1.0, rng)
    for at in (5.1, 5.2, 5.3):
        pool.pick(at, rng)
    pool.record_report(5.5, rng, "a", 11, 5.0, PROBED)
    pool.record_report(10.0, rng, "a", 14, 10.0, PROBED)
    assert learned == [(5.0, 10, 1, 11, 1), (5.0, 11, 3, 14, 3)]


@pytest.mark.parametrize("stay_s", [5, 60])
def test_what_people_are_promised_by_is_unknown_at_first_and_soon_not_far_from_what_is_seen(stay_s: int) -> None:
    clock = SessionClock(LoadPolicy())
    clock.learn(1.0, 1.0, 0, 90, 0, 0)
    assert clock.seen_s is None, "whoever was just sent has not gone"
    clock.learn(2.0, 1.0, 0, 0, 90, 90)
    for now in range(3, 3 + stay_s):
        assert clock.seen_s is None
        clock.learn(float(now), 1.0, 90, 0, 90, 0)
    for now in range(3 + stay_s, 3 + 6 * stay_s):
        came = round(90 / stay_s * (now + 1)) - round(90 / stay_s * now)
        clock.learn(float(now), 1.0, 90, came, 90, came)
    assert clock.seen_s is not None
    assert stay_s < clock.seen_s < 2.5 * stay_s
    assert clock.seen_s <= clock.mean_s


def test_a_stay_that_was_told_is_known() -> None:
    assert SessionClock(LoadPolicy(session_s=50.0)).seen_s == 50.0
