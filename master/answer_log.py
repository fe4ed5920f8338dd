"""Why clients got their answers: the last of them, in rings of fixed length.  Pure: `now` is an argument.

Every ask with `Data` is noted. Of plain asks at most one in 10 ms is: at low rates that is nearly each, at high rates
a sample, and it costs a comparison. They have a ring of their own, so that they push out no client that gave its id.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

import attrs

_NAMED: Final = 4096
_PLAIN: Final = 1024
PLAIN_EVERY_S: Final = 0.01
_SHORTEST_HASH: Final = 8
_HASH_CHARACTERS: Final = 32


class Answer(NamedTuple):  # an attrs class takes a microsecond more to make, and each ask with Data makes one
    """One ask and what came of it.

    `at`: seconds of the monotonic clock. `client`: the hash of its id, if it gave one. `network`: where it came from,
    /24 or /48. `loads`: what was compared, the chosen backend first, by name; the load of the chosen one has this
    client in it.
    """

    at: float
    client: str | None
    network: str
    zone: str
    result: str
    reason: str
    backend: str | None
    loads: tuple[tuple[str, float], ...] = ()


class AnswerLog:
    """The last answers; oldest ones are forgotten."""

    def __init__(self, named: int = _NAMED, plain: int = _PLAIN) -> None:
        self._named: deque[Answer] = deque(maxlen=named)
        self._plain: deque[Answer] = deque(maxlen=plain)
        self.plain_due = 0.0
        """From this moment on a plain ask is noted again."""

    def __len__(self) -> int:
        return len(self._named) + len(self._plain)

    @property
    def limit(self) -> int:
        return (self._named.maxlen or 0) + (self._plain.maxlen or 0)

    def note(self, answer: Answer) -> None:
        """Note the answer to an ask with `Data`."""
        self._named.append(answer)

    def note_plain(self, answer: Answer) -> None:
        """Note the answer to a plain ask, when one is due."""
        self.plain_due = answer.at + PLAIN_EVERY_S
        self._plain.append(answer)

    def newest(self) -> Iterator[Answer]:
        """Yield all that is kept, newest first."""
        return merge(reversed(self._named), reversed(self._plain), key=lambda answer: -answer.at)

    def search(self, client: str, most: int) -> list[Answer]:
        """Return up to `most` answers to a client, newest first; to all of them when `client` is empty.

        `client` is an address or a network, the id of the client, or the first 8 or more digits of its hash.
        """
        who = Who.of(client) if client else None
        return list(islice((answer for answer in self.newest() if who is None or who.is_in(answer)), most))


@attrs.frozen
class Who:
    """Whom somebody looks for: one of the two fits."""

    hashes: tuple[str, ...]
    network: str | None

    @classmethod
    def of(cls, text: str) -> Who:
        network = network_of(text.partition("/")[0])
        if network is not None:
            return cls((), network)
        is_hash = _SHORTEST_HASH <= len(text) <= _HASH_CHARACTERS and set(text) <= set("0123456789abcdef")
        return cls((hash_of(text), text) if is_hash else (hash_of(text),), None)

    def is_in(self, answer: Answer) -> bool:
        if self.network is not None:
            return answer.network == self.network
        return answer.client is not None and answer.client.startswith(self.hashes)


def hash_of(client: str) -> str:
    """Return what a client is known by here: its id is a secret, it is neither kept nor shown."""
    return hashlib.blake2b(client.encode(), digest_size=_HASH_CHARACTERS // 2).hexdigest()


def network_of(host: str) -> str | None:
    """Return the network of an address, /24 or /48, as people write it; None when it is no address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network(f"{address}/{24 if address.version == 4 else 48}", strict=False))


def network_of_peer(host: str) -> str:
    """Do the same for the address of a connection, in little time where it is one of IPv4."""
    return network_of(host) or host if ":" in host else host.rpartition(".")[0] + ".0/24"
