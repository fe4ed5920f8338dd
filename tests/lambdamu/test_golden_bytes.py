"""The bytes of every fixed message, as they stand on the wire of clients and backends that nobody will rewrite.

The file is long because the bytes are written out.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.datapack import Decoder, encode
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Batch, Message, as_count, as_map, as_text, fatal_error

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

EXCHANGES = {
    "client asks where to go": (
        [Message("Master", "Event", "DoSendServer")],
        """91 83 a6 4f626a656374 a6 4d6173746572
                 a7 436f6d6d616e64 a5 4576656e74
                 a4 4e616d65 ac 446f53656e64536572766572""",
    ),
    "master names a backend": (
        [Message("Master", "Value", "Server", {"Result": "OK", "Data": {"IP": "203.0.113.7", "Port": 9001}})],
        """91 84 a6 4f626a656374 a6 4d6173746572
                 a7 436f6d6d616e64 a5 56616c7565
                 a4 4e616d65 a6 536572766572
                 a4 44617461 82 a6 526573756c74 a2 4f4b
                                a4 44617461 82 a2 4950 ab 3230332e302e3131332e37
                                               a4 506f7274 cd 2329""",
    ),
    "master has no backend": (
        [Message("Master", "Value", "Server", {"Result": "NoServer", "Data": {"RetryAfter": 2.5}})],
        """91 84 a6 4f626a656374 a6 4d6173746572
                 a7 436f6d6d616e64 a5 56616c7565
                 a4 4e616d65 a6 536572766572
                 a4 44617461 82 a6 526573756c74 a8 4e6f536572766572
                                a4 44617461 81 aa 52657472794166746572 cb 4004000000000000""",
    ),
    "master authenticates at a backend": (
        [
            Message("Auth", "Set", "UserName", "lambdamu-master"),
            Message("Auth", "Set", "UserMail", "master@localhost"),
        ],
        """92 84 a6 4f626a656374 a4 41757468
                 a7 436f6d6d616e64 a3 536574
                 a4 4e616d65 a8 557365724e616d65
                 a4 44617461 af 6c616d6264616d752d6d6173746572
              84 a6 4f626a656374 a4 41757468
                 a7 436f6d6d616e64 a3 536574
                 a4 4e616d65 a8 557365724d61696c
                 a4 44617461 b0 6d6173746572406c6f63616c686f7374""",
    ),
    "backend names the Task object": (
        [Message("Auth", "Value", "TaskObject", "Task.1")],
        """91 84 a6 4f626a656374 a4 41757468
                 a7 436f6d6d616e64 a5 56616c7565
                 a4 4e616d65 aa 5461736b4f626a656374
                 a4 44617461 a6 5461736b2e31""",
    ),
    "master asks for the count": (
        [Message("System", "Get", "UserCount")],
        """91 83 a6 4f626a656374 a6 53797374656d
                 a7 436f6d6d616e64 a3 476574
                 a4 4e616d65 a9 55736572436f756e74""",
    ),
    "backend counts nobody": (
        [Message("System", "Value", "UserCount", 0)],
        """91 84 a6 4f626a656374 a6 53797374656d
                 a7 436f6d6d616e64 a5 56616c7565
                 a4 4e616d65 a9 55736572436f756e74
                 a4 44617461 00""",
    ),
    "backend counts the most there can be": (
        [Message("System", "Value", "UserCount", 2**53 - 1)],
        """91 84 a6 4f626a656374 a6 53797374656d
                 a7 436f6d6d616e64 a5 56616c7565
                 a4 4e616d65 a9 55736572436f756e74
                 a4 44617461 cf 001fffffffffffff""",
    ),
}

ASK = [Message("Master", "Event", "DoSendServer")]

FOREIGN_SPELLINGS = {
    "array as a map with the key 1": (
        """81 01 83 a6 4f626a656374 a6 4d6173746572
                    a7 436f6d6d616e64 a5 4576656e74
                    a4 4e616d65 ac 446f53656e64536572766572""",
        ASK,
    ),
    "keys and texts as bin": (
        """91 83 c406 4f626a656374 c406 4d6173746572
                 c407 436f6d6d616e64 c405 4576656e74
                 c404 4e616d65 c40c 446f53656e64536572766572""",
        ASK,
    ),
    "texts as str8 and as raw16, though they are short": (
        """91 83 d906 4f626a656374 d906 4d6173746572
                 da0007 436f6d6d616e64 da0005 4576656e74
                 db00000004 4e616d65 ac 446f53656e64536572766572""",
        ASK,
    ),
    "long headers for the array and the map": (
        """dc0001 de0003 a6 4f626a656374 a6 4d6173746572
                         a7 436f6d6d616e64 a5 4576656e74
                         a4 4e616d65 ac 446f53656e64536572766572""",
        ASK,
    ),
    "keys in another order, and one that nobody knows": (
        """91 84 a4 4e616d65 ac 446f53656e64536572766572
                 a5 4578747261 c3
                 a7 436f6d6d616e64 a5 4576656e74
                 a6 4f626a656374 a6 4d6173746572""",
        ASK,
    ),
    "nil as Data": (
        """91 84 a6 4f626a656374 a6 4d6173746572
                 a7 436f6d6d616e64 a5 4576656e74
                 a4 4e616d65 ac 446f53656e64536572766572
                 a4 44617461 c0""",
        ASK,
    ),
    "two messages in a map whose keys are out of order": (
        """82 02 84 a6 4f626a656374 a4 41757468
                    a7 436f6d6d616e64 a3 536574
                    a4 4e616d65 a8 557365724d61696c
                    a4 44617461 a3 614062
              01 84 a6 4f626a656374 a4 41757468
                    a7 436f6d6d616e64 a3 536574
                    a4 4e616d65 a8 557365724e616d65
                    a4 44617461 a1 61""",
        [Message("Auth", "Set", "UserName", "a"), Message("Auth", "Set", "UserMail", "a@b")],
    ),
    "all of it at once, and an empty array as Data": (
        """81 01 84 c406 4f626a656374 c406 4d6173746572
                    c407 436f6d6d616e64 c405 4576656e74
                    c404 4e616d65 c40c 446f53656e64536572766572
                    c404 44617461 90""",
        [Message("Master", "Event", "DoSendServer", [])],
    ),
}


def decode(data: bytes) -> list[Batch]:
    decoder = Decoder()
    batches = list(decoder.feed(data))
    assert not decoder.pending
    return batches


@pytest.mark.parametrize(("batch", "golden"), EXCHANGES.values(), ids=EXCHANGES)
def test_a_fixed_message_is_written_as_ever(batch: Batch, golden: str) -> None:
    assert encode(batch) == bytes.fromhex(golden)


@pytest.mark.parametrize(("batch", "golden"), EXCHANGES.values(), ids=EXCHANGES)
def test_a_fixed_message_is_read_as_ever(batch: Batch, golden: str) -> None:
    assert decode(bytes.fromhex(golden)) == [batch]


@pytest.mark.parametrize("name", ["backend counts nobody", "backend counts the most there can be"])
def test_a_golden_count_is_taken_for_a_count(name: str) -> None:
    [sent], golden = EXCHANGES[name]
    [[message]] = decode(bytes.fromhex(golden))
    assert as_count(message.data) == sent.data


@pytest.mark.parametrize(("spelling", "batch"), FOREIGN_SPELLINGS.values(), ids=FOREIGN_SPELLINGS)
def test_other_spellings_mean_the_same(spelling: str, batch: Batch) -> None:
    assert decode(bytes.fromhex(spelling)) == [batch]


def test_an_empty_array_is_an_empty_map_where_a_map_is_meant() -> None:
    spelling, _ = FOREIGN_SPELLINGS["all of it at once, and an empty array as Data"]
    [[message]] = decode(bytes.fromhex(spelling))
    assert as_map(message.data) == {}


def test_texts_in_data_may_be_bin() -> None:
    user_name = """91 84 a6 4f626a656374 a4 41757468
                         a7 436f6d6d616e64 a3 536574
                         a4 4e616d65 a8 557365724e616d65
                         a4 44617461 c404 616e6e61"""
    [[message]] = decode(bytes.fromhex(user_name))
    assert as_text(message.data) == "anna"


OLD_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
OLD_NUMBERS = dict(enumerate([">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"], 0xCA))
OLD_LENGTHS = dict(enumerate([("raw", 2), ("raw", 4), ("array", 2), ("array", 4), ("map", 2), ("map", 4)], 0xDA))


class OldDecoder:
    """Reads values as a decoder of 2012 did: it knows one kind of raw bytes, and no str8, bin or ext."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        head = self.take(1)
        (code,) = head
        if code <= 0x7F or code >= 0xE0:
            return int.from_bytes(head, "big", signed=True)
        if code in OLD_CONSTANTS:
            return OLD_CONSTANTS[code]
        if code in OLD_NUMBERS:
            (number,) = struct.unpack(OLD_NUMBERS[code], self.take(struct.calcsize(OLD_NUMBERS[code])))
            return number
        kind, length = self.kind_and_length(code)
        return {"raw": self.take, "array": self.array, "map": self.map}[kind](length)

    def kind_and_length(self, code: int) -> tuple[str, int]:
        if code <= 0x9F:
            return ("map" if code <= 0x8F else "array"), code & 0x0F
        if code <= 0xBF:
            return "raw", code & 0x1F
        assert code in OLD_LENGTHS, f"an old decoder does not know {code:02x}"
        kind, length_bytes = OLD_LENGTHS[code]
        return kind, int.from_bytes(self.take(length_bytes), "big")

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        assert len(taken) == size
        self.at += size
        return taken

    def array(self, length: int) -> list[Any]:
        return [self.value() for _ in range(length)]

    def map(self, length: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(length)}


def as_old(value: Any) -> Any:
    """Return a value as an old decoder gives it: every text as its bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_old(item) for item in value]
    if isinstance(value, dict):
        return {as_old(key): as_old(item) for key, item in value.items()}
    return value


def read_by_old_decoder(data: bytes) -> Any:
    decoder = OldDecoder(data)
    value = decoder.value()
    assert decoder.at == len(data)
    return value


data_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=20,
)


@given(st.lists(st.builds(Message, st.text(max_size=60), st.text(max_size=60), st.text(max_size=60), data_values)))
def test_old_decoders_read_all_that_is_written(batch: Batch) -> None:
    assert read_by_old_decoder(encode(batch)) == as_old([message.to_wire() for message in batch])


@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 65535, 65536])
@pytest.mark.parametrize("letter", ["x", b"x"], ids=["text", "bytes"])
def test_old_decoders_read_texts_of_every_length(letter: str | bytes, length: int) -> None:
    [message] = read_by_old_decoder(encode([Message("Auth", "Set", "UserName", letter * length)]))
    assert message[b"Data"] == b"x" * length


# A batch in docs/protocol.md stands as JSON, and its bytes follow: `hex` as it is written here, `hex peer` as others
# may write it too, `hex bad` as nobody should; there the JSON is the answer.
_PAIR = re.compile(r"^```json\n(?P<text>[^`]*)^```\n+^```hex ?(?P<kind>\w*)\n(?P<bytes>[^`]*)^```", re.MULTILINE)
DOC_PAIRS = [(pair["text"], pair["kind"], pair["bytes"]) for pair in _PAIR.finditer(DOC)]


def batch_of(text: str) -> Batch:
    return [Message.from_wire(item, 256) for item in json.loads(text)]


def pairs(*kinds: str) -> list[Any]:
    """Return the batches of these kinds, each as its JSON and its bytes, by the name of its first message."""
    return [
        pytest.param(text, golden, id=f"{kind or 'own'} {batch_of(text)[0].name}")
        for text, kind, golden in DOC_PAIRS
        if kind in kinds
    ]


def test_all_bytes_in_the_document_have_a_message_beside_them() -> None:
    assert len(DOC_PAIRS) == len(re.findall(r"^```hex", DOC, re.MULTILINE))
    assert {kind for _, kind, _ in DOC_PAIRS} == {"", "peer", "bad"}


@pytest.mark.parametrize(("text", "golden"), pairs("", "peer"))
def test_bytes_in_the_document_are_read_as_the_message_beside_them(text: str, golden: str) -> None:
    assert decode(bytes.fromhex(golden)) == [batch_of(text)]


@pytest.mark.parametrize(("text", "golden"), pairs(""))
def test_messages_in_the_document_are_written_as_the_bytes_beside_them(text: str, golden: str) -> None:
    assert encode(batch_of(text)).hex(" ") == " ".join(golden.split())


@pytest.mark.parametrize(("text", "golden"), pairs("bad"))
def test_bad_bytes_in_the_document_get_the_answer_beside_them(text: str, golden: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes.fromhex(golden))
    assert [fatal_error(caught.value.code, caught.value.text)] == batch_of(text)


def test_the_document_shows_every_fixed_message() -> None:
    fixed = {message.name for batch, _ in EXCHANGES.values() for message in batch}
    shown = {message.name for text, kind, _ in DOC_PAIRS if not kind for message in batch_of(text)}
    assert fixed <= shown
