"""Whether a client is heard at all: not too often, and with the right that the configuration asks for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from lambdamu.messages import Reason
from lambdamu.networks import Networks
from lambdamu.tcp_server import PortLimits
from master.access import Access, Denied, Granted, read_credentials
from master.config import AccessPolicy
from master.core.fair import FairPolicy, NetworkRates

_JITTER: Final = 0.5
"""Who was told to wait comes up to this part later, so that a network does not come back as one."""


class Doors:
    """What every ask has to pass before anything is learned of it.

    Without `rates` as many as like may come, without `access` whoever likes. `wall` gives Unix seconds.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        rates: NetworkRates | None = None,
        networks: Networks | None = None,
        access: Access | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rng = rng
        self.rates = rates
        self._networks = networks or Networks()
        self.access = access
        self._wall = wall

    @property
    def certificates_count(self) -> bool:
        """Whether an ask that says nothing may be let in for the connection that it came by."""
        return self.access is not None and self.access.policy.client_certificates

    def too_fast(self, now: float, host: str) -> Denied | None:
        """Count an ask from the address `host`; it is denied when its network has asked too often."""
        network = self._networks.of(host) if self.rates is not None else None
        if self.rates is None or network is None:
            return None
        wait_s = self.rates.wait_s(now, network)
        return Denied(Reason.TOO_FAST, wait_s * self._rng.uniform(1.0, 1.0 + _JITTER)) if wait_s else None

    def judge(self, text: str | None, subject: str) -> Granted | Denied | None:
        """Judge by the Pass of an ask and the subject of the certificate of its connection; None: all may come."""
        return None if self.access is None else self.access.judge(self._wall(), text, subject)

    def without_right(self, text: str | None, subject: str) -> Denied | None:
        """Do the same where only the no is of interest."""
        judged = self.judge(text, subject)
        return judged if isinstance(judged, Denied) else None


def make_doors(limits: PortLimits, policy: AccessPolicy, rng: random.Random) -> Doors | None:
    """Return the doors that a configuration describes, None for none. Raise LineFileError when a file is not right."""
    access = Access(policy, read_credentials(policy)) if policy else None
    per_s = limits.asks_per_network_per_s
    rates = NetworkRates(FairPolicy(per_s, limits.asks_burst)) if per_s else None
    if rates is None and access is None:
        return None
    return Doors(rng, rates=rates, networks=limits.networks(), access=access)
