"""Messages, and values that foreign peers send in other shapes."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Code, Message, as_array, as_count, as_map, as_text, error, fatal_error

EXT = msgpack.ExtType(1, b"x")
WIRE = {"Object": "o", "Command": "Get", "Name": "n"}


@pytest.mark.parametrize(
    ("value", "array"),
    [
        ([], []),
        ([1, "x"], [1, "x"]),
        ({}, []),
        ({1: "a", 2: "b"}, ["a", "b"]),
        ({2: "b", 1: "a"}, ["a", "b"]),
        ({2: "b"}, None),
        ({1: "a", 3: "c"}, None),
        ({0: "a", 1: "b"}, None),
        ({-1: "a"}, None),
        ({True: "a"}, None),
        ({1.0: "a"}, None),
        ({1: "a", 2.0: "b"}, None),
        ({"1": "a"}, None),
        ({1: "a", None: "b"}, None),
        ({1: "a", EXT: "b"}, None),
        (None, None),
        ("ab", None),
        (b"ab", None),
        (7, None),
        (EXT, None),
    ],
)
def test_an_array_may_come_as_a_map_of_its_indices(value: Any, array: list[Any] | None) -> None:
    assert as_array(value) == array


@pytest.mark.parametrize(
    ("value", "mapping"),
    [
        ({}, {}),
        ([], {}),
        ({"a": 1}, {"a": 1}),
        ({b"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({b"\xff": 1}, {b"\xff": 1}),
        ({1: "a", None: "b"}, {1: "a", None: "b"}),
        ([1], None),
        ([[]], None),
        (None, None),
        (False, None),
        (0, None),
        ("", None),
        (b"", None),
        (EXT, None),
    ],
)
def test_a_map_may_come_with_raw_keys_or_empty_as_an_array(value: Any, mapping: dict[Any, Any] | None) -> None:
    assert as_map(value) == mapping


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("\u0436\x00", "\u0436\x00"),
        (b"", ""),
        (b"\xd0\xb6\x00", "\u0436\x00"),
        (b"\xff\xfe", None),
        (b"\xed\xa0\x80", None),
        (None, None),
        (True, None),
        (1, None),
        (["a"], None),
        ({}, None),
        (EXT, None),
    ],
)
def test_a_text_may_come_as_raw_bytes(value: Any, text: str | None) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**53 - 1])
def test_a_count_is_an_int_from_zero_on_that_every_peer_can_hold(value: int) -> None:
    assert as_count(value) == value


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, None, -1, -2, -(2**63), 2**53, 2**63, 2**64 - 1),
        *(0.0, 1.0, 3.5, 1e308, math.nan, math.inf, -math.inf),
        *("12", "", b"12", [], [1], {}, {1: 1}, EXT, msgpack.Timestamp(1, 0)),
    ],
)
def test_nothing_else_is_a_count(value: Any) -> None:
    assert as_count(value) is None


@pytest.mark.parametrize("data", [0, False, "", [], {}])
def test_data_that_is_empty_or_zero_is_there(data: Any) -> None:
    message = Message("o", "Set", "n", data)
    assert message.to_wire()["Data"] == data
    assert Message.from_wire(message.to_wire(), 256) == message


def test_data_that_is_none_is_absent() -> None:
    assert Message("o", "Get", "n").to_wire() == WIRE
    assert Message.from_wire(WIRE, 256) == Message.from_wire(WIRE | {"Data": None}, 256) == Message("o", "Get", "n")


def test_a_header_is_kept_as_it_came_and_goes_out_again() -> None:
    message = Message.from_wire(WIRE | {"Header": {"Request": "r"}}, 256)
    assert message == Message("o", "Get", "n", None, {"Request": "r"})
    assert message.to_wire() == WIRE | {"Header": {"Request": "r"}}


def test_the_order_of_the_keys_and_unknown_ones_do_not_matter() -> None:
    assert Message.from_wire({"Trace": {}, 1: 2, **dict(reversed(WIRE.items()))}, 256) == Message("o", "Get", "n")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ([], Code.BAD_MESSAGE),
        ([1], Code.BAD_MESSAGE),
        (None, Code.BAD_MESSAGE),
        ("Object", Code.BAD_MESSAGE),
        *((WIRE | {key: None}, Code.BAD_MESSAGE) for key in WIRE),
        *((WIRE | {key: 1}, Code.BAD_MESSAGE) for key in WIRE),
        *((WIRE | {key: {"x": 1}}, Code.BAD_MESSAGE) for key in WIRE),
        *(({k: v for k, v in WIRE.items() if k != key}, Code.BAD_MESSAGE) for key in WIRE),
        *((WIRE | {key: b"\xff"}, Code.NOT_MESSAGE_PACK) for key in WIRE),
        *((WIRE | {key: "n" * 257}, Code.LIMIT) for key in WIRE),
        *((WIRE | {key: b"n" * 257}, Code.LIMIT) for key in WIRE),
    ],
)
def test_what_lacks_the_three_texts_is_no_message(value: Any, code: Code) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Message.from_wire(value, 256)
    assert caught.value.code == code


def test_an_error_carries_the_object_and_the_name_it_answers() -> None:
    answer = error(Message("System", "Get", "Uptime", 1), Code.UNKNOWN_NAME, "no such name")
    assert answer == Message("System", "Error", "Uptime", {"Code": "UnknownName", "Text": "no such name"})


def test_the_last_error_of_a_connection_is_the_masters() -> None:
    expected = Message("Master", "Error", "Error", {"Code": "Limit", "Text": "too long"})
    assert fatal_error(Code.LIMIT, "too long") == expected
