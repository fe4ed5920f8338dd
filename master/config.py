"""What the operator decides, as frozen values named like the keys of the configuration file.

Every default, unit and bound of the project stands here and nowhere else, except the defaults of `PortLimits`, which
belong to the port, of `ChoicePolicy`, which belong to the pool, of the queue, in `master.queue.policy` and
`master.config_queue`, and of the cache, in `master.config_cache`. `master.config_file` reads a file into these classes
and applies the bounds; `master.config_notes` says in words what a configuration means. It is one long table.
"""

from __future__ import annotations

import math
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from lambdamu.address import MAX_PORT, Address
from lambdamu.forwarded import ClientHeader
from lambdamu.networks import Network
from lambdamu.tcp_server import PortLimits
from master.config_cache import CacheConfig, CacheNodeConfig, WarmConfig
from master.config_queue import QueueConfig
from master.core.choice import ChoicePolicy
from master.queue.policy import TemplatePolicy
from master.webhook_url import WebhookURL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lambdamu.client_tls import Trust


class Mode(StrEnum):
    """How a backend is probed."""

    HOLD = "hold"
    """Stay connected: a close is noticed at once."""
    RECONNECT = "reconnect"
    """Connect, ask and disconnect at every tick."""


@attrs.frozen
class MasterPolicy:
    """How the master meets its clients."""

    listen: Address = Address("127.0.0.1", 7000)  # noqa: RUF009 - a frozen value
    """Port 0 is any free port."""
    grace_s: float = 5.0
    """At SIGTERM: time to finish what was asked."""
    linger_s: float = 0.0
    """At SIGTERM: serve on for so long first, for a balancer in front."""
    connect_s: float = 2.0
    """A client sent to a backend is in its count after at most this."""
    reservation_s: float = 15.0
    """After this an assignment that no report has confirmed is forgotten."""
    retry_after_s: float = 2.0
    """The base of RetryAfter, which is jittered by up to a half either way."""
    reload_on_change: bool = False
    """Whether the file is read again, without a signal, when it has become another one."""
    trusted_proxies: tuple[Network, ...] = ()
    """Balancers in front of the clients' ports: each has to say whose connection it is, by the PROXY protocol."""


@attrs.frozen
class ProbePolicy:
    """How backends are asked whether they live and how many users they have."""

    interval_s: float = 1.0
    timeout_s: float = 1.0
    stale_after_s: float = 3.0
    """A report older than this is not valid any more."""
    mode: Mode = Mode.HOLD
    renew_s: float = 60.0
    """Hold mode: connect anew so often, so that Auth is checked again."""
    rise: int = 1
    """So many good probes in a row bring a backend up."""
    fall: int = 2
    """So many failed probes in a row bring it down."""
    user_name: str = "lambdamu-master"
    user_mail: str = attrs.field(default="master@localhost", repr=False)
    user_mail_file: str = ""
    """A file whose one line becomes `user_mail` when the configuration is read: a secret. From the folder of that."""
    tls: bool = False
    """Whether backends are probed by TLS; their certificates are checked then, always."""
    ca_file: str = ""
    """PEM: the authorities that vouch for backends, from the folder of the configuration; empty: the system's."""


@attrs.frozen
class ChoiceConfig(ChoicePolicy):
    """Which backend a client is sent to: the policy of the choice, and what load is reckoned by."""

    session_s: float | None = None
    """How long a user stays on the average; None: learned from the reports."""
    masters: int = 1
    """How many masters share the clients evenly, this one included."""


@attrs.frozen
class BreakerConfig:
    """When a backend that clients cannot use is left alone, and for how long."""

    networks: int = 3
    """Clients of so many networks, /24 or /48, must say that they could not use it."""
    window_s: float = 30.0
    """They must say so within this."""
    max_ejected_share: float = 0.3
    """At most this part of the backends is out for it at once, and never the last one; 0: none ever."""
    together_share: float = 0.5
    """When more than this part is accused at once the fault lies elsewhere, and none is out for `window_s`."""
    open_s: float = 30.0
    """It is out for so long at first, then one client is sent there to try."""
    max_open_s: float = 300.0
    """Each time it fails again it is out for twice as long, up to this."""


@attrs.frozen
class StateConfig:
    """What outlives the process: what operators want of backends, and the last good reports."""

    file: str = ""
    """An SQLite file, made where there is none. Empty: all of it ends with the process."""


@attrs.frozen
class HttpPolicy:
    """The operators' side: status page, metrics, API. Without `listen` there is none."""

    listen: Address | None = None
    tokens_file: str = ""
    """Who may read and who may change; from the folder of the configuration file. Needed beyond loopback."""
    hosts: tuple[str, ...] = ()
    """Names besides localhost and addresses by which a browser may come to change something."""
    ready_needs_backend: bool = False
    """Whether /readyz says no while no backend can take anyone."""
    connections: int = 64
    """Open at once; one more is closed."""


@attrs.frozen
class AlertsPolicy:
    """Where changes of state are posted. Without `webhook` they are not."""

    webhook: WebhookURL | None = None
    min_interval_s: float = 10.0
    """Tries lie at least so far apart; what changes meanwhile comes in one post."""
    timeout_s: float = 5.0
    """A post that was not answered within this has failed, and is tried again."""
    keep_s: float = 3600.0
    """A change that could not be delivered for so long is dropped."""


@attrs.frozen
class AccessPolicy:
    """What a client may show to be let in, any of it; with nothing named, everybody is let in.

    Files are looked for from the folder of the configuration file.
    """

    keys_file: str = ""
    """Keys that passes are signed with."""
    tokens_file: str = ""
    """Tokens that many clients share."""
    client_certificates: bool = False
    """A TLS certificate that the port has verified."""
    revoked_file: str = ""
    """Ids of passes, and subjects of passes and certificates, that are let in no more."""

    def __bool__(self) -> bool:
        """Whether a right is needed at all."""
        return bool(self.keys_file or self.tokens_file or self.client_certificates)


@attrs.frozen
class TlsConfig:
    """TLS for clients. Files are looked for from the folder of the configuration file."""

    listen: Address | None = None
    """Where clients ask under TLS, beside `listen` of `[master]`."""
    certificate: str = ""
    """PEM: the certificate, and those of the authorities between it and a root."""
    key: str = ""
    """PEM: its key, without a passphrase."""
    client_ca: str = ""
    """PEM: the authorities that vouch for clients. Empty: clients are asked for no certificate."""
    require_client_certificate: bool = False
    """Whether who has none is not even let in."""
    handshakes: int = 1000
    """Begun at once, at most; one more, and the one that began first is closed."""


@attrs.frozen
class GatewayConfig:
    """The same question by HTTP and JSON. Without `listen` there is no gateway."""

    listen: Address | None = None
    tls: bool = False
    """Whether it speaks HTTPS, with the certificate of `[tls]`."""
    origins: tuple[str, ...] = ()
    """The pages that may ask from a browser, such as https://game.example; "*": all."""
    trusted_proxies: tuple[Network, ...] = ()
    """Balancers in front: what they say of the client is believed."""
    client_header: ClientHeader = ClientHeader.X_FORWARDED_FOR
    """The header in which they say it; the other is not read, since they may pass on what a client wrote there."""
    connections: int = 10000
    """Open at once; one more is told so and closed."""
    wait_page: bool = False
    """Whether people with a browser may wait at /wait/ID."""
    wait_redirect: str = ""
    """Where the browser goes whose turn it is, with fields in braces; empty: the page shows the address."""
    wait_texts: str = ""
    """A folder of texts by language, from the folder of the configuration: they add to the built-in ones."""


@attrs.frozen
class BackendConfig:
    """One member of the pool. The file may leave `name` out; it is `host:port` then, or `[v6]:port`."""

    name: str
    host: str
    """An address in its shortest form or a name, which is resolved for each connect."""
    port: int
    advertise: tuple[Address, ...] = ()
    """What clients are told in place of the probed address: at most one address of each family."""
    weight: float = 1.0
    """0: nobody is sent here."""
    capacity: int | None = None
    """The most users; 0: nobody; None: no limit."""
    zone: str = ""
    priority: int = 0
    """Lower numbers first; the next one only when nobody of those before can be chosen."""
    load: bool = False
    """Whether it is asked for its own word: that it drains, and the most users it takes now."""
    tls_name: str = ""
    """The name that its certificate must have; empty: `host`."""


@attrs.frozen
class Config:
    """The whole file. `warnings`: one line each for what is allowed and yet looks like a mistake."""

    master: MasterPolicy = MasterPolicy()
    limits: PortLimits = PortLimits()  # noqa: RUF009 - a frozen value
    probe: ProbePolicy = ProbePolicy()
    choice: ChoiceConfig = ChoiceConfig()
    breaker: BreakerConfig = BreakerConfig()
    state: StateConfig = StateConfig()
    http: HttpPolicy = HttpPolicy()
    alerts: AlertsPolicy = AlertsPolicy()
    access: AccessPolicy = AccessPolicy()
    tls: TlsConfig = TlsConfig()
    gateway: GatewayConfig = GatewayConfig()
    queue: QueueConfig | None = None
    """None: the table is not there, and nobody waits in a queue."""
    cache: CacheConfig | None = None
    """None: the table is not there, and no cache is served."""
    cache_node: CacheNodeConfig = CacheNodeConfig()  # noqa: RUF009 - a frozen value
    backends: tuple[BackendConfig, ...] = ()
    alone: bool = False
    """Whether the cache is all there is: no `[master]` and no `[[backend]]`, and so no port for clients."""
    trust: Trust | None = None
    """With `[probe] tls`: what stands in `ca_file`, where the file was read."""
    warnings: tuple[str, ...] = ()
    as_written: Mapping[tuple[str, str], Any] = attrs.field(factory=dict, hash=False)
    """By table and key: what stands in the file where the process works with another value."""

    def written(self, table: str, key: str) -> Any:
        """Return what stands in the file."""
        return self.as_written.get((table, key), getattr(getattr(self, table), key))

    def work_with(self, table: str, key: str, value: Any) -> Config:
        """Return this one with a value in place of what stands in the file."""
        changed = attrs.evolve(getattr(self, table), **{key: value})
        written = {**self.as_written, (table, key): self.written(table, key)}
        return attrs.evolve(self, **{table: changed, "as_written": written})


TABLES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "master": MasterPolicy,
        "limits": PortLimits,
        "probe": ProbePolicy,
        "choice": ChoiceConfig,
        "breaker": BreakerConfig,
        "state": StateConfig,
        "http": HttpPolicy,
        "alerts": AlertsPolicy,
        "access": AccessPolicy,
        "tls": TlsConfig,
        "gateway": GatewayConfig,
        "queue": QueueConfig,
        "queue.template": TemplatePolicy,
        "cache": CacheConfig,
        "cache.warm": WarmConfig,
        "cache_node": CacheNodeConfig,
        "backend": BackendConfig,
    }
)
"""The tables of the file, by name."""
ARRAYS: Final = frozenset({"backend", "queue.template", "cache.warm"})
"""Those that are arrays of tables."""
WITHIN: Final[Mapping[type[Any], tuple[str, str]]] = MappingProxyType(
    {QueueConfig: ("queue.template", "templates"), CacheConfig: ("cache.warm", "warm")}
)
"""By table: the array of tables that is within, and the field for it."""
KEYS: Final[Mapping[type[Any], Mapping[str, attrs.Attribute[Any]]]] = MappingProxyType(
    {
        cls: {key: each for key, each in attrs.fields_dict(cls).items() if key != WITHIN.get(cls, ("", ""))[1]}
        for cls in TABLES.values()
    }
)
"""The keys of each table by name: its fields, but for the array of tables that is within."""
SWITCHES: Final = frozenset({"queue", "cache"})
"""Those that switch something on by being there, also without a key."""
SECRETS: Final = frozenset({("probe", "user_mail"), ("alerts", "webhook")})
"""Tables and keys whose values are shown to nobody."""


@attrs.frozen
class Bounds:
    """The least and the most of a number, of the port of an address, or of the bytes of a text in UTF-8."""

    least: float
    most: float
    zero: bool = False
    """Whether 0 is allowed too, below the least."""

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most or (self.zero and number == 0)

    def __str__(self) -> str:
        return f"from {figure(self.least)} to {figure(self.most)}{', or 0' * self.zero}"


_MONTH: Final = 30 * 86400.0
_SOON: Final = Bounds(0, 3600)
_DEADLINE: Final = Bounds(0.01, 3600)
_LONG: Final = Bounds(0.01, _MONTH)
_PER_MINUTE: Final = Bounds(0.001, 6_000_000, zero=True)
_TTL: Final = Bounds(0.1, 366 * 86400)
_PLACES: Final = Bounds(1, 10_000_000)

MOST_MAIL_BYTES: Final = 256

BOUNDS: Final[Mapping[type[Any], Mapping[str, Bounds]]] = MappingProxyType(
    {
        MasterPolicy: {
            "listen": Bounds(0, MAX_PORT),
            "grace_s": _SOON,
            "linger_s": _SOON,
            "connect_s": _SOON,
            "reservation_s": _DEADLINE,
            "retry_after_s": _DEADLINE,
        },
        PortLimits: {
            "batch_bytes": Bounds(1024, 16 * 2**20),
            "batch_messages": Bounds(1, 65536),
            # The deepest message of the wire, an ask with Failed, takes five.
            "nesting": Bounds(5, 256),
            "name_bytes": Bounds(16, 65535),
            "message_s": _DEADLINE,
            "idle_s": _LONG,
            "send_s": _DEADLINE,
            "connections": Bounds(1, 1_000_000),
            "connections_per_address": Bounds(0, 1_000_000),
            "asks_per_network_per_s": Bounds(0.001, 1_000_000, zero=True),
            "asks_burst": Bounds(1, 1_000_000),
            "ipv4_prefix": Bounds(8, 32),
            "ipv6_prefix": Bounds(16, 128),
        },
        ProbePolicy: {
            "interval_s": _DEADLINE,
            "timeout_s": _DEADLINE,
            "stale_after_s": Bounds(0.02, 86400),
            "renew_s": _LONG,
            "rise": Bounds(1, 1000),
            "fall": Bounds(1, 1000),
            "user_name": Bounds(1, 256),
            "user_mail": Bounds(1, MOST_MAIL_BYTES),
            "user_mail_file": Bounds(0, 4096),
            "ca_file": Bounds(0, 4096),
        },
        ChoiceConfig: {
            "session_s": Bounds(0.1, 7 * 86400),
            "masters": Bounds(1, 1000),
            "join_cap": Bounds(1, 1_000_000_000),
            "slack": Bounds(0, 1_000_000),
            "slow_start_s": _SOON,
            "zone_slack": Bounds(0, 1000),
            "session_slack": Bounds(0, 1000),
            "panic_threshold": Bounds(0, 1),
            "first_round_s": _SOON,
        },
        BreakerConfig: {
            "networks": Bounds(1, 1000),
            "window_s": _DEADLINE,
            "max_ejected_share": Bounds(0, 1),
            "together_share": Bounds(0.01, 1),
            "open_s": _DEADLINE,
            "max_open_s": Bounds(0.01, 86400),
        },
        StateConfig: {"file": Bounds(0, 4096)},
        HttpPolicy: {"listen": Bounds(0, MAX_PORT), "connections": Bounds(4, 10_000)},
        AlertsPolicy: {"min_interval_s": Bounds(0.1, 3600), "timeout_s": _DEADLINE, "keep_s": Bounds(1, 86400)},
        AccessPolicy: {
            "keys_file": Bounds(0, 4096),
            "tokens_file": Bounds(0, 4096),
            "revoked_file": Bounds(0, 4096),
        },
        TlsConfig: {
            "listen": Bounds(0, MAX_PORT),
            "certificate": Bounds(0, 4096),
            "key": Bounds(0, 4096),
            "client_ca": Bounds(0, 4096),
            "handshakes": Bounds(1, 100_000),
        },
        GatewayConfig: {
            "listen": Bounds(0, MAX_PORT),
            "connections": Bounds(1, 1_000_000),
            "wait_redirect": Bounds(0, 2048),
            "wait_texts": Bounds(0, 4096),
        },
        QueueConfig: {
            "text": Bounds(0, 1024),
            "per_minute": _PER_MINUTE,
            "burst": Bounds(1, 1_000_000),
            "target_load": Bounds(0.01, 1),
            "claim_s": _DEADLINE,
            "claimed_s": _DEADLINE,
            "lease_s": _DEADLINE,
            "away_lease_s": Bounds(0.01, 86400),
            "return_s": Bounds(0, 86400),
            "hold_plain_s": _DEADLINE,
            "max_calls": Bounds(1, 1_000_000),
            "max_queues": Bounds(1, 100_000),
            "max_tickets": _PLACES,
            "max_tickets_per_network": _PLACES,
            # With fewer, and all of them taken, nobody would poll within a second.
            "max_polls_per_s": Bounds(1, 1_000_000),
            "commit_s": Bounds(0.01, 60),
            "keys_file": Bounds(0, 4096),
            # The end of a Turn is a whole second.
            "turn_s": Bounds(1, 3600),
            "max_held": Bounds(0, 1_000_000),
        },
        TemplatePolicy: {
            "pattern": Bounds(1, 128),
            "per_minute": _PER_MINUTE,
            "share": Bounds(0.001, 1000),
            "max_waiting": _PLACES,
            "vip_share": Bounds(0, 1),
        },
        CacheConfig: {
            "listen": Bounds(0, MAX_PORT),
            "secret_file": Bounds(0, 4096),
            "connections": Bounds(1, 1_000_000),
            "asks": Bounds(1, 100_000),
            "batch_bytes": Bounds(65536, 16 * 2**20),
            "file": Bounds(0, 4096),
            "commit_s": Bounds(0.01, 60),
            "max_bytes": Bounds(2**20, 2**40),
            "sessions_per_client": Bounds(0, 1000),
            "session_s": _TTL,
            "data_s": _TTL,
            "device_s": _TTL,
            "workers": Bounds(1, 10_000),
            "length": Bounds(1, 1_000_000),
            "waiting": Bounds(1, 1_000_000),
            "app_start_device_s": _DEADLINE,
            "app_start_client_s": _DEADLINE,
            "app_starts_per_network_per_s": Bounds(0.001, 1_000_000),
            "app_start_fetches_per_s": Bounds(0.001, 1_000_000),
            "clients_per_device": Bounds(1, 100),
        },
        WarmConfig: {
            "type": Bounds(0, 2**53 - 1),
            "name": Bounds(1, 256),
            "object": Bounds(1, 256),
            "ttl_s": Bounds(0.1, _MONTH),
            "priority": Bounds(0, 1000),
            "refresh_s": Bounds(0, _MONTH),
            "lifetime_s": Bounds(0.01, 600),
            "stale_s": Bounds(0, _MONTH),
            "workers": Bounds(1, 10_000),
        },
        CacheNodeConfig: {
            "address": Bounds(1, MAX_PORT),
            "secret_file": Bounds(0, 4096),
            "ca_file": Bounds(0, 4096),
            "tls_name": Bounds(0, 254),
            "app_starts_per_network_per_s": Bounds(0.001, 1_000_000),
            "length": Bounds(1, 1_000_000),
        },
        BackendConfig: {
            "name": Bounds(1, 128),
            "port": Bounds(1, MAX_PORT),
            # A load is divided by the weight: a very small one would make every load infinite, and so equal.
            "weight": Bounds(0.001, 1_000_000, zero=True),
            "capacity": Bounds(0, 1_000_000_000),
            "zone": Bounds(0, 128),
            "priority": Bounds(0, 9),
            "tls_name": Bounds(0, 254),
        },
    }
)
"""The bounds of each key that has some. The port of `advertise` has those of `port`."""


@attrs.frozen
class Order:
    """A rule between keys of one table: the sum of `lower` must not exceed `upper`."""

    lower: tuple[str, ...]
    upper: str

    def broken_by(self, values: Mapping[str, float]) -> str | None:
        """Say how `values` break the rule; None when they keep it or do not hold all its keys."""
        if not values.keys() >= {*self.lower, self.upper}:
            return None
        total, most = sum(values[key] for key in self.lower), values[self.upper]
        # 0.1 + 0.2 does not exceed 0.3 for those who wrote them.
        if total <= most or math.isclose(total, most):
            return None
        return f"must not exceed {self.upper}, but {figure(total)} is more than {figure(most)}"


ORDERS: Final[Mapping[type[Any], Sequence[Order]]] = MappingProxyType(
    {
        MasterPolicy: (Order(("connect_s",), "reservation_s"),),
        ProbePolicy: (
            Order(("timeout_s",), "interval_s"),
            Order(("interval_s", "timeout_s"), "stale_after_s"),
            Order(("interval_s",), "renew_s"),
        ),
        BreakerConfig: (Order(("open_s",), "max_open_s"),),
        QueueConfig: (Order(("turn_s",), "claimed_s"), Order(("lease_s",), "away_lease_s")),
        # The rule of the warm data: half of its time at most.
        WarmConfig: (Order(("refresh_s", "refresh_s"), "ttl_s"),),
    }
)


def figure(number: float) -> str:
    """Return a number as people write it: 5 for 5.0, and no exponent where it can be helped."""
    return str(int(number)) if number == int(number) else f"{number:.12g}"
