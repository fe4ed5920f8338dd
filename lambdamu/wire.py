"""How bytes become what is asked, and answers bytes: what a port needs to know of a wire.

The clients' port speaks MessagePack; the gateway speaks HTTP (`lambdamu.http_wire`). All else a port does is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lambdamu.datapack import Decoder, WireLimits, encode
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import Message, fatal_error


class Reader(Protocol):
    """Bytes in, in pieces of any size; whole batches out. There only while a batch is not whole or not answered."""

    @property
    def frame(self) -> bytes:
        """The bytes of the last batch."""
        ...

    @property
    def pending(self) -> bool:
        """Whether the beginning of a batch waits for its rest, or a whole one to be taken."""
        ...

    @property
    def buffered(self) -> int:
        """How many bytes are held."""
        ...

    @property
    def last(self) -> bool:
        """Whether the peer wants nothing more after the batch that it got last."""
        ...

    def feed(self, data: bytes) -> object:
        """Take bytes in."""
        ...

    def next_batch(self) -> Sequence[Any] | None:
        """Return the next batch that is whole, or None. Raise RemoteProtocolError, and nothing else from then on."""
        ...


class Wire(Protocol):
    """One language that a port may speak."""

    def reader(self, limits: WireLimits) -> Reader: ...

    def pack(self, answers: Sequence[Any]) -> bytes:
        """Return the answers to one batch as bytes."""
        ...

    def last_word(self, fault: RemoteProtocolError) -> bytes:
        """Return what a peer is told that has broken the rules, or is one too many, before its connection ends."""
        ...


class MessagePackWire:
    """Batches of messages; `pack` turns an answer into bytes."""

    def __init__(self, pack: Callable[[Sequence[Message]], bytes] = encode) -> None:
        self.pack = pack

    def reader(self, limits: WireLimits) -> Decoder:
        return Decoder(limits)

    def last_word(self, fault: RemoteProtocolError) -> bytes:
        return self.pack([fatal_error(fault.code, fault.text)])
