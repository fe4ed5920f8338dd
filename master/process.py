"""A master as a process: its sockets, its signals, its descriptors, its exit code."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import attrs
import trio

from lambdamu.tcp_server import open_listeners
from master.config import Config
from master.keeper import Keeper
from master.log import Sink
from master.node import Logger, Node
from master.operations import Operations
from master.store import open_store

_SPARE_DESCRIPTORS: Final = 16
"""For what opens a file now and then: look-ups of names, the system's random numbers."""
_EXIT_SHARE: Final = 0.1
"""Of `grace_s`, what the interpreter has to end in."""


async def run_master(config: Config, log: Logger, sink: Sink, path: str) -> int:
    """Serve until a signal says stop; return the exit code: 0 after a clean stop, 1 otherwise.

    `log` writes to `sink`; `config` is what stands in the file `path`.
    """
    for warning in config.warnings:
        log.warning("config", message=warning)
    try:
        listeners = open_listeners(config.master.listen)
    except OSError as exc:
        log.error("cannot_listen", address=str(config.master.listen), error=exc.strerror or str(exc))
        return 1
    fit = partial(fit_descriptors, log=log, held=len(os.listdir("/dev/fd")))
    config = fit(config)
    node = Node(config, rng=random.Random(), log=log)
    node.metrics.watch_log(lambda: sink.dropped)
    keeper = Keeper(open_store(config.state.file), node, log)
    process = _Process(node, Operations(node, keeper, log, path, fit=fit), log)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        await keeper.restore()
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(node.run, listeners)
            for address in addresses:
                log.info("listening", address=str(address), backends=len(config.backends))
            nursery.start_soon(process.obey, signals, nursery)
            nursery.start_soon(keeper.run)
            nursery.start_soon(process.operations.watch)
            nursery.start_soon(_spare_the_collector, config.probe.interval_s + config.probe.timeout_s)
            await process.finished(nursery)
        await keeper.finish()
    log.info("stopped")
    return process.exit_code


async def _spare_the_collector(after_s: float) -> None:
    """Take what is there after the first round out of the garbage collector's sight: it lasts as long as the process.

    With ten thousand backends a look of the collector at all of them holds everybody up for 60 ms and more.
    """
    await trio.sleep(after_s)
    gc.freeze()


@attrs.define(eq=False)
class _Process:
    node: Node
    operations: Operations
    log: Logger
    exit_code: int = 0

    async def obey(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """The first signal to stop begins an orderly one, the second ends the process at once."""
        stopping = False
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                nursery.start_soon(self.operations.reload, name)
            elif not stopping:
                stopping = True
                settings = self.node.config.master
                self.log.info("stopping", signal=name, linger_s=settings.linger_s, grace_s=settings.grace_s)
                nursery.start_soon(self._stop, nursery)
            else:
                self.log.warning("stopped_at_once", signal=name)
                self.exit_code = 1
                nursery.cancel_scope.cancel()

    async def finished(self, nursery: trio.Nursery) -> None:
        await self.node.finished.wait()
        nursery.cancel_scope.cancel()

    async def _stop(self, nursery: trio.Nursery) -> None:
        await trio.sleep(self.node.config.master.linger_s)
        self.node.stop()
        await trio.sleep(self.node.config.master.grace_s * (1 - _EXIT_SHARE))
        self.log.warning("grace_over", connections=self.node.server.connections, message="closed all the same")
        nursery.cancel_scope.cancel()


def fit_descriptors(config: Config, log: Logger, held: int) -> Config:
    """Raise the limit on open files as far as it is needed and allowed; where that is not enough, lower `connections`.

    So clients can never take the descriptors that the probes live by. `held`: those that were open at the start.
    """
    others = held + 2 * len(config.backends) + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections + others
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return config
    fitting = max(1, soft - others)
    log.warning(
        "few_descriptors", limit=soft, connections=fitting, message=f"raise the limit on open files to {wanted}"
    )
    return attrs.evolve(config, limits=attrs.evolve(config.limits, connections=fitting))
