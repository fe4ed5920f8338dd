"""What a client remembers of masters and backends from one connection to the next. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import attrs
from attrs.validators import gt, instance_of, lt, optional

from lambdamu.address import Address
from lambdamu.answers import Place
from lambdamu.breaker import Breaker, BreakerObserver, BreakerPolicy, Event, State, Why
from lambdamu.client_tls import Tls
from lambdamu.errors import ConnectError
from lambdamu.retry import Backoff, BudgetPolicy, RetryBudget

_BREAKERS: Final = 256
"""So many masters, and so many backends, are remembered; who was not called for longest goes."""


def _breaker_policy() -> BreakerPolicy:
    # One device makes few calls, and each costs its user a deadline: it takes fewer failures, and tries again soon.
    return BreakerPolicy(consecutive=3, open_s=2.0, max_open_s=60.0)


@attrs.frozen
class ClientPolicy:
    """How long a client tries, and how hard. All times are seconds."""

    within_s: float = attrs.field(default=30.0, validator=[gt(0.0), lt(math.inf)])
    """A connection is there by then, or an error is. While a queue holds the client it counts from its last poll."""
    wait_s: float = attrs.field(default=math.inf, validator=gt(0.0))
    """So long it waits in a queue at most. Its last poll comes by then, and `within_s` goes on from there."""
    step_s: float = attrs.field(default=5.0, validator=[gt(0.0), lt(math.inf)])
    """Connecting, sending and waiting for an answer each take so long at most."""
    backoff: Backoff = attrs.field(factory=Backoff, validator=instance_of(Backoff))
    """The pauses between rounds; a longer RetryAfter of a master goes before."""
    budget: BudgetPolicy = attrs.field(factory=BudgetPolicy, validator=instance_of(BudgetPolicy))
    masters: BreakerPolicy = attrs.field(factory=_breaker_policy, validator=instance_of(BreakerPolicy))
    backends: BreakerPolicy = attrs.field(factory=_breaker_policy, validator=instance_of(BreakerPolicy))
    tls: Tls | None = attrs.field(default=None, validator=optional(instance_of(Tls)))
    """How masters are asked under TLS; None: in the clear. Backends are logged in to in the clear."""

    def __attrs_post_init__(self) -> None:
        for breaker in (self.masters, self.backends):
            if breaker.lease_s <= 3 * self.step_s:
                raise ValueError("'lease_s' of a breaker must be above 3 x 'step_s': a call takes three steps")


class ClientObserver:
    """Hears what happens to a client, for metrics and logs; this one does nothing with it. `why`: one word."""

    def answered(self, master: Address, result: str, took_s: float) -> None:
        """A master answered: OK, NoServer, Wait, Closed or Denied."""

    def ask_failed(self, master: Address, why: str, took_s: float) -> None:
        """A master could not be asked."""

    def connected(self, backend: Address, took_s: float) -> None:
        """A backend has let the client in."""

    def login_failed(self, backend: Address, why: str, took_s: float) -> None:
        """A backend could not be used."""

    def paused(self, for_s: float) -> None:
        """The client waits before it asks again."""

    def waits(self, place: Place) -> None:
        """A queue holds the client, and this is where it stands now."""

    def gave_up(self, error: ConnectError) -> None:
        """No connection could be had."""

    def skipped(self, peer: Address, why: Why) -> None:
        """A master or a backend was not called: its breaker is open, or too many calls to it are under way."""

    def breaker_moved(self, peer: Address, state: State, event: Event) -> None:
        """The breaker of a master or a backend is in another state now."""

    def crowded(self, peer: Address, in_flight: int) -> None:
        """Many calls to a master or a backend are under way; it may hang."""


@attrs.frozen
class _Relay(BreakerObserver):
    """Tells of one breaker, with its name."""

    observer: ClientObserver
    peer: Address

    def moved(self, now: float, state: State, event: Event) -> None:  # noqa: ARG002 - hooks of a client have no clock
        self.observer.breaker_moved(self.peer, state, event)

    def crowded(self, now: float, in_flight: int) -> None:  # noqa: ARG002
        self.observer.crowded(self.peer, in_flight)

    def refused(self, now: float, why: Why) -> None:  # noqa: ARG002
        self.observer.skipped(self.peer, why)


class Breakers:
    """A breaker for each peer, of which `most` are remembered."""

    def __init__(self, policy: BreakerPolicy, observer: ClientObserver, most: int = _BREAKERS) -> None:
        self._policy = policy
        self._observer = observer
        self._most = most
        self._breakers: OrderedDict[Address, Breaker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._breakers)

    def of(self, peer: Address) -> Breaker:
        breaker = self._breakers.get(peer)
        if breaker is None:
            breaker = self._breakers[peer] = Breaker(self._policy, _Relay(self._observer, peer))
            if len(self._breakers) > self._most:
                self._breakers.popitem(last=False)
        self._breakers.move_to_end(peer)
        return breaker


class Peers:
    """The breakers of masters and of backends, and the budget of retries: one of it serves all clients of a process."""

    def __init__(self, policy: ClientPolicy | None = None, observer: ClientObserver | None = None) -> None:
        self.policy: Final = policy or ClientPolicy()
        self.observer: Final = observer or ClientObserver()
        self.masters: Final = Breakers(self.policy.masters, self.observer)
        self.backends: Final = Breakers(self.policy.backends, self.observer)
        self.budget: Final = RetryBudget(self.policy.budget)
