"""Backends that the probes find good and the clients cannot use: whom to believe, and who is left alone for a while.

A probe goes from the master to a backend; a client comes another way. So clients say where they failed, and when
clients of enough networks say it of one backend, it is ejected: nobody is sent there until its breaker lets one go on
trial. What strangers say must never empty the pool, so every rule here stands in the way of an ejection.
The pool has one, with `client` a hash of the client's id, or None for a client that gave none.
A plain ask costs one look at `idle`: where that holds, nobody is barred, and of a client without an id `sent` has
nothing to note.
"""

from __future__ import annotations

import ipaddress
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import attrs
from attrs.validators import and_, ge, gt, le

from lambdamu.breaker import Breaker, BreakerPolicy, Permit

Network = tuple[int, int]
"""The version of IP, and the bits of the address that name a network."""
Carries = Callable[[frozenset[str]], bool]
"""Told the names that would be out: whether the others that can be used now are at least one and can take the users."""

_IPV4_BITS: Final = 24
_IPV6_BITS: Final = 48
"""What one person or one site may hold whole (RFC 6177), so all addresses of it have one vote."""


class Verdict(StrEnum):
    """What came of a report, and the one reason why."""

    NOT_SENT = "not_sent"
    """From no client, or from one that was not sent there within reservation_s."""
    COUNTED = "counted"
    """Too few networks say so yet."""
    ALREADY_OUT = "already_out"
    TOGETHER = "together"
    """Most backends are accused at once: the fault lies elsewhere, and nobody is ejected for a while."""
    LIMIT = "limit"
    """As many are out as may be."""
    NEEDED = "needed"
    """The others could not carry the users."""
    EJECTED = "ejected"
    TRIAL_FAILED = "trial_failed"


@attrs.frozen
class EjectionPolicy:
    reservation_s: float = attrs.field(default=15.0, validator=gt(0.0))
    """A client is heard on a backend, and sent there again, for so long after it was sent there."""
    window_s: float = attrs.field(default=30.0, validator=gt(0.0))
    """A vote counts for so long: longer than a client needs to fail, ask again and say so."""
    networks: int = attrs.field(default=3, validator=ge(1))
    """So many networks must say so. One network may have a fault of its own, two are still chance."""
    max_ejected_share: float = attrs.field(default=0.3, validator=and_(ge(0.0), le(1.0)))
    """At most floor(backends x this) are out at once; never the last one, whatever it says."""
    together_share: float = attrs.field(default=0.5, validator=and_(gt(0.0), le(1.0)))
    """When more than this share of the backends is accused or out at once, nobody is out for window_s."""
    open_s: float = attrs.field(default=30.0, validator=gt(0.0))
    max_open_s: float = attrs.field(default=300.0, validator=gt(0.0))
    """The first and the longest time out, as Envoy has them; the breaker doubles, jitters and decays it."""

    def breaker(self) -> BreakerPolicy:
        """Return the timing of an ejection. A trial is good that nobody complains of, so it needs no lease."""
        return BreakerPolicy(
            open_s=self.open_s,
            max_open_s=self.max_open_s,
            decay_s=self.max_open_s,
            lease_s=math.inf,
            slow_s=math.inf,
            jitter=0.2,
        )

    def most_out(self, backends: int) -> int:
        """Return how many of so many backends may be out at once."""
        # The product may fall short of a whole number by its last bit: 100 x 0.29 is 28.999...
        return max(0, min(math.floor(backends * self.max_ejected_share + 1e-9), backends - 1))


def network_of(host: str) -> Network:
    """Return the network of an address in text form: /24 for IPv4, mapped into IPv6 or not, and /48 for IPv6.

    Raise ValueError when it is no address.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None:
            return 6, int(address) >> (128 - _IPV6_BITS)
        address = mapped
    return 4, int(address) >> (32 - _IPV4_BITS)


@attrs.frozen
class _Sending:
    at: float
    name: str | None
    """The backend it was sent to; None once it has said that it failed there."""
    alternates: tuple[str, ...]


class Sendings:
    """Which client was sent where, for `keep_s` seconds; the oldest goes when there are more than `most`."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._by_client: OrderedDict[str, _Sending] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_client)

    def note(self, now: float, client: str, name: str, alternates: tuple[str, ...]) -> None:
        """Note where a client is sent; what was noted of it before is forgotten."""
        self._by_client.pop(client, None)
        self._by_client[client] = _Sending(now, name, alternates)
        self._forget(now)

    def of(self, now: float, client: str) -> str | None:
        """Return where a client was sent to last, unless it failed there."""
        self._forget(now)
        sending = self._by_client.get(client)
        return None if sending is None else sending.name

    def places(self, now: float, client: str) -> tuple[str, ...]:
        """Return where a client was sent to last, alternates included, without those it failed at."""
        name, sending = self.of(now, client), self._by_client.get(client)
        alternates = sending.alternates if sending is not None else ()
        return alternates if name is None else (name, *alternates)

    def claim(self, now: float, client: str, name: str) -> bool:
        """Return whether a client was sent to `name`, as the best or as an alternate; true once for each sending."""
        self._forget(now)
        sending = self._by_client.get(client)
        if sending is None or not (name == sending.name or name in sending.alternates):
            return False
        alternates = tuple(each for each in sending.alternates if each != name)
        self._by_client[client] = _Sending(sending.at, None if sending.name == name else sending.name, alternates)
        return True

    def _forget(self, now: float) -> None:
        # In the order in which they were sent, also after a claim: a key that is there keeps its place.
        while self._by_client:
            oldest = next(iter(self._by_client.values()))
            if len(self._by_client) <= self._most and now < oldest.at + self._keep_s:
                return
            self._by_client.popitem(last=False)


@attrs.frozen
class _Trial:
    client: str | None
    permit: Permit


class Ejections:
    """Who is out. `now`: seconds, monotonic; `records`: most clients of whom it is known where they were sent."""

    def __init__(self, policy: EjectionPolicy, records: int = 65536) -> None:
        self.policy: Final = policy
        self._sendings = Sendings(policy.reservation_s, records)
        self._votes: dict[str, OrderedDict[Network, float]] = {}
        """The newest votes on each backend: as many networks as it takes, and when each said so last."""
        self._breakers: dict[str, Breaker] = {}
        """Of those that were ejected ever: it knows how long the next time is."""
        self._out: dict[str, _Trial | None] = {}
        """Those whose breaker is not closed, each with the trial that is out."""
        self._nobody_until = -math.inf

    def __len__(self) -> int:
        """Of how many clients it is known where they were sent: `records` at most."""
        return len(self._sendings)

    @property
    def idle(self) -> bool:
        """Whether nobody is out: then a plain ask need not call anything here."""
        return not self._out

    def out(self, now: float) -> frozenset[str]:
        """Return who is ejected now, those on trial included."""
        self._settle(now)
        return frozenset() if now < self._nobody_until else frozenset(self._out)

    def pardon(self, now: float) -> frozenset[str]:
        """Let everybody in for window_s, as nobody else works; return who was out."""
        if out := self.out(now):
            self._nobody_until = now + self.policy.window_s
        return out

    def barred_s(self, now: float, name: str) -> float:
        """Return for how long nobody can be sent to a backend; 0 when somebody can, and that may be its trial."""
        if name not in self._out or now < self._nobody_until:
            return 0.0
        self._settle(now)
        trial = self._out.get(name)
        if trial is not None:
            return self._trial_ends(trial) - now
        refusal = self._breakers[name].refusal(now)
        return 0.0 if refusal is None else refusal.retry_after_s

    def sent(
        self, now: float, rng: random.Random, name: str, client: str | None, alternates: Sequence[str] = ()
    ) -> None:
        """Note where a client is sent. The first one that is sent to a backend whose time is over is its trial."""
        if client is not None:
            self._sendings.note(now, client, name, tuple(alternates))
        self._settle(now)
        if name in self._out and self.barred_s(now, name) == 0.0 and now >= self._nobody_until:
            permit = self._breakers[name].acquire(now, rng)
            if isinstance(permit, Permit):
                self._out[name] = _Trial(client, permit)

    def sent_to(self, now: float, client: str) -> str | None:
        """Return the backend that a client was sent to within reservation_s, unless it has said that it failed."""
        return self._sendings.of(now, client)

    def places(self, now: float, client: str) -> tuple[str, ...]:
        """Return the backends that a client may complain of: it was told of them within reservation_s."""
        return self._sendings.places(now, client)

    def forgo(self, now: float, client: str, name: str) -> None:
        """Take in that a client could not use a backend that works, such as a full one: it is not sent there again."""
        self._sendings.claim(now, client, name)

    def report(
        self, now: float, rng: random.Random, client: str | None, host: str, name: str, backends: int, carries: Carries
    ) -> Verdict:
        """Take in that a client, from the address `host`, could not use a backend. `backends`: how many there are."""
        self._settle(now)
        if client is None or not self._sendings.claim(now, client, name):
            return Verdict.NOT_SENT
        if name in self._out:
            return self._fail_trial(now, name, client)
        self._vote(now, name, network_of(host))
        if not self._is_accused(now, name):
            return Verdict.COUNTED
        verdict = self._judge(now, name, backends, carries)
        if verdict is Verdict.EJECTED:
            self._eject(now, rng, name)
        return verdict

    def keep(self, names: Iterable[str]) -> None:
        """Forget all backends but these: the others are in the pool no more."""
        kept = frozenset(names)
        for known in (self._votes, self._breakers, self._out):
            for name in known.keys() - kept:
                del known[name]

    def _fail_trial(self, now: float, name: str, client: str) -> Verdict:
        trial = self._out[name]
        if trial is None or trial.client != client:
            return Verdict.ALREADY_OUT  # sent there before it was ejected
        trial.permit.failed(now)
        self._out[name] = None
        return Verdict.TRIAL_FAILED

    def _vote(self, now: float, name: str, network: Network) -> None:
        votes = self._votes.setdefault(name, OrderedDict())
        votes.pop(network, None)
        votes[network] = now
        if len(votes) > self.policy.networks:
            votes.popitem(last=False)

    def _is_accused(self, now: float, name: str) -> bool:
        votes = self._votes[name].values()
        return sum(now - at < self.policy.window_s for at in votes) >= self.policy.networks

    def _judge(self, now: float, name: str, backends: int, carries: Carries) -> Verdict:
        """Return what is to come of a backend that enough networks accuse."""
        suspects = self._out.keys() | {each for each in self._votes if self._is_accused(now, each)}
        if len(suspects) > backends * self.policy.together_share:
            self._nobody_until = now + self.policy.window_s
            return Verdict.TOGETHER
        if len(self._out) + 1 > self.policy.most_out(backends):
            return Verdict.LIMIT
        return Verdict.EJECTED if carries(frozenset((*self._out, name))) else Verdict.NEEDED

    def _eject(self, now: float, rng: random.Random, name: str) -> None:
        del self._votes[name]
        breaker = self._breakers.setdefault(name, Breaker(self.policy.breaker()))
        breaker.trip(now, rng)
        self._out[name] = None

    def _settle(self, now: float) -> None:
        """Let those in again whose trial nobody has complained of in time."""
        for name, trial in list(self._out.items()):
            if trial is not None and now >= self._trial_ends(trial):
                trial.permit.succeeded(now)
                del self._out[name]

    def _trial_ends(self, trial: _Trial) -> float:
        return trial.permit.began + self.policy.reservation_s
