"""All that the operators' side looks at, in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
import trio

from lambdamu.errors import LambdaMuError
from master.answer_log import AnswerLog
from master.config import Config, HttpPolicy
from master.core.pool import Pool, Reason
from master.event_log import EventLog
from master.metrics import Metrics
from master.tokens import LOCAL, Caller, Tokens, TokensFile
from master.waiting.room import WaitingRoom
from master.web.controls import Controls, LastReload, Wanted

if TYPE_CHECKING:
    from master.cache.house import CacheHouse
    from master.devices import Devices
    from master.warm_call import WarmCaller


@attrs.define(eq=False)
class Desk:
    """Reads a master; `controls` changes it, None where it cannot be changed. `tokens_file`: who may come in."""

    policy: HttpPolicy
    pool: Pool
    metrics: Metrics
    answers: AnswerLog
    events: EventLog
    whys: Mapping[str, str]
    """Why backends do not work, by name."""
    config: Callable[[], Config]
    """Returns what the master works with now."""
    controls: Controls | None = None
    stopping: bool = False
    """Set from the first signal to stop on."""
    tokens_file: TokensFile = attrs.Factory(TokensFile)
    room: WaitingRoom | None = None
    """Where people wait; None where there is no queue."""
    cache: CacheHouse | None = None
    cache_node: WarmCaller | None = None
    """Who tells the cache of another node which devices come."""
    devices: Devices | None = None
    """What is done for devices; None where there is no cache."""

    @property
    def alone(self) -> bool:
        """Whether the node has nothing but the cache: no pool, and no port for clients."""
        return self.config().alone

    @property
    def tokens(self) -> Tokens | None:
        return self.tokens_file.at_work

    def caller(self, token: str | None) -> Caller | None:
        """Return who calls with `token`, None for a stranger. Where there are no tokens, whoever can call may."""
        if self.tokens is None:
            return LOCAL
        return self.tokens.find(token) if token is not None else None

    def unready(self) -> str | None:
        """Return why clients should be sent to another master, None when there is no reason."""
        now = trio.current_time()
        takers = self.pool.takers(now)
        if self.stopping:
            return "stopping"
        if self.alone:
            return None
        if self.pool.roll.closed is Reason.FIRST_ROUND:
            return "not every backend has been probed yet"
        if self.policy.ready_needs_backend and not takers:
            return "no backend can take anyone"
        return None

    def wish(self, name: str) -> Wanted | None:
        return self.controls.wish(name) if self.controls is not None else None

    def last_reload(self) -> LastReload | None:
        return self.controls.last_reload() if self.controls is not None else None


def wall(at: float) -> float:
    """Return a moment of the loop's clock as seconds since 1970."""
    return at + time.time() - trio.current_time()


class NotFoundError(LambdaMuError):
    """There is no such thing here."""
