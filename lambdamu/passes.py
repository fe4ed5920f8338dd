"""Passes: signed rights to be let in. Pure: the time is an argument.

A Pass is a body and its Ed25519 signature (RFC 8032), together as base64url without padding, at most 512 characters.
The body is a MessagePack array of exactly six: 1, the id of the key, the id of the Pass, the subject, its rights (an
array of texts, sorted, none twice) and the Unix second at which it ends. What is signed is `CONTEXT` and the body, so
that nothing else that the same key signs is ever taken for a Pass.

There is one text for each Pass: whatever could be written in another way too is refused, and so is every byte more. A
later form of the body has another number first, and is malformed here: what is not understood must give no right.
Words among the rights that are not known are kept, and give nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgpack

from lambdamu.base64url import from_base64url, to_base64url

if TYPE_CHECKING:
    from lambdamu.keys import Signer, Verifier

CONTEXT: Final = b"lambdamu pass\0"
ACCESS: Final = "access"
VIP: Final = "vip"
MOST_CHARACTERS: Final = 512
SKEW_S: Final = 30
"""A Pass holds for so long after its end, because clocks of whoever makes passes and of masters differ."""
CACHED: Final = 8192
"""So many verified texts are kept, each until its Pass ends: about 1 KB each."""
_FORM: Final = 1
_SIGNATURE_BYTES: Final = 64
_MOST_RIGHTS: Final = 8
_LATEST: Final = 2**53
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,16}")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_RIGHT: Final = re.compile(r"[a-z0-9_-]{1,32}")
_SUBJECT_BYTES: Final = 128


class PassFault(StrEnum):
    """Why a text lets nobody in."""

    MALFORMED = "malformed"
    """It is no Pass, or one of a later form."""
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED = "expired"
    REVOKED = "revoked"
    NO_RIGHT = "no_right"
    """It is good, and gives other rights than the one that is needed."""


@attrs.frozen
class Pass:
    """`id`: by which it is revoked; `subject`: whose it is; `expires`: Unix seconds.

    Raise ValueError, one line, on values that a Pass cannot have.
    """

    id: str
    subject: str
    rights: tuple[str, ...]
    expires: int

    def __attrs_post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError("the id of a pass has 1 to 32 letters, digits, - or _")
        if not self.subject.isprintable() or not 0 < len(self.subject.encode(errors="replace")) <= _SUBJECT_BYTES:
            raise ValueError(f"a subject has 1 to {_SUBJECT_BYTES} bytes, of characters that print")
        if not all(map(_RIGHT.fullmatch, self.rights)) or not 0 < len(self.rights) <= _MOST_RIGHTS:
            raise ValueError(f"a pass has 1 to {_MOST_RIGHTS} rights, each 1 to 32 of a-z, 0-9, - and _")
        if list(self.rights) != sorted(set(self.rights)):
            raise ValueError("rights are sorted, and none stands there twice")
        if not 0 <= self.expires < _LATEST:
            raise ValueError("the end of a pass is a time after 1970")


@attrs.frozen
class Signed:
    """A Pass as it came: what it says, and what has to be true for it to be believed."""

    says: Pass
    key_id: str
    body: bytes
    signature: bytes


def make_pass(signer: Signer, says: Pass) -> str:
    """Return the text of a Pass. Raise ValueError when it would be longer than the wire takes."""
    body = _pack(signer.id, says)
    text = to_base64url(body + signer.sign(CONTEXT + body))
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a pass has at most {MOST_CHARACTERS} characters: fewer rights, or a shorter subject")
    return text


def read_pass(text: str) -> Signed | None:
    """Return what a text says, whoever has signed it; None when it is no Pass of this form."""
    data = from_base64url(text) if len(text) <= MOST_CHARACTERS else None
    if data is None or len(data) <= _SIGNATURE_BYTES:
        return None
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    try:
        form, key_id, pass_id, subject, rights, expires = msgpack.unpackb(body, max_array_len=_MOST_RIGHTS)
        says = Pass(_str(pass_id), _str(subject), tuple(map(_str, rights)), _int(expires))
    except (ValueError, TypeError):
        return None
    good = _int_or_none(form) == _FORM and isinstance(key_id, str) and _KEY_ID.fullmatch(key_id)
    return Signed(says, key_id, body, signature) if good and _pack(key_id, says) == body else None


class PassVerifier:
    """Judges passes by keys. Texts that were verified are kept until their end: the next time costs a look.

    Rubbish costs at most one signature, about 100 us, and nothing of it is kept. `revoked`: ids and subjects.
    """

    def __init__(
        self, verifiers: Mapping[str, Verifier], revoked: frozenset[str] = frozenset(), cached: int = CACHED
    ) -> None:
        self._verifiers = verifiers
        self._revoked = revoked
        self._most = cached
        self._good: OrderedDict[str, Pass] = OrderedDict()

    @property
    def cached(self) -> float:
        """Return how much of the room for verified texts is used, from 0 to 1."""
        return len(self._good) / self._most

    def judge(self, now_unix: float, text: str, right: str = ACCESS) -> Pass | PassFault:
        """Return the Pass that a text is, when it holds now and gives `right`; else the first fault."""
        known = self._good.get(text) or self._verify(now_unix, text)
        if isinstance(known, PassFault):
            return known
        if _is_over(now_unix, known):
            del self._good[text]
            return PassFault.EXPIRED
        self._keep(text, known)
        if known.id in self._revoked or known.subject in self._revoked:
            return PassFault.REVOKED
        return known if right in known.rights else PassFault.NO_RIGHT

    def _verify(self, now_unix: float, text: str) -> Pass | PassFault:
        signed = read_pass(text)
        if signed is None:
            return PassFault.MALFORMED
        key = self._verifiers.get(signed.key_id)
        if key is None:
            return PassFault.UNKNOWN_KEY
        if _is_over(now_unix, signed.says):  # before the signature: passes that were made together end together
            return PassFault.EXPIRED
        return signed.says if key.verify(signed.signature, CONTEXT + signed.body) else PassFault.BAD_SIGNATURE

    def _keep(self, text: str, verified: Pass) -> None:
        self._good[text] = verified
        self._good.move_to_end(text)
        if len(self._good) > self._most:
            self._good.popitem(last=False)


def _is_over(now_unix: float, says: Pass) -> bool:
    return now_unix >= says.expires + SKEW_S


def _pack(key_id: str, says: Pass) -> bytes:
    packed: bytes = msgpack.packb([_FORM, key_id, says.id, says.subject, list(says.rights), says.expires])
    return packed


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _int_or_none(value: Any) -> int | None:
    return value if type(value) is int else None
