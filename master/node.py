"""The main logical machine: server, packer, master, servers, timer.

client -> server (TCPServer, with its DataPack) -> master (Master) -> server -> client
servers (an LMList of monitors) -> pool <- master
timer: logs whether a live backend exists

It is longer than a page because all that a master is made of is put together, and changed by a reload, in this place.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.client_tls import TlsPeer, Trust
from lambdamu.machine import LMList, LogicalMachine
from lambdamu.poller import make_poller
from lambdamu.resolver import Resolver
from lambdamu.tcp_link import TCPLink
from master.access import Credentials, read_credentials
from master.answer_log import AnswerLog
from master.config import BackendConfig, Config, MasterPolicy
from master.config_queue import QueueConfig
from master.config_secrets import make_trust, read_signing_keys
from master.core.pool import Admin, State
from master.doors import make_doors
from master.entrances import Entrance, Entrances, Sockets
from master.event_log import EventLog
from master.metrics import Metrics
from master.monitor import Monitor
from master.observer import CacheObserver, Logger, Observer
from master.pool_config import make_backend, make_health, make_pool
from master.pool_watch import PoolWatch
from master.probe import Questions
from master.probing import Probing
from master.reload import Difference, compare
from master.service import Master
from master.told import AnswerPolicy
from master.with_cache import make_cache, make_devices, make_warm_caller

if TYPE_CHECKING:
    from lambdamu.keys import Keys
    from lambdamu.tls import TlsDoor
    from master.cache.port import CachePort
    from master.waiting.room import WaitingRoom
    from master.with_cache import Shown

_LONGEST_GRID_S: Final = 0.02
_GRID_SHARE: Final = 50
"""Probes that fall into the same 50th of the interval, or 20 ms, go out together: each wake-up costs as much as one."""


class Node(LogicalMachine):
    """A master: `run` serves on `listeners` until `stop`, and then until what was asked is answered.

    Raise LineFileError when a file of `[access]` cannot be used, TlsError when one of a certificate cannot.
    """

    def __init__(self, config: Config, *, rng: random.Random, log: Logger, answers: AnswerLog | None = None) -> None:
        super().__init__("master")
        self.config = config
        self._rng = rng
        self._log = log
        self.metrics = Metrics([backend.name for backend in config.backends], config.limits.connections)
        self.pool = make_pool(config)
        self.events = EventLog()
        observer = Observer(self.metrics, log, self.events)
        observer.secret = config.probe.user_mail
        self.answers = answers if answers is not None else AnswerLog()
        if not config.alone:
            self.metrics.watch(self.pool)
        self.doors = make_doors(config.limits, config.access, rng)
        self._watch_doors()
        self.waiting = self._make_waiting()
        desk = self.waiting.desk if self.waiting is not None else None
        self.master = Master(self.pool, _answers(config.master), rng, observer, self.answers, self.doors, desk)
        self.add(self.master)
        self.observer = observer
        self.cache = make_cache(config, rng, self._show)
        self.warm_call = make_warm_caller(config, rng, log, self._show)
        self.master.devices = make_devices(config, self.cache, self.warm_call)
        if desk is not None:
            desk.devices = self.master.devices
        self.entrances = Entrances(config, self, self.master, observer, self._make_cache_port)
        self._watch_entrances()
        self.servers: LMList[Monitor, tuple[float, BackendConfig]] = LMList(self._make_monitor)
        first_round_s = config.probe.interval_s + config.probe.timeout_s
        self.watch = PoolWatch(self.pool, observer, self.events, log, rng, first_round_s)
        self._trust = _trust_of(config)
        self._resolver = Resolver()
        self._poller = make_poller(min(_LONGEST_GRID_S, config.probe.interval_s / _GRID_SHARE))
        self._probing = Probing(
            policy=config.probe,
            questions=Questions.of(config.probe.user_name, config.probe.user_mail),
            limits=config.limits,
            pool=self.pool,
            poller=self._poller,
            rng=rng,
            observer=observer,
        )
        self._nursery: trio.Nursery | None = None
        """Where the servers run, while they do."""
        self.finished = trio.Event()
        """Set when the ports have given their last answers."""

    async def run(
        self,
        sockets: Sockets,
        *,
        task_status: trio.TaskStatus[dict[Entrance, list[Address]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """DoPrepare of the servers, DoStart of the master, the timer, then the ports."""
        # Each has its own part of the interval, so that the first round is as even as all others.
        backends = self.config.backends
        self.servers.do_prepare([((i + self._rng.random()) / len(backends), each) for i, each in enumerate(backends)])
        async with trio.open_nursery() as nursery:
            await nursery.start(self._poller.run)
            self.servers.do_start(nursery)
            self._nursery = nursery
            if not self.config.alone:
                nursery.start_soon(self.watch.run)
            if self.cache is not None:
                await nursery.start(self.cache.run)
            if self.warm_call is not None:
                nursery.start_soon(self.warm_call.run)
            if self.waiting is not None:
                nursery.start_soon(self.waiting.run)
                from master.queue_watch import watch_queue  # noqa: PLC0415 - as in `_make_waiting`

                nursery.start_soon(watch_queue, self.waiting, self._log, self.events, self._rng)
            async with trio.open_nursery() as port:
                task_status.started(await port.start(self.entrances.serve, sockets))
            self._nursery = None
            nursery.cancel_scope.cancel()
        self.finished.set()

    def stop(self) -> None:
        """Let nobody in any more; `run` returns when what was asked is answered."""
        if self.waiting is not None:
            self.waiting.desk.release(trio.current_time())
        if self.cache is not None:
            self.cache.stop()
        self.entrances.stop()

    def set_admin(self, name: str, admin: Admin) -> State:
        """Have a backend stand as its operator wants, and return its state. Raise KeyError on an unknown name."""
        now = trio.current_time()
        state = self.pool.set_admin(now, name, admin)
        self.servers[name].heed_operator(now)
        return state

    def reload(self, config: Config) -> Difference:
        """Go over to another configuration in one step, while it runs; return what has changed and what cannot."""
        difference = compare(self.config, config)
        if self._nursery is None or not difference:
            return difference
        now, new = trio.current_time(), difference.config
        self._trust = _trust_of(new)
        fresh = {*difference.added, *difference.moved}
        self.servers.do_prepare([(self._rng.random(), each) for each in new.backends if each.name in fresh])
        # From here on nothing can fail.
        for name in (*difference.removed, *difference.moved):
            self.servers.stop(name)
        self.pool.change(now, map(make_backend, new.backends), frozenset(difference.moved))
        self.metrics.keep([backend.name for backend in new.backends])
        self.observer.forget((*difference.removed, *difference.moved))
        self.master.policy = _answers(new.master)
        self.servers.do_start(self._nursery)
        self._adopt(now, difference)
        return difference

    def _adopt(self, now: float, difference: Difference) -> None:
        """Have all probes made as the new configuration says."""
        probe, before, self.config = difference.config.probe, self.config.probe, difference.config
        for change in difference.changed:
            if change.key == "load":
                self.servers[change.name].ask_load(now, wanted=change.after)
        self._adopt_tls(now, difference)
        self._adopt_queue(now, difference.config)
        if probe == before:
            return
        self.observer.secret = probe.user_mail
        self.pool.set_health(now, make_health(probe))
        questions = Questions.of(probe.user_name, probe.user_mail)
        self._probing = attrs.evolve(self._probing, policy=probe, questions=questions)
        for monitor in self.servers:
            monitor.adopt(now, self._probing)

    def _adopt_queue(self, now: float, config: Config) -> None:
        """Have people wait as the new configuration says."""
        if self.waiting is None or config.queue is None:
            return
        self.waiting.desk.times = self.master.policy
        self.waiting.desk.adopt_backends()
        self.waiting.asks_cpu = _asks_cpu(config)
        if config.queue != self.waiting.config:
            self.waiting.adopt(now, config.queue)

    def _make_waiting(self) -> WaitingRoom | None:
        config = self.config
        if config.queue is None:
            return None
        from master.queue_metrics import QueueMetrics  # noqa: PLC0415 - not all have a queue, and it takes its time
        from master.waiting.room import WaitingRoom  # noqa: PLC0415

        room = WaitingRoom(
            config.queue,
            self.pool,
            self._rng,
            networks=config.limits.networks(),
            times=_answers(config.master),
            keys=_turn_keys_of(config.queue),
        )
        room.asks_cpu = _asks_cpu(config)
        self._show(QueueMetrics(room))
        return room

    def _show(self, metrics: Shown) -> None:
        self.metrics.watch_other(metrics.collect)
        self.metrics.bounds.update(metrics.bounds())

    def _make_cache_port(self, tls: TlsDoor | None) -> CachePort:
        assert self.cache is not None  # noqa: S101 - else it has no address
        return self.cache.make_port(tls, CacheObserver(self.observer, self.cache))

    def count_tickets(self) -> int:
        """Return how many places and memories of places the queue has."""
        return len(self.waiting.queues.book) if self.waiting is not None else 0

    def read_turn_keys(self) -> Keys | None:
        """Return what the key file of the queue at work holds now. Raise LineFileError; nothing changes."""
        return _turn_keys_of(self.waiting.config) if self.waiting is not None else None

    def adopt_turn_keys(self, keys: Keys | None) -> None:
        """Sign turns and tickets by them from now on."""
        if self.waiting is not None:
            self.waiting.adopt_keys(keys)

    def _adopt_tls(self, now: float, difference: Difference) -> None:
        """Have those connect anew for whom it is another thing whom to trust."""
        changed = {(change.key, change.name) for change in difference.changed}
        everybody = not changed.isdisjoint({("tls", ""), ("ca_file", "")})
        for backend in difference.config.backends:
            if everybody or ("tls_name", backend.name) in changed:
                self.servers[backend.name].adopt_tls(now, self._tls_of(backend))

    def _tls_of(self, backend: BackendConfig) -> TlsPeer | None:
        return None if self._trust is None else TlsPeer(self._trust, backend.tls_name or backend.host)

    def read_credentials(self) -> Credentials | None:
        """Return what the files of `[access]` at work hold now. Raise LineFileError; nothing changes."""
        access = self.doors.access if self.doors is not None else None
        return read_credentials(access.policy) if access is not None else None

    def adopt_credentials(self, credentials: Credentials | None) -> None:
        """Judge by them from the next ask on."""
        if self.doors is not None and self.doors.access is not None and credentials is not None:
            self.doors.access.credentials = credentials

    def _watch_entrances(self) -> None:
        """Show how many are in at each entrance, and how much of its bounds is used."""
        metrics, entrances = self.metrics, self.entrances
        for entrance in entrances.ports:
            name = "connections" if entrance is Entrance.CLIENTS else f"{entrance}_connections"
            metrics.bounds[name] = partial(entrances.used, entrance)
            metrics.entrances[entrance] = partial(entrances.connections_at, entrance)
        for entrance in entrances.tls:
            metrics.bounds[f"{entrance}_handshakes"] = partial(entrances.shaking, entrance)
            metrics.certificates[entrance] = partial(entrances.expiry, entrance)

    def _watch_doors(self) -> None:
        """Show how much of the bounds of the doors is used."""
        doors = self.doors
        if doors is not None and doors.rates is not None:
            rates = doors.rates
            self.metrics.bounds["networks"] = lambda: rates.used
        if doors is not None and doors.access is not None:
            access = doors.access
            self.metrics.bounds["passes"] = lambda: access.used

    def _make_monitor(self, item: tuple[float, BackendConfig]) -> Monitor:
        part, backend = item
        tls = self._tls_of(backend)
        return Monitor(
            backend.name,
            TCPLink(backend.host, backend.port, resolver=self._resolver, poller=self._poller, tls=tls),
            first_s=part * self.config.probe.interval_s,
            probing=self._probing,
            load=backend.load,
        )


def _trust_of(config: Config) -> Trust | None:
    """Return who vouches for backends, None where they are not asked by TLS. Raise TlsError."""
    if not config.probe.tls:
        return None
    return config.trust if config.trust is not None else make_trust(config.probe)


def _turn_keys_of(queue: QueueConfig) -> Keys | None:
    return read_signing_keys(queue.keys_file)[0] if queue.keys_file else None


def _asks_cpu(config: Config) -> frozenset[str]:
    return frozenset(backend.name for backend in config.backends if backend.load)


def _answers(master: MasterPolicy) -> AnswerPolicy:
    return AnswerPolicy(ttl_s=master.connect_s, retry_after_s=master.retry_after_s)
