"""Turns: signed rights to connect to one backend, once. Pure: the time is an argument.

A Turn is 121 bytes, of fixed length: a body of 57 and its Ed25519 signature (RFC 8032). As base64url without padding it
has 162 characters. The body, numbers big-endian:

    at  bytes
     0      1  form: 1
     1     16  id of the key, ASCII, zero bytes after it
    17      8  number: no two turns of one key have the same
    25     16  client: BLAKE2b of its `Client` id; zero bytes: it gave none
    41      8  backend: the first bytes of the SHA-256 of the name by which the master knows it
    49      8  end, in whole Unix seconds

What is signed is `CONTEXT` and the body, so that nothing else that the same key signs is ever taken for a Turn. There
is one text for each Turn.

A Turn is a right of whoever bears it: on the wire a client never tells a backend its `Client` id, so a backend cannot
compare it. The hash of the client is there to trace people: it is the one that `lambdamu why` and the log of answers of
a master show. An application whose backends learn the id by a way of their own may compare it with `client_hash`.

A backend asks `Verifier.check` when a Turn comes, and `Verifier.spend` when it lets the client in: so nobody loses his
turn to a backend that was full, or to a connection that was lost in between.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import attrs

from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.messages import Code, as_text

if TYPE_CHECKING:
    from lambdamu import keys

CONTEXT: Final = b"lambdamu turn\0"
CHARACTERS: Final = 162
SKEW_S: Final = 30
"""A Turn holds for so long after its end, because the clocks of masters and of backends differ."""
MOST_USED: Final = 262_144
"""So many used turns are remembered, each until its end and the skew, or for less than that: some 100 bytes each."""
NOBODY: Final = bytes(16)
"""The hash of a client that gave no id."""
_FORM: Final = 1
_BODY: Final = struct.Struct(">B16sQ16s8sQ")
_SIGNATURE_BYTES: Final = 64
_KEY_ID: Final = re.compile(rb"([A-Za-z0-9_-]{1,16})\0*")


def client_hash(client: str) -> bytes:
    """Return the 16 bytes by which a client is known: its id is a secret, it is neither kept nor shown."""
    return hashlib.blake2b(client.encode(errors="replace"), digest_size=16).digest() if client else NOBODY


def backend_hash(name: str) -> bytes:
    """Return the 8 bytes that stand for the name of a backend."""
    return hashlib.sha256(name.encode(errors="replace")).digest()[:8]


@attrs.frozen
class Turn:
    """What a Turn says. `client`: 16 bytes, `backend`: 8, both hashes; `expires`: Unix seconds."""

    key_id: str
    number: int
    client: bytes
    backend: bytes
    expires: int


@attrs.frozen
class TurnFault:
    """Why a Turn lets nobody in: a Code of the wire, and one line for people that repeats nothing from outside."""

    code: Code
    text: str


@attrs.frozen
class Signer:
    """Makes turns with the first private key of a key file. A reload makes another one."""

    _key: keys.Signer

    def sign(self, number: int, client: bytes, backend: str, expires: int) -> str:
        """Return the text of a Turn to the backend named so. Takes about 100 us.

        `number`: 0 to 2**64 - 1, never given before; `client`: a `client_hash`, or `NOBODY`; `expires`: Unix seconds.
        Raise ValueError on values that a Turn cannot have.
        """
        if len(client) != len(NOBODY):
            raise ValueError(f"the hash of a client has {len(NOBODY)} bytes")
        try:
            body = _BODY.pack(_FORM, self._key.id.encode(), number, client, backend_hash(backend), expires)
        except struct.error as exc:
            raise ValueError("the number and the end of a turn are integers from 0 to 2^64 - 1") from exc
        return to_base64url(body + self._key.sign(CONTEXT + body))


def read_turn(text: str) -> Turn | None:
    """Return what a text says, whoever has signed it; None when it is no Turn of this form."""
    parts = _take_apart(text)
    return parts[0] if parts else None


def is_signed(verifiers: Mapping[str, keys.Verifier], text: str) -> bool:
    """Return whether a text is a Turn that one of these keys has signed, over or not. A signature takes 100 us."""
    parts = _take_apart(text)
    key = verifiers.get(parts[0].key_id) if parts else None
    return parts is not None and key is not None and key.verify(parts[2], CONTEXT + parts[1])


def _take_apart(text: str) -> tuple[Turn, bytes, bytes] | None:
    """Return what a text says, the body and the signature."""
    data = from_base64url(text) if len(text) == CHARACTERS else None
    if data is None:
        return None
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    form, padded_id, number, client, backend, expires = _BODY.unpack(body)
    key_id = _KEY_ID.fullmatch(padded_id)
    if form != _FORM or key_id is None:
        return None
    return Turn(key_id[1].decode(), number, client, backend, expires), body, signature


class Verifier:
    """Judges the turns of one backend, offline: by the keys of a file alone. It never raises, whatever it is given.

    `backend`: the name by which the masters know it, `host:port` unless their configuration says another. `skew_s`: how
    long a Turn holds after its end. `used`: what was used; one of it serves all doors of a backend, none outlives the
    process, so a Turn may be used once more after a restart within its time.
    """

    def __init__(
        self,
        verifiers: Mapping[str, keys.Verifier],
        backend: str,
        *,
        skew_s: float = SKEW_S,
        used: UsedTurns | None = None,
    ) -> None:
        self._verifiers = verifiers
        self._name = backend
        self._backend = backend_hash(backend)
        self._skew_s = skew_s
        self.used: Final = used if used is not None else UsedTurns()

    def renew(self, verifiers: Mapping[str, keys.Verifier]) -> None:
        """Go over to the keys of a file that was read again; what was used stays so.

        To change keys, add the new public line here first, sign with it then, and take the old line out when the last
        turn that it signed is over. An id is never given to a second key.
        """
        self._verifiers = verifiers

    def check(self, now_unix: float, data: Any) -> Turn | TurnFault:
        """Return the Turn that `data` is, as it came from the wire, when it holds now and here; else the first fault.

        It is not used by that. Rubbish costs at most one signature, about 200 us, and nothing of it is kept.
        """
        text = as_text(data)
        if text is None:
            return TurnFault(Code.TURN_MISSING, "no turn was shown") if data is None else _NO_TURN
        parts = _take_apart(text)
        if parts is None:
            return _NO_TURN
        turn, body, signature = parts
        key = self._verifiers.get(turn.key_id)
        if key is None:
            return TurnFault(Code.TURN_FOREIGN, "the turn is signed with a key that is not known here")
        if turn.backend != self._backend:
            return TurnFault(Code.TURN_FOREIGN, "the turn is for a backend of another name than this one has")
        # The costly look comes last: turns that were used, or are over, are what people show again in a crowd.
        fault = self._over(now_unix, turn) or self.used.fault(turn)
        if fault is None and not key.verify(signature, CONTEXT + body):
            return TurnFault(Code.TURN_FOREIGN, "the signature of the turn is not right")
        return fault or turn

    def spend(self, now_unix: float, turn: Turn) -> TurnFault | None:
        """Use a Turn that `check` returned; return why not, when it was used or has ended since."""
        self.used.forget_until(now_unix - self._skew_s)
        fault = self._over(now_unix, turn) or self.used.fault(turn)
        if fault is None:
            self.used.add(turn)
        return fault

    def _over(self, now_unix: float, turn: Turn) -> TurnFault | None:
        if now_unix < turn.expires + self._skew_s:
            return None
        return TurnFault(Code.TURN_EXPIRED, "the turn is over")


class UsedTurns:
    """Remembers turns that were used, `most` of them, by the second in which they end.

    What has ended is forgotten, a whole second at a time; and where there is no more room, the one that ends first is.
    From then on no Turn that ends so early is good any more, used or not: it is told that it has ended. So neither a
    crowd nor a clock that is set back lets anybody in twice; and too little room makes turns shorter, but keeps nobody
    out who comes soon after he was called.
    """

    def __init__(self, most: int = MOST_USED) -> None:
        self._most = most
        self._ends: list[tuple[int, str]] = []
        """A heap of the seconds, and the keys, of which something is remembered."""
        self._used: dict[tuple[int, str], set[int]] = {}
        self._size = 0
        self._closed_until = -1
        """No Turn that ends in this second or before is good any more."""
        self.crowded_out = 0
        """So many turns were forgotten for want of room since the start: to be shown, and more than none to be told."""

    def __len__(self) -> int:
        return self._size

    @property
    def filled(self) -> float:
        """Return how much of the room is used, from 0 to 1."""
        return self._size / self._most

    def fault(self, turn: Turn) -> TurnFault | None:
        """Return why a Turn cannot be used, None when it can."""
        if turn.expires <= self._closed_until:
            return TurnFault(Code.TURN_EXPIRED, "the turn is over: turns that end so early are no longer remembered")
        if turn.number in self._used.get((turn.expires, turn.key_id), ()):
            return TurnFault(Code.TURN_USED, "the turn was used before")
        return None

    def add(self, turn: Turn) -> None:
        """Remember one more; that may cost those their place that end first."""
        end = turn.expires, turn.key_id
        numbers = self._used.get(end)
        if numbers is None:
            numbers = self._used[end] = set()
            heappush(self._ends, end)
        self._size += turn.number not in numbers
        numbers.add(turn.number)
        while self._size > self._most:
            self.crowded_out += self._forget_first()

    def forget_until(self, unix_s: float) -> None:
        """Forget what ended at `unix_s` or before."""
        while self._ends and self._ends[0][0] <= unix_s:
            self._forget_first()

    def _forget_first(self) -> int:
        """Forget all that ends first; return how many that were."""
        first = heappop(self._ends)
        self._closed_until = first[0]
        count = len(self._used.pop(first))
        self._size -= count
        return count


_NO_TURN: Final = TurnFault(Code.TURN_FOREIGN, "this is no turn")
