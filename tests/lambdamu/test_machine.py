"""The logical machine's routing, and the life of its child machines."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from lambdamu.machine import ChildMachine, LMList, LogicalMachine
from lambdamu.messages import Message
from lambdamu.objects import NOTHING, Later, LMObject, Peer, Reply

PEER = Peer("127.0.0.1", 5000)


class Room(LMObject):
    """Answers `Get Who` with its own name, owes the answer to `Event Wait`, and remembers who went."""

    def __init__(self, name: str) -> None:
        super().__init__(name, gettable={"Who": self._who}, events={"Wait": self._wait})
        self.gone: list[Peer] = []

    def _who(self, message: Message, now: float, peer: Peer) -> Reply:
        return [Message(self.name, "Value", "Who", [self.name, now, peer.host])]

    def _wait(self, message: Message, now: float, peer: Peer) -> Reply:
        return Later()

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)


def house() -> tuple[LogicalMachine, Room, Room]:
    machine, door, hall = LogicalMachine("house"), Room("Door"), Room("Hall")
    machine.add(door)
    machine.add(hall)
    return machine, door, hall


@pytest.mark.parametrize("name", ["Door", "Hall"])
def test_a_message_goes_to_the_object_that_it_names(name: str) -> None:
    reply = house()[0].handle(Message(name, "Get", "Who"), 3.0, PEER)
    assert reply == [Message(name, "Value", "Who", [name, 3.0, "127.0.0.1"])]


def test_an_owed_answer_is_handed_on() -> None:
    assert isinstance(house()[0].handle(Message("Hall", "Event", "Wait"), 0.0, PEER), Later)


@pytest.mark.parametrize("name", ["Cellar", "door", "", "Door\x00"])
@pytest.mark.parametrize("command", ["Get", "Set", "Event", "Dance", ""])
def test_an_unknown_object_gets_an_error_with_its_own_name(command: str, name: str) -> None:
    reply = house()[0].handle(Message(name, command, "Who"), 0.0, PEER)
    assert not isinstance(reply, Later)
    (answer,) = reply
    assert (answer.object, answer.command, answer.name, answer.data["Code"]) == (name, "Error", "Who", "UnknownObject")


@pytest.mark.parametrize("command", ["Value", "Error"])
@pytest.mark.parametrize("name", ["Cellar", "Door"])
def test_a_value_or_an_error_gets_nothing_whoever_it_names(command: str, name: str) -> None:
    assert house()[0].handle(Message(name, command, "Who"), 0.0, PEER) == NOTHING


def test_every_object_hears_who_has_gone() -> None:
    machine, door, hall = house()
    machine.disconnected(PEER)
    assert door.gone == hall.gone == [PEER]


# Child machines


class Child(ChildMachine):
    """Works until stopped, then takes as long as `may_end` to end."""

    def __init__(self, name: str) -> None:
        if not name:
            raise ValueError("a child has a name")
        super().__init__(name)
        self.state = "prepared"
        self.may_end = trio.Event()
        self.may_end.set()
        self.closed = False

    def close(self) -> None:
        self.closed = True

    async def run(self) -> None:
        self.state = "running"
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.may_end.wait()
            self.state = "ended"


@pytest.fixture
def built() -> list[Child]:
    """Return every child that was built, in order."""
    return []


@pytest.fixture
def children(built: list[Child]) -> LMList[Child, str]:
    def build(name: str) -> Child:
        built.append(Child(name))
        return built[-1]

    return LMList(build)


def names(children: LMList[Child, str]) -> list[str]:
    return [child.name for child in children]


async def test_every_child_is_built_before_any_starts(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a", "b"])
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["prepared", "prepared"]
    assert names(children) == []
    children.do_start(nursery)
    assert names(children) == ["a", "b"]
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["running", "running"]


async def test_a_bad_child_stops_all_of_them(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    with pytest.raises(ValueError, match="a child has a name"):
        children.do_prepare(["a", "", "b"])
    children.do_start(nursery)
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["prepared"]
    assert len(children) == 0


async def test_children_are_started_once_in_a_task_each(children: LMList[Child, str], nursery: trio.Nursery) -> None:
    children.do_prepare(["a", "b", "c"])
    children.do_start(nursery)
    children.do_start(nursery)
    assert len(nursery.child_tasks) == len(children) == 3


async def test_stopping_a_child_ends_it_alone_and_removes_it(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a", "b"])
    children.do_start(nursery)
    await wait_all_tasks_blocked()
    children.stop("a")
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["ended", "running"]
    assert names(children) == ["b"]


async def test_a_child_that_is_stopped_is_closed_and_unknown_from_that_moment_on(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a", "b"])
    children.do_start(nursery)
    assert children["a"] is built[0]
    children.stop("a")
    assert [child.closed for child in built] == [True, False]
    assert names(children) == ["b"]
    with pytest.raises(KeyError):
        children["a"]


async def test_children_come_to_those_that_run(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a"])
    children.do_start(nursery)
    await wait_all_tasks_blocked()
    children.do_prepare(["b"])
    children.do_start(nursery)
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["running", "running"]
    assert len(nursery.child_tasks) == 2


async def test_a_child_that_is_stopped_before_its_first_step_is_removed_too(
    children: LMList[Child, str], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a"])
    children.do_start(nursery)
    children.stop("a")
    await wait_all_tasks_blocked()
    assert len(children) == 0


async def test_a_new_child_stays_when_the_old_one_of_its_name_ends_after_it_started(
    children: LMList[Child, str], built: list[Child], nursery: trio.Nursery
) -> None:
    children.do_prepare(["a"])
    children.do_start(nursery)
    await wait_all_tasks_blocked()
    built[0].may_end = trio.Event()
    children.stop("a")
    children.do_prepare(["a"])
    children.do_start(nursery)
    built[0].may_end.set()
    await wait_all_tasks_blocked()
    assert [child.state for child in built] == ["ended", "running"]
    assert list(children) == [built[1]]


async def test_an_error_of_a_child_reaches_the_nursery() -> None:
    class Broken(Child):
        async def run(self) -> None:
            raise RuntimeError("a bug of ours")

    children: LMList[Broken, str] = LMList(Broken)
    children.do_prepare(["a"])
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug of ours")):
        async with trio.open_nursery() as nursery:
            children.do_start(nursery)
    assert len(children) == 0
