"""What operators change by HTTP, carried out by `master.operations`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import trio

from master.core.admin import Wish
from master.node import Node
from master.operations import Operations, OrderError
from master.waiting.orders import Order
from master.web.controls import ControlError, LastReload, Wanted


class OperationsControls:
    """The controls of a master that runs."""

    def __init__(self, node: Node, operations: Operations) -> None:
        self._node = node
        self._operations = operations

    def set_admin(self, name: str, state: Wish, who: str, reason: str, until_s: float | None) -> None:
        self._operations.set_admin(name, state, who=who, why=reason, for_s=until_s)

    def wish(self, name: str) -> Wanted | None:
        now = trio.current_time()
        admin = self._node.pool[name].admin.at(now)
        if not admin.who:
            return None
        until = None if admin.until == math.inf else time.time() + admin.until - now
        return Wanted(admin.wish, admin.who, admin.why, until)

    def order_queue(self, queue: str, order: Order | None, *, who: str, reason: str) -> None:
        try:
            self._operations.order_queue(queue, order, who=who, why=reason)
        except OrderError as exc:
            raise ControlError(str(exc)) from exc

    def note_look_up(self, what: str, known: str, *, who: str, values: bool) -> None:
        self._operations.note_look_up(what, known, who=who, values=values)

    def end_session(self, session: str, *, who: str, reason: str) -> bool:
        return self._operations.end_session(session, who=who, why=reason)

    def last_reload(self) -> LastReload | None:
        last = self._operations.last
        return None if last is None else LastReload(last.at, last.who, last.faults)

    async def reload(self, who: str) -> Sequence[str]:
        reloaded = await self._operations.reload(who)
        if reloaded.difference is None:
            raise ControlError("; ".join(reloaded.faults))
        return reloaded.difference.lines()
