"""DataPack: bytes in, batches out, and back.

The wire is a stream of MessagePack values without a length prefix. `Decoder` first finds where a value ends, looking
only at the header byte of each element, and lets the library build objects from a whole, measured value. So a header
that announces 4 GiB is refused when it is read; it neither reserves memory nor waits. The library's own streaming
decoder does not do: its array headers reserve room for what they announce, it goes on in the middle of a text after
an error, and it costs 40 KiB for each connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
import msgpack

from lambdamu.errors import LocalProtocolError, RemoteProtocolError
from lambdamu.messages import VALUE, Batch, Code, Message, as_array


@attrs.frozen
class WireLimits:
    """The most a peer may send; beyond it the connection ends."""

    batch_bytes: int = 65536
    batch_messages: int = 64
    nesting: int = 16
    name_bytes: int = 256


DEFAULT_LIMITS: Final = WireLimits()


def encode(batch: Iterable[Message]) -> bytes:
    """Return the bytes of one batch, of types that decoders from before 2013 know: no `str8`, `bin` or `ext`."""
    try:
        packed: bytes = msgpack.packb([message.to_wire() for message in batch], use_bin_type=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise LocalProtocolError(f"a message cannot be packed: {exc}") from exc
    return packed


def encode_alone(message: Message) -> bytes:
    """Return the bytes of a batch of one message, in which bytes under `Value` of its Data travel as `bin`.

    All else is as in `encode`. msgpack knows `bin` only together with `str8`, so the value is put in behind the rest.
    """
    data = message.data
    value = data.get(VALUE) if isinstance(data, dict) else None
    if not isinstance(value, bytes):
        return encode((message,))
    around = {key: item for key, item in data.items() if key != VALUE}
    around[VALUE] = None  # the last byte of all, since Data comes last
    packed = encode((Message(message.object, message.command, message.name, around, message.header),))
    return b"".join((packed[:-1], _bin_head(len(value)), value))


def _bin_head(length: int) -> bytes:
    for head, length_bytes in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if length < 1 << 8 * length_bytes:
            return bytes([head]) + length.to_bytes(length_bytes, "big")
    raise LocalProtocolError("a value of 4 GiB and more cannot be packed")


class Decoder:
    """Bytes in, in pieces of any size; whole batches out, the same for every way of cutting the stream.

    `feed` raises RemoteProtocolError once the batches before the fault are out. The stream is out of step then: the
    decoder stays failed, and the connection has to end.
    """

    last = False
    """A peer may always have more to ask."""

    def __init__(self, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._scan = _Scan(limits)
        self._failure: RemoteProtocolError | None = None
        self.frame = b""
        """The bytes of the last batch."""

    @property
    def pending(self) -> bool:
        """Whether the beginning of a batch waits for its rest, or whole batches wait to be taken from `feed`."""
        return bool(self._buffer)

    @property
    def buffered(self) -> int:
        """How many bytes are held."""
        return len(self._buffer)

    def allow(self, limits: WireLimits) -> None:
        """Go by other limits from the next batch on."""
        self._limits = limits
        self._scan = _Scan(limits)

    def feed(self, data: bytes) -> Iterator[Batch]:
        """Take `data` and return the batches that are whole now; each is decoded when it is asked for."""
        self._buffer += data
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        while True:
            try:
                batch = self.next_batch()
            except RemoteProtocolError as exc:
                self._failure = exc
                self._buffer.clear()
                raise
            if batch is None:
                return
            yield batch

    def next_batch(self) -> Batch | None:
        """Return the next batch that is whole, or None; raise RemoteProtocolError as `feed` does."""
        if self._failure is not None:
            raise self._failure
        end = self._scan.find_end(self._buffer)
        if end is None:
            return None
        frame = self.frame = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._scan = _Scan(self._limits)
        return _decode(frame, self._limits)


def _decode(frame: bytes, limits: WireLimits) -> Batch:
    try:
        value = msgpack.unpackb(frame, strict_map_key=False)
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(Code.NOT_MESSAGE_PACK, "a text is not valid UTF-8") from exc
    except (ValueError, TypeError, OverflowError) as exc:
        # TypeError: a map key that is an array or a map. ValueError: a timestamp of a wrong shape.
        raise RemoteProtocolError(Code.NOT_MESSAGE_PACK, "the value cannot be read") from exc
    items = as_array(value)
    if items is None:
        raise RemoteProtocolError(Code.BAD_MESSAGE, "a batch must be an array of messages")
    return [Message.from_wire(item, limits.name_bytes) for item in items]


# What the first byte of an element says: how many bytes the element's head takes with a fixed body, how many of
# them are a length, and how many elements each unit of that length stands for.
_SCALAR: Final = 0
_TEXT: Final = 1
_ARRAY: Final = 2
_MAP: Final = 3
_INVALID: Final = 4

# One row: kind, bytes of the head with any fixed body, bytes of the length field, length held in the head itself.
_Row = tuple[int, int, int, int]


def _row(head: int) -> _Row:
    if head <= 0x7F or head >= 0xE0 or head in (0xC0, 0xC2, 0xC3):
        return _SCALAR, 1, 0, 0
    if head <= 0x8F:
        return _MAP, 1, 0, head & 0x0F
    if head <= 0x9F:
        return _ARRAY, 1, 0, head & 0x0F
    if head <= 0xBF:
        return _SCALAR, 1 + (head & 0x1F), 0, 0
    table: dict[int, _Row] = {
        0xC4: (_TEXT, 2, 1, 0),
        0xC5: (_TEXT, 3, 2, 0),
        0xC6: (_TEXT, 5, 4, 0),
        0xC7: (_TEXT, 3, 1, 0),  # ext: the type stands behind the length
        0xC8: (_TEXT, 4, 2, 0),
        0xC9: (_TEXT, 6, 4, 0),
        0xCA: (_SCALAR, 5, 0, 0),
        0xCB: (_SCALAR, 9, 0, 0),
        0xCC: (_SCALAR, 2, 0, 0),
        0xCD: (_SCALAR, 3, 0, 0),
        0xCE: (_SCALAR, 5, 0, 0),
        0xCF: (_SCALAR, 9, 0, 0),
        0xD0: (_SCALAR, 2, 0, 0),
        0xD1: (_SCALAR, 3, 0, 0),
        0xD2: (_SCALAR, 5, 0, 0),
        0xD3: (_SCALAR, 9, 0, 0),
        0xD4: (_SCALAR, 3, 0, 0),
        0xD5: (_SCALAR, 4, 0, 0),
        0xD6: (_SCALAR, 6, 0, 0),
        0xD7: (_SCALAR, 10, 0, 0),
        0xD8: (_SCALAR, 18, 0, 0),
        0xD9: (_TEXT, 2, 1, 0),
        0xDA: (_TEXT, 3, 2, 0),
        0xDB: (_TEXT, 5, 4, 0),
        0xDC: (_ARRAY, 3, 2, 0),
        0xDD: (_ARRAY, 5, 4, 0),
        0xDE: (_MAP, 3, 2, 0),
        0xDF: (_MAP, 5, 4, 0),
    }
    return table.get(head, (_INVALID, 1, 0, 0))


_ROWS: Final = tuple(_row(head) for head in range(256))
_ONE_BYTE_ELEMENTS: Final = re.compile(rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]+")


class _Scan:
    """Finds the end of one value, resumable at any byte; holds a place in the buffer and a small stack."""

    __slots__ = ("_at", "_left", "_limits", "_open")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._at = 0
        self._left = 1
        """Elements still to come in the innermost open container."""
        self._open: list[int] = []
        """The same for the containers around it."""

    def find_end(self, buffer: bytearray) -> int | None:  # noqa: C901 - a call for each element takes twice the time
        """Return where the value ends in `buffer`, or None when more bytes are needed; raise on what is not allowed."""
        size, at, left, around, most = len(buffer), self._at, self._left, self._open, self._limits.batch_bytes
        while left or around:
            if not left:
                left = around.pop()
                continue
            if at >= size:
                break
            kind, head_bytes, length_bytes, length = _ROWS[buffer[at]]
            if kind == _INVALID:
                raise RemoteProtocolError(Code.NOT_MESSAGE_PACK, "the byte c1 begins no MessagePack value")
            if length_bytes:
                if at + 1 + length_bytes > size:
                    break
                length = int.from_bytes(buffer[at + 1 : at + 1 + length_bytes], "big")
            end = at + head_bytes
            if kind >= _ARRAY:
                left = self._enter(length, 1 if kind == _ARRAY else 2, end, left)
                at = end
                continue
            if kind == _TEXT:
                end += length
            if end > most:
                self._check_size(end)
            if end > size:
                break
            if head_bytes == 1 and left > 1:
                run = _ONE_BYTE_ELEMENTS.match(buffer, at, min(at + left, most))
                if run is not None:
                    end = run.end()
                    left -= end - at - 1
            left -= 1
            at = end
        self._at, self._left = at, left
        return None if left or around else at

    def _enter(self, length: int, elements_each: int, end: int, left: int) -> int:
        """Open a container, the first of `left` elements; return how many come in it."""
        if not self._open and length > self._limits.batch_messages:
            raise RemoteProtocolError(Code.LIMIT, f"a batch has more than {self._limits.batch_messages} messages")
        elements = length * elements_each
        # Each element takes a byte at least, so what cannot fit is refused before it is sent.
        self._check_size(end + elements)
        self._open.append(left - 1)
        if len(self._open) > self._limits.nesting:
            raise RemoteProtocolError(Code.LIMIT, f"values are nested deeper than {self._limits.nesting}")
        return elements

    def _check_size(self, end: int) -> None:
        if end > self._limits.batch_bytes:
            raise RemoteProtocolError(Code.LIMIT, f"a batch is longer than {self._limits.batch_bytes} bytes")


def dump(value: Any) -> str:
    """Return a short text of a value from outside, safe to log: escaped, at most 80 characters."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
