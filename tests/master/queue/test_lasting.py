"""What of the queue outlives the process: rows, numbers, and places that only their owners know of."""

from __future__ import annotations

import random
from collections.abc import Iterable

from master.queue.answers import Again, Closed, Go, QueueAsk, SignedPlace, Waiting
from master.queue.limits import Room
from master.queue.numbers import NumberBlock, Numbers
from master.queue.policy import Mode, QueuePolicy, TemplatePolicy
from master.queue.queues import Queues
from master.queue.rows import Changes, TicketRow
from master.queue.ticket import Lane
from tests.master.queue.desk import Desk, Steady, signed


class Shelf:
    """A store: what was written last, by number."""

    def __init__(self) -> None:
        self.rows: dict[int, TicketRow] = {}
        self.unused: tuple[NumberBlock, ...] = ()

    def write(self, changes: Changes) -> None:
        if changes.anew:
            self.rows.clear()
        self.rows |= {row.number: row for row in changes.rows}
        for number in changes.gone:
            self.rows.pop(number, None)
        if changes.unused is not None:
            self.unused = changes.unused


def after_crash(desk: Desk, shelf: Shelf, clock_s: float = -900.0, **policy: object) -> Desk:
    """Return the queue of the next process, whose clock shows `clock_s` more."""
    next_desk = Desk(free=desk.free, first=500_000, **policy)
    next_desk.now = desk.now + clock_s + 1.0
    next_desk.queues = Queues(
        next_desk.now,
        QueuePolicy(**policy),
        Steady(),
        Numbers([NumberBlock(500_000, 600_000)]),
        -clock_s,  # type: ignore[arg-type]
    )
    next_desk.queues.restore(next_desk.now, [row.moved(clock_s) for row in shelf.rows.values()], shelf.unused)
    next_desk.settle()
    return next_desk


def names(tickets: Iterable[object]) -> list[str]:
    return [(ticket.client or b"").decode() for ticket in tickets]  # type: ignore[attr-defined]


def test_order_stages_and_leases_outlive_a_crash() -> None:
    desk, shelf = Desk(free=1, templates=(TemplatePolicy("*"),)), Shelf()
    desk.enter("in")
    desk.free = 1
    desk.settle()
    desk.join("called")
    desk.join("a", "b", "c", "d")
    desk.join("v", lane=Lane.VIP)
    desk.join("x", queue="other")
    desk.ask("b", leave=True)
    desk.ask("d", away=True)
    shelf.write(desk.queues.take_changes())
    other = after_crash(desk, shelf, templates=(TemplatePolicy("*"),))
    assert other.line() == desk.line() == ["v", "a", "c", "d"]
    assert other.line("other") == ["x"]
    assert other.ask("in") == Again("place of in")
    assert isinstance(other.ask("called"), Go)
    assert other.queues.limits.calls == 1
    assert other.position("e") == 4, "a newcomer comes after all"
    other.after(31.0)
    assert other.line() == ["d"], "each has one lease to come again"


def test_who_waits_on_his_connection_is_in_nobodys_way_after_a_crash() -> None:
    desk, shelf = Desk(), Shelf()
    desk.ask(None, held=True)
    desk.join("a")
    shelf.write(desk.queues.take_changes())
    assert after_crash(desk, shelf).position("a") == 0


def test_the_return_is_used_once_also_over_a_crash() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("a", "b")
    desk.after(31.0)
    desk.join("a")
    shelf.write(desk.queues.take_changes())
    other = after_crash(desk, shelf)
    other.join("c")
    other.after(31.0)
    other.join("c")
    assert other.position("a") == 1


def test_a_hold_over_a_crash_lets_nobody_in() -> None:
    desk, shelf = Desk(free=1), Shelf()
    desk.join("a")
    shelf.write(desk.queues.take_changes())
    other = after_crash(desk, shelf, mode=Mode.HOLD)
    assert isinstance(other.ask("a"), Waiting)


def test_a_shown_ticket_that_the_store_has_not_heard_of_restores_its_place_once() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("a")
    shelf.write(desk.queues.take_changes())
    desk.join("lost1", "lost2")
    first, second = (signed(desk.ticket(name)) for name in ("lost1", "lost2"))
    other = after_crash(desk, shelf)
    other.join("new")
    assert other.position("lost2", place=second) == 1
    assert other.position("lost1", place=first) == 1
    assert other.line() == ["a", "lost1", "lost2", "new"]
    other.ask("lost1", leave=True)
    assert other.position("lost1", place=first) == 3, "what is over does not come again"
    assert other.position("forged", place=SignedPlace(700_000, "default", Lane.PLAIN, 1)) == 4


def test_a_place_that_the_store_knows_to_be_over_does_not_come_again() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("a", "b")
    place = signed(desk.ticket("a"))
    desk.ask("a", leave=True)
    shelf.write(desk.queues.take_changes())
    assert shelf.rows.keys() == {2}
    assert after_crash(desk, shelf).position("a", place=place) == 1


def test_a_number_whose_row_was_written_is_not_lost() -> None:
    desk, shelf = Desk(), Shelf()
    shelf.write(desk.queues.take_changes())
    desk.join("a", "b", "c")
    shelf.write(desk.queues.take_changes(most=1))  # the disk is slow: the other rows do not come
    place = signed(desk.ticket("a"))
    other = after_crash(desk, shelf)
    other.join("x")
    other.ask("a", leave=True)
    assert other.position("a", place=place) == 1


def test_a_place_found_again_outlives_the_next_crash_and_is_not_found_twice() -> None:
    desk, shelf = Desk(), Shelf()
    shelf.write(desk.queues.take_changes())
    desk.join("lost")
    place = signed(desk.ticket("lost"))
    second = after_crash(desk, shelf)
    second.join("lost", place=place)
    shelf.write(second.queues.take_changes())
    third = after_crash(second, shelf, clock_s=-50.0)
    assert third.line() == ["lost"]
    third.ask("lost", leave=True)
    assert third.position("b") == 0
    assert third.position("lost", place=place) == 1


def test_without_numbers_newcomers_are_told_to_come_later_until_a_block_comes() -> None:
    numbers = Numbers([NumberBlock(1, 2)])
    queues, rng = Queues(0.0, QueuePolicy(), Steady(), numbers), random.Random(1)
    assert isinstance(queues.ask(0.0, rng, QueueAsk(client=b"a")), Waiting)
    assert isinstance(queues.ask(0.0, rng, QueueAsk(client=b"b")), Closed)
    assert isinstance(queues.ask(0.0, rng, QueueAsk(client=b"a")), Waiting)
    numbers.add(NumberBlock(10, 20))
    assert isinstance(queues.ask(0.0, rng, QueueAsk(client=b"b")), Waiting)


def test_what_could_not_be_written_is_written_later() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("a", "b", "c")
    lost = desk.queues.take_changes(most=2)
    assert lost.unused is None
    desk.queues.give_back(lost)
    desk.ask("b", leave=True)
    while desk.queues.book.unwritten:
        shelf.write(desk.queues.take_changes(most=1))
    assert names(shelf.rows.values()) == ["c", "a"]
    assert shelf.unused == desk.queues.numbers.unused


def test_when_nobody_writes_for_long_the_store_is_written_anew() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("old")
    shelf.write(desk.queues.take_changes())
    desk.ask("old", leave=True)
    desk.join("a", "b")
    joins, leaves = QueueAsk(client=b"n"), QueueAsk(client=b"n", leave=True)
    for _ in range(17_000):
        desk.queues.ask(desk.now, desk.rng, joins)
        desk.queues.ask(desk.now, desk.rng, leaves)
    assert desk.queues.book.unwritten <= 17_000
    failed = desk.queues.take_changes(most=1)
    assert failed.anew
    desk.queues.give_back(failed)
    first, second = (desk.queues.take_changes(most=1) for _ in range(2))
    assert (first.anew, first.unused, second.anew) == (True, None, False), "in parts, for one commit"
    shelf.write(first)
    shelf.write(second)
    assert names(shelf.rows.values()) == ["a", "b"]
    assert shelf.unused == desk.queues.numbers.unused
    assert not desk.queues.book.unwritten


def test_what_is_to_be_written_anew_is_so_with_nobody_there() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("old")
    shelf.write(desk.queues.take_changes())
    desk.queues.leave(desk.now, 1)
    desk.queues.write_anew()
    assert desk.queues.book.unwritten
    shelf.write(desk.queues.take_changes())
    assert not shelf.rows
    assert not desk.queues.book.unwritten


def test_rows_that_come_back_in_parts_are_as_those_that_come_at_once() -> None:
    desk, shelf = Desk(free=1), Shelf()
    desk.join("called", "a", "b", "c")
    shelf.write(desk.queues.take_changes())
    queues = Queues(desk.now, QueuePolicy(mode=Mode.HOLD), Steady(), Numbers())
    for row in reversed(shelf.rows.values()):
        queues.restore(desk.now, [row], shelf.unused if row.number == 4 else ())
    assert names(queues.lines["default"]) == ["called", "a", "b", "c"]
    assert [row.number for row in queues.take_changes().rows] == [1], "the call that was taken back, and no other"
    assert queues.numbers.unused == shelf.unused


def test_who_is_forgotten_while_rows_come_back_goes_from_the_store_too() -> None:
    desk, shelf = Desk(), Shelf()
    desk.join("a", "b", "c")
    desk.after(31.0)
    shelf.write(desk.queues.take_changes())
    queues = Queues(desk.now, QueuePolicy(max_tickets=2), Steady(), Numbers())
    queues.restore(desk.now, shelf.rows.values(), shelf.unused)
    assert queues.book.missed == 2
    assert queues.take_changes().gone == [1]


def test_a_crash_at_any_moment_loses_and_doubles_no_number() -> None:
    for seed in range(30):
        rng, desk, shelf = random.Random(seed), Desk(free=0), Shelf()
        shelf.write(desk.queues.take_changes())  # a block is written as unused before it is used
        for step in range(rng.randrange(5, 60)):
            desk.ask(f"n{step}")
            if rng.random() < 0.4:
                desk.ask(f"n{rng.randrange(step + 1)}", leave=True)
            if rng.random() < 0.3:
                shelf.write(desk.queues.take_changes(most=rng.choice([1, 3, 1000])))
            desk.now += 0.01 * step
        here = {name: signed(desk.ticket(name)) for name in desk.line()}
        truth = sorted(here, key=lambda name: here[name].order)
        other = after_crash(desk, shelf)
        rng.shuffle(truth)
        for name in truth:
            other.ask(name, place=here[name])
        line = [name for name in other.line() if name in here]
        assert line == sorted(here, key=lambda name: here[name].order)
        numbers = [ticket.number for ticket in other.queues.lines["default"]] if truth else []
        assert len(numbers) == len(set(numbers))


def test_a_new_process_orders_newcomers_after_all_whose_place_is_restored() -> None:
    """Whatever the monotonic clock of the machine shows after the restart."""
    desk, shelf = Desk(), Shelf()
    desk.join("a")
    desk.after(20.0)
    desk.join("b")
    shelf.write(desk.queues.take_changes())
    queues = Queues(3.0, QueuePolicy(), Steady(), Numbers([NumberBlock(500_000, 500_010)]), epoch_s=0.0)
    queues.restore(3.0, [row.moved(3.0 - desk.now) for row in shelf.rows.values()], shelf.unused)
    queues.settle(3.0, Room(0))
    answer = queues.ask(3.0, random.Random(1), QueueAsk(client=b"new"))
    assert isinstance(answer, Waiting)
    assert answer.position == 2
