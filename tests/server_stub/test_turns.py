"""A backend that demands turns: who is let in, who is told what, and who is asked for none."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from lambdamu import keys
from lambdamu.address import Address
from lambdamu.caller import Caller, Login
from lambdamu.messages import AUTH, SYSTEM, TASK_OBJECT, TURN, USER_COUNT, USER_MAIL, USER_NAME, Command, Message
from lambdamu.objects import Farewell, Peer
from lambdamu.turns import NOBODY, Signer, Verifier
from server_stub.users import Auth, System, TurnGate, Users
from tests.server_stub.conftest import Process

KEY = keys.Signer.generate("k1")
NOW = 1_800_000_000.0
NAME = Message(AUTH, Command.SET, USER_NAME, "ann")
MAIL = Message(AUTH, Command.SET, USER_MAIL, "ann@example.org")
PROBE = Message(AUTH, Command.SET, USER_MAIL, "probe@example.org")
LET_IN, MORE = "let in", "nothing"


def text(number: int, *, backend: str = "b1", end: float = NOW + 60, key: keys.Signer = KEY) -> str:
    return Signer(key).sign(number, NOBODY, backend, int(end))


def turn(number: int, **other: Any) -> Message:
    return Message(AUTH, Command.SET, TURN, text(number, **other))


class Machine:
    """The objects of a backend that demands turns, asked without a port."""

    def __init__(self, capacity: int | None = None) -> None:
        self.now = NOW
        users = Users(0, capacity, "probe@example.org")
        self.verifier = Verifier({"k1": KEY.verifier()}, "b1")
        self.gate = TurnGate(self.verifier, lambda: self.now)
        self.auth = Auth(users, self.gate)
        self.system = System(users)

    def say(self, peer: Peer, *messages: Message) -> list[str]:
        """Return what each message gets, up to the one that ends the connection."""
        told: list[str] = []
        for message in messages:
            reply = self.auth.handle(message, 0.0, peer)
            assert not hasattr(reply, "attach")
            told.append(self._word(reply))
            if isinstance(reply, Farewell):
                self.auth.disconnected(peer)
                break
        return told

    def _word(self, reply: Any) -> str:
        if not reply:
            return MORE
        [answer] = reply
        if answer.name == TASK_OBJECT:
            return LET_IN
        code: str = answer.data["Code"]
        return f"{code}, and the end" if isinstance(reply, Farewell) else code

    def count(self) -> Any:
        [answer] = self.system.handle(Message(SYSTEM, Command.GET, USER_COUNT), 0.0, peer())
        return answer.data


def peer() -> Peer:
    return Peer("192.0.2.1", 40000)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([turn(1), NAME, MAIL], [MORE, MORE, LET_IN]),
        ([NAME, turn(1), MAIL], [MORE, MORE, LET_IN]),
        ([NAME, MAIL], [MORE, "TurnMissing, and the end"]),
        ([turn(1, backend="b2"), NAME, MAIL], ["TurnForeign, and the end"]),
        ([turn(1, key=keys.Signer.generate("k1"))], ["TurnForeign, and the end"]),
        ([turn(1, end=NOW - 60), NAME], ["TurnExpired, and the end"]),
        ([Message(AUTH, Command.SET, TURN, 7)], ["TurnForeign, and the end"]),
        ([Message(AUTH, Command.SET, TURN), NAME], ["TurnMissing, and the end"]),
        ([turn(1), NAME, MAIL, NAME, MAIL], [MORE, MORE, LET_IN, MORE, LET_IN]),
        ([NAME, PROBE], [MORE, LET_IN]),
        ([turn(1), NAME, PROBE, NAME, MAIL], [MORE, MORE, LET_IN, MORE, LET_IN]),
        ([NAME, PROBE, NAME, MAIL], [MORE, LET_IN, MORE, "TurnMissing, and the end"]),
    ],
)
def test_only_with_a_good_turn_or_as_the_probe_one_is_let_in(messages: list[Message], told: list[str]) -> None:
    assert Machine().say(peer(), *messages) == told


def test_a_turn_lets_in_one_and_no_second() -> None:
    machine, ann, bob, eve = Machine(), peer(), peer(), peer()
    assert machine.say(ann, turn(1)) == machine.say(bob, turn(1)) == [MORE]
    assert machine.say(ann, NAME, MAIL) == [MORE, LET_IN]
    assert machine.say(bob, NAME, MAIL) == [MORE, "TurnUsed, and the end"]
    assert machine.say(eve, turn(1)) == ["TurnUsed, and the end"]
    machine.auth.disconnected(ann)
    assert machine.say(peer(), turn(1)) == ["TurnUsed, and the end"]
    assert machine.count() == 0
    assert not machine.gate._shown
    assert not machine.gate._paid


def test_who_finds_the_backend_full_or_is_lost_before_keeps_his_turn() -> None:
    machine, ann, bob = Machine(capacity=1), peer(), peer()
    assert machine.say(ann, turn(1), NAME, MAIL) == [MORE, MORE, LET_IN]
    assert machine.say(bob, turn(2), NAME, MAIL) == [MORE, MORE, "Full"]
    machine.auth.disconnected(bob)
    machine.auth.disconnected(ann)
    assert machine.say(peer(), turn(2), NAME, MAIL) == [MORE, MORE, LET_IN]


def test_a_turn_that_ends_before_its_use_lets_nobody_in() -> None:
    machine, ann = Machine(), peer()
    assert machine.say(ann, turn(1), NAME) == [MORE, MORE]
    machine.now += 1000
    assert isinstance(machine.auth.handle(MAIL, 0.0, ann), Farewell)
    assert machine.count() == 0  # before the connection has ended


def write(path: Path, *known: keys.Signer) -> str:
    path.write_text("\n".join(key.verifier().line() for key in known))
    return str(path)


def with_turns(path: str, **options: Any) -> Process:
    """Return `run_server` with turns, as a process."""
    return Process(**{"name": "b1", "probe_mail": "probe@example.org", "turn_keys": path} | options)


CALLER = Caller("ann", "ann@example.org", 5.0)


async def enter(backend: Address, shown: str | None) -> str:
    """Log in and leave; return what came of it."""
    async with CALLER.login(backend, shown) as login:
        return LET_IN if isinstance(login, Login) else login.why


FOREVER = float(2**40)


async def test_it_closes_after_its_word_and_reads_new_keys_on_sighup(tmp_path: Path) -> None:
    old, new = keys.Signer.generate("old"), keys.Signer.generate("new")
    process = with_turns(write(tmp_path / "keys", old))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            await process.listening.wait()
            at = process.address
            assert await enter(at, None) == "TurnMissing"
            assert await enter(at, text(1, end=FOREVER, key=old)) == LET_IN
            assert await enter(at, text(1, end=FOREVER, key=old)) == "TurnUsed"
            assert await enter(at, text(1, end=FOREVER, key=new)) == "TurnForeign"
            (tmp_path / "keys").write_text("nonsense")
            signal.raise_signal(signal.SIGHUP)
            while not process.complaints:  # noqa: ASYNC110 - the line that says that the file is not right
                await trio.sleep(0.01)
            assert await enter(at, text(2, end=FOREVER, key=old)) == LET_IN
            write(tmp_path / "keys", old, new)
            signal.raise_signal(signal.SIGHUP)
            while await enter(at, text(3, end=FOREVER, key=new)) == "TurnForeign":  # noqa: ASYNC110 - until it is read
                await trio.sleep(0.01)
            assert await enter(at, text(3, end=FOREVER, key=new)) == "TurnUsed"
            assert await enter(at, text(1, end=FOREVER, key=old)) == "TurnUsed"
            async with await trio.open_tcp_stream(at.host, at.port) as stream:
                await stream.send_all(b"\x91\x83\xa6Object\xa4Auth\xa7Command\xa3Set\xa4Name\xa4Turn")
                assert b"TurnMissing" in b"".join([bytes(part) async for part in stream])
            signal.raise_signal(signal.SIGTERM)
    assert process.exit_code == 0
    assert len(process.complaints) == 1
    assert "nonsense" not in process.complaints[0]


async def test_without_a_name_it_is_the_backend_of_its_address(tmp_path: Path) -> None:
    process = with_turns(write(tmp_path / "keys", KEY), name="")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run)
            await process.listening.wait()
            shown = text(1, backend=str(process.address), end=FOREVER)
            assert await enter(process.address, shown) == LET_IN
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("lines", [None, "", "k1: public: short"])
async def test_keys_that_are_not_right_are_one_line_and_bad_usage(tmp_path: Path, lines: str | None) -> None:
    path = tmp_path / "keys"
    if lines is not None:
        path.write_text(lines)
    process = with_turns(str(path))
    await process.run()
    assert (process.exit_code, process.said) == (2, [])
    [complaint] = process.complaints
    assert complaint.startswith(f"lambdamu server: {path}")
