"""A backend: a member of the pool, as the operator described it, and where clients are told to find it."""

from __future__ import annotations

from typing import Final, Literal

import attrs

Family = Literal[4, 6]
FAMILIES: Final[tuple[Family, Family]] = (4, 6)
Endpoint = tuple[str, int]
"""An address in text form, and a port."""


def family_of(endpoint: Endpoint) -> Family:
    return 6 if ":" in endpoint[0] else 4


@attrs.frozen
class Backend:
    """What does not change while the pool is as configured.

    `capacity`: the most users it takes, 0 for nobody, None for no limit. `weight`: its share of the load beside the
    others, 0 for nobody. `advertise`: what clients are told instead of the address that was probed. `priority`: the
    lowest number comes first, and the next one only when nobody of those before can be chosen.
    """

    name: str
    weight: float = 1.0
    capacity: int | None = None
    zone: str = ""
    advertise: tuple[Endpoint, ...] = ()
    priority: int = 0

    def endpoint_for(self, family: Family, probed: Endpoint) -> Endpoint:
        """Return where a client that came by `family` is sent: by the same family where the backend has it.

        What the operator advertises replaces the probed address for both families, which may be one inside the house.
        """
        for endpoint in self.advertise:
            if family_of(endpoint) == family:
                return endpoint
        return self.advertise[0] if self.advertise else probed
