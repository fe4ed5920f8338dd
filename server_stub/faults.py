"""The faults a backend can be told to have, as values: read from text, and put into answers. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs
import msgpack

from lambdamu.address import quoted
from lambdamu.datapack import encode
from lambdamu.messages import AUTH, SYSTEM, USER_COUNT, Message

Pack = Callable[[Sequence[Message]], bytes]

GARBAGE: Final = b"\xc1 no MessagePack begins with this byte \xc1"


class Kind(StrEnum):
    HANG_AUTH = "hang-auth"
    """Auth is never answered."""
    HANG_COUNT = "hang-count"
    """UserCount is never answered."""
    NO_COUNT = "no-count"
    """UserCount is answered without Data."""
    GARBAGE = "garbage"
    """Instead of each answer come bytes that are no MessagePack."""
    CLOSE = "close"
    """A connection is accepted and closed."""
    HALF = "half"
    """Half of the bytes of the first answer come, then nothing on that connection ever again."""
    SLOW = "slow"
    """Each answer comes late."""
    COUNT = "count"
    """UserCount is what it is told to be."""


@attrs.frozen
class Fault:
    """`delay_s` belongs to SLOW, `count` to COUNT: any value that MessagePack can carry."""

    kind: Kind
    delay_s: float = 0.0
    count: Any = None


_PLAIN: Final = frozenset(Kind) - {Kind.SLOW, Kind.COUNT}
_FORMS: Final = ", ".join([*(kind for kind in Kind if kind in _PLAIN), "slow:SECONDS", "count:VALUE"])
_WORDS: Final = {"true": True, "false": False, "nil": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INT: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INT_DIGITS: Final = 20
"""2**64 - 1, the largest integer of MessagePack, has so many."""


def parse_fault(text: str) -> Fault:
    """Read a fault as it stands on a command line. Raise ValueError with one line that says what is wrong.

    The VALUE of `count:VALUE` is an integer, a decimal number, `nan`, `inf`, `-inf`, `true`, `false`, `nil` or `[]`;
    anything else is a text, and so is what stands in double quotes, without them.
    """
    word, colon, value = text.partition(":")
    if word in _PLAIN and not colon:
        return Fault(Kind(word))
    if word == Kind.SLOW and value:
        return Fault(Kind.SLOW, delay_s=_parse_delay(value))
    if word == Kind.COUNT and value:
        return Fault(Kind.COUNT, count=_parse_value(value))
    raise ValueError(f"{quoted(text)} is no fault; there are {_FORMS}")


def _parse_delay(text: str) -> float:
    delay_s = float(text) if _FLOAT.fullmatch(text) else math.nan
    if not (math.isfinite(delay_s) and delay_s >= 0):
        raise ValueError(f"{quoted(text)} is no delay: slow takes seconds, as in slow:0.5")
    return delay_s


def _parse_value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text == "[]":
        return []
    if _INT.fullmatch(text):
        return _parse_int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _parse_text(text)


def _parse_int(text: str) -> int:
    # The digits are counted first: int() refuses very long rows of them with words of its own.
    digits = text.lstrip("+-0") or "0"
    if len(digits) <= _INT_DIGITS:
        value = -int(digits) if text.startswith("-") else int(digits)
        if -(2**63) <= value < 2**64:
            return value
    raise ValueError(f"count:{quoted(text)[1:-1]} is outside of what MessagePack can carry, -2^63 to 2^64 - 1")


def _parse_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{quoted(text)} is not valid UTF-8, which a text must be") from None
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def tamper(fault: Fault, answers: Sequence[Message]) -> Sequence[Message]:
    """Return what is left of honest answers under a fault that leaves out or changes some of them."""
    match fault.kind:
        case Kind.HANG_AUTH:
            return [message for message in answers if message.object != AUTH]
        case Kind.HANG_COUNT:
            return [message for message in answers if not _is_count(message)]
        case Kind.COUNT | Kind.NO_COUNT:
            return [attrs.evolve(message, data=fault.count) if _is_count(message) else message for message in answers]
    return answers


def _is_count(message: Message) -> bool:
    return (message.object, message.name) == (SYSTEM, USER_COUNT)


def packer(fault: Fault) -> Pack:
    """Return what turns answers into bytes under a fault, as far as it needs no memory of the connection."""
    match fault:
        case Fault(kind=Kind.GARBAGE):
            return lambda _: GARBAGE
        case Fault(kind=Kind.CLOSE):
            return lambda _: b""
        case Fault(kind=Kind.COUNT, count=None):
            return _encode_with_nil
    return encode


def _encode_with_nil(answers: Sequence[Message]) -> bytes:
    """`encode` takes nil for no Data, and leaves it out."""
    packed: bytes = msgpack.packb([{"Data": None, **message.to_wire()} for message in answers], use_bin_type=False)
    return packed
