"""Where others come in: the clients' port, the same under TLS, the gateway, all to one master; and the cache's port."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.errors import LambdaMuError
from lambdamu.machine import LogicalMachine
from lambdamu.tcp_server import PortObserver, TCPServer, open_listeners
from master.config import Config, GatewayConfig
from master.config_secrets import make_tls_door

if TYPE_CHECKING:
    from lambdamu.epoll_guarded import GuardedServer
    from lambdamu.tls import TlsDoor
    from master.cache.port import CachePort
    from master.gateway import Door
    from master.wait_page.page import WaitRules

_HTTP: Final = ("http/1.1",)


class Entrance(StrEnum):
    """One way in: the word in metrics and in the log."""

    CLIENTS = "clients"
    TLS = "tls"
    GATEWAY = "gateway"
    CACHE = "cache"
    """For backends and front servers, no clients."""


class EntranceError(LambdaMuError):
    """An entrance cannot be opened: which `place`, and `why`; str() is one line."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place
        self.why = why


Sockets = Mapping[Entrance, Sequence[socket.socket]]


def addresses_of(config: Config) -> dict[Entrance, Address]:
    """Return where others can come in, by the configuration."""
    places = {
        Entrance.CLIENTS: None if config.alone else config.master.listen,
        Entrance.TLS: config.tls.listen,
        Entrance.GATEWAY: config.gateway.listen,
        Entrance.CACHE: config.cache.listen if config.cache is not None else None,
    }
    return {entrance: place for entrance, place in places.items() if place is not None}


def open_sockets(config: Config) -> dict[Entrance, Sequence[socket.socket]]:
    """Listen at each entrance. Raise EntranceError, with nothing left open, where that cannot be."""
    sockets: dict[Entrance, Sequence[socket.socket]] = {}
    for entrance, address in addresses_of(config).items():
        try:
            sockets[entrance] = open_listeners(address)
        except OSError as exc:
            close(sockets)
            raise EntranceError(str(address), exc.strerror or str(exc)) from exc
    return sockets


def close(sockets: Sockets) -> None:
    for listeners in sockets.values():
        for listener in listeners:
            listener.close()


class Entrances:
    """The ports of a master.

    Raise TlsError on a certificate that is not right, LineFileError on a text, EntranceError where Linux is needed.
    """

    def __init__(
        self,
        config: Config,
        machine: LogicalMachine,
        door: Door,
        observer: PortObserver,
        cache: Callable[[TlsDoor | None], CachePort] | None = None,
    ) -> None:
        """`cache`: makes the port of the cache, where there is one."""
        self._tls = config.tls
        self.tls: dict[Entrance, TlsDoor] = {}
        """What handshakes are made by, at the entrances that have some."""
        self.ports: dict[Entrance, TCPServer | CachePort] = {}
        self._guarded: dict[Entrance, GuardedServer | CachePort] = {}
        refuse_elsewhere(config)
        makers: dict[Entrance, Callable[[], TCPServer | CachePort]] = {
            Entrance.CLIENTS: lambda: self._clients(config, machine, observer),
            Entrance.TLS: lambda: self._clients(config, machine, observer, tls=True),
            Entrance.GATEWAY: lambda: self._gateway(config, door, observer),
            Entrance.CACHE: lambda: self._cache(config, cache),
        }
        for entrance in addresses_of(config):
            self.ports[entrance] = makers[entrance]()

    @property
    def connections(self) -> int:
        """How many connections are open now, of clients and to the cache."""
        return sum(port.connections for port in self.ports.values())

    async def serve(
        self,
        sockets: Sockets,
        *,
        task_status: trio.TaskStatus[dict[Entrance, list[Address]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at each until `stop`, and then until what was asked is answered."""
        async with trio.open_nursery() as nursery:
            addresses: dict[Entrance, list[Address]] = {}
            for entrance, port in self.ports.items():
                addresses[entrance] = await nursery.start(port.serve, sockets[entrance])
            task_status.started(addresses)

    def stop(self) -> None:
        for port in self.ports.values():
            port.stop()

    def connections_at(self, entrance: Entrance) -> int:
        return self.ports[entrance].connections

    def used(self, entrance: Entrance) -> float:
        """Return how much of the connections of an entrance is used, from 0 to 1."""
        port = self.ports[entrance]
        return port.connections / port.limits.connections

    def shaking(self, entrance: Entrance) -> float:
        """Return how much of the handshakes that may be begun at once is used, from 0 to 1."""
        return self._guarded[entrance].entering / self.tls[entrance].policy.handshakes

    def expiry(self, entrance: Entrance) -> float:
        """Return when the certificate of an entrance ends, Unix seconds."""
        return self.tls[entrance].expires_at

    def read_certificates(self) -> dict[Entrance, TlsDoor]:
        """Return what the files of the certificate hold now, for each entrance that needs it. Raise TlsError."""
        return {entrance: make_tls_door(self._tls, door.policy.protocols) for entrance, door in self.tls.items()}

    def adopt_certificates(self, doors: Mapping[Entrance, TlsDoor]) -> None:
        """Shake hands by them from now on."""
        for entrance, door in doors.items():
            self.tls[entrance].adopt(door)

    def _clients(
        self, config: Config, machine: LogicalMachine, observer: PortObserver, *, tls: bool = False
    ) -> TCPServer:
        proxies = config.master.trusted_proxies
        if not tls and not proxies:
            return TCPServer(machine, config.limits, observer=observer)
        from lambdamu.epoll_guarded import GuardedServer  # noqa: PLC0415 - Linux alone has it

        if not tls:
            return GuardedServer(machine, config.limits, observer=observer, proxies=proxies)
        door = self.tls[Entrance.TLS] = make_tls_door(config.tls)
        port = self._guarded[Entrance.TLS] = GuardedServer(
            machine, config.limits, observer=observer, tls=door, proxies=proxies
        )
        return port

    def _cache(self, config: Config, make: Callable[[TlsDoor | None], CachePort] | None) -> CachePort:
        assert config.cache is not None  # noqa: S101 - else it has no address
        assert make is not None  # noqa: S101 - whoever has a cache says so
        door = make_tls_door(config.tls) if config.cache.tls else None
        port = make(door)
        if door is not None:
            self.tls[Entrance.CACHE], self._guarded[Entrance.CACHE] = door, port
        return port

    def _gateway(self, config: Config, door: Door, observer: PortObserver) -> GuardedServer:
        from lambdamu.epoll_guarded import GuardedServer  # noqa: PLC0415 - as above
        from lambdamu.http_wire import HttpWire  # noqa: PLC0415 - few need it
        from master.gateway import Gateway, GatewayRules  # noqa: PLC0415

        policy = config.gateway
        gateway = Gateway(
            door,
            GatewayRules(policy.origins, policy.trusted_proxies, policy.client_header, policy.tls, _wait_rules(policy)),
        )
        limits = attrs.evolve(
            config.limits,
            connections=policy.connections,
            exempt=(*config.limits.exempt, *policy.trusted_proxies),
        )
        if policy.tls:
            self.tls[Entrance.GATEWAY] = make_tls_door(config.tls, _HTTP)
        port = self._guarded[Entrance.GATEWAY] = GuardedServer(
            gateway, limits, observer=observer, wire=HttpWire(), tls=self.tls.get(Entrance.GATEWAY)
        )
        return port


def _wait_rules(policy: GatewayConfig) -> WaitRules | None:
    """Return how the waiting page is, None for none. Raise LineFileError when a file of texts is not right."""
    if not policy.wait_page:
        return None
    from master.wait_page.page import WaitRules  # noqa: PLC0415 - few need it
    from master.wait_page.redirect import Redirect  # noqa: PLC0415
    from master.wait_page.texts import load_texts  # noqa: PLC0415

    redirect = Redirect.parse(policy.wait_redirect) if policy.wait_redirect else None
    return WaitRules(load_texts(policy.wait_texts), redirect)


def refuse_elsewhere(config: Config) -> None:
    """Raise EntranceError where a configuration wants what only the port of Linux can."""
    wanted = {
        "[tls] listen": config.tls.listen is not None,
        "[gateway] listen": config.gateway.listen is not None,
        "[master] trusted_proxies": bool(config.master.trusted_proxies),
    }
    if sys.platform != "linux" and any(wanted.values()):
        raise EntranceError(" and ".join(key for key, on in wanted.items() if on), "this needs Linux")
