"""How much an AppStart may make others do. Pure: `now` is seconds, monotonic.

Nobody has logged in yet who sends one, and it costs the upstream a call for each data type: so devices and clients have
a time between two, networks a rate, and all together have one of fetches. All are GCRA, as in `master.core.fair`: no
entry goes before it has faded, so that nobody can push out another's or his own.
"""

from __future__ import annotations

from hashlib import blake2b

from master.cache.warm_types import WarmPolicy
from master.core.fair import FairPolicy, NetworkRates


class WarmBudget:
    """What the policy leaves for AppStarts; each question counts what it grants."""

    def __init__(self, policy: WarmPolicy) -> None:
        most = policy.devices
        self._networks = NetworkRates(FairPolicy(policy.network_per_s, policy.network_burst), most)
        self._devices = NetworkRates(FairPolicy(1.0 / policy.device_s, 1), most)
        self._clients = NetworkRates(FairPolicy(1.0 / policy.client_s, 1), most)
        self._fetches = NetworkRates(FairPolicy(policy.fetches_per_s, policy.fetches_burst), 1)

    @property
    def used(self) -> float:
        """Return how full the fullest table is, from 0 to 1."""
        return max(table.used for table in (self._networks, self._devices, self._clients))

    def network(self, now: float, network: bytes) -> bool:
        """Whether one more AppStart may come from there."""
        return not self._networks.wait_s(now, network)

    def device(self, now: float, device: str) -> bool:
        return not self._devices.wait_s(now, _name(device))

    def client(self, now: float, client: str) -> bool:
        return not self._clients.wait_s(now, _name(client))

    def fetch(self, now: float) -> bool:
        """Whether one more fetch may be made that nobody has asked for."""
        return not self._fetches.wait_s(now, b"")


def _name(text: str) -> bytes:
    """Return 16 bytes that stand for it: whoever sends it cannot choose with whom it shares."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
