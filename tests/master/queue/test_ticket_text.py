"""The texts of tickets: what was written is read, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.keys import Signer
from master.queue.ticket_text import CHARACTERS, SignedPlace, TicketText, queue_hash, ticket_secrets

SECRET = bytes(range(32))
TICKETS = TicketText([SECRET])
PLACE = SignedPlace(7, queue_hash("default"), 2, 1_800_000_000_000_000, 1.8e9, bytes(16))
TEXT = TICKETS.write(PLACE)
PLACES = st.builds(
    SignedPlace,
    st.integers(0, 2**64 - 1),
    st.text(max_size=128).map(queue_hash),
    st.integers(0, 255),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(min_size=16, max_size=16),
)


@given(PLACES)
def test_what_is_written_is_read(place: SignedPlace) -> None:
    text = TICKETS.write(place)
    assert len(text) == CHARACTERS <= 200
    assert TicketText([SECRET]).read(text) == place


def test_one_flipped_bit_anywhere_counts_as_absent() -> None:
    data = from_base64url(TEXT) or b""
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        assert TICKETS.read(to_base64url(bytes(flipped))) is None


@given(st.integers(0, CHARACTERS - 1), st.characters())
def test_one_other_character_anywhere_counts_as_absent(at: int, char: str) -> None:
    text = TEXT[:at] + char + TEXT[at + 1 :]
    assert (TICKETS.read(text) is None) is (text != TEXT)


@given(st.text() | st.binary(min_size=66, max_size=66).map(to_base64url))
@example("")
@example("\ud800" * CHARACTERS)
@example("A" * CHARACTERS)
@example(TEXT + "=")
@example(" " + TEXT)
def test_any_other_text_counts_as_absent(text: str) -> None:
    assert TICKETS.read(text) is None


@pytest.mark.parametrize("body", [{"form": 2}, {"form": 0}])
def test_another_form_counts_as_absent_though_it_be_signed(body: dict[str, int], monkeypatch: Any) -> None:
    monkeypatch.setattr("master.queue.ticket_text._FORM", body["form"])
    text = TICKETS.write(PLACE)
    monkeypatch.undo()
    assert TICKETS.read(text) is None


def test_a_change_of_keys_leaves_everybody_his_place_until_the_old_key_is_taken_out() -> None:
    old, new = Signer.generate("old"), Signer.generate("new")
    before, during, after = (TicketText(ticket_secrets(keys)) for keys in ([old], [new, old], [new]))
    text = before.write(PLACE)
    assert [tickets.read(text) for tickets in (before, during, after)] == [PLACE, PLACE, None]
    assert after.read(during.write(PLACE)) == PLACE


def test_the_secret_is_the_same_after_a_restart_and_another_for_each_key() -> None:
    one, two = Signer.generate("k"), Signer.generate("k")
    assert ticket_secrets([one, two]) == ticket_secrets([one, two])
    assert len({*ticket_secrets([one, two]), one.secret_for(b"another purpose")}) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"number": -1},
        {"number": 2**64},
        {"lane": 256},
        {"lane": -1},
        {"queue": b""},
        {"client": b"a"},
        {"order": 2**63},
        {"joined": math.nan},
        {"joined": math.inf},
    ],
)
def test_a_place_that_cannot_be_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        attrs.evolve(PLACE, **change)


@pytest.mark.parametrize("secrets", [[], [b""], [SECRET, b"short"], [bytes(65)]])
def test_without_a_good_secret_there_are_no_tickets(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="secret"):
        TicketText(secrets)
