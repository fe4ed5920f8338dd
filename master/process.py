"""A master as a process: its sockets, its signals, its descriptors, its exit code.

It is long because all that begins and ends with the process is put together here.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from lambdamu.line_file import LineFileError
from lambdamu.release import find_version
from lambdamu.tls import TlsError
from master.alerts.alerter import Alerter
from master.alerts.body import About
from master.alerts.outbox import Outbox
from master.alerts.webhook import Webhook
from master.ask_samples import SampledAnswers
from master.collector import spare_the_collector
from master.config import Config
from master.config_environment import variables
from master.descriptors import fit_descriptors
from master.entrances import Entrance, EntranceError, Sockets, open_sockets
from master.keeper import Keeper
from master.log import Sink
from master.node import Node
from master.notify import ServiceManager
from master.observer import Logger
from master.operations import Operations
from master.store import Store, StoreBusyError, open_store
from master.tokens import TokensError, TokensFile
from master.with_cache import make_cache_keeper

if TYPE_CHECKING:
    from master.web.run import Web

_SHOWN_VARIABLES: Final = 20
"""So many stand in the log."""
_TO_END_S: Final = 10.0
"""What the service manager is to give the process beyond `linger_s` and `grace_s`: state is written at the end."""
_TO_RESTORE_S: Final = 600.0
"""What it is to give a start that puts a crowd back: a million takes minutes on a slow machine."""
_EXIT_SHARE: Final = 0.1
"""Of `grace_s`, what the interpreter has to end in."""
_ALERTS_S: Final = 0.3
"""What the last post may take; no more than what the interpreter has, either."""


async def run_master(config: Config, log: Logger, sink: Sink, path: str | None) -> int:
    """Serve until a signal says stop; return the exit code: 0 after a clean stop, 1 otherwise.

    `log` writes to `sink`; `config` is what stands in the file `path`, if any, and in the environment.
    """
    manager = ServiceManager.take(os.environ, os.getpid(), log)
    if os.getpid() == 1:
        # The first process of a container inherits the children of others; the kernel is to bury them.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for warning in config.warnings:
        log.warning("config", message=warning)
    beating = variables(os.environ)
    if beating:
        log.info("environment", beats_file=beating[:_SHOWN_VARIABLES], left_out=len(beating[_SHOWN_VARIABLES:]))
    # Before anything listens: who tells it to stop from then on is heard.
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        try:
            house = _build(config, log, sink, path, manager)
        except EntranceError as exc:
            log.error("cannot_listen", address=exc.place, error=exc.why)
        except LineFileError as exc:
            log.error("no_access_files", error=str(exc))
        except TlsError as exc:
            log.error("no_certificate", error=str(exc))
        except TokensError as exc:
            log.error("no_tokens", error=str(exc))
        else:
            return await house.run(signals)
    return 1


def _build(config: Config, log: Logger, sink: Sink, path: str | None, manager: ServiceManager) -> _House:
    """Return all that runs, with its sockets open. Raise EntranceError, LineFileError, TlsError or TokensError."""
    sockets = open_sockets(config)
    fit = partial(fit_descriptors, log=log, held=len(os.listdir("/dev/fd")))
    config = fit(config)
    answers = SampledAnswers(log) if log.is_enabled_for(logging.DEBUG) else None
    node = Node(config, rng=random.Random(), log=log, answers=answers)
    node.metrics.watch_log(lambda: sink.dropped)
    store = open_store(config.state.file)
    keeper = Keeper(store, node, log)
    lasting = tuple(_make_lasting(node, store, keeper, log))
    tokens_file = TokensFile(config.http.tokens_file if config.http.listen is not None else "")
    operations = Operations(node, keeper, log, path, environment=os.environ, tokens_file=tokens_file, fit=fit)
    web = _open_web(node, operations, tokens_file, config, log)
    process = _Process(node, operations, log, manager, web[0] if web is not None else None)
    return _House(config, sockets, web, lasting, _make_alerter(node, log), process)


class Lasts(Protocol):
    """Keeps something beyond the process."""

    async def restore(self) -> None:
        """Put back what was kept. Raise StoreBusyError where it is another process's."""

    async def run(self) -> None: ...

    async def finish(self) -> None: ...


@attrs.frozen
class _House:
    """All that runs in the process. `web`: the operators' side and its sockets. `lasting`: with the file of each."""

    config: Config
    sockets: Sockets
    web: tuple[Web, list[socket.socket]] | None
    lasting: Sequence[tuple[str, Lasts]]
    alerter: Alerter
    process: _Process

    async def run(self, signals: AsyncIterator[int]) -> int:
        """Run until a signal says stop; return the exit code."""
        process, log = self.process, self.process.log
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.obey, signals, nursery)
            try:
                await self._restore()
            except StoreBusyError as exc:
                log.error("file_held", error=str(exc))
                process.exit_code = 1
            else:
                await self._serve(nursery)
            nursery.cancel_scope.cancel()
        if process.restored.is_set():
            await self._finish()
        process.manager.close()
        log.info("stopped")
        return process.exit_code

    async def _serve(self, nursery: trio.Nursery) -> None:
        process = self.process
        await self._open(nursery)
        for _, each in self.lasting:
            nursery.start_soon(each.run)
        nursery.start_soon(self.alerter.run)
        nursery.start_soon(process.operations.watch)
        nursery.start_soon(process.manager.watch)
        process.manager.ready(process.status())
        first_round_s = self.config.probe.interval_s + self.config.probe.timeout_s
        nursery.start_soon(spare_the_collector, first_round_s, process.node.count_tickets)
        await process.node.finished.wait()

    async def _restore(self) -> None:
        """Put back what was kept. Raise StoreBusyError."""
        for at, (_, each) in enumerate(self.lasting):
            self.process.reads = next((file for file, _ in self.lasting[at:] if file), "")
            if self.process.reads:
                self.process.manager.starting(_TO_RESTORE_S)
            await each.restore()
        self.process.restored.set()

    async def _finish(self) -> None:
        async with trio.open_nursery() as nursery:
            for _, each in self.lasting:
                nursery.start_soon(each.finish)
            nursery.start_soon(self.alerter.finish, min(_ALERTS_S, _EXIT_SHARE * self.config.master.grace_s))

    async def _open(self, nursery: trio.Nursery) -> None:
        log = self.process.log
        addresses = await nursery.start(self.process.node.run, self.sockets)
        for entrance, places in addresses.items():
            for address in places:
                if entrance is Entrance.CLIENTS:
                    log.info("listening", address=str(address), backends=len(self.config.backends))
                else:
                    log.info("listening_too", address=str(address), entrance=entrance.value)
        if self.web is not None:
            for address in await nursery.start(self.web[0].run, self.web[1]):
                log.info("http", address=str(address))


def _make_lasting(node: Node, store: Store, keeper: Keeper, log: Logger) -> Iterator[tuple[str, Lasts]]:
    """Yield all that is kept beyond the process, each with its file, in the order in which it is put back.

    The cache comes first: while another process has its file, nothing of the rest is read yet, nor written to.
    """
    tell = partial(_tell, node)
    if node.cache is not None:
        yield node.cache.config.file, make_cache_keeper(node.cache, log, tell)
    yield node.config.state.file, keeper
    if node.waiting is not None:
        from master.waiting.lasting import Lasting  # noqa: PLC0415 - not all have a queue

        yield node.config.state.file, Lasting(node.waiting, store, log, tell)


def _tell(node: Node, kind: str, text: str) -> None:
    node.events.add(trio.current_time(), kind, text)


def _make_alerter(node: Node, log: Logger) -> Alerter:
    """Return what posts changes of state, from the end of the first round on; it may be switched on by a reload."""
    config = node.config
    first_round_s = max(config.choice.first_round_s, config.probe.interval_s + config.probe.timeout_s)
    outbox = Outbox(config.alerts, trio.current_time() + first_round_s)
    node.metrics.alerts = outbox.counts
    node.metrics.bounds["alerts"] = lambda: outbox.ratio
    return Alerter(
        lambda: node.config.alerts,
        outbox,
        Webhook(),
        about=About(str(config.master.listen), find_version()),
        pool=node.pool,
        events=node.events,
        log=log,
        rng=random.Random(),
    )


def _open_web(
    node: Node, operations: Operations, tokens_file: TokensFile, config: Config, log: Logger
) -> tuple[Web, list[socket.socket]] | None:
    """Return the operators' side and its sockets, if there is to be one."""
    if config.http.listen is None:
        return None
    from master.web.operations_controls import OperationsControls  # noqa: PLC0415 - takes as long to import as all the rest
    from master.web.run import Web  # noqa: PLC0415 - takes as long to import as all the rest
    from master.web.server import open_http_listeners  # noqa: PLC0415

    web = Web(node, config.http, log, OperationsControls(node, operations), tokens_file=tokens_file)
    try:
        return web, open_http_listeners(config.http.listen)
    except OSError as exc:
        raise EntranceError(str(config.http.listen), exc.strerror or str(exc)) from exc


@attrs.define(eq=False)
class _Process:
    node: Node
    operations: Operations
    log: Logger
    manager: ServiceManager
    web: Web | None = None
    exit_code: int = 0
    reads: str = ""
    """The file of which what was kept is put back now, or next; there may be none."""
    restored: trio.Event = attrs.field(factory=trio.Event)
    """What was kept is back: before that there is nothing of this process that is to be kept."""

    async def obey(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """The first signal to stop begins an orderly one, the second ends the process at once."""
        stopping = False
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                nursery.start_soon(self._reload, name)
            elif not self.restored.is_set():
                where = f" in {self.reads}" if self.reads else ""
                self.log.info(
                    "stopping", signal=name, message=f"before what was kept{where} is back: it stays as it is"
                )
                nursery.cancel_scope.cancel()
            elif not stopping:
                stopping = True
                self.node.events.add(trio.current_time(), "stopping", "this master has been told to stop")
                if self.web is not None:
                    self.web.leave()
                settings = self.node.config.master
                self.manager.stopping(settings.linger_s + settings.grace_s + _TO_END_S)
                self.log.info("stopping", signal=name, linger_s=settings.linger_s, grace_s=settings.grace_s)
                nursery.start_soon(self._stop, nursery)
            else:
                self.log.warning("stopped_at_once", signal=name)
                self.exit_code = 1
                nursery.cancel_scope.cancel()

    def status(self) -> str:
        """Return one line for the service manager."""
        config = self.node.config
        last = self.operations.last
        refused = f"; reload refused: {last.faults[0]}" if last is not None and last.faults else ""
        if config.alone and config.cache is not None:
            return f"the cache listens on {config.cache.listen}{refused}"
        return f"listens on {config.master.listen}, {len(config.backends)} backends{refused}"

    async def _reload(self, who: str) -> None:
        await self.restored.wait()
        self.manager.reloading()
        await self.operations.reload(who)
        self.manager.ready(self.status())

    async def _stop(self, nursery: trio.Nursery) -> None:
        await trio.sleep(self.node.config.master.linger_s)
        if self.web is not None:
            self.web.stop()
        self.node.stop()
        await trio.sleep(self.node.config.master.grace_s * (1 - _EXIT_SHARE))
        self.log.warning("grace_over", connections=self.node.entrances.connections, message="closed all the same")
        nursery.cancel_scope.cancel()
