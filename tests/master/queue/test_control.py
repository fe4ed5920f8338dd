"""The control loop: what it plans, how fast it moves, and what it does without news."""

from __future__ import annotations

import itertools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.control import Control, ControlPolicy, LoadNews, Plan, Steered

NEWS = LoadNews(asked_at=0.0, users=7000.0, capacity=10_000.0, stay_s=600.0)


def steered(*news: LoadNews, policy: ControlPolicy | None = None, waiting: bool = True) -> Control:
    control = Control(policy or ControlPolicy())
    for each in news:
        control.learn(each, waiting=waiting)
    return control


def steady(users: float, seconds: int = 60, waiting: bool = True, **other: float) -> Control:
    """Return one that has heard the same every second, `seconds` long."""
    told = [attrs.evolve(NEWS, asked_at=float(at), users=users, **other) for at in range(seconds + 1)]
    return steered(*told, waiting=waiting)


def rate(control: Control, now: float) -> float:
    planned = control.plan(now).per_s
    assert planned is not None
    return planned


def test_at_the_target_it_lets_in_what_leaves() -> None:
    assert rate(steady(7000.0), 60.0) == pytest.approx(7000 / 600)
    assert steady(7000.0).plan(60.0) == Plan(
        pytest.approx(7000 / 600), pytest.approx(7000 / 600), Steered.LOOP, 7000.0, 7000 / 600
    )


def test_a_difference_is_made_up_for_over_tau() -> None:
    assert rate(steady(6900.0, waiting=False), 60.0) == pytest.approx(7000 / 600 + 100 / 4, rel=0.01)
    assert rate(steady(7020.0, waiting=False), 60.0) == pytest.approx(7000 / 600 - 20 / 4, rel=0.01)
    assert rate(steady(7500.0), 60.0) == 0.0


def test_what_stays_missing_is_added_up_to_the_clamp_and_only_while_people_wait() -> None:
    waited, empty = rate(steady(6990.0, 1000), 1000.0), rate(steady(6990.0, 1000, waiting=False), 1000.0)
    assert empty == pytest.approx(7000 / 600 + 2.5)
    assert waited == pytest.approx(7000 / 600 * 1.5 + 2.5)


def test_while_nobody_is_let_in_nothing_is_added_that_would_be_missing_later() -> None:
    control = steady(9500.0, 1000)
    for at in range(1001, 1030):
        control.learn(attrs.evolve(NEWS, asked_at=float(at)), waiting=True)
    assert rate(control, 1030.0) == pytest.approx(7000 / 600, rel=0.01)


def test_it_goes_down_at_once_and_up_slowly() -> None:
    control = steady(7000.0)
    control.learn(attrs.evolve(NEWS, asked_at=61.0, capacity=7500.0), waiting=True)
    assert rate(control, 61.0) == 0.0
    control.learn(attrs.evolve(NEWS, asked_at=62.0), waiting=True)
    assert rate(control, 62.0) == pytest.approx(7000 / 600 * (1 - math.exp(-1 / 4)))


def test_without_news_it_plans_nothing_and_with_stale_ones_it_is_frozen() -> None:
    assert Control().plan(5.0) == Plan(None, None, Steered.NO_NEWS)
    control = steady(6000.0, waiting=False)
    assert control.plan(70.0).by is Steered.LOOP
    assert rate(control, 70.0) > 100
    frozen = control.plan(70.1)
    assert frozen.by is Steered.FROZEN
    assert frozen.per_s == pytest.approx(7000 / 600)  # it fills no more, as nobody sees how full it is
    low = steady(7020.0, waiting=False)
    assert low.plan(1000.0).per_s == pytest.approx(7000 / 600 - 5)  # and stays where it is less


def test_an_operator_beats_the_loop_which_goes_on() -> None:
    control = steady(7000.0)
    control.override(50.0)
    assert control.plan(60.0) == Plan(pytest.approx(7000 / 600), 50.0, Steered.MANUAL, 7000.0, 7000 / 600)
    control.override(None)
    assert rate(control, 60.0) == pytest.approx(7000 / 600)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="is no rate"):
            control.override(bad)


def test_in_the_shadow_it_binds_nobody() -> None:
    plan = steered(NEWS, attrs.evolve(NEWS, asked_at=1.0), policy=ControlPolicy(shadow=True)).plan(1.0)
    assert plan.per_s is None
    assert plan.planned_per_s is not None


def test_a_cpu_lowers_the_goal_fast_and_is_believed_slowly_when_it_is_better() -> None:
    def told(cpu: float, seconds: int, start: int, control: Control) -> float | None:
        for at in range(start, start + seconds):
            control.learn(attrs.evolve(NEWS, asked_at=float(at), cpu=cpu, cpu_at=at - 15.0), waiting=True)
        return control.plan(float(start + seconds)).goal

    control = Control()
    assert told(0.7, 100, 0, control) == pytest.approx(7000)
    assert told(1.4, 20, 100, control) == pytest.approx(3500, rel=0.02)
    later = told(0.7, 20, 120, control)
    assert later is not None
    assert 3500 < later < 5000
    assert told(0.35, 1000, 140, control) == pytest.approx(7000)  # never more than the capacity says


def test_a_cpu_is_compared_with_the_count_of_its_own_moment() -> None:
    """The users double meanwhile: taken with the count of now, the CPU of then would make room for twice as many."""
    control = Control()
    for at in range(40):
        users = 3000.0 if at < 20 else 6000.0
        control.learn(
            attrs.evolve(NEWS, asked_at=float(at), users=users, cpu=0.6 if at < 35 else 1.2, cpu_at=at - 15.0),
            waiting=True,
        )
    assert control.gauge.part == pytest.approx(0.5, rel=0.05)


def test_a_cpu_of_before_the_first_count_says_nothing_of_it() -> None:
    control = steered(attrs.evolve(NEWS, cpu=1.4, cpu_at=-15.0))
    assert control.gauge.part == 1.0
    control.learn(attrs.evolve(NEWS, asked_at=20.0, cpu=1.4, cpu_at=5.0), waiting=True)
    assert control.gauge.part < 1.0


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *itertools.product(["asked_at", "users", "capacity", "stay_s", "cpu", "cpu_at"], [math.nan, math.inf]),
        *itertools.product(["users", "capacity", "stay_s", "cpu"], [-1.0]),
    ],
)
def test_what_is_no_number_is_not_taken_in_and_the_next_news_is(field: str, bad: float) -> None:
    control = steady(7000.0)
    told: dict[str, float] = {"asked_at": 61.0, "cpu": 0.7, "cpu_at": 46.0} | {field: bad}
    control.learn(attrs.evolve(NEWS, **told), waiting=True)
    assert control.plan(70.1).by is Steered.FROZEN
    control.learn(attrs.evolve(NEWS, asked_at=70.0), waiting=True)
    assert control.plan(70.1).by is Steered.LOOP


def test_before_the_cpu_has_told_of_the_first_only_a_step_goes_in() -> None:
    first = attrs.evolve(NEWS, users=200.0, cpu=0.0)
    assert steered(first).plan(0.0).goal == 1200.0
    assert (
        steered(first, attrs.evolve(first, asked_at=20.0, users=1200.0, cpu=0.02, cpu_at=5.0)).plan(20.0).goal == 1200
    )
    more = attrs.evolve(first, asked_at=40.0, users=1200.0, cpu=0.12, cpu_at=25.0)
    assert steered(first, attrs.evolve(first, asked_at=20.0, users=1200.0), more).plan(40.0).goal == 2200.0


@pytest.mark.parametrize(("lag_s", "tau_s"), [(1.0, 3.9), (15.0, 4.0)])
def test_a_loop_that_would_swing_is_refused(lag_s: float, tau_s: float) -> None:
    with pytest.raises(ValueError, match="at least four times lag_s"):
        ControlPolicy(lag_s=lag_s, tau_s=tau_s)


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.none() | NUMBERS, st.booleans()), max_size=30))
def test_whatever_it_is_told_the_rate_is_a_number_and_none_below_0(
    told: list[tuple[float, float, float, float, float | None, bool]],
) -> None:
    control = Control()
    for asked_at, users, capacity, stay_s, cpu, waiting in told:
        control.learn(LoadNews(asked_at, users, capacity, stay_s, cpu, asked_at - 15), waiting=waiting)
        planned = control.plan(asked_at).planned_per_s
        assert planned is None or 0.0 <= planned < math.inf


@given(st.lists(st.tuples(st.floats(0, 2e4), st.floats(0, 1e4), st.floats(0, 2)), min_size=1, max_size=40))
def test_the_goal_is_never_over_the_target_of_the_capacity(told: list[tuple[float, float, float]]) -> None:
    control = Control()
    for at, (users, capacity, cpu) in enumerate(told):
        control.learn(LoadNews(float(at), users, capacity, 600.0, cpu, at - 2.0), waiting=True)
        goal = control.plan(float(at)).goal
        assert goal is not None
        assert 0.0 <= goal <= 0.7 * capacity
