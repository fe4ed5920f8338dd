"""What an object answers to which message; and an answer that is owed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from lambdamu.errors import LocalProtocolError
from lambdamu.messages import Message
from lambdamu.objects import NOTHING, Later, LMObject, Peer, Reply

PEER = Peer("127.0.0.1", 5000)
ANSWER = [Message("Door", "Value", "State", "open")]


def replying(word: str) -> LMObject:
    """Return an object whose actions name themselves, the time and the peer that they were given."""

    def action(message: Message, now: float, peer: Peer) -> Reply:
        return [Message(word, message.command, message.name, [now, peer.port])]

    return LMObject("Door", settable={"Key": action}, gettable={"State": action}, events={"Open": action})


@pytest.mark.parametrize(("command", "name"), [("Set", "Key"), ("Get", "State"), ("Event", "Open")])
def test_a_message_finds_the_action_of_its_command_and_name(command: str, name: str) -> None:
    reply = replying("did").handle(Message("Door", command, name), 3.0, PEER)
    assert reply == [Message("did", command, name, [3.0, 5000])]


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        ("Get", "Nothing", "UnknownName"),
        ("Set", "", "UnknownName"),
        ("Event", "open", "UnknownName"),
        ("Get", "Open", "UnknownCommand"),
        ("Set", "State", "UnknownCommand"),
        ("Event", "Key", "UnknownCommand"),
        ("get", "State", "UnknownCommand"),
        ("", "State", "UnknownCommand"),
        ("Delete", "Nothing", "UnknownCommand"),
    ],
)
def test_what_an_object_does_not_know_gets_an_error_with_its_own_name(command: str, name: str, code: str) -> None:
    reply = replying("did").handle(Message("Door", command, name, "data"), 0.0, PEER)
    assert not isinstance(reply, Later)
    (answer,) = reply
    assert (answer.object, answer.command, answer.name, answer.data["Code"]) == ("Door", "Error", name, code)


@pytest.mark.parametrize("command", ["Value", "Error"])
@pytest.mark.parametrize("name", ["State", "Nothing"])
def test_a_value_or_an_error_gets_nothing(command: str, name: str) -> None:
    assert replying("did").handle(Message("Door", command, name), 0.0, PEER) == NOTHING


# Later


class Owed:
    """A Later, and all that was heard of it."""

    def __init__(self) -> None:
        self.heard: list[Sequence[Message]] = []
        self.cancelled = 0
        self.later = Later(cancelled=self._count)

    def _count(self) -> None:
        self.cancelled += 1

    def do(self, step: str) -> None:
        {
            "attach": lambda: self.later.attach(self.heard.append),
            "answer": lambda: self.later.answer(ANSWER),
            "cancel": self.later.cancel,
        }[step]()


@pytest.mark.parametrize("steps", list(itertools.permutations(["attach", "answer", "cancel"])), ids=" ".join)
def test_whoever_is_first_answer_or_cancel_decides_what_the_listener_and_the_debtor_hear(steps: Sequence[str]) -> None:
    owed = Owed()
    for step in steps:
        owed.do(step)
    answered_first = steps.index("answer") < steps.index("cancel")
    assert (owed.heard, owed.cancelled) == (([ANSWER], 0) if answered_first else ([], 1))


def test_the_debtor_learns_whether_anybody_waited() -> None:
    waited_for, given_up = Later(), Later()
    given_up.cancel()
    assert waited_for.answer(ANSWER)
    assert not given_up.answer(ANSWER)


@pytest.mark.parametrize("attached", [True, False])
def test_a_second_answer_is_a_bug_of_ours_and_is_not_heard(*, attached: bool) -> None:
    owed = Owed()
    if attached:
        owed.do("attach")
    owed.do("answer")
    with pytest.raises(LocalProtocolError):
        owed.do("answer")
    assert owed.heard == ([ANSWER] if attached else [])


def test_an_answer_of_no_messages_is_an_answer() -> None:
    owed = Owed()
    owed.do("attach")
    assert owed.later.answer(())
    owed.do("cancel")
    assert (owed.heard, owed.cancelled) == ([()], 0)
    with pytest.raises(LocalProtocolError):
        owed.do("answer")


def test_a_cancel_is_told_once() -> None:
    owed = Owed()
    owed.do("cancel")
    owed.do("cancel")
    assert owed.cancelled == 1


def test_a_debtor_that_answers_while_it_is_told_of_the_cancel_is_not_heard() -> None:
    heard: list[Sequence[Message]] = []
    later = Later(cancelled=lambda: later.answer(ANSWER) and None)
    later.attach(heard.append)
    later.cancel()
    assert heard == []


def test_a_half_close_keeps_the_answer_unless_it_was_said_to_give_it_up() -> None:
    assert not Later().fin_cancels
    assert Later(fin_cancels=True).fin_cancels


# Peer


@pytest.mark.parametrize(
    ("host", "shown", "family"),
    [
        ("127.0.0.1", "127.0.0.1", 4),
        ("::1", "::1", 6),
        ("::ffff:192.0.2.7", "192.0.2.7", 4),
        ("::ffff:c000:207", "192.0.2.7", 4),
        ("::ffff:0:192.0.2.7", "::ffff:0:192.0.2.7", 6),
        ("2001:db8::ffff:1", "2001:db8::ffff:1", 6),
    ],
)
def test_a_mapped_address_is_the_ipv4_one(host: str, shown: str, family: int) -> None:
    peer = Peer.from_address(host, 1)
    assert (peer.host, peer.family) == (shown, family)


def test_two_connections_from_one_address_are_two_peers() -> None:
    assert len({Peer("127.0.0.1", 1), Peer("127.0.0.1", 1)}) == 2
