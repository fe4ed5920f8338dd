"""The text of a ticket: a place in a queue that its holder shows again, also when nobody here remembers it. Pure.

It has 66 bytes, 88 characters as base64url without padding, numbers big-endian: form 1 (1 byte), number (8), hash of
the queue (8), lane (1), order in the lane (8, signed), when he joined (8, Unix seconds, a float), hash of the client
(16), and as the last 16 bytes the keyed BLAKE2b of all these. Only masters make and read it, so one secret does for
both; what a client shows that is no ticket of ours, or one by a key that is gone, is as if it had shown none.

The secret comes from the private key in a key file (`ticket_secrets`): then a ticket outlives the loss of the store,
and keys are changed with overlap. Where there is no such file it is made once and kept: `Store.secret`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs

from lambdamu.base64url import from_base64url, to_base64url

if TYPE_CHECKING:
    from lambdamu.keys import Signer

CHARACTERS: Final = 88
SECRET_BYTES: Final = 32
_PURPOSE: Final = b"lambdamu tickets\0"
_FORM: Final = 1
_BODY: Final = struct.Struct(">BQ8sBqd16s")
_MAC_BYTES: Final = 16


@lru_cache(maxsize=4096)
def queue_hash(queue: str) -> bytes:
    """Return the 8 bytes that stand for the id of a queue."""
    return hashlib.blake2b(queue.encode(errors="replace"), digest_size=8).digest()


def ticket_secrets(signers: Iterable[Signer]) -> tuple[bytes, ...]:
    """Return a secret for each private key of a key file, the first of which signs tickets."""
    return tuple(signer.secret_for(_PURPOSE) for signer in signers)


@attrs.frozen
class SignedPlace:
    """What a ticket says. `queue`: a `queue_hash`; `client`: 16 bytes, zeros for one without an id.

    `joined`: Unix seconds. Raise ValueError on values that it cannot have.
    """

    number: int
    queue: bytes
    lane: int
    order: int
    joined: float
    client: bytes

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.number < 2**64 and 0 <= self.lane < 2**8):
            raise ValueError("the number of a ticket has 8 bytes and its lane one")
        if len(self.queue) != 8 or len(self.client) != 16:
            raise ValueError("the hash of a queue has 8 bytes and that of a client 16")
        if not (-(2**63) <= self.order < 2**63 and math.isfinite(self.joined)):
            raise ValueError("the order of a ticket has 8 bytes, and its time is finite")


class TicketText:
    """Writes and reads the texts of tickets. `secrets`: 16 to 64 bytes each; the first signs, all are taken."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(16 <= len(secret) <= 64 for secret in secrets):
            raise ValueError("tickets need a secret of 16 to 64 bytes")
        self._macs = tuple(hashlib.blake2b(key=secret, digest_size=_MAC_BYTES) for secret in secrets)
        """With the keys in; a copy of one is made in a third of the time."""

    def write(self, place: SignedPlace) -> str:
        """Return the text for a place."""
        body = _BODY.pack(_FORM, place.number, place.queue, place.lane, place.order, place.joined, place.client)
        return to_base64url(body + _mac(self._macs[0], body))

    def read(self, text: str) -> SignedPlace | None:
        """Return the place that a text stands for; None for whatever we have not written. It never raises."""
        data = from_base64url(text) if len(text) == CHARACTERS else None
        if data is None:
            return None
        body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        # All are compared, each in a time that tells nothing of how much of it is right.
        ours = [hmac.compare_digest(mac, _mac(keyed, body)) for keyed in self._macs]
        form, *values = _BODY.unpack(body)
        return SignedPlace(*values) if any(ours) and form == _FORM else None


def _mac(keyed: hashlib.blake2b, body: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(body)
    return mac.digest()
