"""The operators' side put together."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

from lambdamu.address import Address
from master.config import HttpPolicy
from master.node import Node
from master.tokens import TokensFile
from master.web.api import make_app
from master.web.controls import Controls
from master.web.desk import Desk
from master.web.feed import Feed
from master.web.gate import Gate
from master.web.server import DEADLINES, Deadlines, HttpServer, Logger


class Web:
    """Shows `node` to its operators until `run` is cancelled. `tokens_file`: that of `policy`."""

    def __init__(
        self,
        node: Node,
        policy: HttpPolicy,
        log: Logger,
        controls: Controls | None = None,
        deadlines: Deadlines = DEADLINES,
        tokens_file: TokensFile | None = None,
    ) -> None:
        metrics = node.metrics
        self.desk = Desk(
            policy,
            node.pool,
            metrics,
            node.answers,
            node.events,
            node.observer.whys,
            lambda: node.config,
            controls,
            tokens_file=tokens_file or TokensFile(policy.tokens_file),
            room=node.waiting,
            cache=node.cache,
            cache_node=node.warm_call,
            devices=node.master.devices,
        )
        self.feed = Feed(self.desk)
        gate = Gate(make_app(self.desk, self.feed), self.desk, log)
        self.server = HttpServer(gate, policy.connections, log, deadlines)
        metrics.bounds["http_connections"] = lambda: self.server.connections / self.server.limit
        metrics.watch_http(lambda: self.server.refused)
        metrics.bounds["http_readers"] = lambda: self.feed.readers / self.feed.limit

    async def run(
        self,
        listeners: Sequence[socket.socket],
        *,
        task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.feed.run)
            nursery.start_soon(self.desk.metrics.lag.measure)
            task_status.started(await nursery.start(self.server.serve, listeners))

    def leave(self) -> None:
        """Hear the first signal to stop: from now on clients are better sent elsewhere."""
        self.desk.stopping = True

    def stop(self) -> None:
        """End those who read without end."""
        self.feed.stop()
