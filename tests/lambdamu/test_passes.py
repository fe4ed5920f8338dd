"""Passes: one text for each, signed and for a time; and nothing else is ever taken for one."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.keys import Signer, Verifier
from lambdamu.passes import CONTEXT, SKEW_S, Pass, PassFault, PassVerifier, make_pass, read_pass

KEY, OTHER = Signer.generate("k1"), Signer.generate("k1")
NOW = 1_800_000_000
ANN = Pass("p1", "ann", ("access",), NOW + 60)
TEXT = make_pass(KEY, ANN)

IDS = st.text("abcXYZ019-_", min_size=1, max_size=32)
PRINTABLE = st.characters(exclude_categories=("C", "Z"))
SUBJECTS = st.text(PRINTABLE, min_size=1, max_size=128).filter(
    lambda text: text.isprintable() and len(text.encode()) <= 128
)
RIGHTS = st.sets(st.sampled_from(["access", "vip", "a", "later_1"]), min_size=1).map(lambda words: tuple(sorted(words)))
PASSES = st.builds(Pass, IDS, SUBJECTS, RIGHTS, st.integers(NOW, 2**53 - 1))


def verifier(*keys: Verifier, revoked: frozenset[str] = frozenset(), cached: int = 8192) -> PassVerifier:
    return PassVerifier({key.id: key for key in keys or (KEY.verifier(),)}, revoked, cached)


def signed(body: bytes, key: Signer = KEY, context: bytes = CONTEXT) -> str:
    return to_base64url(body + key.sign(context + body))


@given(PASSES)
def test_what_is_signed_is_what_is_read(says: Pass) -> None:
    text = make_pass(KEY, says)
    assert len(text) <= 512
    read = read_pass(text)
    assert read is not None
    assert (read.says, read.key_id) == (says, "k1")
    assert verifier().judge(NOW, text, says.rights[0]) == says


@given(st.one_of(st.text(), st.text("abcdefABCDEF0189-_"), st.binary(max_size=384).map(to_base64url)))
@example("")
@example("=" * 100)
@example("é" * 100)
@example("A" * 513)
@example("\ud800")
def test_no_other_text_is_ever_taken_or_raises(text: str) -> None:
    assert isinstance(verifier().judge(NOW, text), PassFault)


@given(st.binary(max_size=300))
@example(msgpack.packb([1, "k1", "p1", "ann", ["access"], NOW]) + b"\0")
@example(b"\x91" * 300)
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
def test_no_body_but_the_right_one_is_read_though_it_be_signed(body: bytes) -> None:
    assert verifier().judge(NOW, signed(body)) is PassFault.MALFORMED


BODY = [1, "k1", "p1", "ann", ["access"], NOW + 60]


@pytest.mark.parametrize(
    "body",
    [
        [2, *BODY[1:]],
        [True, *BODY[1:]],
        [1.0, *BODY[1:]],
        [*BODY, 0],
        BODY[:-1],
        dict.fromkeys(map(str, range(6))),
        [*BODY[:1], b"k1", *BODY[2:]],
        [*BODY[:1], "k 1", *BODY[2:]],
        [*BODY[:2], "", *BODY[3:]],
        [*BODY[:2], "p" * 33, *BODY[3:]],
        [*BODY[:3], "", *BODY[4:]],
        [*BODY[:3], "a\nb", *BODY[4:]],
        [*BODY[:3], "\u202e", *BODY[4:]],
        [*BODY[:3], "é" * 65, *BODY[4:]],
        [*BODY[:4], [], NOW],
        [*BODY[:4], "access", NOW],
        [*BODY[:4], ["access", "access"], NOW],
        [*BODY[:4], ["vip", "access"], NOW],
        [*BODY[:4], ["Access"], NOW],
        [*BODY[:4], [b"access"], NOW],
        [*BODY[:4], {"access": 1}, NOW],
        [*BODY[:4], list("abcdefghi"), NOW],
        [*BODY[:5], -1],
        [*BODY[:5], 2**53],
        [*BODY[:5], float(NOW)],
        [*BODY[:5], True],
        [*BODY[:5], None],
        [*BODY[:5], str(NOW)],
    ],
)
def test_a_body_of_another_form_is_malformed(body: object) -> None:
    assert verifier().judge(0, signed(msgpack.packb(body))) is PassFault.MALFORMED
    assert isinstance(verifier().judge(NOW, signed(msgpack.packb(BODY))), Pass)


def test_a_number_or_text_that_could_be_shorter_is_malformed() -> None:
    packed = msgpack.packb(BODY)
    assert packed.startswith(b"\x96\x01")
    for other in (b"\x96\xcc\x01" + packed[2:], b"\xdc\x00\x06" + packed[1:], packed.replace(b"\xa2p1", b"\xd9\x02p1")):
        assert msgpack.unpackb(other) == BODY
        assert verifier().judge(NOW, signed(other)) is PassFault.MALFORMED


def test_one_flipped_bit_anywhere_is_refused() -> None:
    data = from_base64url(TEXT) or b""
    judges = verifier()
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        assert isinstance(judges.judge(NOW, to_base64url(bytes(flipped))), PassFault)


def test_every_other_spelling_of_the_text_is_refused() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    others = [TEXT[:-1] + char for char in alphabet if char != TEXT[-1]]
    for text in (*others, TEXT + "=", TEXT + "A", f" {TEXT}", f"{TEXT}\n", TEXT[:-1]):
        assert isinstance(verifier().judge(NOW, text), PassFault)
    assert verifier().judge(NOW, TEXT) == ANN


def test_each_fault_has_its_word() -> None:
    judge = verifier().judge
    assert judge(NOW, make_pass(Signer.generate("k2"), ANN)) is PassFault.UNKNOWN_KEY
    assert judge(NOW, make_pass(OTHER, ANN)) is PassFault.BAD_SIGNATURE
    assert judge(NOW, signed(msgpack.packb(BODY), context=b"lambdamu turn\0")) is PassFault.BAD_SIGNATURE
    assert judge(NOW, make_pass(KEY, Pass("p1", "ann", ("vip",), NOW))) is PassFault.NO_RIGHT
    assert verifier(revoked=frozenset({"p1"})).judge(NOW, TEXT) is PassFault.REVOKED
    assert verifier(revoked=frozenset({"ann"})).judge(NOW, TEXT) is PassFault.REVOKED
    assert judge(NOW, TEXT, "vip") is PassFault.NO_RIGHT


def test_a_pass_ends_with_its_time_and_the_skew_though_it_was_verified_before() -> None:
    judges = verifier()
    ends = ANN.expires + SKEW_S
    assert judges.judge(ends - 0.001, TEXT) == ANN
    assert judges.judge(ends, TEXT) is PassFault.EXPIRED
    assert judges.judge(ends, TEXT) is PassFault.EXPIRED
    assert judges.cached == 0


def test_during_a_change_of_keys_the_old_and_the_new_are_taken_and_then_the_new_alone() -> None:
    old, new = Signer.generate("old"), Signer.generate("new")
    texts = [make_pass(key, ANN) for key in (old, new)]
    both = verifier(old.verifier(), new.verifier())
    assert [both.judge(NOW, text) for text in texts] == [ANN, ANN]
    assert [verifier(new.verifier()).judge(NOW, text) for text in texts] == [PassFault.UNKNOWN_KEY, ANN]


def test_what_was_verified_is_kept_and_nothing_else_and_the_room_is_bounded() -> None:
    judges = verifier(cached=3)
    for text in ("", "rubbish", make_pass(OTHER, ANN), make_pass(Signer.generate("k2"), ANN)):
        judges.judge(NOW, text)
    assert judges.cached == 0
    texts = [make_pass(KEY, Pass(f"p{i}", "ann", ("access",), NOW)) for i in range(5)]
    for text in texts:
        judges.judge(NOW, text)
    assert judges.cached == 1
    assert all(isinstance(judges.judge(NOW, text), Pass) for text in texts)


def test_a_verified_text_is_not_verified_again() -> None:
    calls = []

    class Counting:
        id = "k1"

        def verify(self, signature: bytes, data: bytes) -> bool:
            calls.append(data)
            return True

    judges = PassVerifier({"k1": Counting()})  # type: ignore[dict-item]
    assert [judges.judge(NOW, TEXT) for _ in range(3)] == [ANN] * 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    "values",
    [
        ("", "ann", ("access",), 1),
        ("p", "", ("access",), 1),
        ("p", "ann", (), 1),
        ("p", "ann", ("b", "a"), 1),
        ("p", "a", ("b",), -1),
    ],
)
def test_a_pass_that_cannot_be_is_not_made(values: tuple[str, str, tuple[str, ...], int]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Pass(*values)


def test_a_pass_that_would_not_fit_on_the_wire_is_not_made() -> None:
    rights = tuple(sorted(f"{i}{'a' * 31}" for i in range(8)))
    with pytest.raises(ValueError, match="at most 512 characters"):
        make_pass(KEY, Pass("p" * 32, "a" * 128, rights, NOW))
