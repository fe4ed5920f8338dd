"""The main logical machine: server, packer, master, servers, timer.

client -> server (TCPServer, with its DataPack) -> master (Master) -> server -> client
servers (an LMList of monitors) -> pool <- master
timer: logs whether a live backend exists
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from typing import Final

import attrs
import structlog
import trio

from lambdamu.address import Address
from lambdamu.errors import LinkError
from lambdamu.machine import LMList, LogicalMachine
from lambdamu.messages import Code, Result
from lambdamu.poller import make_poller
from lambdamu.resolver import Resolver
from lambdamu.tcp_link import TCPLink
from lambdamu.tcp_server import Ending, PortObserver, TCPServer
from lambdamu.timer import Timer
from master.answer_log import AnswerLog
from master.config import BackendConfig, ChoiceConfig, Config
from master.core.backend import Backend
from master.core.choice import ChoicePolicy
from master.core.ejection import EjectionPolicy, Verdict
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool, State
from master.event_log import EventLog
from master.log import Throttle
from master.metrics import Metrics
from master.monitor import Monitor, ProbeObserver, Probing
from master.probe import Questions
from master.service import AnswerPolicy, Master

_LONGEST_GRID_S: Final = 0.02
_GRID_SHARE: Final = 50
"""Probes that fall into the same 50th of the interval, or 20 ms, go out together: each wake-up costs as much as one."""
_LIVE_CHECK_S: Final = 1.0
_NOBODY_LIVES_S: Final = 60.0
"""While no backend works, the log says so once in this time."""
_RESOURCES_LOG_S: Final = 10.0
_CHANGES_AT_ONCE: Final = 6
_CHANGE_LOG_S: Final = 10.0
"""A backend that comes and goes all the time is logged once in this time, with the count of what was left out."""

_TOLD_VERDICTS: Final = frozenset(Verdict) - {Verdict.NOT_SENT, Verdict.COUNTED, Verdict.ALREADY_OUT}
"""What clients say is logged where something comes of it, or would but for a rule."""

Logger = structlog.typing.FilteringBoundLogger


class Node(LogicalMachine):
    """A master: `run` serves on `listeners` until `stop`, and then until what was asked is answered."""

    def __init__(self, config: Config, *, rng: random.Random, log: Logger) -> None:
        super().__init__("master")
        self._config = config
        self._rng = rng
        self._log = log
        self.metrics = Metrics([backend.name for backend in config.backends], config.limits.connections)
        self.pool = make_pool(config)
        self.events = EventLog()
        observer = Observer(self.metrics, log, self.events, self.pool)
        self.answers = AnswerLog()
        self.metrics.watch(self.pool)
        settings = config.master
        policy = AnswerPolicy(ttl_s=settings.connect_s, retry_after_s=settings.retry_after_s)
        self.master = Master(self.pool, policy, rng, observer, self.answers)
        self.add(self.master)
        self.server = TCPServer(self, config.limits, observer=observer)
        self.servers: LMList[Monitor, tuple[int, BackendConfig]] = LMList(self._make_monitor)
        self.observer = observer
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
        self.finished = trio.Event()
        """Set when the port has given its last answer."""

    async def run(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """DoPrepare of the servers, DoStart of the master, the timer, then the port."""
        self.servers.do_prepare(list(enumerate(self._config.backends)))
        async with trio.open_nursery() as nursery:
            await nursery.start(self._poller.run)
            self.servers.do_start(nursery)
            nursery.start_soon(self._log_whether_anybody_lives)
            async with trio.open_nursery() as port:
                addresses = await port.start(self.server.serve, listeners)
                task_status.started(addresses)
            nursery.cancel_scope.cancel()
        self.finished.set()

    def stop(self) -> None:
        """Let nobody in any more; `run` returns when what was asked is answered."""
        self.server.stop()

    def _make_monitor(self, item: tuple[int, BackendConfig]) -> Monitor:
        index, backend = item
        # Each has its own part of the interval, so that the first round is as even as all others.
        part = (index + self._rng.random()) / len(self._config.backends)
        return Monitor(
            backend.name,
            TCPLink(backend.host, backend.port, resolver=self._resolver, poller=self._poller),
            first_s=part * self._config.probe.interval_s,
            probing=self._probing,
        )

    async def _log_whether_anybody_lives(self) -> None:
        """By the tick of the timer: on a change, and now and then while nobody does."""
        timer = Timer(
            _LIVE_CHECK_S, rng=self._rng, first_s=self._config.probe.interval_s + self._config.probe.timeout_s
        )
        said: bool | None = None
        changes, repeats = Throttle(_CHANGE_LOG_S, _CHANGES_AT_ONCE), Throttle(_NOBODY_LIVES_S)
        while True:
            await timer.wait()
            now = trio.current_time()
            self.observer.say_rest(now)
            lives = self.pool.works(now)
            if lives == said and (lives or repeats.let_through(now) is None):
                continue
            if lives != said and changes.let_through(now) is None:
                continue  # too many changes for the log; the last one is told when there is room
            if lives:
                self._log.info("live_backend", message="at least one backend works")
                self.events.add(now, "live_backend", "at least one backend works")
            else:
                repeats.let_through(now)
                together = self.pool.suspects_own_network(now)
                text = "no backend works" + ": all failed together, look at this master's network" * together
                self._log.warning("no_live_backend", message=text, own_network_suspected=together)
                if lives != said:
                    self.events.add(now, "no_live_backend", text)
            said = lives


def make_pool(config: Config) -> Pool:
    """Return the pool that a configuration describes; nothing is known of its members yet."""
    probe, master, choice, breaker = config.probe, config.master, config.choice, config.breaker
    return Pool(
        map(make_backend, config.backends),
        HealthPolicy(rise=probe.rise, fall=probe.fall, stale_after_s=probe.stale_after_s),
        LoadPolicy(master.connect_s, master.reservation_s, session_s=choice.session_s, masters=choice.masters),
        make_choice(choice),
        EjectionPolicy(
            reservation_s=master.reservation_s,
            window_s=breaker.window_s,
            networks=breaker.networks,
            max_ejected_share=breaker.max_ejected_share,
            together_share=breaker.together_share,
            open_s=breaker.open_s,
            max_open_s=breaker.max_open_s,
        ),
    )


def make_backend(backend: BackendConfig) -> Backend:
    """Return a member of the pool as it is configured."""
    return Backend(
        name=backend.name,
        weight=backend.weight,
        capacity=backend.capacity,
        zone=backend.zone,
        advertise=tuple((address.host, address.port) for address in backend.advertise),
        priority=backend.priority,
    )


def make_choice(choice: ChoiceConfig) -> ChoicePolicy:
    """Return how a backend is chosen, as it is configured."""
    return ChoicePolicy(
        policy=choice.policy,
        join_cap=choice.join_cap,
        slack=choice.slack,
        slow_start_s=choice.slow_start_s,
        zone_slack=choice.zone_slack,
        panic_threshold=choice.panic_threshold,
        panic=choice.panic,
        first_round_s=choice.first_round_s,
    )


@attrs.frozen
class _Change:
    """What the log says of a backend."""

    state: State
    why: LinkError | None


class Observer(PortObserver, ProbeObserver):
    """Counts what happens, and logs what changes: not every change of a restless backend, but always its last one."""

    def __init__(self, metrics: Metrics, log: Logger, events: EventLog | None = None, pool: Pool | None = None) -> None:
        self._metrics = metrics
        self._log = log
        self._events = events if events is not None else EventLog()
        self._pool = pool
        self.whys: dict[str, str] = {}
        """Why backends do not work, by name, in the words of the last failed probe."""
        self._resources = Throttle(_RESOURCES_LOG_S)
        self._accused = Throttle(_CHANGE_LOG_S, _CHANGES_AT_ONCE)
        self._throttles: dict[str, Throttle] = {}
        self._unsaid: dict[str, _Change] = {}

    def answered(self, result: Result) -> None:
        self._metrics.asks[result] += 1

    def accused(self, name: str, verdict: Verdict) -> None:
        self._metrics.accusations[verdict] += 1
        if verdict in _TOLD_VERDICTS and self._accused.let_through(trio.current_time()) is not None:
            self._log.warning("backend_accused", backend=name, verdict=verdict.value)
            self._events.add(trio.current_time(), "backend_accused", verdict.value, name)

    def opened(self) -> None:
        self._metrics.open += 1

    def ended(self, how: Ending) -> None:
        self._metrics.open -= 1
        self._metrics.endings[how] += 1

    def refused(self) -> None:
        self._metrics.refused += 1

    def broke_protocol(self, code: str) -> None:
        self._metrics.broken[Code(code)] += 1

    def cannot_accept(self, error: OSError) -> None:
        self._metrics.exhausted += 1
        held = self._resources.let_through(trio.current_time())
        if held is not None:
            self._log.error("cannot_accept", error=error.strerror, left_out=held)

    def probed(self, name: str, failure: LinkError | None) -> None:
        self._metrics.probed(name, failure)
        if failure is None and self._pool is not None:
            report = self._pool[name].report
            if report is not None:
                self._metrics.probe_s[name] += trio.current_time() - report.asked_at

    def became(self, name: str, state: State, why: LinkError | None) -> None:
        now = trio.current_time()
        if why is None:
            self.whys.pop(name, None)
            self._events.add(now, "backend_up", state.value, name)
        else:
            self.whys[name] = str(why)
            self._events.add(now, "backend_down", str(why), name)
        self._unsaid[name] = _Change(state, why)
        self._say(name, now)

    def say_rest(self, now: float) -> None:
        """Log the last change of those for which there was no room in the log before."""
        for name in list(self._unsaid):
            self._say(name, now)

    def _say(self, name: str, now: float) -> None:
        throttle = self._throttles.setdefault(name, Throttle(_CHANGE_LOG_S, _CHANGES_AT_ONCE))
        held = throttle.let_through(now)
        if held is None:
            return
        change = self._unsaid.pop(name)
        if change.why is None:
            self._log.info("backend_up", backend=name, state=change.state.value, left_out=held)
        else:
            self._log.warning(
                "backend_down",
                backend=name,
                state=change.state.value,
                why=change.why.why,
                text=str(change.why),
                left_out=held,
            )
