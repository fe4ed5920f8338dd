"""The cache service as an operator sets it: `[cache]`, which switches it on by being there, and its warm data."""

from __future__ import annotations

from typing import Final

import attrs

from lambdamu.address import Address
from master.cache.warm_types import WarmType

MOST_WARM: Final = 64
"""Data types; each is fetched for each client of a device that starts the app."""
AROUND_BYTES: Final = 4096
"""What stands around a value in an answer takes no more, so that a value fits that was taken."""


@attrs.frozen
class WarmConfig(WarmType):
    """One type of warm data, and how many workers may be busy with it."""

    workers: int = 50
    """Of those of `[cache]`, so many at most: an upstream that hangs leaves the others to other types."""


@attrs.frozen
class CacheNodeConfig:
    """The cache that is on another node, which this master tells what devices come. Without `address` there is none."""

    address: Address | None = None
    """A host, or its address, and the port of its cache."""
    secret_file: str = ""
    """A file whose one line is said first; from the folder of the configuration."""
    tls: bool = False
    """Whether it is called by TLS; its certificate is checked then, always."""
    ca_file: str = ""
    """PEM: the authorities that vouch for it, from the folder of the configuration; empty: the system's."""
    tls_name: str = ""
    """The name that its certificate must have; empty: the host of `address`."""
    app_starts_per_network_per_s: float = 20.0
    """Devices of one network of clients that it is told of, in the long run."""
    length: int = 1000
    """Devices that wait to be told; one more is dropped."""


@attrs.frozen
class CacheConfig:
    """Where the cache is served, to whom, what it keeps, and where warm data come from."""

    listen: Address = Address("127.0.0.1", 7100)  # noqa: RUF009 - a frozen value
    """Its own port: clients have no business there. Port 0 is any free port."""
    tls: bool = False
    """Whether it speaks TLS, with the certificate of `[tls]`."""
    client_certificates: bool = False
    """Whether a certificate that the port has verified gives the right to ask."""
    secret_file: str = ""
    """A file whose one line gives the right to ask; from the folder of the configuration. Beyond loopback one of both
    is needed."""
    connections: int = 1000
    """Open at once; one more is told so and closed."""
    asks: int = 1000
    """Questions of one connection that are not answered yet; then it is read no further."""
    batch_bytes: int = 1048576
    """A batch is no longer. Values are shorter by 4 KiB."""
    file: str = ""
    """An SQLite file, made where there is none, from where the process was started. Empty: all of it ends with it."""
    commit_s: float = 0.1
    """It is written so often that no more than this is lost with the process, while the machine keeps up."""
    max_bytes: int = 268435456
    """Of memory that all rows take, as they are counted."""
    sessions_per_client: int = 20
    """One more ends the one that was used last the longest ago; 0: no such bound."""
    session_s: float = 1800.0
    """A session that asks for nothing ends after this, where it was given no TTL."""
    data_s: float = 1800.0
    """What a session has put ends after this, where it was given no TTL, and with the session."""
    device_s: float = 2592000.0
    """After this it is forgotten who uses a device, where it was given no TTL."""
    upstream: tuple[str, ...] = ()
    """Who has the data that are kept warm: they are tried in turn."""
    workers: int = 100
    """Fetches at once."""
    length: int = 3000
    """Fetches that wait for a worker; beyond that the least important is refused."""
    waiting: int = 10_000
    """Questions that wait for a fetch at once; one more is refused."""
    app_start_device_s: float = 30.0
    """A device has its data warmed at most once in this time."""
    app_start_client_s: float = 30.0
    """The same of a client."""
    app_starts_per_network_per_s: float = 20.0
    """Devices of one network of clients that the pool beside it tells of, in the long run."""
    app_start_fetches_per_s: float = 200.0
    """Fetches that AppStarts make, all together, in the long run."""
    clients_per_device: int = 4
    """Data are warmed for so many clients of one device, those who used it last."""
    warm: tuple[WarmConfig, ...] = ()

    @property
    def value_bytes(self) -> int:
        """The most bytes of a value."""
        return self.batch_bytes - AROUND_BYTES
