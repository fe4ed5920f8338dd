"""What a backend says of its own load: who is asked, what is believed, and when the asking ends. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from lambdamu.messages import Message
from master.config import Mode
from master.core.admin import READY, Admin, Wish
from master.core.health import Said
from master.core.pool import State
from master.load_talk import read_load
from tests.master.test_monitor import BOTH, autojump_clock, watched

__all__ = ["autojump_clock"]


def load(**said: Any) -> Message:
    return Message("System", "Value", "Load", said)


ERROR = Message("System", "Error", "Load", {"Code": "UnknownName"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"CPU": 0.5, "Capacity": 7, "State": "drain"}, Said(True, 7, 0.5)),
        ({b"CPU": 1, b"State": b"ready"}, Said(False, None, 1)),
        ({}, Said()),
        ([], Said()),
        ({"Mood": "good"}, Said()),
        ({"State": "asleep"}, None),
        ({"Capacity": -1}, None),
        ({"Capacity": True}, None),
        ({"Capacity": 5.0}, None),
        ({"CPU": 1.5}, None),
        ({"CPU": float("nan")}, None),
        ({"CPU": "0.5"}, None),
        (None, None),
        (5, None),
    ],
)
def test_an_answer_is_right_as_a_whole_or_not_at_all(data: Any, said: Said | None) -> None:
    assert read_load(Message("System", "Value", "Load", data)) == said


def test_an_error_is_no_answer() -> None:
    assert read_load(Message("System", "Error", "Load", {"State": "drain"})) is None


@BOTH
async def test_nobody_is_asked_who_is_not_to_be(mode: Mode, autojump_clock: object) -> None:
    async with watched(mode=mode) as scene:
        await trio.sleep(5.0)
        assert scene.backend.loads == 0


@BOTH
async def test_a_backend_drains_as_it_says_and_is_back_when_it_says(mode: Mode, autojump_clock: object) -> None:
    async with watched(load=True, mode=mode) as scene:
        scene.backend.says = load(State="ready", CPU=0.5)
        await trio.sleep(2.0)
        assert scene.named()
        scene.backend.says = load(State="drain")
        assert await scene.until(lambda: not scene.named()) < 1.1
        assert scene.pool["a"].state(trio.current_time()) is State.DRAIN
        assert scene.pool["a"].admin == READY
        await trio.sleep(20.0)
        scene.backend.says = load(State="ready")
        assert await scene.until(scene.named) < 1.1
        assert scene.seen.words == [Said(cpu=0.5), Said(drain=True), Said()]
        assert len(scene.backend.asked_at) >= 22
        assert len(scene.seen.changes) == 1
        assert scene.seen.failures == []
        assert scene.backend.open == (mode is Mode.HOLD)


@BOTH
@pytest.mark.parametrize("answer", [ERROR, load(State="asleep"), None])
async def test_a_backend_that_does_not_know_is_asked_once_and_none_the_worse(
    mode: Mode, answer: Message | None, autojump_clock: object
) -> None:
    async with watched(load=True, mode=mode) as scene:
        scene.backend.says = answer
        await trio.sleep(20.0)
        assert scene.backend.loads == 1
        assert scene.named()
        assert scene.seen.failures == []
        assert len(scene.seen.changes) == 1
        assert 19 <= len(scene.backend.asked_at) <= 21
        assert len(scene.backend.connected_at) == (1 if mode is Mode.HOLD else len(scene.backend.asked_at))


@BOTH
async def test_a_backend_that_closes_at_the_question_is_asked_once(mode: Mode, autojump_clock: object) -> None:
    async with watched(load=True, mode=mode) as scene:
        scene.backend.says = "close"
        await trio.sleep(20.0)
        assert scene.backend.loads == 1
        assert scene.named()
        assert scene.seen.failures == []
        assert len(scene.seen.changes) == (1 if mode is Mode.RECONNECT else 3)


async def test_what_was_said_is_void_when_no_more_is_said(autojump_clock: object) -> None:
    async with watched(load=True) as scene:
        scene.backend.says = load(State="drain", Capacity=0)
        await trio.sleep(2.0)
        assert not scene.named()
        scene.backend.says = None
        await trio.sleep(2.2)
        assert scene.named()
        assert scene.backend.loads <= 4


async def test_an_answer_that_comes_too_late_disturbs_no_probe(autojump_clock: object) -> None:
    async with watched(load=True) as scene:
        scene.backend.delay_s = 0.3
        await trio.sleep(2.7)
        assert scene.backend.loads == 1
        scene.backend.says = ERROR
        for stream in scene.backend.connections:
            await scene.backend.answer(stream, [Message("System", "Get", "Load")])
        await trio.sleep(5.0)
        assert scene.seen.failures == []


async def test_after_maintenance_the_asking_begins_anew(autojump_clock: object) -> None:
    async with watched(load=True) as scene:
        scene.backend.says = ERROR
        await trio.sleep(3.0)
        for wish in (Wish.MAINT, Wish.READY):
            scene.pool.set_admin(trio.current_time(), "a", Admin(wish))
            scene.monitor.heed_operator(trio.current_time())
        scene.backend.says = load(State="drain")
        await trio.sleep(3.0)
        assert scene.backend.loads >= 3
        assert scene.pool["a"].state(trio.current_time()) is State.DRAIN


async def test_a_reload_begins_the_asking_and_ends_it(autojump_clock: object) -> None:
    async with watched() as scene:
        scene.backend.says = load(State="drain")
        await trio.sleep(3.0)
        scene.monitor.ask_load(trio.current_time(), wanted=True)
        await trio.sleep(2.0)
        assert not scene.named()
        scene.monitor.ask_load(trio.current_time(), wanted=False)
        assert scene.named()
        loads = scene.backend.loads
        await trio.sleep(3.0)
        assert scene.backend.loads == loads
        assert scene.seen.failures == []
