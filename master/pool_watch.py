"""What is told of the pool as time goes by: whether anybody works, what has changed, and whether there is room."""

from __future__ import annotations

import math
import random
from typing import Final

import trio

from lambdamu.timer import Timer
from master.core.pool import Pool, Spare
from master.core.spare import Taker, find_spare, weigh
from master.event_log import EventLog
from master.log import Throttle
from master.observer import CHANGE_LOG_S, CHANGES_AT_ONCE, Logger, Observer
from master.room_watch import PROBLEMS, RoomWatch, take_look

_PART: Final = 200
_LIVE_CHECK_S: Final = 1.0
_TOLD_AT_ONCE: Final = 50
"""So many backends are told of without a break, which takes a few milliseconds."""
_NOBODY_LIVES_S: Final = 60.0
"""While no backend works, the log says so once in this time."""


class PoolWatch:
    """Nothing is amiss before the first round of probes is over, `first_round_s` from the start."""

    def __init__(
        self,
        pool: Pool,
        observer: Observer,
        events: EventLog,
        log: Logger,
        rng: random.Random,
        first_round_s: float,
    ) -> None:
        self._pool = pool
        self._observer = observer
        self._events = events
        self._log = log
        self._rng = rng
        self._first_round_s = first_round_s

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_whether_anybody_lives)
            nursery.start_soon(self._tell_news)
            nursery.start_soon(self._watch_room)

    async def _log_whether_anybody_lives(self) -> None:
        """By the tick of the timer: on a change, and now and then while nobody does."""
        timer = Timer(_LIVE_CHECK_S, rng=self._rng, first_s=self._first_round_s)
        said: bool | None = None
        changes, repeats = Throttle(CHANGE_LOG_S, CHANGES_AT_ONCE), Throttle(_NOBODY_LIVES_S)
        while True:
            await timer.wait()
            now = trio.current_time()
            self._observer.say_rest(now)
            lives = self._pool.works(now)
            if lives == said and (lives or repeats.let_through(now) is None):
                continue
            if lives != said and changes.let_through(now) is None:
                continue  # too many changes for the log; the last one is told when there is room
            if lives:
                self._log.info("live_backend", message="at least one backend works")
                self._events.add(now, "live_backend", "at least one backend works")
            else:
                repeats.let_through(now)
                together = self._pool.suspects_own_network(now)
                text = self._why_nobody(together)
                self._log.warning("no_live_backend", message=text, own_network_suspected=together)
                if lives != said:
                    self._events.add(now, "no_live_backend", text)
            said = lives

    async def _tell_news(self) -> None:
        """By the tick of a timer, in parts: what has changed in the pool, by time alone or by what clients say."""
        timer, news = Timer(_LIVE_CHECK_S, rng=self._rng), self._pool.news
        while True:
            await timer.wait()
            now = trio.current_time()
            self._pool.works(now)  # has it take in what time has changed
            self._observer.hear_who_is_out(now, self._pool.ejections.out(now))
            for name, admin in news.take_ended().items():
                self._observer.ended_by_itself(name, admin)
            news.turn(self._observer.stale)  # one that is set aside may be fresh again without being of use
            while turned := news.take_turned(_TOLD_AT_ONCE):
                for name in turned:
                    self._observer.look(now, self._pool[name])
                await trio.lowlevel.checkpoint()

    async def _watch_room(self) -> None:
        """By the tick of the timer: tell when there is no room for anybody, or not for the users of the biggest."""
        watch, spare, spare_due = RoomWatch(), Spare(None, 0, 0), -math.inf
        timer = Timer(_LIVE_CHECK_S, rng=self._rng, first_s=self._first_round_s)
        while True:
            await timer.wait()
            now = trio.current_time()
            if not self._pool.works(now):
                continue  # which is told already
            if now >= spare_due:
                spare = await self._find_spare()
                now = trio.current_time()
                spare_due = now + len(self._pool) / 1000
            for kind, text in watch.look(now, take_look(self._pool, spare)):
                (self._log.warning if kind in PROBLEMS else self._log.info)(kind, message=text)
                self._events.add(now, kind, text)

    async def _find_spare(self) -> Spare:
        """Look at all members, a part at a time: at once, ten thousand of them would keep asks waiting for 20 ms."""
        takers: list[Taker | None] = []
        members = list(self._pool)
        for at in range(0, len(members), _PART):
            takers += [weigh(member, trio.current_time()) for member in members[at : at + _PART]]
            await trio.lowlevel.checkpoint()
        return find_spare(takers)

    def _why_nobody(self, together: bool) -> str:
        if len(self._pool) and not self._pool.roll.size:
            return "no backend is in service: the operator has set all of them aside"
        return "no backend works" + ": all failed together, look at this master's network" * together
