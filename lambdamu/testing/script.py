"""What a fake backend does, as a value; and what it says to given questions, as a pure function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, Final

import attrs
import msgpack

from lambdamu.messages import AUTH, SYSTEM, TASK_OBJECT, USER_COUNT, USER_MAIL, USER_NAME, Code, Command


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""In the place of a value: the message has no Data at all."""


class Drop(StrEnum):
    """Which answers never come."""

    NONE = "none"
    AUTH = "auth"
    COUNT = "count"
    BOTH = "both"


class Reset(StrEnum):
    """When the connection is reset (RST)."""

    NEVER = "never"
    ACCEPT = "accept"
    REQUEST = "request"
    """When a question has come, instead of its answer."""
    HALF = "half"
    """After half of the bytes of the answer."""


class Question(Enum):
    """What a probe asks."""

    AUTH = "auth"
    COUNT = "count"


class Then(Enum):
    """What follows a reply."""

    GO_ON = "go on"
    SILENCE = "silence"
    CLOSE = "close"
    RESET = "reset"


@attrs.frozen
class Reply:
    """Bytes to send, what follows them, and which questions they answer whole."""

    payload: bytes
    then: Then
    answered: tuple[Question, ...]


def _drop(value: str) -> Drop:
    return Drop(value)


def _reset(value: str) -> Reset:
    return Reset(value)


def _flag() -> Any:
    return attrs.field(default=False, validator=attrs.validators.instance_of(bool))


def _packable(_script: Any, field: attrs.Attribute[Any], value: Any) -> None:
    if value is ABSENT:
        return
    try:
        msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ValueError(f"{field.name} cannot be put into a message: {exc}") from exc


@attrs.frozen
class Script:
    """How a fake backend behaves; as it stands, like a good one. A fault that ends a connection ends each one anew."""

    users: Any = attrs.field(default=10, validator=_packable)
    """What it says UserCount is: any value that MessagePack can carry, or ABSENT."""
    task: Any = attrs.field(default="Task", validator=_packable)
    """What it says TaskObject is, good or bad."""
    delay_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0.0))
    """Each answer goes out so long after its question."""
    drop: Drop = attrs.field(default=Drop.NONE, converter=_drop)
    double: bool = _flag()
    """Each answer comes twice."""
    garbage: bytes | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(bytes))
    )
    """These bytes come instead of the answers."""
    reset: Reset = attrs.field(default=Reset.NEVER, converter=_reset)
    half: bool = _flag()
    """Half of the bytes of the answer come, then nothing on this connection ever again."""
    half_then_close: bool = _flag()
    close: bool = _flag()
    """A connection is accepted and closed."""
    one_batch: bool = _flag()
    """Both answers come in one batch; the one to Auth waits for the question UserCount."""
    swapped: bool = _flag()
    """The answer to UserCount comes first; the one to Auth waits for it."""
    split: bool = _flag()
    """Each byte is written alone."""
    extra: bool = _flag()
    """A Value that nobody asked for comes before the answers."""
    error: bool = _flag()
    """Each question is answered by Error messages."""

    @property
    def waits_for_both(self) -> bool:
        return self.one_batch or self.swapped


def reply_to(script: Script, questions: Sequence[Question]) -> Reply:
    """Return what a backend that follows `script` says to `questions`."""
    if script.reset is Reset.REQUEST:
        return Reply(b"", Then.RESET, ())
    answered = [question for question in questions if not _is_dropped(script, question)]
    payload = script.garbage if script.garbage is not None else _answers(script, answered)
    half = payload[: len(payload) // 2]
    if script.reset is Reset.HALF:
        return Reply(half, Then.RESET, ())
    if script.half_then_close:
        return Reply(half, Then.CLOSE, ())
    if script.half:
        return Reply(half, Then.SILENCE, ())
    return Reply(payload, Then.GO_ON, tuple(answered) if script.garbage is None else ())


def _is_dropped(script: Script, question: Question) -> bool:
    return script.drop in (Drop.BOTH, Drop(question.value))


def _answers(script: Script, questions: Sequence[Question]) -> bytes:
    batches = [_answer(script, question) for question in questions]
    if script.swapped:
        batches.reverse()
    if script.one_batch and batches:
        batches = [[message for batch in batches for message in batch]]
    if script.extra:
        batches.insert(0, [_message("Clock", Command.VALUE, "Time", 0)])
    if script.double:
        batches = [batch for batch in batches for _ in range(2)]
    # Not `lambdamu.datapack.encode`: a fake does not share the faults of what it tests.
    return b"".join(msgpack.packb(batch, use_bin_type=False) for batch in batches)


def _answer(script: Script, question: Question) -> list[dict[str, Any]]:
    if script.error:
        names = [(AUTH, USER_NAME), (AUTH, USER_MAIL)] if question is Question.AUTH else [(SYSTEM, USER_COUNT)]
        data = {"Code": str(Code.UNKNOWN_OBJECT), "Text": "there is no such object here"}
        return [_message(lm_object, Command.ERROR, name, data) for lm_object, name in names]
    if question is Question.AUTH:
        return [_message(AUTH, Command.VALUE, TASK_OBJECT, script.task)]
    return [_message(SYSTEM, Command.VALUE, USER_COUNT, script.users)]


def _message(lm_object: str, command: Command, name: str, data: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"Object": lm_object, "Command": command.value, "Name": name}
    return message if data is ABSENT else message | {"Data": data}


def fields_to_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a script as JSON can carry them; `{"$msgpack": hex}` stands for a value that it cannot."""
    return {name: _to_json(value) for name, value in fields.items()}


def fields_from_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `fields_to_json` wrote; raise ValueError on hex that is not MessagePack."""
    return {name: _from_json(value) for name, value in fields.items()}


def _to_json(value: Any) -> Any:
    if value is ABSENT:
        return {"$absent": True}
    plain = value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else {"$msgpack": msgpack.packb(value).hex()}


def _from_json(value: Any) -> Any:
    if value == {"$absent": True}:
        return ABSENT
    if isinstance(value, dict) and value.keys() == {"$msgpack"}:
        return msgpack.unpackb(bytes.fromhex(value["$msgpack"]), strict_map_key=False)
    return value
