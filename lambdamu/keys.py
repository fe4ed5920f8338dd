"""Files of Ed25519 keys (RFC 8032), for whatever is signed and verified here.

A line is `ID: private: BASE64URL` or `ID: public: BASE64URL`, of 32 bytes without padding; `#` begins a comment line.
The first private key signs, and every key verifies. So keys change without a gap: add the new one, last, wherever is
verified; then put it first where is signed; and take the old one out when what it has signed is over.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lambdamu.base64url import from_base64url, to_base64url
from lambdamu.line_file import LineFile, LineFileError, read_line_file

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
MOST_KEYS: Final = 256
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,16}")
_LINE: Final = re.compile(r"(?P<id>[^:]*):\s*(?P<kind>private|public)\s*:\s*(?P<key>[A-Za-z0-9_-]*)")


@attrs.frozen(eq=False)
class Verifier:
    """The public half of a key, and the short name that what it verifies calls it by."""

    id: str
    _key: Ed25519PublicKey = attrs.field(repr=False)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether the other half has signed `data`. Takes about 100 us, whatever the bytes are."""
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def line(self) -> str:
        return f"{self.id}: public: {to_base64url(self._key.public_bytes_raw())}"


@attrs.frozen(eq=False)
class Signer:
    """The private half of a key."""

    id: str
    _key: Ed25519PrivateKey = attrs.field(repr=False)

    @classmethod
    def generate(cls, key_id: str = "") -> Signer:
        """Return a new key. Raise ValueError on an id that is none."""
        key_id = key_id or f"k{secrets.token_hex(3)}"
        if not _ID.fullmatch(key_id):
            raise ValueError("an id has 1 to 16 letters, digits, - or _")
        return cls(key_id, Ed25519PrivateKey.generate())

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def secret_for(self, purpose: bytes) -> bytes:
        """Return 32 bytes that only the holder of the key can know, always the same for one `purpose`."""
        return hashlib.blake2b(purpose, key=self._key.private_bytes_raw(), digest_size=32).digest()

    def verifier(self) -> Verifier:
        return Verifier(self.id, self._key.public_key())

    def line(self) -> str:
        """Return the line of a key file: a secret."""
        return f"{self.id}: private: {to_base64url(self._key.private_bytes_raw())}"


@attrs.frozen(eq=False)
class Keys:
    """The keys of one file. `signers`: the private ones in their order, the first of which signs."""

    signers: tuple[Signer, ...]
    verifiers: Mapping[str, Verifier]

    @property
    def signer(self) -> Signer | None:
        """The key that signs; None where the file has no private one."""
        return self.signers[0] if self.signers else None


def load_keys(path: str) -> Keys:
    """Read a key file. Raise LineFileError, which names file and line, when it cannot be read or is not right."""
    return parse_keys(read_line_file(path))


def parse_keys(file: LineFile) -> Keys:
    """Return the keys of a file that was read. Raise LineFileError when a line is not right, or there is no key."""
    signers: list[Signer] = []
    verifiers: dict[str, Verifier] = {}
    for key_id, key in _read(file):
        if isinstance(key, Signer):
            signers.append(key)
        verifiers[key_id] = key if isinstance(key, Verifier) else key.verifier()
    if not verifiers:
        raise LineFileError(f"{file.path} holds no key")
    return Keys(tuple(signers), MappingProxyType(verifiers))


def _read(file: LineFile) -> Iterator[tuple[str, Signer | Verifier]]:
    seen: set[str] = set()
    for number, line in file.lines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise file.fault(number, "is not `ID: private: KEY` or `ID: public: KEY`, the key as base64url")
        key_id, raw = match["id"].strip(), from_base64url(match["key"])
        if not _ID.fullmatch(key_id):
            raise file.fault(number, "an id has 1 to 16 letters, digits, - or _")
        if key_id in seen:
            raise file.fault(number, f"{key_id} has a key already")
        if raw is None or len(raw) != KEY_BYTES:
            raise file.fault(number, f"a key is {KEY_BYTES} bytes as base64url without padding, 43 characters")
        if len(seen) >= MOST_KEYS:
            raise file.fault(number, f"a file holds at most {MOST_KEYS} keys")
        seen.add(key_id)
        yield key_id, _key(key_id, match["kind"], raw)


def _key(key_id: str, kind: str, raw: bytes) -> Signer | Verifier:
    if kind == "private":
        return Signer(key_id, Ed25519PrivateKey.from_private_bytes(raw))
    return Verifier(key_id, Ed25519PublicKey.from_public_bytes(raw))
