"""The parts that the queue is made of, each against something plain.

It is long because each small part has its own tests, and none enough for a file.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.queue.deadlines import Deadlines
from master.queue.limits import Gate
from master.queue.line import Line
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import QueuePolicy, TemplatePolicy
from master.queue.ranks import Ranks
from master.queue.shares import Shares
from master.queue.ticket import Lane, Ticket


def ticket(order: int, lane: Lane = Lane.PLAIN, lease_until: float = 0.0) -> Ticket:
    return Ticket(order, "default", None, None, lane, order, 0.0, lease_until)


@given(st.integers(0, 2**32), st.integers(1, 6000), st.floats(0, 1))
def test_ranks_are_a_sorted_list(seed: int, size: int, at_the_end: float) -> None:
    rng, ranks, plain = random.Random(seed), Ranks(), list[Ticket]()
    orders = iter(rng.sample(range(10**6), size))
    last = 10**6
    for _ in range(size):
        if rng.random() < at_the_end:
            last += 1
            one = ticket(last)
        else:
            one = ticket(next(orders))
        ranks.add(one)
        plain.append(one)
        while plain and rng.random() < 0.3:
            gone = plain.pop(rng.randrange(len(plain)))
            ranks.remove(gone)
    plain.sort(key=lambda each: each.order)
    assert list(ranks) == plain
    assert len(ranks) == len(plain)
    assert ranks.first is (plain[0] if plain else None)
    for rank in rng.sample(range(len(plain)), min(len(plain), 50)):
        assert ranks.before(plain[rank]) == rank
    while plain:
        assert ranks.first is plain[0]
        ranks.remove(plain.pop(0))
    assert ranks.first is None


def test_who_comes_back_to_a_block_that_all_have_left_stands_first() -> None:
    ranks = Ranks()
    tickets = [ticket(order) for order in range(5000)]
    for each in tickets:
        ranks.add(each)
    for each in tickets[:4000]:
        ranks.remove(each)
    assert ranks.first is tickets[4000]
    ranks.add(tickets[700])
    assert ranks.first is tickets[700]
    assert ranks.before(tickets[4000]) == 1


def test_the_same_order_twice_stands_one_after_the_other() -> None:
    ranks = Ranks()
    twins = [ticket(7), ticket(8), ticket(7), ticket(7)]
    for each in twins:
        ranks.add(each)
    assert [each.order for each in ranks] == [7, 8, 9, 10]
    assert [ranks.before(each) for each in twins] == [0, 1, 2, 3]


@given(
    st.integers(0, 8),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 40),
    st.sampled_from([0, 1, 250, 500, 900, 999, 1000]),
)
def test_ahead_is_how_many_are_called_before(resume: int, vip: int, plain: int, called: int, share: int) -> None:
    line = Line("default", TemplatePolicy(vip_share=share / 1000), 0.0)
    lanes = [Lane.RESUME] * resume + [Lane.VIP] * vip + [Lane.PLAIN] * plain
    random.Random(1).shuffle(lanes)
    tickets = [ticket(order, lane) for order, lane in enumerate(lanes)]
    for each in tickets:
        line.add(each)
    for _ in range(min(called, len(line))):
        first = line.next()
        assert first is not None
        line.call(first)
    ahead = {each.number: line.ahead(each) for each in line}
    for position in range(len(line)):
        first = line.next()
        assert first is not None
        assert ahead[first.number] == position
        line.call(first)
    assert line.next() is None


@given(st.lists(st.sampled_from(Lane), max_size=40), st.sampled_from([0.0, 0.3, 1.0]))
def test_who_would_join_the_plain_lane_has_as_many_before_it_as_who_does(lanes: list[Lane], vip_share: float) -> None:
    line = Line("default", TemplatePolicy(vip_share=vip_share), 0.0)
    for order, lane in enumerate(lanes):
        line.add(ticket(order, lane))
    before, newcomer = line.ahead_of_newcomer, ticket(len(lanes))
    line.add(newcomer)
    assert line.ahead(newcomer) == before


@given(st.integers(0, 2**32), st.sampled_from([30.0, 60.0, 600.0, 60000.0]), st.integers(1, 50))
def test_a_gate_keeps_its_rate_and_banks_nothing_while_nobody_waits(seed: int, per_minute: float, burst: int) -> None:
    rng, gate, now, taken = random.Random(seed), Gate(0.0, per_minute, burst), 0.0, list[float]()
    for _ in range(100):
        now += rng.expovariate(per_minute / 120)  # nobody waits so long
        gate.begin(now)
        for _ in range(rng.randrange(8)):
            entered = 0
            while gate.allows(now):
                gate.take(now)
                taken.append(now)
                entered += 1
            assert entered <= 1 + max(burst - 1, 0.25 * per_minute / 60 + 1)
            now += rng.expovariate(per_minute / 60)
    spare = 1 + max(burst - 1, 0.25 * per_minute / 60) + 1e-6
    for first in range(0, len(taken), 7):
        for count, until in enumerate(taken[first:], 1):
            assert count <= spare + (until - taken[first]) * per_minute / 60


def test_after_a_pause_in_which_nobody_waited_one_enters() -> None:
    gate = Gate(0.0, 60.0, burst=10)
    gate.take(0.0)
    gate.give_back()
    gate.begin(1000.0)
    entered = 0
    while gate.allows(1000.0):
        gate.take(1000.0)
        entered += 1
    assert entered == 1


@pytest.mark.parametrize(
    ("before", "after", "opens_in_s"), [(60.0, 120.0, 0.5), (60.0, 6.0, 10.0), (1.0, 6000.0, 0.01), (60.0, None, 0.0)]
)
def test_a_rate_that_is_changed_holds_at_once(before: float, after: float | None, opens_in_s: float) -> None:
    gate = Gate(0.0, before)
    gate.take(0.0)
    gate.set(0.0, after)
    assert gate.opens_at(0.0) == pytest.approx(opens_in_s)


def test_a_rate_of_zero_lets_in_nobody_and_none_is_no_limit() -> None:
    gate = Gate(0.0, 0.0)
    gate.give_back()
    assert not gate.allows(1e9)
    gate.set(1e9, 60.0)
    assert gate.allows(1e9)
    assert Gate(0.0, None).allows(0.0)


def test_what_is_given_back_is_let_in_at_once() -> None:
    gate = Gate(0.0, 60.0)
    gate.begin(0.0)
    gate.take(0.0)
    assert not gate.allows(0.5)
    gate.give_back()
    gate.take(0.5)
    assert not gate.allows(0.9)
    assert gate.allows(1.0), "the one that was given back costs nothing"


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.integers(1, 200)), min_size=1, max_size=6))
def test_shares_are_kept_while_all_wait(lines: list[tuple[float, int]]) -> None:
    shares, served = Shares(), dict.fromkeys(range(len(lines)), 0)
    made = [Line(str(i), TemplatePolicy(share=share), 0.0) for i, (share, _) in enumerate(lines)]
    for line, (_, size) in zip(made, lines, strict=True):
        for order in range(size):
            line.add(ticket(order))
        shares.begin(0.0, line)
    total = sum(share for share, _ in lines)
    calls = 0
    while all(made):
        line = shares.next(0.0)
        assert line is not None
        first = line.next()
        assert first is not None
        line.call(first)
        shares.serve(0.0, line)
        served[int(line.queue)] += 1
        calls += 1
    for number, (share, _) in enumerate(lines):
        assert abs(served[number] - calls * share / total) <= len(lines) + 1


def test_a_queue_that_nobody_waited_in_has_saved_nothing_up() -> None:
    shares, old, new = Shares(), Line("old", TemplatePolicy(), 0.0), Line("new", TemplatePolicy(), 0.0)
    for order in range(200):
        old.add(ticket(order))
    shares.begin(0.0, old)
    for _ in range(100):
        assert shares.next(0.0) is old
        old.call(next(iter(old)))
        shares.serve(0.0, old)
    for order in range(200):
        new.add(ticket(order))
    shares.begin(0.0, new)
    order = []
    for _ in range(10):
        line = shares.next(0.0)
        assert line is not None
        line.call(next(iter(line)))
        shares.serve(0.0, line)
        order.append(line)
    assert order.count(new) in (5, 6)


def test_a_queue_whose_call_nobody_came_for_has_its_turn_again() -> None:
    shares, lines, order = Shares(), [Line(name, TemplatePolicy(), 0.0) for name in ("one", "two")], list[str]()
    for line in lines:
        line.add(ticket(1))
        shares.begin(0.0, line)
    for _ in range(6):
        first = shares.next(0.0)
        assert first is not None
        order.append(first.queue)
        shares.serve(0.0, first)
        if first is lines[0]:
            shares.take_back(first)
    assert order == ["one", "two", "one", "one", "one", "one"]


def test_a_deadline_that_came_nearer_leaves_nothing_behind() -> None:
    tickets = {1: ticket(1, lease_until=100.0)}
    deadlines = Deadlines(tickets)
    for sooner in range(50):
        tickets[1].lease_until = 100.0 - sooner
        deadlines.watch(tickets[1])
    tickets[1].lease_until = 1000.0
    assert list(deadlines.due(500.0, 1000)) == []
    assert len(deadlines) == 1


@given(
    st.lists(st.tuples(st.sampled_from(["new", "renew", "sooner", "gone", "wait"]), st.integers(0, 20)), max_size=200)
)
def test_deadlines_are_those_whose_time_has_come(steps: list[tuple[str, int]]) -> None:
    tickets: dict[int, Ticket] = {}
    deadlines, now = Deadlines(tickets), 0.0
    for number, (step, value) in enumerate(steps):
        some = tickets[sorted(tickets)[value % len(tickets)]] if tickets else None
        if step == "new":
            tickets[number] = ticket(number, lease_until=now + value + 1)
            deadlines.watch(tickets[number])
        elif step == "wait":
            now += value
            due = {each.number for each in tickets.values() if each.lease_until <= now}
            assert deadlines.is_due(now) or not due
            assert {each.number for each in deadlines.due(now, 10**6)} == due
            for each in due:
                del tickets[each]
        elif some is not None and step == "gone":
            del tickets[some.number]
        elif some is not None:
            some.lease_until = now + value + 1 if step == "sooner" else some.lease_until + value
            deadlines.watch(some)
    assert len(deadlines) <= 2 * len(tickets) + 1025 + len(steps)


def test_deadlines_of_those_who_have_gone_take_no_room() -> None:
    tickets: dict[int, Ticket] = {}
    deadlines = Deadlines(tickets)
    for number in range(10_000):
        tickets[number] = ticket(number, lease_until=1e9)
        deadlines.watch(tickets.pop(number))
    assert len(deadlines) < 2000


@given(st.lists(st.one_of(st.none(), st.integers(0, 60)), max_size=80))
def test_no_number_is_given_or_found_twice(steps: list[int | None]) -> None:
    numbers = Numbers([NumberBlock(30, 40), NumberBlock(50, 55)], [NumberBlock(0, 10), NumberBlock(20, 25)])
    given_out: list[int] = []
    for step in steps:
        if step is None:
            number = numbers.take()
            if number is not None:
                given_out.append(number)
        elif numbers.find(step):
            given_out.append(step)
            assert step < 10 or 20 <= step < 25
    assert len(given_out) == len(set(given_out))
    left = {number for block in numbers.unused for number in range(block.first, block.end)}
    assert left == {*range(30, 40), *range(50, 55), *range(10), *range(20, 25)} - set(given_out)
    assert len(numbers) == len(left & {*range(30, 55)})


@pytest.mark.parametrize(
    "wrong",
    [{"per_minute": -1.0}, {"burst": 0}, {"lease_s": 0.0}, {"max_calls": 0}, {"target_load": 1.1}, {"max_tickets": 0}],
)
def test_a_policy_that_makes_no_sense_is_none(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QueuePolicy(**wrong)  # type: ignore[arg-type]
