"""So many asks of each network and no more: GCRA, in a table that cannot grow.

The Generic Cell Rate Algorithm (ITU-T I.371, annex A; ATM Forum TM 4.1, 4.4.2) keeps one number for each network, the
theoretical arrival time TAT of its next ask at the steady rate. With T = 1 / rate and tau = (burst - 1) T, an ask at t
conforms when max(TAT, t) - t <= tau; then TAT = max(TAT, t) + T. One that does not changes nothing. So in any time w no
more than burst + rate w asks of a network conform, and a network whose TAT has passed is as good as a new one.

That is how entries fade: the TAT of an idle network passes within burst T, and its entry can go without loss. Each
newcomer has the two oldest entries looked at. No entry goes before its TAT has passed, so nobody can push another's
out, or get rid of his own. To keep n entries from fading takes n x rate asks a second, whatever the burst is: with
the 65,536 of the table and one ask a second each, about all that a master can take.

While the table is full newcomers share: all networks of a /24 or a /48 have one of 4,096 cells, chosen by a keyed
hash, with the rate of one network. So a newcomer among strangers may be told to wait, and gains nothing: when there is
room, his entry begins with what the cell has counted. Pure: `now` is an argument, seconds, monotonic.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from typing import Final

import attrs
from attrs.validators import ge, gt

_TABLE: Final = 65536
"""So many networks, about 200 bytes each."""
_CELLS: Final = 4096
_LOOKED_AT: Final = 2


@attrs.frozen
class FairPolicy:
    per_s: float = attrs.field(validator=gt(0.0))
    """Asks a second of one network, in the long run."""
    burst: int = attrs.field(default=20, validator=ge(1))
    """So many at once after a pause."""


class NetworkRates:
    """Counts the asks of each network; networks are bytes, as `lambdamu.networks` gives them."""

    def __init__(self, policy: FairPolicy, most: int = _TABLE, cells: int = _CELLS) -> None:
        self._increment = 1.0 / policy.per_s
        self._tolerance = (policy.burst - 1) * self._increment
        self._most = most
        self._tats: OrderedDict[bytes, float] = OrderedDict()
        self._cells = array("d", [-math.inf]) * cells
        self._shared_until = -math.inf
        """The latest TAT of all cells: after it, none of them counts."""

    def __len__(self) -> int:
        return len(self._tats)

    @property
    def used(self) -> float:
        """Return how much of the table is used, from 0 to 1."""
        return len(self._tats) / self._most

    def wait_s(self, now: float, network: bytes) -> float:
        """Count an ask and return 0 when it conforms; else return for how many seconds the network has to wait."""
        tat = self._tats.get(network)
        if tat is None:
            return self._meet(now, network)
        tat = max(tat, now)
        wait_s = tat - now - self._tolerance
        if wait_s > 0:
            return wait_s
        self._tats[network] = tat + self._increment
        return 0.0

    def _meet(self, now: float, network: bytes) -> float:
        """Do it for one that has no entry."""
        self._forget_faded(now)
        full = len(self._tats) >= self._most
        tat, cell = now, 0
        if full or now < self._shared_until:
            cell = hash(network[: 3 if len(network) == 4 else 6]) % len(self._cells)
            tat = max(self._cells[cell], now)
        wait_s = tat - now - self._tolerance
        if wait_s > 0:
            return wait_s
        if full:
            self._cells[cell] = tat + self._increment
            self._shared_until = max(self._shared_until, tat + self._increment)
        else:
            self._tats[network] = tat + self._increment
        return 0.0

    def _forget_faded(self, now: float) -> None:
        for _ in range(min(_LOOKED_AT, len(self._tats))):
            network, tat = next(iter(self._tats.items()))
            if tat <= now:
                del self._tats[network]
            else:
                self._tats.move_to_end(network)  # looked at again when it is its turn
