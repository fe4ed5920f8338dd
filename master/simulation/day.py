"""`day`: the clients of a bank through a day, in front of the warm data that they would have.

People start the app at the hours at which people do, and most of them log in. Their first screen shows all five types
of data, each of those that follow either the same again or one type. The store, the broker and the warm data are those
of the cache service; the upstream takes its time, by chance, and fails now and then. Each screen asks through the
session that was made at the login, and waits for all of its answers.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Final

import attrs
import trio

from lambdamu.testing.clock import run_virtual
from master.cache.broker import Broker
from master.cache.broker_core import BrokerPolicy
from master.cache.flights import Key
from master.cache.rows import Row, Table
from master.cache.store import CacheStore, StorePolicy
from master.cache.upstream import UpstreamError
from master.cache.warm import Warmer
from master.cache.warm_types import Warm, WarmType
from master.simulation.masters import Progress, Setting, no_progress

HOURS: Final = (1, 1, 1, 1, 1, 2, 4, 8, 10, 9, 8, 8, 9, 8, 7, 7, 8, 10, 11, 10, 8, 6, 4, 2)
"""How many start the app in each hour of the day, in parts of all of them together: a peak before work, one after."""
_DAY_S: Final = 86400.0
_TYPES: Final = ("Accounts", "Cards", "Deposits", "Loans", "Packages")
_SESSION_S: Final = 600.0
_LOGIN_S: Final = (5.0, 20.0)
"""So long it takes from the start of the app to the first screen."""
_SWEEP_S: Final = 60.0


@attrs.frozen
class DaySetting:
    """`people` with a device each, of which `known_share` are known in the morning; `starts` of the app by each in the
    mean, of which `login_share` lead to a login; `screens` of a login in the mean, `screen_s` apart in the mean, of
    which `home_share` show all types. The upstream takes `upstream_s` in the median and fails in `failure_share` of
    its calls. `ttl_s`, `refresh_s`: of each type. `warm_up`: whether a start warms anything up.
    """

    people: int = 1000
    starts: float = 2.0
    login_share: float = 0.85
    known_share: float = 0.95
    screens: float = 12.0
    screen_s: float = 20.0
    home_share: float = 0.3
    ttl_s: float = 900.0
    refresh_s: float = 60.0
    upstream_s: float = 0.2
    failure_share: float = 0.005
    warm_up: bool = True


@attrs.define
class Day:
    """Waits are of first screens, seconds: `warm` of devices that were known at the start, `cold` of others."""

    logins: int = 0
    screens: int = 0
    asks: int = 0
    calls: int = 0
    failures: int = 0
    not_served: int = 0
    warm: list[float] = attrs.field(factory=list)
    cold: list[float] = attrs.field(factory=list)
    most_calls_per_s: int = 0
    most_rows: int = 0

    def figures(self) -> dict[str, float | int | None]:
        """Return it in words and numbers, for people and programs."""
        return {
            "logins": self.logins,
            "screens": self.screens,
            "asks": self.asks,
            "upstream_calls": self.calls,
            "upstream_calls_over_asks": self.calls / self.asks if self.asks else None,
            "upstream_failures": self.failures,
            "asks_not_served": self.not_served,
            "first_screen_warm_p50_s": _point(self.warm, 0.5),
            "first_screen_warm_p95_s": _point(self.warm, 0.95),
            "first_screen_cold_p50_s": _point(self.cold, 0.5),
            "first_screen_cold_p95_s": _point(self.cold, 0.95),
            "most_upstream_calls_per_s": self.most_calls_per_s,
            "most_rows_kept": self.most_rows,
        }


def run_day(setting: DaySetting, seed: int = 1, progress: Progress = no_progress) -> Day:
    """Return what came of a day."""
    return run_virtual(_World(setting, seed, progress).run)


def _point(waits: list[float], part: float) -> float | None:
    return sorted(waits)[math.ceil(part * len(waits)) - 1] if waits else None


class _Bank:
    """The upstream: late by chance (log-normal, as times of services are), and failing by chance."""

    def __init__(self, setting: DaySetting, rng: random.Random) -> None:
        self._setting = setting
        self._rng = rng
        self.by_second: Counter[int] = Counter()

    async def fetch(self, kind: WarmType, key: Key, session: str | None, within_s: float) -> bytes:  # noqa: ARG002
        self.by_second[int(trio.current_time())] += 1
        await trio.sleep(self._rng.lognormvariate(math.log(self._setting.upstream_s), 0.5))
        if self._rng.random() < self._setting.failure_share:
            raise UpstreamError("it failed")
        return b"some data of a client"


class _World:
    def __init__(self, setting: DaySetting, seed: int, progress: Progress) -> None:
        self._setting = setting
        self._progress = progress
        chance = Setting(seed=seed)
        self._rng = chance.rng("people")
        self._bank = _Bank(setting, chance.rng("upstream"))
        self._warmer_rng = chance.rng("cache")
        self._store = CacheStore(StorePolicy())
        self._sessions = 0
        self._day = Day()

    async def run(self) -> Day:
        setting, day = self._setting, self._day
        broker = Broker(BrokerPolicy())
        kinds = [
            WarmType(number, name, "Products", setting.ttl_s, refresh_s=setting.refresh_s)
            for number, name in enumerate(_TYPES, 1)
        ]
        self._warmer = Warmer(self._store, broker, self._bank, kinds, "day", rng=self._warmer_rng)
        async with trio.open_nursery() as service:
            await service.start(broker.run)
            await service.start(self._warmer.run)
            service.start_soon(self._sweep)
            async with trio.open_nursery() as nursery:
                for at, person in self._starts():
                    await trio.sleep_until(at)
                    nursery.start_soon(self._use, person)
            service.cancel_scope.cancel()
        counts = self._warmer.fetches.counts
        day.asks, day.calls, day.failures = self._warmer.counts.asks, counts.calls, counts.failures
        day.most_calls_per_s = max(self._bank.by_second.values(), default=0)
        return day

    def _starts(self) -> list[tuple[float, int]]:
        """Return when who starts the app; who has a device that is known is bound to it."""
        setting, rng = self._setting, self._rng
        for person in range(setting.people):
            if rng.random() < setting.known_share:
                self._bind(person)
        hours = rng.choices(range(24), HOURS, k=round(setting.people * setting.starts))
        return sorted((3600 * (hour + rng.random()), rng.randrange(setting.people)) for hour in hours)

    async def _use(self, person: int) -> None:
        """Start the app, log in and look at screens."""
        setting, rng, day = self._setting, self._rng, self._day
        now = trio.current_time()
        known = bool(self._store.clients_of(now, f"device {person}", 1))
        if setting.warm_up:
            self._warmer.app_start(f"device {person}", 1, person.to_bytes(4))
        if rng.random() >= setting.login_share:
            return
        await trio.sleep(rng.uniform(*_LOGIN_S))
        session = self._log_in(person)
        self._bind(person)
        (day.warm if known else day.cold).append(await self._screen(session, list(range(1, len(_TYPES) + 1))))
        while rng.random() >= 1 / setting.screens:
            await trio.sleep(rng.expovariate(1 / setting.screen_s))
            home = rng.random() < setting.home_share
            await self._screen(session, list(range(1, len(_TYPES) + 1)) if home else [rng.randint(1, len(_TYPES))])

    async def _screen(self, session: str, types: list[int]) -> float:
        """Ask for all of a screen at once; return how long it took."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in types:
                nursery.start_soon(self._ask, session, number)
        self._day.screens += 1
        return trio.current_time() - began

    async def _ask(self, session: str, number: int) -> None:
        answer = await self._warmer.get(session, number, 1)
        self._day.not_served += not isinstance(answer, Warm)

    def _log_in(self, person: int) -> str:
        self._day.logins += 1
        self._sessions += 1
        session, now = f"session {self._sessions}", trio.current_time()
        self._store.put(now, Row(Table.SESSION, (session,), b"", f"client {person}", session, 1, 0, now, _SESSION_S))
        return session

    def _bind(self, person: int) -> None:
        now, client = trio.current_time(), f"client {person}"
        self._store.put(now, Row(Table.DEVICE, (f"device {person}", client), b"", client, "", 1, 0, now, 30 * _DAY_S))

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_S)
            self._day.most_rows = max(self._day.most_rows, len(self._store))
            self._store.sweep(trio.current_time(), 100_000)
            self._progress(min(1.0, trio.current_time() / _DAY_S))
