"""The message, and every word that stands on the wire.

A message is a map `{Object: str, Command: str, Name: str, Data: any}`; a batch is an array of messages.
Peers written in Lua may send an array as a map with the keys 1..n, an empty map as `[]`, and texts as raw bytes:
`as_array`, `as_map` and `as_text` accept each of these, so that no one else has to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final

import attrs

from lambdamu.errors import RemoteProtocolError


class Command(StrEnum):
    SET = "Set"
    GET = "Get"
    EVENT = "Event"
    VALUE = "Value"
    ERROR = "Error"


class Code(StrEnum):
    """Why a message could not be served."""

    LIMIT = "Limit"
    NOT_MESSAGE_PACK = "NotMessagePack"
    BAD_MESSAGE = "BadMessage"
    UNKNOWN_OBJECT = "UnknownObject"
    UNKNOWN_NAME = "UnknownName"
    UNKNOWN_COMMAND = "UnknownCommand"
    BAD_DATA = "BadData"
    FULL = "Full"
    TURN_MISSING = "TurnMissing"
    """A backend lets in only those who show a Turn, and none came."""
    TURN_USED = "TurnUsed"
    TURN_FOREIGN = "TurnForeign"
    """What came is no Turn, or one for another backend, or one that none of the known keys has signed."""
    TURN_EXPIRED = "TurnExpired"
    SESSION_GONE = "SessionGone"
    """There is no such session, any more or ever: its client has to log in."""
    NOT_FOUND = "NotFound"
    UPSTREAM = "Upstream"
    """Who has the data has not given them."""
    NOT_YOURS = "NotYours"
    """Whoever asks has no right to this."""
    NO_STORE = "NoStore"
    """A backend cannot reach the store of its sessions: which of them are there, nobody knows now."""


class Transport(IntEnum):
    """Why a question to the cache service was not dealt with: the number in the Header of the answer."""

    OK = 0
    FULL = 1
    """There is no room: in the queue, or in the store."""
    EXPIRED = 2
    """It was not its turn in its lifetime."""
    NO_STORE = 3
    """The store cannot be used. It says nothing of the session."""
    NO_WORKER = 4
    """Nobody is there to fetch."""
    TOO_BIG = 5
    """A value is longer than is stored."""
    VERSION = 6
    """The Header is of a version that is not spoken here."""
    STOPPING = 7

    @property
    def word(self) -> str:
        """Return its name as people are told it: `NoStore`."""
        return self.name.title().replace("_", "")


class Result(StrEnum):
    """What a client that asked for a server is told."""

    OK = "OK"
    NO_SERVER = "NoServer"
    WAIT = "Wait"
    CLOSED = "Closed"
    DENIED = "Denied"


class Reason(StrEnum):
    """Why a client got an answer other than OK: the same word on the wire, in metrics and in explanations."""

    LEFT = "Left"
    """The client has given its place up."""

    PASS_MISSING = "PassMissing"  # noqa: S105 - a word, no password
    """It has sent no Pass, and one is needed."""
    PASS_MALFORMED = "PassMalformed"  # noqa: S105
    """What it has sent is no Pass."""
    PASS_FOREIGN = "PassForeign"  # noqa: S105
    """It is signed with no key of ours, or is no token of ours."""
    PASS_EXPIRED = "PassExpired"  # noqa: S105
    PASS_REVOKED = "PassRevoked"  # noqa: S105
    PASS_TOO_LITTLE = "PassTooLittle"  # noqa: S105
    """It is good, and does not give the right that is needed."""
    TOO_FAST = "TooFast"
    """Too many asks came from the network of the client."""


class QueueReason(StrEnum):
    """Why the virtual queue lets a client wait, or does not take it: the same word on the wire and in metrics."""

    NO_PLACE = "NoPlace"
    """All backends are full."""
    NO_BACKEND = "NoBackend"
    """None works."""
    FEWER_BACKENDS = "FewerBackends"
    """Some are down, ejected or drained, and the others are full."""
    RATE = "Rate"
    """As many are let in as may be in a minute."""
    CALLS = "Calls"
    """As many are called as may be at a time, and have not come yet."""
    HELD = "Held"
    """The operator holds the queue."""
    IN_LINE = "InLine"
    """Others are before it."""
    CLOSED = "Closed"
    """The operator has closed the queue."""
    FULL = "Full"
    """There is no place left in the queue, or none for the network of the client."""
    NO_QUEUE = "NoQueue"
    """There is no queue of this name, and none can be opened."""
    USED = "Used"
    """With this ticket somebody has been let in."""


QUEUE_WAITS: Final = (
    QueueReason.NO_PLACE,
    QueueReason.NO_BACKEND,
    QueueReason.FEWER_BACKENDS,
    QueueReason.RATE,
    QueueReason.CALLS,
    QueueReason.HELD,
    QueueReason.IN_LINE,
)
"""Those of them that come with a place."""


class LinkFault(StrEnum):
    """Why a question to a peer failed: the same word in logs, metrics and explanations."""

    NO_ADDRESS = "no_address"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    NO_DESCRIPTOR = "no_descriptor"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    CERTIFICATE = "certificate"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    NOT_THE_PROTOCOL = "not_the_protocol"
    BAD_AUTH = "bad_auth"
    BAD_COUNT = "bad_count"


MASTER: Final = "Master"
DO_SEND_SERVER: Final = "DoSendServer"
SERVER: Final = "Server"
AUTH: Final = "Auth"
USER_NAME: Final = "UserName"
USER_MAIL: Final = "UserMail"
TURN: Final = "Turn"
TASK_OBJECT: Final = "TaskObject"
SYSTEM: Final = "System"
USER_COUNT: Final = "UserCount"
LOAD: Final = "Load"
SESSION: Final = "Session"
CACHE: Final = "Cache"
DEVICE: Final = "Device"
WARM: Final = "Warm"
HEADER: Final = "Header"
BACKEND: Final = "Backend"
"""In the cache service: the Key of a session under which stands the name of the backend that it is at."""
VALUE: Final = "Value"
"""In the Data of the cache service: what is stored, which travels as `bin` and stays bytes."""

BACKEND_WORKS: Final = frozenset(
    {
        *(Code.FULL, Code.TURN_MISSING, Code.TURN_USED, Code.TURN_FOREIGN, Code.TURN_EXPIRED),
        *(Code.NO_STORE, Code.NOT_YOURS),
    }
)
"""A backend that answers one of these lets a client not in, and is well. The store is that of all of them."""

MAX_COUNT: Final = 2**53
"""A count must be below it: the numbers of Lua and JavaScript are exact only so far."""


@attrs.frozen
class Message:
    """One message. `data` None and an absent `Data` are the same; so with `header`, which only the cache has."""

    object: str
    command: str
    name: str
    data: Any = None
    header: Any = None

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"Object": self.object, "Command": self.command, "Name": self.name}
        if self.header is not None:
            wire[HEADER] = self.header
        if self.data is not None:
            wire["Data"] = self.data
        return wire

    @classmethod
    def from_wire(cls, value: Any, name_bytes: int) -> Message:
        """Raise RemoteProtocolError when `value` is no message, or one of its names is over `name_bytes` long."""
        fields = as_map(value)
        if fields is None:
            raise RemoteProtocolError(Code.BAD_MESSAGE, "a message must be a map")
        return cls(
            _name(fields, "Object", name_bytes),
            _name(fields, "Command", name_bytes),
            _name(fields, "Name", name_bytes),
            fields.get("Data"),
            fields.get(HEADER),
        )


Batch = list[Message]


def error(message: Message, code: str, text: str) -> Message:
    """Return the answer to a message that cannot be served."""
    return Message(message.object, Command.ERROR, message.name, {"Code": code, "Text": text})


def fatal_error(code: str, text: str) -> Message:
    """Return the last message of a connection whose peer has broken the rules."""
    return Message(MASTER, Command.ERROR, "Error", {"Code": code, "Text": text})


def as_array(value: Any) -> Sequence[Any] | None:
    """Return `value` as an array, also when it came as a map with the keys 1..n; None when it is neither."""
    if isinstance(value, list):
        return value
    # True equals 1 and 1.0 does too, so types are looked at before keys are.
    if not isinstance(value, dict) or not all(type(key) is int for key in value):
        return None
    keys = range(1, len(value) + 1)
    return [value[i] for i in keys] if value.keys() == set(keys) else None


def as_map(value: Any) -> Mapping[Any, Any] | None:
    """Return `value` as a map with its texts as str keys, also when it is an empty array; None when it is neither."""
    if isinstance(value, dict):
        if bytes in map(type, value):
            return {_text_or_same(key): item for key, item in value.items()}
        return value
    if value == [] and isinstance(value, list):
        return {}
    return None


def as_text(value: Any) -> str | None:
    """Return a text that may have come as raw bytes; None when it is no text or not valid UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None


def as_count(value: Any) -> int | None:
    """Return a count of users, 0 <= n < 2**53; None for anything else, a bool or a float included."""
    if type(value) is int and 0 <= value < MAX_COUNT:
        return value
    return None


def _text_or_same(key: Any) -> Any:
    text = as_text(key)
    return key if text is None else text


def _name(fields: Mapping[Any, Any], key: str, name_bytes: int) -> str:
    value = fields.get(key)
    text = as_text(value)
    if text is None:
        if isinstance(value, bytes):
            raise RemoteProtocolError(Code.NOT_MESSAGE_PACK, f"{key} is not valid UTF-8")
        raise RemoteProtocolError(Code.BAD_MESSAGE, f"a message must have a text {key}")
    # Four bytes is the most a character takes: a short name need not be encoded to be measured.
    if len(text) * 4 > name_bytes and len(text.encode()) > name_bytes:
        raise RemoteProtocolError(Code.LIMIT, f"{key} is longer than {name_bytes} bytes")
    return text
