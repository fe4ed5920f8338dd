"""Warm data: what a client will ask for after its login is there before, and is fetched once for all who ask.

    bytes in -> `ask` -> the store, or a flight (`fetches`) -> the answer
    AppStart -> `app_start` -> the budget -> a flight for each type that is not there, nobody waits

Data can be read only in a session of their client: a device that was sold, or is shared, has them fetched, and nobody
gets them without having logged in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from master.cache.broker import Broker
from master.cache.budget import WarmBudget
from master.cache.fetches import Fetches, Waiter
from master.cache.homes import latest_sessions
from master.cache.rows import Table
from master.cache.store import CacheStore
from master.cache.upstream import Upstream
from master.cache.warm_types import Age, Answer, NotServed, Warm, WarmPolicy, WarmType, Why


@attrs.define
class WarmCounts:
    """Since the start. `hits` were answered from the store at once; `misses` found nothing there that is fresh: they
    waited for a fetch, or were refused one. `held_back`: AppStarts, and clients and fetches of theirs, that the budget
    did not grant; `warmed`: fetches that AppStarts began.
    """

    asks: int = 0
    hits: int = 0
    misses: int = 0
    app_starts: int = 0
    unknown_devices: int = 0
    held_back: int = 0
    warmed: int = 0

    @property
    def served(self) -> int:
        """Asks that might be answered with data: of a session that is there, for a type that there is."""
        return self.hits + self.misses


class Warmer:
    """The warm data of one instance. Its clock is `trio.current_time`, which is to be that of the store.

    `owner`: a name that no other instance has. `run` comes before anything is asked.
    """

    def __init__(
        self,
        store: CacheStore,
        broker: Broker,
        upstream: Upstream,
        kinds: Iterable[WarmType],
        owner: str,
        policy: WarmPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.policy: Final = policy or WarmPolicy()
        self.counts: Final = WarmCounts()
        self.budget: Final = WarmBudget(self.policy)
        self.fetches: Final = Fetches(store, broker, upstream, owner, self.policy, rng or random.Random())
        self._store = store
        self._kinds = {kind.type: kind for kind in sorted(kinds, key=lambda kind: kind.priority)}

    @property
    def saved(self) -> int:
        """How many calls the upstream was spared."""
        return self.counts.hits + self.fetches.counts.joined

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for what other instances fetch, until cancelled."""
        await self.fetches.run(task_status=task_status)

    async def get(self, session: str, number: int, version: int, client: str | None = None) -> Answer:
        """Return what `ask` answers."""
        answers: list[Answer] = []
        over = trio.Event()

        def hear(answer: Answer) -> None:
            answers.append(answer)
            over.set()

        waiter = self.ask(session, number, version, hear, client)
        try:
            await over.wait()
        finally:
            if waiter is not None:
                self.leave(waiter)
        return answers[0]

    def ask(
        self, session: str, number: int, version: int, answer: Callable[[Answer], object], client: str | None = None
    ) -> Waiter | None:
        """Answer with the data of type `number` of the client whose session it is, or why there are none.

        That session lives for another of its times. `client`, where the question names one, must be the same. `answer`
        is called once: before this returns, which then returns None; or later, within the lifetime of the type.
        """
        now = trio.current_time()
        self.counts.asks += 1
        row = self._store.get(now, Table.SESSION, (session,))
        if row is None:
            answer(NotServed(Why.SESSION_GONE, "there is no such session, any more or ever: its client has to log in"))
            return None
        if client is not None and client != row.client:
            answer(NotServed(Why.NOT_YOURS, "the session is that of another client"))
            return None
        self._store.touch(now, Table.SESSION, (session,))
        kind = self._kinds.get(number)
        if kind is None:
            answer(NotServed(Why.NOT_FOUND, f"there are no warm data of type {number}"))
            return None
        key = (row.client, number, version)
        found = self.fetches.find(now, key, kind)
        if found is None or found[1] is Age.STALE:
            self.counts.misses += 1
            return self.fetches.wait(now, key, kind, session, answer)
        if found[1] is Age.AGING:
            self.fetches.behind(now, key, kind, session, self.policy.background_priority - 1)
        self.counts.hits += 1
        answer(Warm(found[0]))
        return None

    def leave(self, waiter: Waiter) -> None:
        """Hear that somebody waits no more, and is not to be answered; the fetch goes on. Again does nothing."""
        self.fetches.leave(waiter)

    def app_start(self, device: str, version: int | None, network: bytes | None = None) -> int:
        """Fetch what the clients of a device will ask for, as far as it is not there; return how many fetches began.

        `version`: None for that of the latest session of each client, 0 where it has none. `network`: whence it came,
        as `lambdamu.networks` gives it; None where that does not count. Nobody is answered.
        """
        now = trio.current_time()
        self.counts.app_starts += 1
        if network is not None and not self.budget.network(now, network):
            self.counts.held_back += 1
            return 0
        clients = self._store.clients_of(now, device, self.policy.clients_per_device)
        if not clients:
            self.counts.unknown_devices += 1
            return 0
        if not self.budget.device(now, device):
            self.counts.held_back += 1
            return 0
        begun = sum(self._warm(now, client, version) for client in clients)
        self.counts.warmed += begun
        return begun

    def _warm(self, now: float, client: str, version: int | None) -> int:
        if not self.budget.client(now, client):
            self.counts.held_back += 1
            return 0
        if version is None:
            version = next((session.version for session in latest_sessions(self._store, now, (client,))), 0)
        begun = 0
        for kind in self._kinds.values():
            key = (client, kind.type, version)
            found = self.fetches.find(now, key, kind)
            if (found is not None and found[1] is Age.FRESH) or not self.fetches.may_begin(now, key):
                continue
            if not self.budget.fetch(now):
                self.counts.held_back += 1
                break
            begun += self.fetches.behind(now, key, kind, None, self.policy.background_priority)
        return begun
