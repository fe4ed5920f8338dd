"""DataPack under every cut, limit and malformed byte."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdamu.datapack import DEFAULT_LIMITS, Decoder, WireLimits, dump, encode
from lambdamu.errors import LocalProtocolError, RemoteProtocolError
from lambdamu.messages import Batch, Message
from lambdamu.testing import at_random, every_byte

PURE_PYTHON = bool(os.environ.get("MSGPACK_PUREPYTHON"))
ASK = Message("Master", "Event", "DoSendServer")
ASK_BYTES = encode([ASK])
WIDE = WireLimits(batch_bytes=1 << 20, batch_messages=1 << 16, nesting=64)


def decode(pieces: Iterable[bytes], limits: WireLimits = DEFAULT_LIMITS) -> tuple[list[Batch], str | None]:
    """Return every batch, and the code of the fault that ended the stream."""
    decoder = Decoder(limits)
    batches: list[Batch] = []
    for piece in pieces:
        try:
            for batch in decoder.feed(piece):
                batches.append(batch)  # noqa: PERF402 - a fault must not lose the batches before it
        except RemoteProtocolError as exc:
            return batches, exc.code
    return batches, None


def message_with(data: bytes) -> bytes:
    """Return a batch of one message whose Data has the encoded value `data`."""
    return b"\x91\x84" + message_fields() + b"\xa4Data" + data


def named(name: str) -> bytes:
    return encode([Message("o", "Set", name)])


def message_fields(name: bytes = b"\xa1n") -> bytes:
    return b"\xa6Object\xa1o\xa7Command\xa3Set\xa4Name" + name


def test_the_library_is_the_build_that_was_asked_for() -> None:
    assert msgpack.Unpacker.__module__ == ("msgpack.fallback" if PURE_PYTHON else "msgpack._cmsgpack")


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
    | st.builds(msgpack.Timestamp, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9 - 1))
)
keys = st.text(max_size=5) | st.integers(-5, 300) | st.none() | st.binary(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(keys, inner, max_size=20), max_leaves=60
)
names = st.text(max_size=12)
batches_bytes = st.lists(st.builds(Message, names, names, names, values), max_size=5).map(
    lambda batch: msgpack.packb([message.to_wire() for message in batch])
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Batches one after the other, often with some bytes changed, cut out or put in."""
    stream = bytearray(b"".join(draw(st.lists(batches_bytes, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(stream)))
        stream[start : start + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(stream)


@settings(deadline=None)
@given(streams() | st.binary(max_size=60), st.randoms(use_true_random=False), st.sampled_from([WIDE, DEFAULT_LIMITS]))
def test_any_cut_of_a_stream_gives_the_same_batches_and_the_same_fault(
    stream: bytes, rng: random.Random, limits: WireLimits
) -> None:
    whole = repr(decode([stream], limits))  # repr: a changed byte may make a NaN, which does not equal itself
    assert repr(decode(every_byte(stream), limits)) == whole
    assert repr(decode(at_random(rng)(stream), limits)) == whole


@settings(deadline=None)
@given(values)
def test_a_value_is_whole_at_its_last_byte_and_not_before(value: Any) -> None:
    packed = msgpack.packb(value)
    assert decode([packed[:-1]], WIDE) == ([], None)
    # Whole, and an empty batch or none at all.
    assert decode([packed[:-1], packed[-1:]], WIDE) in [([[]], None), ([], "BadMessage")]


def test_every_first_byte_has_the_length_that_the_library_knows() -> None:
    for head in set(range(256)) - {0xC1}:
        library = msgpack.Unpacker(strict_map_key=False)
        library.feed(bytes([head]) + bytes(31))
        data, end = library.unpack(), library.tell()
        stream = message_with(bytes([head]) + bytes(end - 1)) + ASK_BYTES
        assert decode([stream]) == ([[Message("o", "Set", "n", data)], [ASK]], None)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6))
def test_batches_end_where_the_library_says_that_they_end(data: list[Any]) -> None:
    stream = b"".join(msgpack.packb([Message("o", "Set", "n", value).to_wire()]) for value in data)
    library = msgpack.Unpacker(strict_map_key=False)
    library.feed(stream)
    expected = [[Message("o", "Set", "n", batch[0].get("Data"))] for batch in library]
    assert decode([stream], WIDE) == (expected, None)


def test_thirty_asks_in_one_write_are_thirty_batches() -> None:
    assert decode([ASK_BYTES * 30]) == ([[ASK]] * 30, None)


def test_an_ask_and_a_part_of_the_next_are_one_batch_until_the_rest_comes() -> None:
    for cut in range(1, len(ASK_BYTES)):
        decoder = Decoder()
        assert list(decoder.feed(ASK_BYTES + ASK_BYTES[:cut])) == [[ASK]]
        assert decoder.pending
        assert list(decoder.feed(ASK_BYTES[cut:])) == [[ASK]]
        assert not decoder.pending


def nested(depth: int, *, maps: bool) -> bytes:
    """Return a batch whose innermost container is the `depth`th: the batch is the first, its message the second."""
    return message_with((b"\x81\xa1k" if maps else b"\x91") * (depth - 2) + b"\xc0")


def batch_of_bytes(size: int) -> bytes:
    head = message_with(b"\xda")
    return head + (size - len(head) - 2).to_bytes(2, "big") + b"x" * (size - len(head) - 2)


@pytest.mark.parametrize(
    ("at_the_limit", "above"),
    [
        pytest.param(batch_of_bytes(65536), batch_of_bytes(65537), id="bytes of a batch"),
        pytest.param(encode([ASK] * 64), encode([ASK] * 65), id="messages of a batch"),
        pytest.param(*(msgpack.packb(dict.fromkeys(range(1, n), ASK.to_wire())) for n in (65, 66)), id="as a map"),
        pytest.param(nested(16, maps=False), nested(17, maps=False), id="nested arrays"),
        pytest.param(nested(16, maps=True), nested(17, maps=True), id="nested maps"),
        pytest.param(named("n" * 256), named("n" * 257), id="bytes of a name"),
        pytest.param(named("\u0436" * 128), named("\u0436" * 128 + "n"), id="two-byte characters of a name"),
        pytest.param(named("\U0001f600" * 64), named("\U0001f600" * 64 + "n"), id="four-byte characters of a name"),
    ],
)
@pytest.mark.parametrize("cut", [lambda data: [data], every_byte], ids=["whole", "every byte"])
def test_what_is_at_a_limit_passes_and_one_above_is_refused(at_the_limit: bytes, above: bytes, cut: Any) -> None:
    batches, fault = decode(cut(at_the_limit))
    assert (len(batches), fault) == (1, None)
    assert decode(cut(above)) == ([], "Limit")


@contextmanager
def hardly_any_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 32768
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", ["ffffffff", "40000000", "00010000"], ids=["4 GiB", "1 GiB", "64 KiB"])
@pytest.mark.parametrize("head", ["c6", "db", "c9", "dd", "df"])
@pytest.mark.parametrize("place", [b"", b"\x91", message_with(b"")], ids=["a batch", "a message", "Data"])
def test_an_announced_length_that_cannot_fit_is_refused_at_once_and_reserves_nothing(
    place: bytes, head: str, size: str
) -> None:
    with hardly_any_memory():
        assert decode([place + bytes.fromhex(head + size)]) == ([], "Limit")


@pytest.mark.parametrize("head", [b"\xdc\xea\x60", b"\xdd\x00\x00\xea\x60"], ids=["array16", "array32"])
def test_nested_arrays_that_announce_what_would_fit_reserve_nothing_while_it_does_not_come(head: bytes) -> None:
    with hardly_any_memory():
        assert decode([b"\x91" + head * 15]) == ([], None)


NOT_UTF8 = {"ff fe fd": b"\xff\xfe\xfd", "lone surrogate": b"\xed\xa0\x80", "cut character": b"\xd0"}
REFUSED = {
    "c1": (b"\xc1", "NotMessagePack"),
    "c1 in a batch": (b"\x91\xc1", "NotMessagePack"),
    "c1 in Data": (message_with(b"\xc1"), "NotMessagePack"),
    "array key": (message_with(b"\x81\x90\xc0"), "NotMessagePack"),
    "map key": (message_with(b"\x81\x80\xc0"), "NotMessagePack"),
    "timestamp of 3 bytes": (message_with(b"\xc7\x03\xff\x00\x00\x00"), "NotMessagePack"),
    "timestamp with too many nanoseconds": (message_with(b"\xd7\xff" + b"\xff" * 8), "NotMessagePack"),
    "empty timestamp": (message_with(b"\xc7\x00\xff"), "NotMessagePack"),
    "number": (b"\x05", "BadMessage"),
    "a map that is a message": (b"\x83" + message_fields(), "BadMessage"),
    "array of a number": (b"\x91\x01", "BadMessage"),
    "message without Name": (b"\x91\x82\xa6Object\xa1o\xa7Command\xa3Set", "BadMessage"),
    "empty message": (b"\x91\x80", "BadMessage"),
    "Name is nil": (b"\x91\x83" + message_fields(b"\xc0"), "BadMessage"),
    "Name is a number": (b"\x91\x83" + message_fields(b"\x07"), "BadMessage"),
    **{
        f"{kind} in {head} name": (b"\x91\x83" + message_fields(prefix + bytes([len(text)]) + text), "NotMessagePack")
        for kind, text in NOT_UTF8.items()
        for head, prefix in {"str": b"\xd9", "bin": b"\xc4"}.items()
    },
    **{
        f"{kind} in a text of Data": (message_with(bytes([0xA0 + len(text)]) + text), "NotMessagePack")
        for kind, text in NOT_UTF8.items()
    },
}


@pytest.mark.parametrize(("stream", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_lets_out_what_came_before_it_and_nothing_ever_after(stream: bytes, code: str) -> None:
    assert decode([ASK_BYTES + stream + ASK_BYTES]) == ([[ASK]], code)
    decoder = Decoder()
    for data in (stream, ASK_BYTES, b"", ASK_BYTES):
        with pytest.raises(RemoteProtocolError, match=code):
            list(decoder.feed(data))


ACCEPTED: dict[str, tuple[bytes, Message]] = {
    "names as bin": (
        b"\x91\x83\xc4\x06Object\xc4\x01o\xc4\x07Command\xc4\x03Set\xc4\x04Name\xc4\x02\xd0\xb6",
        Message("o", "Set", "\u0436"),
    ),
    "NUL in a name": (b"\x91\x83" + message_fields(b"\xa3a\x00b"), Message("o", "Set", "a\x00b")),
    "empty name": (b"\x91\x83" + message_fields(b"\xa0"), Message("o", "Set", "")),
    "a batch as a map": (b"\x81\x01\x83" + message_fields(), Message("o", "Set", "n")),
    "Data nil": (message_with(b"\xc0"), Message("o", "Set", "n")),
    "an unknown key": (b"\x91\x84" + message_fields() + b"\xa1x\x01", Message("o", "Set", "n")),
    "an int key": (b"\x91\x84" + message_fields() + b"\x01\x01", Message("o", "Set", "n")),
    "a nil key": (b"\x91\x84" + message_fields() + b"\xc0\x01", Message("o", "Set", "n")),
    "a key twice": (b"\x91\x84" + message_fields() + b"\xa4Name\xa1m", Message("o", "Set", "m")),
    "bytes as Data": (message_with(b"\xc4\x02\xff\xfe"), Message("o", "Set", "n", b"\xff\xfe")),
    "ext as Data": (message_with(b"\xd4\x05\x01"), Message("o", "Set", "n", msgpack.ExtType(5, b"\x01"))),
    "timestamp as Data": (message_with(b"\xd6\xff\x00\x00\x00\x01"), Message("o", "Set", "n", msgpack.Timestamp(1, 0))),
}


@pytest.mark.parametrize(("stream", "message"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_foreign_peers_send_is_accepted(stream: bytes, message: Message) -> None:
    assert decode([stream + ASK_BYTES]) == ([[message], [ASK]], None)
    assert decode(every_byte(stream)) == ([[message]], None)


def test_an_empty_array_and_an_empty_map_are_batches_of_nothing() -> None:
    assert decode([b"\x90\x80"]) == ([[], []], None)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("data", [{1}, object, 2**64, -(2**63) - 1, "\ud800", CIRCLE], ids=ascii)
def test_what_cannot_be_packed_is_a_bug_of_ours(data: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode([Message("o", "Set", "n", data)])


@pytest.mark.parametrize(
    ("data", "packed"),
    [("x" * 31, b"\xbf"), ("x" * 32, b"\xda\x00\x20"), (b"x", b"\xa1x"), (b"x" * 200, b"\xda\x00\xc8")],
)
def test_texts_and_bytes_go_out_as_old_decoders_know_them(data: str | bytes, packed: bytes) -> None:
    assert encode([Message("o", "Set", "n", data)]).startswith(message_with(packed))


@pytest.mark.parametrize("value", ["x\n\x1b[0m", b"\xff" * 500, "\ud800", ["x" * 70, "y" * 70]])
def test_a_dump_is_short_printable_and_one_line(value: Any) -> None:
    text = dump(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 80


@pytest.mark.skipif(PURE_PYTHON, reason="this is that run")
def test_the_library_without_its_compiled_part_decodes_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "MSGPACK_PUREPYTHON": "1", "PYTEST_ADDOPTS": "", "HYPOTHESIS_PROFILE": "again"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
