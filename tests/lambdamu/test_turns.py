"""Turns: one text for each, signed, for one backend, once and for a time; and nothing else is ever taken for one."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu import keys
from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.messages import Code
from lambdamu.turns import (
    CONTEXT,
    NOBODY,
    SKEW_S,
    Signer,
    Turn,
    TurnFault,
    UsedTurns,
    Verifier,
    backend_hash,
    client_hash,
    read_turn,
)
from master.answer_log import hash_of

KEY, OTHER = keys.Signer.generate("k1"), keys.Signer.generate("k1")
ANN = client_hash("ann")
NOW = 1_800_000_000
TEXT = Signer(KEY).sign(7, ANN, "b1", NOW + 60)
DATA = from_base64url(TEXT) or b""


def verifier(*known: keys.Verifier, backend: str = "b1", **more: Any) -> Verifier:
    return Verifier({key.id: key for key in known or (KEY.verifier(),)}, backend, **more)


def code(judged: Turn | TurnFault | None) -> str:
    """Return the word of the wire, "good" where there is none."""
    return judged.code.value if isinstance(judged, TurnFault) else "good"


def use(judges: Verifier, now: float, data: Any) -> str:
    """Check and spend, as a backend does, and return the word."""
    turn = judges.check(now, data)
    return code(turn) if isinstance(turn, TurnFault) else code(judges.spend(now, turn))


def signed(body: bytes, key: keys.Signer = KEY, context: bytes = CONTEXT) -> str:
    return to_base64url(body + key.sign(context + body))


@given(
    st.text("abcXYZ019-_", min_size=1, max_size=16),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.text(min_size=1, max_size=128),
    st.integers(NOW, 2**64 - 1),
)
def test_what_is_signed_is_what_is_read(key_id: str, number: int, client: bytes, backend: str, end: int) -> None:
    key = keys.Signer.generate(key_id)
    text = Signer(key).sign(number, client, backend, end)
    assert len(text) <= 200
    assert len(from_base64url(text) or b"") <= 128
    turn = Turn(key_id, number, client, backend_hash(backend), end)
    assert read_turn(text) == turn
    judges = verifier(key.verifier(), backend=backend)
    assert judges.check(NOW, text) == judges.check(NOW, text.encode()) == turn


def test_the_bytes_are_those_of_the_document() -> None:
    body = b"\1" + b"k1".ljust(16, b"\0") + (7).to_bytes(8, "big") + hashlib.blake2b(b"ann", digest_size=16).digest()
    body += hashlib.sha256(b"b1").digest()[:8] + (NOW + 60).to_bytes(8, "big")
    assert DATA[:57] == body
    line = KEY.verifier().line().rpartition(" ")[2]
    public = Ed25519PublicKey.from_public_bytes(from_base64url(line) or b"")
    public.verify(DATA[57:], b"lambdamu turn\0" + body)


def test_a_client_has_the_hash_that_the_master_shows() -> None:
    assert client_hash("ann").hex() == hash_of("ann")
    assert client_hash("") == NOBODY


@given(st.one_of(st.text(), st.text("abcAB019-_", min_size=162, max_size=162), st.binary(), st.integers(), st.none()))
@example(b"\xff" * 162)
@example("\ud800" * 162)
@example("é" * 162)
@example([TEXT])
@example({"Turn": TEXT})
@example(True)
@example(TEXT + "=")
@example(TEXT[:-2])
@example(to_base64url(DATA + b"\0\0\0"))
@example(to_base64url(DATA[:-1]))
def test_no_other_value_is_ever_taken_or_raises(data: Any) -> None:
    fault = verifier().check(NOW, data)
    assert isinstance(fault, TurnFault)
    assert fault.code is (Code.TURN_MISSING if data is None else Code.TURN_FOREIGN)
    assert "\n" not in fault.text


@given(st.binary(min_size=57, max_size=57))
@example(b"\2" + DATA[1:57])
@example(DATA[:1] + bytes(16) + DATA[17:57])
@example(DATA[:1] + b"k\0001".ljust(16, b"\0") + DATA[17:57])
@example(DATA[:1] + b"k 1".ljust(16, b"\0") + DATA[17:57])
def test_no_body_but_the_right_one_is_read_though_it_be_signed(body: bytes) -> None:
    assert verifier().check(NOW, signed(body)) == TurnFault(Code.TURN_FOREIGN, "this is no turn")


def test_one_flipped_bit_anywhere_is_refused_and_uses_nothing() -> None:
    judges = verifier()
    for at in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[at // 8] ^= 1 << at % 8
        assert use(judges, NOW, to_base64url(bytes(flipped))) in ("TurnForeign", "TurnExpired"), at
    assert len(judges.used) == 0
    assert use(judges, NOW, TEXT) == "good"


@given(st.integers(0, 161), st.characters())
def test_one_other_character_anywhere_is_refused(at: int, char: str) -> None:
    text = TEXT[:at] + char + TEXT[at + 1 :]
    assert (code(verifier().check(NOW, text)) == "good") is (text == TEXT)


def test_each_fault_has_its_code() -> None:
    body = DATA[:57]
    assert code(verifier(OTHER.verifier()).check(NOW, TEXT)) == "TurnForeign"
    assert code(verifier(keys.Signer.generate("k2").verifier()).check(NOW, TEXT)) == "TurnForeign"
    assert code(verifier(backend="b2").check(NOW, TEXT)) == "TurnForeign"
    assert code(verifier().check(NOW, signed(body, context=b"lambdamu pass\0"))) == "TurnForeign"
    assert code(verifier().check(NOW, signed(body))) == "good"
    assert use(verifier(), NOW, None) == "TurnMissing"


def test_a_turn_is_used_once_by_whomever_and_only_when_it_is_spent() -> None:
    judges = verifier()
    first, second = judges.check(NOW, TEXT), judges.check(NOW, TEXT)
    assert isinstance(first, Turn)
    assert isinstance(second, Turn)
    assert judges.spend(NOW, first) is None
    assert code(judges.spend(NOW, second)) == "TurnUsed"
    assert [use(judges, NOW + later, TEXT) for later in (0, 30, 60 + SKEW_S - 0.01)] == ["TurnUsed"] * 3
    assert use(judges, NOW, Signer(KEY).sign(8, ANN, "b1", NOW + 60)) == "good"


@pytest.mark.parametrize(("skew_s", "early"), [(SKEW_S, 0.001), (0, 0.001), (5.5, 0.001)])
def test_a_turn_ends_with_its_time_and_the_skew(skew_s: float, early: float) -> None:
    end = NOW + 60 + skew_s
    assert code(verifier(skew_s=skew_s).check(end - early, TEXT)) == "good"
    assert code(verifier(skew_s=skew_s).check(end, TEXT)) == "TurnExpired"
    assert code(verifier(skew_s=skew_s).check(NOW - 10**6, TEXT)) == "good"
    shown = verifier(skew_s=skew_s)
    turn = shown.check(end - early, TEXT)
    assert isinstance(turn, Turn)
    assert code(shown.spend(end, turn)) == "TurnExpired"


def test_what_has_ended_is_forgotten_and_a_clock_set_back_lets_nobody_in_again() -> None:
    judges = verifier()
    assert use(judges, NOW, TEXT) == "good"
    assert use(judges, NOW + 10**6, Signer(KEY).sign(8, ANN, "b1", NOW + 10**6)) == "good"
    assert len(judges.used) == 1
    assert use(judges, NOW, TEXT) == "TurnExpired"
    assert use(judges, NOW, Signer(KEY).sign(9, ANN, "b1", NOW + 61)) == "good"


def test_during_a_change_of_keys_the_old_and_the_new_are_taken_and_what_was_used_stays_so() -> None:
    old, new = keys.Signer.generate("old"), keys.Signer.generate("new")
    judges = verifier(old.verifier())
    texts = [Signer(key).sign(number, ANN, "b1", NOW) for number in (1, 2) for key in (old, new)]
    assert [use(judges, NOW, text) for text in texts[:2]] == ["good", "TurnForeign"]
    judges.renew({key.id: key.verifier() for key in (old, new)})
    assert [use(judges, NOW, text) for text in texts] == ["TurnUsed", "good", "good", "good"]
    judges.renew({"new": new.verifier()})
    assert [use(judges, NOW, text) for text in texts] == ["TurnForeign", "TurnUsed", "TurnForeign", "TurnUsed"]


def a_turn(number: int, expires: int, key_id: str = "k1") -> Turn:
    return Turn(key_id, number, NOBODY, backend_hash("b1"), expires)


def test_a_million_turns_are_remembered_in_bounded_room() -> None:
    used = UsedTurns(most=10_000)
    for number in range(1_000_000):
        used.add(a_turn(number, NOW + number // 1000))
    assert len(used) <= 10_000
    assert len(used) + used.crowded_out == 1_000_000
    assert 0.9 <= used.filled <= 1
    # Each key of a set and its slots, 32 bytes of the number among them: what is held is what is counted.
    assert sum(map(sys.getsizeof, used._used.values())) + 32 * len(used) < 10_000 * 150


def test_what_is_remembered_twice_takes_room_once() -> None:
    used = UsedTurns(most=10)
    for turn in (a_turn(1, NOW), a_turn(1, NOW), a_turn(1, NOW, "k2"), a_turn(1, NOW + 1)):
        used.add(turn)
    assert (len(used), used.filled, used.crowded_out) == (3, 0.3, 0)


def test_nobody_is_let_in_twice_for_want_of_room_and_who_was_called_last_is_let_in() -> None:
    used = UsedTurns(most=10)
    turns = [a_turn(number, NOW + number // 3) for number in range(60)]
    for turn in turns:
        assert used.fault(turn) is None
        used.add(turn)
    assert all(used.fault(turn) is not None for turn in turns)
    assert code(used.fault(turns[0])) == "TurnExpired"
    assert code(used.fault(turns[-1])) == "TurnUsed"
    assert code(used.fault(a_turn(99, NOW))) == "TurnExpired"
    assert used.fault(a_turn(99, NOW + 19)) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 8), st.sampled_from(["k1", "k2"]), st.integers(-5, 5), st.booleans()
        ),
        max_size=60,
    ),
    st.integers(1, 6),
)
def test_whatever_the_clock_and_the_room_no_turn_is_used_twice(
    steps: list[tuple[int, int, str, int, bool]], most: int
) -> None:
    used, spent, now = UsedTurns(most), set(), NOW
    for number, end, key_id, step_s, forget in steps:
        now += step_s
        if forget:
            used.forget_until(now)
        turn = a_turn(number, NOW + end, key_id)
        if used.fault(turn) is None:
            assert turn not in spent
            spent.add(turn)
            used.add(turn)
        assert len(used) <= most
        assert len(used) == sum(map(len, used._used.values()))
        assert len(used._ends) == len(used._used)


@pytest.mark.parametrize("values", [(-1, ANN, 1), (2**64, ANN, 1), (1, ANN, -1), (1, ANN, 2**64), (1, b"", 1)])
def test_a_turn_that_cannot_be_is_not_made(values: tuple[int, bytes, int]) -> None:
    number, client, end = values
    with pytest.raises(ValueError, match=r".+"):
        Signer(KEY).sign(number, client, "b1", end)


def test_a_key_is_not_shown() -> None:
    secret = KEY.line().rpartition(" ")[2]
    assert secret not in repr(Signer(KEY)) + repr(verifier())
