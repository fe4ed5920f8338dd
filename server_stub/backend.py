"""A backend with its business logic cut out: it lets users in and counts them, well or with a fault to order."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
from attrs.validators import ge, lt, optional

from lambdamu.address import Address, printable
from lambdamu.cache_client import CacheClient
from lambdamu.datapack import encode
from lambdamu.line_file import LineFileError
from lambdamu.machine import LogicalMachine
from lambdamu.messages import MAX_COUNT
from lambdamu.tcp_server import PortLimits, PortObserver, TCPServer, open_listeners
from lambdamu.tls import TlsDoor, TlsError, TlsPolicy
from lambdamu.turns import Verifier as TurnVerifier
from lambdamu.wire import MessagePackWire
from server_stub.faults import Fault, Kind, parse_fault
from server_stub.faulty import with_fault
from server_stub.products import Products, ProductsFault
from server_stub.screen import Screen
from server_stub.sessions import Sessions
from server_stub.users import Auth, Load, System, TurnGate, Users

if TYPE_CHECKING:
    from lambdamu.keys import Verifier

__all__ = ["Fault", "ServerOptions", "make_machine", "parse_fault", "run_server", "serve"]

_GRACE_S: Final = 4.5
"""A stop takes so long at most: under the 5 s that are promised, with some to spare for the end of the process."""
_IDLE_S: Final = 3600.0
"""A user may say nothing for long and is still a user."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

Say = Callable[[str], None]


@attrs.frozen
class ServerOptions:
    """What a backend is told on its command line.

    `users`: how many are there without a connection. `capacity`: most users, those included; None is no limit.
    `load`: whether it says how it does to a master that asks; SIGUSR1 has it drain, and a second one ends that.
    `probe_mail`: who authenticates so is the master, which is no user. `name`: for the eye, and the one that turns are
    for, as in the configuration of the master; "" is the address. `turn_keys`: the file of keys that sign turns, which
    are then demanded of all but the probe; SIGHUP has it read again. None: none are.
    `tls`: files of a certificate with its chain and of its key, PEM, for a port under TLS. `products_s`: it has the
    data of clients, and sends them so many seconds late; None: it has none. `products_fault`: what is wrong with them.
    `cache`: the service that keeps its users' sessions, `cache_secret` what it is shown there, and `screen_types` the
    data types of the first screen; None: it keeps no sessions.
    """

    listen: Address
    name: str = ""
    users: int = attrs.field(default=0, validator=[ge(0), lt(MAX_COUNT)])
    capacity: int | None = attrs.field(default=None, validator=optional(ge(0)))
    fault: Fault | None = None
    probe_mail: str = "master@localhost"
    load: bool = False
    tls: tuple[str, str] | None = None
    turn_keys: str | None = None
    products_s: float | None = attrs.field(default=None, validator=optional(ge(0.0)))
    products_fault: ProductsFault | None = None
    cache: Address | None = None
    cache_secret: str = attrs.field(default="", repr=False)
    screen_types: tuple[int, ...] = (1, 2, 3, 4, 5)


async def run_server(options: ServerOptions, *, say: Say, complain: Say) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code: 0; 1 when it cannot serve, or at a second signal.

    It is 2 when the file of keys is not right. `say` takes the lines that tell where it listens, `complain` those that
    tell what went wrong.
    """
    keys = _Keys(options.turn_keys, complain)
    if not keys.read():
        return 2
    try:
        door = TlsDoor(TlsPolicy(*options.tls)) if options.tls is not None else None
        listeners = open_listeners(options.listen)
    except TlsError as exc:
        complain(f"lambdamu server: {exc}")
        return 1
    except OSError as exc:
        complain(f"lambdamu server: cannot listen on {options.listen}: {exc.strerror or exc}")
        return 1
    keys.name(options.name or str(Address(*listeners[0].getsockname()[:2])))
    load = Load(_busy) if options.load else None
    stop = _Stop(load, keys, say)
    # Without keys a SIGHUP ends the process, as when its terminal is closed.
    with trio.open_signal_receiver(*_SIGNALS, *([signal.SIGHUP] if keys.turns else [])) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop.at_signal, signals, nursery.cancel_scope)
            async with trio.open_nursery() as port:
                addresses = await port.start(
                    serve, options, listeners, stop.asked, _Observer(complain), load, door, keys.turns, complain
                )
                for address in addresses:
                    say(f"lambdamu server {printable(options.name) or address} listening on {address}")
            nursery.cancel_scope.cancel()
    return 1 if stop.forced else 0


async def serve(  # noqa: PLR0913 - the parts of a process, made before it listens
    options: ServerOptions,
    listeners: Sequence[socket.socket],
    stop: trio.Event,
    observer: PortObserver | None = None,
    load: Load | None = None,
    door: TlsDoor | None = None,
    turns: TurnVerifier | None = None,
    complain: Say = lambda _: None,
    *,
    task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listeners` until `stop`, then until what was asked is answered, for a few seconds at most."""
    async with trio.open_nursery() as beside:
        cache, sessions = None, None
        if options.cache is not None:
            name = options.name or str(Address(*listeners[0].getsockname()[:2]))
            cache = CacheClient(
                options.cache, name=name, secret=options.cache_secret, told=partial(_tell_of_cache, complain)
            )
            beside.start_soon(cache.run)
            sessions = Sessions(cache, name, beside)
        machine = make_machine(options, load, turns, sessions)
        if cache is not None and sessions is not None:
            machine.add(Screen(sessions, cache, options.screen_types, beside))
        async with trio.open_nursery() as nursery:
            server = _make_server(options, machine, nursery, observer, door)
            task_status.started(await nursery.start(server.serve, listeners))
            await stop.wait()
            server.stop()
            nursery.cancel_scope.deadline = trio.current_time() + _GRACE_S
        beside.cancel_scope.cancel()


def make_machine(
    options: ServerOptions,
    load: Load | None = None,
    turns: TurnVerifier | None = None,
    sessions: Sessions | None = None,
) -> LogicalMachine:
    """Return an honest backend: its objects, without a port."""
    users = Users(options.users, options.capacity, options.probe_mail)
    machine = LogicalMachine(options.name or str(options.listen))
    machine.add(Auth(users, None if turns is None else TurnGate(turns, time.time), sessions))
    machine.add(System(users, load))
    return machine


def _make_server(
    options: ServerOptions,
    machine: LogicalMachine,
    nursery: trio.Nursery,
    observer: PortObserver | None,
    door: TlsDoor | None,
) -> TCPServer:
    fault = options.fault
    if options.products_s is not None:
        machine.add(Products(options.products_s, options.products_fault, nursery))
    handler, pack = (machine, encode) if fault is None else with_fault(fault, machine, nursery)
    limits = PortLimits(idle_s=_IDLE_S)
    if fault is not None and fault.kind is Kind.CLOSE:
        limits = attrs.evolve(limits, connections=0)  # each connection is one too many, and is closed at once
    if door is None:
        return TCPServer(handler, limits, observer=observer, wire=MessagePackWire(pack))
    from lambdamu.epoll_guarded import GuardedServer  # noqa: PLC0415 - there is none elsewhere than on Linux

    return GuardedServer(handler, limits, observer=observer, wire=MessagePackWire(pack), tls=door)


def _tell_of_cache(complain: Say, why: str | None) -> None:
    told = "the cache can be reached" if why is None else f"{printable(why)}; nobody can log in with a session"
    complain(f"lambdamu server: {told}")


class _Keys:
    """The file of keys that sign turns; `path` None: there is none, and no turns are demanded."""

    def __init__(self, path: str | None, complain: Say) -> None:
        self._path = path
        self._complain = complain
        self._keys: Mapping[str, Verifier] = {}
        self.turns: TurnVerifier | None = None

    def read(self) -> bool:
        """Go over to the keys as they stand there now; with a fault in the file nothing changes, and that is told."""
        if self._path is None:
            return True
        from lambdamu.keys import load_keys  # noqa: PLC0415 - takes 60 ms, and most backends demand no turns

        try:
            self._keys = load_keys(self._path).verifiers
        except LineFileError as exc:
            self._complain(f"lambdamu server: {printable(str(exc))}")
            return False
        if self.turns is not None:
            self.turns.renew(self._keys)
        return True

    def name(self, backend: str) -> None:
        """Judge turns by the keys, as the backend that the masters call so."""
        if self._path is not None:
            self.turns = TurnVerifier(self._keys, backend)


class _Stop:
    """What the signals ask for: the first one a stop, the second one an end at once; SIGUSR1 a drain, and its end.

    SIGHUP has the keys read again.
    """

    def __init__(self, load: Load | None, keys: _Keys, say: Say) -> None:
        self._load = load
        self._keys = keys
        self._say = say
        self.asked = trio.Event()
        self.forced = False

    async def at_signal(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        async for number in signals:
            if number == signal.SIGUSR1:
                self._toggle_drain()
                continue
            if number == signal.SIGHUP:
                self._keys.read()
                continue
            if self.asked.is_set():
                self.forced = True
                everything.cancel()
            self.asked.set()

    def _toggle_drain(self) -> None:
        if self._load is not None:
            self._load.draining = not self._load.draining
            self._say("lambdamu server " + ("drains" if self._load.draining else "drains no more"))


def _busy() -> float:
    """Return how busy this machine is, from 0 to 1."""
    return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class _Observer(PortObserver):
    """Says once that connections cannot be accepted."""

    def __init__(self, complain: Say) -> None:
        self._complain: Say | None = complain

    def cannot_accept(self, error: OSError) -> None:
        if self._complain is not None:
            self._complain(f"lambdamu server: cannot accept connections: {error.strerror or error}")
        self._complain = None
