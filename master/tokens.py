"""Who may read and who may change: the tokens of operators and of the programs that watch a master.

A file of lines `name: token: read` or `name: token: write`; `#` begins a line that is passed over. Tokens are secrets:
no message repeats one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

import attrs

from lambdamu.errors import LambdaMuError

LEAST_TOKEN_CHARACTERS: Final = 16
_MOST_BYTES: Final = 65536
_LINE: Final = re.compile(r"(?P<name>[\w.@+-]{1,64}):\s*(?P<token>[!-~]+):\s*(?P<right>read|write)")


class Right(StrEnum):
    """What a token allows; to change includes to read."""

    READ = "read"
    WRITE = "write"


@attrs.frozen
class Caller:
    """Somebody who calls, as known by a token."""

    name: str
    right: Right


LOCAL: Final = Caller("local", Right.WRITE)
"""Whoever calls where there are no tokens, which is on loopback only."""


class TokensError(LambdaMuError):
    """A file of tokens cannot be used; str() is one line."""


class Tokens:
    """Finds who has a token, in a time that tells nothing of it."""

    def __init__(self, callers: Iterable[tuple[str, Caller]]) -> None:
        self._callers = [(_digest(token), caller) for token, caller in callers]

    def find(self, token: str) -> Caller | None:
        """Return who has `token`. Every one is compared, whole."""
        given, found = _digest(token), None
        for digest, caller in self._callers:
            if hmac.compare_digest(digest, given):
                found = caller
        return found


@attrs.define(eq=False)
class TokensFile:
    """A file of tokens, and those that are at work. With an empty `path` there are none.

    Raise TokensError when it cannot be read or is not right.
    """

    path: str = ""
    at_work: Tokens | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.at_work = self.read()

    def read(self) -> Tokens | None:
        """Return what stands in the file now. Raise TokensError; what is at work stays in any case."""
        return load_tokens(self.path) if self.path else None


def load_tokens(path: str) -> Tokens:
    """Read a file of tokens. Raise TokensError when it cannot be read or a line of it is not right."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise TokensError(f"{path} is larger than {_MOST_BYTES} bytes")
        return parse_tokens(data.decode(), path)
    except OSError as exc:
        raise TokensError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise TokensError(f"{path} is not UTF-8") from exc


def parse_tokens(text: str, source: str) -> Tokens:
    """Read the text of such a file, which `source` names in errors."""
    callers: dict[str, tuple[str, Caller]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise TokensError(f"{source}: line {number} is not `name: token: read` or `name: token: write`")
        name, token = match["name"], match["token"]
        if len(token) < LEAST_TOKEN_CHARACTERS:
            raise TokensError(f"{source}: line {number}: a token has at least {LEAST_TOKEN_CHARACTERS} characters")
        if name in callers:
            raise TokensError(f"{source}: line {number}: {name} has a token already")
        callers[name] = (token, Caller(name, Right(match["right"])))
    if not callers:
        raise TokensError(f"{source} holds no token")
    return Tokens(callers.values())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
