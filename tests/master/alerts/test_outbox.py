"""What is posted, and when: tables first, then whatever may come.

The file is long because each event that is posted, or is not, is a row of its tables.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.alerts.matters import RULES, Change, Severity
from master.alerts.outbox import (
    GATHER_S,
    LONGEST_RETRY_AFTER_S,
    MOST_CHANGES,
    MOST_MATTERS,
    MOST_TRIES,
    RESTLESS,
    RESTLESS_S,
    Outbox,
    Post,
)
from master.config import AlertsPolicy
from master.event_log import Event
from master.webhook_url import WebhookURL

URL = WebhookURL.parse("http://127.0.0.1:1/")
POLICY = AlertsPolicy(URL)


class House:
    """An outbox, a clock and a receiver that fails while it is told to."""

    def __init__(self, policy: AlertsPolicy = POLICY, opens_at: float = -math.inf) -> None:
        self.outbox = Outbox(policy, opens_at)
        self.rng = random.Random(1)
        self.now = 0.0
        self.tries: list[float] = []
        self.posts: list[Post] = []
        self.fails = False
        self.retry_after_s = 0.0

    def happen(self, kind: str, backend: str = "", text: str = "why", aside: bool = False) -> None:
        self.outbox.hear(Event(1, self.now, kind, backend, text), aside=aside)

    def pass_(self, seconds: float) -> None:
        """Let time pass, and post what is due as it becomes due."""
        end = self.now + seconds
        while (at := max(self.now, self.outbox.next_at())) <= end:
            self.now = at
            post = self.outbox.take(self.now)
            assert post is not None
            self.tries.append(self.now)
            if self.fails:
                self.outbox.failed(self.now, self.rng, self.retry_after_s)
            else:
                self.posts.append(post)
                self.outbox.succeeded(self.now)
        self.now = end

    @property
    def told(self) -> list[list[tuple[str, str, int]]]:
        return [[(change.kind, change.backend, change.times) for change in post.changes] for post in self.posts]


def test_what_changes_within_a_second_comes_in_one_post_with_the_worst_first() -> None:
    house = House()
    house.happen("backend_down", "b1")
    house.pass_(GATHER_S / 2)
    house.happen("backend_down", "b2")
    house.happen("no_live_backend", text="no backend works")
    house.pass_(100)
    assert house.told == [[("no_live_backend", "", 1), ("backend_down", "b1", 1), ("backend_down", "b2", 1)]]
    assert house.tries == [GATHER_S]
    assert house.posts[0].changes[0].text == "no client is sent anywhere: no backend works"
    assert house.posts[0].changes[1].text == "b1 is down: why"


def test_the_end_of_a_problem_is_told_to_who_was_told_of_it_and_to_nobody_else() -> None:
    house = House()
    for kind in ("backend_up", "live_backend", "reloaded", "spare_regained", "state_written"):
        house.happen(kind, "b1" if kind == "backend_up" else "")
    house.pass_(100)
    assert house.told == []
    house.happen("backend_down", "b1")
    house.pass_(100)
    house.happen("backend_up", "b1", "ready")
    house.happen("backend_up", "b2", "ready")
    house.pass_(100)
    house.happen("backend_up", "b1", "ready")
    house.pass_(100)
    assert house.told == [[("backend_down", "b1", 1)], [("backend_up", "b1", 1)]]
    assert house.posts[1].changes[0].text == "b1 is up again"


PAIRS = [
    ("no_live_backend", "live_backend"),
    ("no_takers", "takers_again"),
    ("no_takers", "live_backend"),
    ("spare_lost", "spare_regained"),
    ("reload_refused", "reloaded"),
    ("state_not_written", "state_written"),
    ("state_not_read", "state_written"),
    ("people_wait", "nobody_waits"),
    ("queue_full", "queue_has_room"),
    ("loop_frozen", "loop_thawed"),
    ("queue_not_read", "queue_written"),
    ("queue_not_written", "queue_written"),
    ("cache_not_read", "cache_written"),
    ("cache_not_written", "cache_written"),
    ("backend_down", "backend_up"),
    ("backend_stale", "backend_up"),
    ("backend_stale", "backend_fresh"),
    ("backend_ejected", "backend_back"),
]


@pytest.mark.parametrize(("problem", "end"), PAIRS)
def test_each_problem_has_its_end(problem: str, end: str) -> None:
    house = House()
    backend = "b1" if problem.startswith("backend") else ""
    house.happen(problem, backend)
    house.pass_(100)
    house.happen(end, backend)
    house.pass_(100)
    assert house.told == [[(problem, backend, 1)], [(end, backend, 1)]]


def test_every_rule_is_tried_here() -> None:
    assert {kind for pair in PAIRS for kind in pair} | {"stopping"} == set(RULES)


def test_events_that_are_nothing_to_be_woken_by_are_not_told() -> None:
    house = House()
    for kind in ("operator", "backend_accused", "alerts_failed", "nonsense"):
        house.happen(kind, "b1")
    house.pass_(100)
    assert house.told == []


def test_before_it_opens_nothing_is_said_and_afterwards_only_what_is_still_a_problem() -> None:
    house = House(opens_at=5.0)
    house.happen("backend_down", "b1")
    house.happen("backend_down", "b2")
    house.pass_(2)
    house.happen("backend_up", "b1")
    house.pass_(100)
    assert house.told == [[("backend_down", "b2", 1)]]
    assert house.tries == [5.0]


def test_switched_off_it_keeps_what_is_a_problem_and_tells_it_when_it_is_switched_on() -> None:
    house = House(AlertsPolicy())
    for i in range(100):
        house.happen("backend_down", f"b{i}")
        house.pass_(1000)
        if i % 2:
            house.happen("backend_up", f"b{i}")
    assert house.told == []
    house.outbox.policy = POLICY
    house.pass_(100)
    assert [change[1] for change in house.told[0]] == [f"b{i}" for i in range(0, 100, 2)]


@pytest.mark.parametrize("policy", [POLICY, AlertsPolicy()])
def test_what_is_over_leaves_its_room_to_others(policy: AlertsPolicy) -> None:
    house = House(policy)
    for round_ in range(3):
        for kind in ("backend_down", "backend_up"):
            for i in range(MOST_MATTERS):
                house.happen(kind, f"b{round_}-{i}")
            house.pass_(1000)
    assert house.outbox.counts["dropped"] == 0


def test_what_its_operator_has_set_aside_is_nothing_to_hurry_for() -> None:
    house = House()
    house.happen("backend_down", "b1", aside=True)
    house.happen("backend_down", "b2")
    house.pass_(100)
    assert [(change.severity, change.text) for change in house.posts[0].changes] == [
        (Severity.WARNING, "b2 is down: why"),
        (Severity.INFO, "b1 is down: why (set aside by its operator)"),
    ]


def test_what_comes_and_goes_between_two_posts_is_told_as_it_is_with_its_count() -> None:
    house = House()
    house.happen("backend_down", "b0")
    house.pass_(GATHER_S)
    for _ in range(3):
        house.happen("backend_down", "b1")
        house.pass_(1)
        house.happen("backend_up", "b1")
    house.pass_(20)
    assert house.told[1:] == [[("backend_up", "b1", 6)]]


def test_a_restless_backend_fills_no_chat_and_its_last_state_is_told() -> None:
    house = House(AlertsPolicy(URL, min_interval_s=1.0))
    for i in range(600):
        house.happen("backend_up" if i % 2 else "backend_down", "b1")
        house.pass_(0.5)
        house.happen("backend_down", "b2") if i == 300 else None
    house.happen("backend_down", "b1", "at last")
    house.pass_(RESTLESS_S)
    of_b1 = [change for post in house.posts for change in post.changes if change.backend == "b1"]
    assert len(of_b1) <= RESTLESS * (300 / RESTLESS_S + 2)
    assert sum(change.times for change in of_b1) == 601
    assert of_b1[-1].text == "b1 is down: at last"
    (post,) = (post for post in house.posts if any(change.backend == "b2" for change in post.changes))
    assert post.at <= 150.0 + 3.0  # the others do not wait for it


def test_a_failed_post_is_tried_again_later_and_later_with_what_is_so_then() -> None:
    house = House()
    house.fails = True
    house.happen("backend_down", "b1")
    house.happen("backend_down", "b2")
    house.pass_(600)
    gaps = [b - a for a, b in zip(house.tries, house.tries[1:], strict=False)]
    assert gaps[0] == 10.0
    assert all(10.0 <= gap <= 90.0 for gap in gaps)
    assert gaps[-1] >= 30.0
    house.happen("backend_up", "b1")
    house.fails = False
    house.pass_(100)
    assert house.told == [[("backend_down", "b2", 1), ("backend_up", "b1", 2)]]
    assert house.outbox.counts == {"sent": 1, "failed": len(gaps) + 1, "dropped": 0}


@pytest.mark.parametrize(("given", "waited"), [(120.0, 120.0), (1e9, LONGEST_RETRY_AFTER_S)])
def test_a_receiver_is_left_alone_for_as_long_as_it_wants_within_bounds(given: float, waited: float) -> None:
    house = House()
    house.fails, house.retry_after_s = True, given
    house.happen("backend_down", "b1")
    house.pass_(GATHER_S + waited + 1)
    assert house.tries == [GATHER_S, GATHER_S + waited]


def test_what_is_too_old_is_dropped_and_counted() -> None:
    house = House(AlertsPolicy(URL, keep_s=300.0))
    house.fails = True
    house.happen("backend_down", "b1")
    house.pass_(1000)
    assert house.tries[-1] < 300 + 100
    assert house.outbox.counts["dropped"] == 1
    house.fails = False
    house.happen("backend_up", "b1")
    house.pass_(100)
    assert house.told == []  # nobody knows that it was down


def test_what_was_tried_too_often_is_dropped_however_young() -> None:
    house = House(AlertsPolicy(URL, keep_s=86400.0))
    house.fails = True
    house.happen("backend_down", "b1")
    house.pass_(86400)
    assert len(house.tries) == MOST_TRIES
    assert house.outbox.counts["dropped"] == 1


def test_a_drop_does_not_take_what_has_happened_since() -> None:
    house = House(AlertsPolicy(URL, keep_s=50.0))
    house.happen("backend_down", "b1")
    house.pass_(49 + GATHER_S)
    house.happen("backend_up", "b1")
    assert house.told == [[("backend_down", "b1", 1)]]
    house.fails = True
    house.pass_(40)
    house.fails = False
    house.pass_(100)
    assert house.told[-1] == [("backend_up", "b1", 1)]


def test_a_crowd_comes_in_several_posts_and_what_has_no_room_is_counted() -> None:
    house = House()
    for i in range(MOST_MATTERS + 7):
        house.happen("backend_down", f"b{i}")
    assert house.outbox.ratio == 1.0
    house.happen("no_live_backend")  # there is always room for this
    house.pass_(1000)
    assert house.told[0][0] == ("no_live_backend", "", 1)
    assert [len(post.changes) for post in house.posts] == [MOST_CHANGES] * (MOST_MATTERS // MOST_CHANGES) + [1]
    assert house.posts[0].left_out == MOST_MATTERS + 1 - MOST_CHANGES + 7
    assert house.posts[-1].left_out == 0
    assert house.outbox.counts["dropped"] == 7
    for i in range(MOST_MATTERS + 7):
        house.happen("backend_up", f"b{i}")
    house.pass_(1000)
    assert sum(len(post.changes) for post in house.posts) == 2 * MOST_MATTERS + 1
    house.happen("live_backend")
    house.pass_(1000)
    assert house.outbox.ratio < 0.01


def test_nothing_is_kept_of_backends_that_are_gone() -> None:
    house = House()
    for name in ("b1", "b2"):
        house.happen("backend_down", name)
    house.outbox.keep({"b2"})
    house.pass_(100)
    assert house.told == [[("backend_down", "b2", 1)]]
    house.outbox.keep(set())
    assert house.outbox.ratio == 0.0


def test_at_a_stop_all_is_posted_at_once_and_once() -> None:
    house = House(opens_at=1000.0)
    house.happen("backend_down", "b1")
    house.happen("stopping")
    house.fails = True
    house.outbox.hurry()
    house.pass_(0)
    assert house.tries == [0.0]
    house.pass_(5)
    assert house.tries == [0.0]
    assert house.outbox.undelivered == 2


def test_a_post_of_which_nobody_knows_what_became_waits_again() -> None:
    house = House()
    house.happen("backend_down", "b1")
    house.now = 5.0
    assert house.outbox.take(5.0) is not None
    assert house.outbox.next_at() == math.inf
    house.happen("backend_up", "b1")
    house.outbox.recall()
    house.pass_(100)
    assert house.told == [[("backend_up", "b1", 2)]]


@attrs.frozen
class Step:
    wait: float
    kind: str
    backend: str
    fails: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0.0, 0.3, 1.0, 7.0, 40.0]),
        st.sampled_from(sorted(RULES.keys() - {"stopping"})),
        st.sampled_from(["b1", "b2", "b3"]),
        st.booleans(),
    ),
    max_size=60,
)


def by_matter(changes: Iterable[tuple[str, str, bool]]) -> dict[tuple[str, str], bool]:
    """Return whether the last word on each matter of each backend was a problem."""
    return {(RULES[kind].matter, backend): problem for kind, backend, problem in changes}


@given(STEPS, st.sampled_from([0.5, 10.0, 45.0]), st.sampled_from([-math.inf, 20.0]))
def test_tries_keep_their_distance_and_the_last_state_of_each_is_what_was_told_last(
    steps: list[Step], min_interval_s: float, opens_at: float
) -> None:
    house = House(AlertsPolicy(URL, min_interval_s=min_interval_s, keep_s=86400.0), opens_at)
    happened: list[tuple[str, str, bool]] = []
    for step in steps:
        house.fails = step.fails
        backend = step.backend if step.kind.startswith("backend") else ""
        house.happen(step.kind, backend)
        happened.append((step.kind, backend, RULES[step.kind].severity is not Severity.OK))
        assert house.outbox.undelivered <= 15  # eight matters of the master, two of each backend
        house.pass_(step.wait)
    house.fails = False
    house.pass_(1000)
    assert all(b - a >= min_interval_s - 1e-9 for a, b in zip(house.tries, house.tries[1:], strict=False))
    assert house.outbox.undelivered == 0
    told: list[Change] = [change for post in house.posts for change in post.changes]
    last = by_matter((change.kind, change.backend, change.problem) for change in told)
    for matter, problem in by_matter(happened).items():
        assert last.get(matter, False) is problem
