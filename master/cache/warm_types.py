"""What warm data there are, how long they are good, and what somebody who asks for them is answered. Pure.

The life of a value, from the moment its fetch ended: it is served as it is; in the last `refresh_s` of its time it is
still served, and one fetch for the next one runs beside; when its time is over who asks waits for a fetch, and only
where that fails is the old value served, for `stale_s` more. Then it is gone.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum
from typing import Final

import attrs
from attrs.validators import ge, gt, lt

from lambdamu.retry import Backoff

_SPREAD: Final = 0.2
_SPREAD_S: Final = 12.0
"""What was fetched in one moment does not end in one: times to live are cut by chance by up to a fifth, and by up to
12 s where that is more; never by more than a half."""


@attrs.frozen
class WarmType:
    """One kind of data of a client. Times are seconds.

    `type`: its number on the wire. `object`, `name`: what the upstream is asked for. `priority`: of who asks, the
    lowest is the first. `lifetime_s`: so long somebody waits at most, and so long a call of the upstream takes at most.
    """

    type: int
    name: str
    object: str
    ttl_s: float = attrs.field(default=300.0, validator=[gt(0.0), lt(math.inf)])
    priority: int = 100
    refresh_s: float = attrs.field(default=0.0, validator=[ge(0.0), lt(math.inf)])
    lifetime_s: float = attrs.field(default=10.0, validator=[gt(0.0), lt(math.inf)])
    stale_s: float = attrs.field(default=0.0, validator=[ge(0.0), lt(math.inf)])

    def __attrs_post_init__(self) -> None:
        if self.refresh_s > self.ttl_s / 2:
            raise ValueError(f"'refresh_s' must be at most half of 'ttl_s': {self.refresh_s:g} > {self.ttl_s:g} / 2")

    @property
    def kind(self) -> str:
        """What the workers that fetch it are counted as."""
        return f"{self.object}.{self.name}"

    def kept_s(self, rng: random.Random) -> float:
        """Return how long a value that is there now is kept, `stale_s` included; spread by chance."""
        spread_s = min(max(_SPREAD * self.ttl_s, _SPREAD_S), self.ttl_s / 2)
        return self.ttl_s - rng.uniform(0.0, spread_s) + self.stale_s

    def age(self, now: float, updated_at: float, kept_s: float) -> Age:
        """Return how old a value of that moment is, which is kept for `kept_s`."""
        left_s = updated_at + kept_s - self.stale_s - now
        if left_s <= 0:
            return Age.STALE
        return Age.AGING if left_s <= self.refresh_s else Age.FRESH


class Age(StrEnum):
    FRESH = "fresh"
    AGING = "aging"
    """It is served, and the next one is fetched."""
    STALE = "stale"
    """It is served only where no fresh one can be had."""


@attrs.frozen
class WarmPolicy:
    """The bounds of all warm data together. Times are seconds.

    An AppStart comes from anybody, and makes work for others: so there is one for a device in `device_s`, one for a
    client in `client_s`, so many a second of a network, and so many fetches a second of all together.
    """

    flights: int = attrs.field(default=5000, validator=ge(1))
    """So many different data may be awaited from the upstream at once."""
    background_priority: int = 1_000_000
    """Of what nobody waits for: after all that somebody does wait for."""
    device_s: float = attrs.field(default=30.0, validator=gt(0.0))
    client_s: float = attrs.field(default=30.0, validator=gt(0.0))
    network_per_s: float = attrs.field(default=20.0, validator=gt(0.0))
    network_burst: int = attrs.field(default=100, validator=ge(1))
    fetches_per_s: float = attrs.field(default=200.0, validator=gt(0.0))
    fetches_burst: int = attrs.field(default=1000, validator=ge(1))
    clients_per_device: int = attrs.field(default=4, validator=ge(1))
    """For so many clients of one device data are warmed at most."""
    devices: int = attrs.field(default=65_536, validator=ge(1))
    """So many devices, clients and networks are remembered; beyond that newcomers share."""
    backoff: Backoff = Backoff(0.5, 10.0)  # noqa: RUF009 - a frozen value
    """After a failure the same data are not fetched again for so long, longer with each."""


class Why(StrEnum):
    """Why there are no data for an answer: the words of the wire."""

    SESSION_GONE = "SessionGone"
    NOT_YOURS = "NotYours"
    NOT_FOUND = "NotFound"
    UPSTREAM = "Upstream"
    FULL = "Full"
    EXPIRED = "Expired"
    STOPPING = "Stopping"


@attrs.frozen
class Warm:
    """The data. `stale`: their time is over, and fresh ones could not be had."""

    value: bytes
    stale: bool = False


@attrs.frozen
class NotServed:
    """`text`: one line for people. `retry_after_s`: sooner it is of no use to ask again; None where nobody knows."""

    why: Why
    text: str
    retry_after_s: float | None = None


Answer = Warm | NotServed
