"""Who is let in, and who is counted."""

from __future__ import annotations

from typing import Any

import pytest

from lambdamu.messages import AUTH, LOAD, SYSTEM, TASK_OBJECT, USER_COUNT, USER_MAIL, USER_NAME, Command, Message
from lambdamu.objects import Peer
from server_stub.users import Auth, Load, System, Users

NAME = Message(AUTH, Command.SET, USER_NAME, "ann")
MAIL = Message(AUTH, Command.SET, USER_MAIL, "ann@example.org")
PROBE = Message(AUTH, Command.SET, USER_MAIL, "probe@example.org")


class Machine:
    """Both objects, asked without a port."""

    def __init__(self, base: int = 0, capacity: int | None = None) -> None:
        users = Users(base, capacity, "probe@example.org")
        self.auth = Auth(users)
        self.system = System(users)

    def say(self, peer: Peer, *messages: Message) -> list[Message]:
        answers: list[Message] = []
        for message in messages:
            reply = self.auth.handle(message, 0.0, peer)
            assert not hasattr(reply, "attach")
            answers.extend(reply)
        return answers

    def count(self, peer: Peer) -> Any:
        [answer] = self.system.handle(Message(SYSTEM, Command.GET, USER_COUNT), 0.0, peer)
        return answer.data


def peer() -> Peer:
    return Peer("192.0.2.1", 40000)


def told(name: str) -> Message:
    return Message(AUTH, Command.VALUE, TASK_OBJECT, name)


def text(message: Message, data: Any) -> Message:
    return Message(message.object, message.command, message.name, data)


@pytest.mark.parametrize(
    ("messages", "answers"),
    [
        ([NAME], []),
        ([MAIL], []),
        ([NAME, MAIL], [told("Task-1")]),
        ([MAIL, NAME], [told("Task-1")]),
        ([NAME, NAME], []),
        ([NAME, MAIL, NAME], [told("Task-1")]),
        ([NAME, MAIL, MAIL], [told("Task-1")]),
        ([NAME, MAIL, MAIL, NAME], [told("Task-1"), told("Task-1")]),
        ([text(NAME, ""), MAIL], []),
        ([text(NAME, ""), MAIL, NAME], [told("Task-1")]),
        ([NAME, text(MAIL, "")], []),
        ([NAME, text(NAME, ""), MAIL], []),
        ([text(NAME, b"ann"), MAIL], [told("Task-1")]),
        (
            [Message(AUTH, Command.SET, "Turn", "x"), NAME, Message(AUTH, Command.SET, "Session", ""), MAIL],
            [told("Task-1")],
        ),
    ],
)
def test_a_complete_pair_is_answered_once(messages: list[Message], answers: list[Message]) -> None:
    assert Machine().say(peer(), *messages) == answers


@pytest.mark.parametrize("data", [None, 7, True, [], {}, b"\xff"])
def test_what_is_no_text_is_refused_and_authenticates_nobody(data: object) -> None:
    machine, ann = Machine(), peer()
    [refusal] = machine.say(ann, text(NAME, data))
    assert (refusal.command, refusal.name, refusal.data["Code"]) == ("Error", USER_NAME, "BadData")
    assert machine.say(ann, MAIL) == []


def test_each_connection_has_a_task_of_its_own() -> None:
    machine, ann, bob = Machine(), peer(), peer()
    assert machine.say(ann, NAME) == []
    assert machine.say(bob, MAIL, NAME) == [told("Task-1")]
    assert machine.say(ann, MAIL) == [told("Task-2")]


def test_a_count_is_of_the_others() -> None:
    machine, ann, bob = Machine(base=10), peer(), peer()
    machine.say(ann, NAME, MAIL)
    assert (machine.count(ann), machine.count(bob)) == (10, 11)
    machine.say(bob, NAME, MAIL)
    assert (machine.count(ann), machine.count(bob)) == (11, 11)


def test_who_authenticates_again_is_counted_once() -> None:
    machine, ann = Machine(), peer()
    machine.say(ann, NAME, MAIL, NAME, MAIL)
    assert machine.count(peer()) == 1


def test_half_a_pair_is_no_user() -> None:
    machine = Machine()
    machine.say(peer(), NAME)
    assert machine.count(peer()) == 0


def test_a_probe_gets_a_task_and_is_no_user() -> None:
    machine = Machine()
    assert machine.say(peer(), NAME, PROBE) == [told("Task-1")]
    assert machine.count(peer()) == 0


def test_a_connection_is_what_it_said_last() -> None:
    machine, ann = Machine(), peer()
    machine.say(ann, NAME, PROBE, NAME, MAIL)
    assert machine.count(peer()) == 1
    machine.say(ann, NAME, PROBE)
    assert machine.count(peer()) == 0


def test_a_connection_that_is_gone_is_forgotten() -> None:
    machine, ann, bob = Machine(), peer(), peer()
    machine.say(ann, NAME, MAIL)
    machine.auth.disconnected(ann)
    assert machine.count(bob) == 0
    assert machine.say(bob, NAME, MAIL) == [told("Task-2")]
    machine.auth.disconnected(peer())
    assert machine.count(peer()) == 1


def test_half_a_pair_is_forgotten_too() -> None:
    machine, ann = Machine(), peer()
    machine.say(ann, NAME)
    machine.auth.disconnected(ann)
    assert machine.say(ann, MAIL) == []


@pytest.mark.parametrize(("base", "capacity"), [(0, 0), (5, 5), (7, 5)])
def test_nobody_is_let_in_where_there_is_no_room_at_all(base: int, capacity: int) -> None:
    machine = Machine(base, capacity)
    [refusal] = machine.say(peer(), NAME, MAIL)
    assert (refusal.object, refusal.command, refusal.data["Code"]) == (AUTH, "Error", "Full")
    assert machine.count(peer()) == base


def test_the_last_place_is_given_once_and_again_when_it_is_free() -> None:
    machine, ann, bob = Machine(base=1, capacity=2), peer(), peer()
    assert machine.say(ann, NAME, MAIL) == [told("Task-1")]
    assert machine.say(bob, NAME, MAIL)[0].data["Code"] == "Full"
    assert machine.say(ann, NAME, MAIL) == [told("Task-1")]
    machine.auth.disconnected(ann)
    assert machine.say(bob, NAME, MAIL) == [told("Task-2")]


def test_a_probe_is_let_in_where_there_is_no_room() -> None:
    machine = Machine(base=5, capacity=5)
    assert machine.say(peer(), NAME, PROBE) == [told("Task-1")]
    assert machine.count(peer()) == 5


ASK_LOAD = Message(SYSTEM, Command.GET, LOAD)


def test_one_that_says_nothing_of_its_load_does_not_know_the_question() -> None:
    [answer] = Machine().system.handle(ASK_LOAD, 0.0, peer())
    assert (answer.command, answer.data["Code"]) == (Command.ERROR, "UnknownName")


@pytest.mark.parametrize(("capacity", "said"), [(None, {}), (7, {"Capacity": 7})])
def test_one_that_does_says_whether_it_drains_and_what_it_takes(capacity: int | None, said: dict[str, int]) -> None:
    load = Load(lambda: 0.25)
    system = System(Users(0, capacity, "probe@example.org"), load)
    for draining, state in ((False, "ready"), (True, "drain"), (False, "ready")):
        load.draining = draining
        [answer] = system.handle(ASK_LOAD, 0.0, peer())
        assert answer == Message(SYSTEM, Command.VALUE, LOAD, {"CPU": 0.25, "State": state} | said)
