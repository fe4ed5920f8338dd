"""Who has the right to ask: by a pass, by a token that many share, or by the certificate of his TLS.

`judge` is pure; `read_credentials` reads the files. What is read is a value, so that a reload can read all files
before it goes over to any. Keys, tokens and passes are secrets: no message repeats one.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import attrs

from lambdamu.line_file import LineFile, LineFileError, read_line_file
from lambdamu.messages import Reason
from lambdamu.passes import ACCESS, Pass, PassFault, PassVerifier
from master.config import AccessPolicy

LEAST_TOKEN_CHARACTERS: Final = 16
_MOST_TOKEN_CHARACTERS: Final = 512
_TOKEN_LINE: Final = re.compile(r"(?P<name>[\w.@+-]{1,64}):\s*(?P<token>[!-~]+)")
_REVOKED: Final = re.compile(r".{1,256}")
_REASONS: Final[Mapping[PassFault, Reason]] = MappingProxyType(
    {
        PassFault.MALFORMED: Reason.PASS_MALFORMED,
        PassFault.UNKNOWN_KEY: Reason.PASS_FOREIGN,
        PassFault.BAD_SIGNATURE: Reason.PASS_FOREIGN,
        PassFault.EXPIRED: Reason.PASS_EXPIRED,
        PassFault.REVOKED: Reason.PASS_REVOKED,
        PassFault.NO_RIGHT: Reason.PASS_TOO_LITTLE,
    }
)
CREDENTIAL_FILES: Final = ("keys_file", "tokens_file", "revoked_file")
MOST_REVOKED_BYTES: Final = 4 * 2**20


@attrs.frozen
class Granted:
    """Somebody may ask: `subject` is whose pass, token or certificate it is."""

    subject: str
    rights: tuple[str, ...] = (ACCESS,)


@attrs.frozen
class Denied:
    """He may not. `retry_after_s`: None when it is of no use to ask again."""

    reason: Reason
    retry_after_s: float | None = None


class SharedTokens:
    """Finds whose token a text is, in a time that tells nothing of the tokens.

    They are kept by a hash under a key of chance, so nobody can choose texts whose hashes come close to one.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        """`tokens`: by name."""
        self._key = secrets.token_bytes(32)
        self._names = {self._digest(_bytes(token)): (name, _bytes(token)) for name, token in tokens.items()}

    def find(self, text: str) -> str | None:
        """Return the name of the token that `text` is."""
        given = _bytes(text)
        name, token = self._names.get(self._digest(given), ("", b""))
        return name if hmac.compare_digest(token, given) and name else None

    def _digest(self, token: bytes) -> bytes:
        return blake2b(token, digest_size=16, key=self._key).digest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON may bring halves of characters


@attrs.frozen(eq=False)
class Credentials:
    """What the files hold. `warnings`: one line each, of files that others may read."""

    passes: PassVerifier | None = None
    tokens: SharedTokens | None = None
    revoked: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


class Access:
    """Judges who may ask. `credentials` may be replaced while it works."""

    def __init__(self, policy: AccessPolicy, credentials: Credentials) -> None:
        self.policy = policy
        self.credentials = credentials

    @property
    def used(self) -> float:
        """Return how much of the room for verified passes is used, from 0 to 1."""
        return self.credentials.passes.cached if self.credentials.passes is not None else 0.0

    def judge(self, now_unix: float, text: str | None, subject: str = "") -> Granted | Denied:
        """Judge by a Pass as it came, if one did, and by the subject of a verified certificate, if there is one.

        Any of them is enough. It never raises, and what is no pass of ours costs at most one check of a signature.
        """
        denied = Denied(Reason.PASS_MISSING)
        if subject and self.policy.client_certificates:
            if subject not in self.credentials.revoked:
                return Granted(subject)
            denied = Denied(Reason.PASS_REVOKED)
        return denied if text is None else self._judge_text(now_unix, text)

    def _judge_text(self, now_unix: float, text: str) -> Granted | Denied:
        passes, tokens = self.credentials.passes, self.credentials.tokens
        name = tokens.find(text) if tokens is not None else None
        if name is not None:
            return Granted(name)
        if passes is None:
            return Denied(Reason.PASS_FOREIGN)
        found = passes.judge(now_unix, text)
        if isinstance(found, Pass):
            return Granted(found.subject, found.rights)
        # Where there are tokens, what is no pass may have been meant for one.
        foreign = found is PassFault.MALFORMED and tokens is not None
        return Denied(Reason.PASS_FOREIGN if foreign else _REASONS[found])


def read_credentials(policy: AccessPolicy) -> Credentials:
    """Read the files that `policy` names, now. Raise LineFileError when one cannot be read or is not right."""
    warnings: list[str] = []
    revoked: frozenset[str] = frozenset()
    if policy.revoked_file:
        revoked = parse_revoked(read_line_file(policy.revoked_file, MOST_REVOKED_BYTES))
    passes, tokens = None, None
    if policy.keys_file:
        from lambdamu.keys import parse_keys  # noqa: PLC0415 - takes 60 ms to import, and few need it

        file = read_line_file(policy.keys_file)
        passes = PassVerifier(parse_keys(file).verifiers, revoked)
        warnings += warn_of_open(file)
    if policy.tokens_file:
        file = read_line_file(policy.tokens_file)
        tokens = parse_shared_tokens(file)
        warnings += warn_of_open(file)
    return Credentials(passes, tokens, revoked, tuple(warnings))


def parse_shared_tokens(file: LineFile) -> SharedTokens:
    """Read lines `name: token`. Raise LineFileError when one is not right, or there is none."""
    tokens: dict[str, str] = {}
    for number, line in file.lines():
        match = _TOKEN_LINE.fullmatch(line)
        if match is None:
            raise file.fault(number, "is not `name: token`")
        name, token = match["name"], match["token"]
        if not LEAST_TOKEN_CHARACTERS <= len(token) <= _MOST_TOKEN_CHARACTERS:
            raise file.fault(
                number, f"a token has from {LEAST_TOKEN_CHARACTERS} to {_MOST_TOKEN_CHARACTERS} characters"
            )
        if name in tokens:
            raise file.fault(number, f"{name} has a token already")
        if token in tokens.values():
            raise file.fault(number, f"the token of {name} is that of another too")
        tokens[name] = token
    if not tokens:
        raise LineFileError(f"{file.path} holds no token")
    return SharedTokens(tokens)


def parse_revoked(file: LineFile) -> frozenset[str]:
    """Read ids and subjects, one a line. Raise LineFileError when a line is too long for one."""
    revoked = set()
    for number, line in file.lines():
        if not _REVOKED.fullmatch(line):
            raise file.fault(number, "is longer than an id or a subject can be, 256 characters")
        revoked.add(line)
    return frozenset(revoked)


def warn_of_open(file: LineFile) -> Iterable[str]:
    """Yield a warning when a file of secrets lies open."""
    if file.too_open:
        yield f"{file.path} holds secrets, and everybody on this machine may read or change it: chmod o-rw"
