"""What an operator does to a master that runs: sets backends aside, and has the configuration read again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
import structlog
import trio

from lambdamu.errors import LambdaMuError
from lambdamu.line_file import LineFileError
from lambdamu.tls import TlsDoor, TlsError
from master.access import Credentials
from master.answer_log import hash_of
from master.config import Config
from master.config_environment import Environment
from master.config_file import ConfigError, Fault, load
from master.core.pool import Admin, State, Wish
from master.entrances import Entrance
from master.file_watch import FileWatch, stamp_of
from master.keeper import Keeper, describe
from master.node import Node
from master.reload import Difference
from master.tokens import Tokens, TokensError, TokensFile
from master.waiting.orders import AS_CONFIGURED, Order

if TYPE_CHECKING:
    from lambdamu.keys import Keys

Logger = structlog.typing.FilteringBoundLogger
_LOOK_S: Final = 1.0
_SHOWN: Final = 20
"""So many differences stand in the log; the rest is counted."""
MOST_ORDERS: Final = 100
"""Operators may want something of so many queues at a time: each is looked at when a queue is opened."""


class OrderError(LambdaMuError):
    """What an operator wants of the queue cannot be; str() is one line, and nothing has changed."""


@attrs.frozen
class Reloaded:
    """What came of a reload: `faults`, a line for each, and nothing has changed; or the difference that was made.

    `at`: Unix seconds.
    """

    at: float
    who: str
    faults: tuple[str, ...] = ()
    difference: Difference | None = None


class _Read(NamedTuple):
    """What the files hold that a reload reads."""

    config: Config
    tokens: Tokens | None
    credentials: Credentials | None
    certificates: Mapping[Entrance, TlsDoor]
    turn_keys: Keys | None


class Operations:
    """What operators do to `node`.

    `path`: the file of the configuration, if any; `environment`: the variables that beat it; `tokens_file`: that of the
    tokens at work; `fit` makes a configuration fit this process; `wall` gives Unix seconds.
    """

    def __init__(
        self,
        node: Node,
        keeper: Keeper,
        log: Logger,
        path: str | None,
        *,
        environment: Environment = MappingProxyType({}),
        tokens_file: TokensFile | None = None,
        fit: Callable[[Config], Config] = lambda config: config,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._keeper = keeper
        self._log = log
        self._path = path
        self._environment = environment
        self._tokens_file = tokens_file or TokensFile()
        self._fit = fit
        self._wall = wall
        self._one_at_a_time = trio.Lock()
        self._watch = FileWatch()
        self._watch.take(stamp_of(path))
        self.last: Reloaded | None = None

    def set_admin(self, name: str, wish: Wish, *, who: str, why: str, for_s: float | None = None) -> State:
        """Have a backend stand as its operator wants, for a time or for good. Raise KeyError on an unknown name."""
        now = trio.current_time()
        admin = Admin(wish, who, why, math.inf if for_s is None else now + for_s)
        state = self._node.set_admin(name, admin)
        self._keeper.changed()
        self._log.info("admin", backend=name, **describe(admin, now))
        return state

    def order_queue(self, queue: str, order: Order | None, *, who: str, why: str) -> None:
        """Have one queue, or the whole by `WHOLE`, be as its operator wants; None: as configured again.

        Raise OrderError where there is no queue, or too much is wanted already.
        """
        room = self._node.waiting
        if room is None:
            raise OrderError("this master has no queue: its configuration has no [queue]")
        if order is not None and queue not in room.orders and len(room.orders) >= MOST_ORDERS:
            raise OrderError(f"something else is wanted of {MOST_ORDERS} queues already: reset some of them first")
        room.order(trio.current_time(), queue, order)
        self._log.info(
            "queue_order", queue=queue, who=who, why=why, wanted=order.describe() if order else AS_CONFIGURED
        )

    def note_look_up(self, what: str, known: str, *, who: str, values: bool) -> None:
        """Have it in the log that somebody looks at what the cache holds of a session, a device or a client."""
        self._log.info("cache_look_up", what=what, known=known, who=who, values=values)

    def end_session(self, session: str, *, who: str, why: str) -> bool:
        """End a session of the cache; return whether it was there."""
        cache = self._node.cache
        ended = cache is not None and cache.store.drop_session(trio.current_time(), session)
        self._log.info("session_ended", known=hash_of(session), who=who, why=why, ended=ended)
        return ended

    async def reload(self, who: str) -> Reloaded:
        """Read the files, and go over to what they say: all of it, or nothing where anything in them is not right."""
        async with self._one_at_a_time:
            # Before it is read: who writes after this is seen as a change.
            self._watch.take(await trio.to_thread.run_sync(stamp_of, self._path, abandon_on_cancel=True))
            try:
                # In a thread: ten thousand backends take a second to read.
                read = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            except ConfigError as exc:
                self.last = Reloaded(self._wall(), who, faults=tuple(map(str, exc.faults)))
            except (TokensError, LineFileError, TlsError) as exc:
                self.last = Reloaded(self._wall(), who, faults=(str(exc),))
            else:
                self.last = Reloaded(self._wall(), who, difference=self._node.reload(self._fit(read.config)))
                self._tokens_file.at_work = read.tokens
                self._node.adopt_credentials(read.credentials)
                self._node.adopt_turn_keys(read.turn_keys)
                self._node.entrances.adopt_certificates(read.certificates)
                for warning in read.config.warnings:
                    self._log.warning("config", message=warning)
            self._tell(self.last)
            return self.last

    def _read(self) -> _Read:
        """Return all that a reload goes over to. The files that it names are those at work: others need a restart.

        A file that is being written is empty for a moment, and an empty file is a right one: a pool is not emptied so.
        """
        config = load(self._path, self._environment)
        if not config.backends and self._node.config.backends:
            text = "names no backend any more: to take out all of them, drain them or stop the master"
            raise ConfigError([Fault(self._path or "the environment", "[[backend]]", "", text)])
        certificates = self._node.entrances.read_certificates()
        node = self._node
        return _Read(config, self._tokens_file.read(), node.read_credentials(), certificates, node.read_turn_keys())

    async def watch(self) -> None:
        """Reload when the file is another one, as long as the configuration says so; until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            if not self._node.config.master.reload_on_change:
                continue
            # In a thread: the file may lie on a disk that hangs.
            stamp = await trio.to_thread.run_sync(stamp_of, self._path, abandon_on_cancel=True)
            if self._watch.look(stamp):
                await self.reload("change of the file")

    def _tell(self, reloaded: Reloaded) -> None:
        metrics = self._node.metrics
        metrics.reloaded_at, metrics.reload_failed = reloaded.at, bool(reloaded.faults)
        if reloaded.difference is None:
            first, *others = reloaded.faults
            self._log.error("reload_refused", who=reloaded.who, fault=first, other_faults=len(others))
            more = f" (and {len(others)} more)" * bool(others)
            self._event("reload_refused", f"by {reloaded.who}, nothing changes: {first}{more}")
            return
        self._keeper.changed()
        lines = reloaded.difference.lines()
        self._event("reloaded", f"by {reloaded.who}; differences: {len(lines)}")
        left_out = max(0, len(lines) - _SHOWN)
        self._log.info("reloaded", who=reloaded.who, difference=lines[:_SHOWN], left_out=left_out)
        for change in reloaded.difference.fixed:
            self._log.warning("needs_restart", message=str(change))

    def _event(self, kind: str, text: str) -> None:
        self._node.events.add(trio.current_time(), kind, text)
