"""Anything that clients, backends and operators may do, in any order: what holds whatever happens."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lambdamu.objects import Later
from master.queue.policy import Mode
from master.waiting.orders import Order
from tests.master.waiting.house import House, said

PEOPLE = st.sampled_from([f"person {n}" for n in range(10)])
BACKENDS = st.sampled_from(["b0", "b1", "b2"])
TARGET = 0.5
GOALS = {"b0": 2, "b1": 3, "b2": 1}


class Desks(RuleBasedStateMachine):
    """Who is told OK is counted by his backend at once, and stays until he leaves or it dies."""

    house: House

    @initialize(per_minute=st.sampled_from([None, 60.0, 600.0]))
    def open(self, per_minute: float | None) -> None:
        self.house = House(4, 6, 2, target_load=TARGET, per_minute=per_minute, hold_plain_s=30.0)
        self.inside: list[tuple[str, str]] = []
        """Who is in, and where."""
        self.shown: dict[str, tuple[str, int]] = {}
        """The ticket and the place that each was shown last."""
        self.held: list[Later] = []
        self.told_at: dict[str, float] = {}
        """When each was let in last."""

    @rule(who=PEOPLE, turn=st.booleans(), with_ticket=st.booleans())
    def ask(self, who: str, turn: bool, with_ticket: bool) -> None:
        data: dict[str, Any] = {"Want": ["Turn", "Name"]} if turn else {"Want": ["Name"]}
        if with_ticket and who in self.shown:
            data["Ticket"] = self.shown[who][0]
        self.take(who, self.house.ask(who, **data))

    @rule(who=PEOPLE)
    def leave(self, who: str) -> None:
        assert self.house.ask(who, Leave=True)["Data"]["Reason"] == "Left"
        self.shown.pop(who, None)

    @rule(who=PEOPLE)
    def fail_and_ask_again(self, who: str) -> None:
        failed = [{"IP": "10.0.0.1", "Port": 9000, "Why": "TurnExpired"}]
        self.take(who, self.house.ask(who, Failed=failed, Want=["Name"]))

    @rule()
    def ask_plainly(self) -> None:
        reply = self.house.reply()
        if not isinstance(reply, Later):
            self.take("", said(reply))
            return
        self.held.append(reply)
        reply.attach(lambda messages: self.hear(reply, said(messages)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        later = data.draw(st.sampled_from(self.held))
        later.cancel()
        self.held.remove(later)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def end_a_session(self, data: st.DataObject) -> None:
        who, where = data.draw(st.sampled_from(self.inside))
        self.inside.remove((who, where))
        self.house.users[where] -= 1

    @rule(name=BACKENDS)
    def die(self, name: str) -> None:
        self.house.kill(name)
        self.inside = [(who, where) for who, where in self.inside if where != name]

    @rule(name=BACKENDS)
    def revive(self, name: str) -> None:
        self.house.dead.discard(name)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 31.0, 130.0]))
    def wait(self, seconds: float) -> None:
        self.house.tick(seconds)

    @rule(mode=st.sampled_from([*Mode, None]))
    def order(self, mode: Mode | None) -> None:
        order = None if mode is None or mode is Mode.PASS else Order("ops", "test", 0.0, mode=mode)
        self.house.room.order(self.house.now, "", order)

    @invariant()
    def nobody_is_in_beyond_the_limits(self) -> None:
        for name, goal in GOALS.items():
            assert self.house.users[name] <= 2 * goal, "over the capacity"

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "house"):
            return
        queues = self.house.room.queues
        assert queues.book.waiting == sum(map(len, queues.lines))
        assert len(queues.book.called) == queues.limits.calls
        assert self.house.room.desk.held == len(self.held)

    def teardown(self) -> None:
        """Who stays gets in."""
        if not hasattr(self, "house"):
            return
        house = self.house
        house.dead.clear()
        house.room.order(house.now, "", None)
        house.tick(3)
        waiting = {who for who in self.shown if who not in {each for each, _ in self.inside}}
        for _ in range(400):
            house.tick(1)
            for who in sorted(waiting):
                if self.take(who, house.ask(who, Want=["Name"])):
                    waiting.discard(who)
            for _, where in self.inside:
                house.users[where] -= 1
            self.inside.clear()
            if not waiting and not house.room.desk.held:
                return
        raise AssertionError(f"never let in: {waiting}")

    def hear(self, later: Later, answer: dict[str, Any]) -> None:
        self.held.remove(later)
        self.take("", answer)

    def take(self, who: str, answer: dict[str, Any]) -> bool:
        """Do as one is told; return whether that was to go in."""
        data = answer["Data"]
        if answer["Result"] == "Wait":
            ticket, before = self.shown.get(who, ("", 0))
            if ticket == data["Ticket"]:
                assert data["Position"] <= before, "a place that was shown has become a worse one"
            self.shown[who] = data["Ticket"], data["Position"]
        if answer["Result"] != "OK":
            assert answer["Result"] in ("Wait", "Closed", "NoServer"), answer
            return False
        self.shown.pop(who, None)
        name = f"b{data['Port'] - 9000}"
        if who and (who, name) in self.inside:
            return True  # the same answer again
        self.inside.append((who, name))
        self.house.users[name] += 1
        if who and self.house.now < self.told_at.get(who, -math.inf) + self.house.room.turns.turn_s:
            return True  # he has been there, and uses the same answer again while it holds
        self.told_at[who] = self.house.now
        living = [each for each in GOALS if each not in self.house.dead]
        assert sum(self.house.users[each] for each in living) <= sum(GOALS[each] for each in living)
        return True


TestDesks = Desks.TestCase
TestDesks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
