"""Keeps what must outlive the process: takes it out of the pool, and puts it back in at the start.

Nobody waits for it. What changes while it writes is written next, all in one; what cannot be written is tried again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import trio

from lambdamu.address import Address
from master.config import Config
from master.core.admin import READY, Admin, Wish
from master.core.choice import Panic
from master.core.health import Report
from master.core.pool import Member
from master.node import Node
from master.store import SavedAdmin, SavedReport, State, Store, StoreError
from master.write_behind import Logger, Trouble

_PERIOD_S: Final = 10.0
"""How old the saved reports may be, and when a failure is tried again."""
_FINISH_S: Final = 0.3
"""Of the time that a stop may take."""
_LOAD_S: Final = 5.0
"""A master waits so long for its state at the start, and no longer."""


class Keeper(Trouble):
    """`wall` gives Unix seconds."""

    def __init__(self, store: Store, node: Node, log: Logger, wall: Callable[[], float] = time.time) -> None:
        super().__init__(log, lambda kind, text: node.events.add(trio.current_time(), kind, text))
        self._store = store
        self._node = node
        self._wall = wall
        self._changed = trio.Event()
        self._unsaved = False

    async def restore(self) -> None:
        """Put what was kept into the pool, before anybody asks. What cannot be read is told of, and is as nothing."""
        with trio.move_on_after(_LOAD_S) as deadline:
            try:
                state = await trio.to_thread.run_sync(self._store.load, abandon_on_cancel=True)
            except StoreError as exc:
                self._failed("state_not_read", str(exc))
            else:
                self._put_back(state)
        if deadline.cancelled_caught:
            self._failed("state_not_read", f"took more than {_LOAD_S:g} s")

    def changed(self) -> None:
        """Hear that an operator wants something else of a backend."""
        self._unsaved = True
        self._changed.set()

    async def run(self) -> None:
        """Write whenever something has changed, and the reports now and then where they may be needed."""
        while True:
            with trio.move_on_after(_PERIOD_S if self._trusted or self._unsaved else math.inf):
                await self._changed.wait()
            self._changed = trio.Event()
            if not await self._save(self._take_out(reports=self._trusted)):
                await trio.sleep(_PERIOD_S)

    @property
    def _trusted(self) -> bool:
        """Whether the last good reports may be needed."""
        return self._node.config.choice.panic is Panic.LAST_KNOWN

    async def finish(self) -> None:
        """Write what has not been written yet, if a moment is enough for it."""
        if self._unsaved:
            with trio.move_on_after(_FINISH_S):
                await self._save(self._take_out(reports=self._trusted))

    async def _save(self, state: State) -> bool:
        self._unsaved = False
        try:
            await trio.to_thread.run_sync(self._store.save, state, abandon_on_cancel=True)
        except StoreError as exc:
            self._unsaved = True
            self._failed("state_not_written", str(exc))
            return False
        except trio.Cancelled:
            self._unsaved = True
            raise
        self._recovered("state_written", "the state is kept again")
        return True

    def _failed(self, event: str, error: str) -> None:
        self._node.metrics.store_failures += 1
        self._fell_short(event, error)

    def _take_out(self, *, reports: bool) -> State:
        now, wall, places = trio.current_time(), self._wall(), _places(self._node.config)
        admins, saved = {}, {}
        for member in self._node.pool:
            name = member.backend.name
            admin = member.admin.at(now)
            if admin.wish is not Wish.READY:
                until = None if admin.until == math.inf else wall + admin.until - now
                admins[name] = SavedAdmin(admin.wish, admin.who, admin.why, until)
            if reports and member.report is not None and member.probed is not None:
                age_s = member.report.age(now)
                saved[name] = SavedReport(places[name], member.report.count, wall - age_s, *member.probed)
        return State(admins, saved)

    def _put_back(self, state: State) -> None:
        now, wall, places = trio.current_time(), self._wall(), _places(self._node.config)
        for member in list(self._node.pool):
            name = member.backend.name
            report = state.reports.get(name)
            if report is not None and report.place == places[name]:
                asked_at = now - max(0.0, wall - report.asked_at)
                self._node.pool.restore(now, name, Report(report.count, asked_at), (report.host, report.port))
            self._want(now, wall, member, state.admins.get(name))

    def _want(self, now: float, wall: float, member: Member, saved: SavedAdmin | None) -> None:
        if saved is None:
            return
        until = math.inf if saved.until is None else now + saved.until - wall
        admin = Admin(saved.wish, saved.who, saved.why, until).at(now)
        if admin is not READY:
            self._node.pool.set_admin(now, member.backend.name, admin)
            self._log.info("admin_restored", backend=member.backend.name, **describe(admin, now))


def describe(admin: Admin, now: float) -> dict[str, object]:
    """Return what the log says of it."""
    until_s = {} if admin.until == math.inf else {"until_s": round(admin.until - now, 3)}
    return {"admin": admin.wish.value, "who": admin.who, "why": admin.why, **until_s}


def _places(config: Config) -> dict[str, str]:
    return {backend.name: str(Address(backend.host, backend.port)) for backend in config.backends}
