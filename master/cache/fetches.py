"""Fetches warm data: one worker of the broker for all who want the same, and a place in the store for what comes.

Who waits does it outside of queue and workers. Several instances may share a store: who holds the lease of a value
fetches it, and the others look for it there; who died, or was too slow, is replaced when its lease ends, and what it
brings after that is thrown away. A fetch is for the cache, not for who asked first: it goes on when nobody waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from master.cache.broker import Ask, Broker
from master.cache.broker_core import Refusal
from master.cache.flights import Flight, Flights, Key, Stage, Step
from master.cache.leases import Held, Lease
from master.cache.rows import Row, Table
from master.cache.store import CacheStore
from master.cache.upstream import Upstream, UpstreamError
from master.cache.warm_types import Age, Answer, NotServed, Warm, WarmPolicy, WarmType, Why

_WRITE_S: Final = 0.5
"""A lease, and a worker, outlast the deadline of a fetch by so much."""
_LATE_S: Final = _WRITE_S / 2
"""An upstream that does not end by itself when its time is over is cut off so much later."""
_LEAST_SHARE: Final = 0.05
"""Of its lifetime, what a fetch has for the upstream at least: a call that is begun with less is mostly in vain, and
would be told on an upstream that is only slow."""
_LOOK_S: Final = (0.01, 0.1)
"""How soon it is looked whether another instance has fetched, at first and at last."""
_REFUSED: Final = {
    Refusal.FULL: NotServed(Why.FULL, "too many ask just now", 1.0),
    Refusal.EXPIRED: NotServed(Why.EXPIRED, "it took too long", 1.0),
    Refusal.STOPPING: NotServed(Why.STOPPING, "this instance stops", 1.0),
}


@attrs.define
class FetchCounts:
    """Since the start. `calls` went to the upstream, `waited` is who waited for one of them, `joined` who found it on
    its way already, `stale` who got an old value in place of a failure. `unkept`: the store had no room, and who waited
    got the value all the same. `overtaken`: thrown away, because the lease was over.
    """

    calls: int = 0
    failures: int = 0
    published: int = 0
    unkept: int = 0
    overtaken: int = 0
    waited: int = 0
    joined: int = 0
    stale: int = 0


@attrs.define(eq=False)
class Waiter:
    """Somebody who waits for a flight."""

    flight: Flight
    answer: Callable[[Answer], object]
    parked: Ask = attrs.field(init=False)


@attrs.define(eq=False)
class _Entry:
    """One place of a flight in the queue of the broker; its fetch ends at `until`."""

    flight: Flight
    priority: int
    until: float
    taken: bool = False


class Fetches:
    """Those of one instance. `owner`: a name that no other instance has. `run` comes before anything is fetched."""

    def __init__(
        self,
        store: CacheStore,
        broker: Broker,
        upstream: Upstream,
        owner: str,
        policy: WarmPolicy,
        rng: random.Random,
    ) -> None:
        self.counts: Final = FetchCounts()
        self.flights: Final = Flights(policy.flights, policy.backoff)
        self._store = store
        self._broker = broker
        self._upstream = upstream
        self._owner = owner
        self._rng = rng
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for what other instances fetch, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def find(self, now: float, key: Key, kind: WarmType) -> tuple[bytes, Age] | None:
        """Return what stands in the store, and how old it is."""
        row = self._store.get(now, Table.WARM, key)
        return None if row is None else (row.value, kind.age(now, row.updated_at, row.ttl_s))

    def may_begin(self, now: float, key: Key) -> bool:
        """Return whether a fetch of these data would be a new one: there is none, and they do not rest."""
        return self.flights.get(key) is None and not self.flights.rest_s(now, key)

    def behind(self, now: float, key: Key, kind: WarmType, session: str | None, priority: int) -> bool:
        """Begin a fetch that nobody waits for, unless there is one, or these data rest; return whether it began."""
        if not self.may_begin(now, key):
            return False
        flight = self.flights.begin(key, kind, session)
        if flight is not None:
            self._queue(flight, priority)
        return flight is not None

    def wait(
        self, now: float, key: Key, kind: WarmType, session: str, answer: Callable[[Answer], object]
    ) -> Waiter | None:
        """Join the flight of these data, or begin one. `answer` is called once: before this returns, then with None;
        or later, within the lifetime of the kind.
        """
        flight = self.flights.get(key)
        self.counts.joined += flight is not None
        if flight is None:
            rest_s = self.flights.rest_s(now, key)
            if rest_s:
                answer(self._or_stale(key, NotServed(Why.UPSTREAM, "the upstream has failed just now", rest_s)))
                return None
            flight = self.flights.begin(key, kind, session)
        if flight is None:
            answer(self._or_stale(key, _REFUSED[Refusal.FULL]))
            return None
        waiter = Waiter(flight, answer)
        flight.waiters[waiter] = None
        waiter.parked = self._broker.park(kind.lifetime_s, partial(self._hear, waiter))
        self._queue(flight, kind.priority)
        if waiter not in flight.waiters:
            return None
        self.counts.waited += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Hear that somebody waits no more, and is not to be answered; the fetch goes on. Again does nothing."""
        self._broker.withdraw(waiter.parked)
        waiter.flight.waiters.pop(waiter, None)

    def _hear(self, waiter: Waiter, result: Answer | Refusal) -> None:
        """Answer one who waited, or waited too long."""
        waiter.flight.waiters.pop(waiter, None)
        waiter.answer(self._or_stale(waiter.flight.key, _REFUSED[result]) if isinstance(result, Refusal) else result)

    def _queue(self, flight: Flight, priority: int) -> None:
        """Have the broker fetch, unless the flight stands there already and as near to its turn."""
        if not flight.queue(priority):
            return
        within_s = flight.kind.lifetime_s
        entry = _Entry(flight, priority, trio.current_time() + within_s)
        work, out = partial(self._work, entry), partial(self._out, entry)
        needs_s = _WRITE_S + _LEAST_SHARE * within_s
        self._broker.submit(flight.kind.kind, priority, within_s + _WRITE_S, work, out, needs_s=needs_s)

    def _out(self, entry: _Entry, result: Refusal | None) -> None:
        """Hear that the broker has done with an entry; a flight that stands there no more in any way is over."""
        if not isinstance(result, Refusal) or entry.taken:
            return  # the worker has seen to it, or will
        flight = entry.flight
        flight.queued.remove(entry.priority)
        if flight.stage is Stage.QUEUED and not flight.queued:
            self._land_without(flight, _REFUSED[result])

    async def _work(self, entry: _Entry) -> None:
        """Fetch, in a worker of the broker. It waits for nothing but the upstream."""
        flight, now = entry.flight, trio.current_time()
        entry.taken = True
        flight.queued.remove(entry.priority)
        if flight.stage is not Stage.QUEUED:
            return  # another entry of it was the first, or it is over
        lease = self._store.lease(now, flight.key, self._owner, max(0.0, entry.until - now) + _WRITE_S)
        if isinstance(lease, Held):
            self._look_elsewhere(flight)
            return
        try:
            if not self._land_with_fresh(now, flight):  # another instance may have fetched it just now
                flight.move(Step.STARTED)
                await self._fetch(flight, lease, entry.until)
        finally:
            self._store.release(trio.current_time(), lease)
            if flight.running:  # the worker was cut off: this instance stops
                self._land_without(flight, _REFUSED[Refusal.STOPPING])

    async def _fetch(self, flight: Flight, lease: Lease, until: float) -> None:
        kind, within_s = flight.kind, until - trio.current_time()
        self.counts.calls += 1
        try:
            # The upstream keeps to its time itself, and has to see that it is over: its breaker counts that.
            with trio.move_on_after(within_s + _LATE_S) as scope:
                value = await self._upstream.fetch(kind, flight.key, flight.session, within_s)
            if scope.cancelled_caught:
                raise UpstreamError(f"{kind.kind}: no answer within {within_s:.3g} s")
            if not value:
                raise UpstreamError(f"{kind.kind}: the upstream sent nothing")
        except UpstreamError as exc:
            self.counts.failures += 1
            rest_s = self.flights.failed(trio.current_time(), flight.key, self._rng)
            self._land_without(flight, NotServed(Why.UPSTREAM, str(exc), rest_s))
        else:
            self.flights.succeeded(flight.key)
            self._publish(trio.current_time(), flight, lease, value)

    def _publish(self, now: float, flight: Flight, lease: Lease, value: bytes) -> None:
        client, number, version = flight.key
        row = Row(
            Table.WARM,
            flight.key,
            value,
            client,
            flight.session or "",
            version,
            number,
            updated_at=now,
            ttl_s=flight.kind.kept_s(self._rng),
        )
        if self._store.publish(now, lease, row):
            self.counts.published += 1
        elif self._store.extend(now, lease, _WRITE_S):
            self.counts.unkept += 1
        else:
            self.counts.overtaken += 1
            if not self._land_with_fresh(now, flight):
                self._look_elsewhere(flight)
            return
        self._land(flight, Warm(value))

    def _look_elsewhere(self, flight: Flight) -> None:
        """Wait outside of the workers for what another instance fetches, where anybody waits for it here."""
        if not flight.waiters:
            self.flights.land(flight)
            return
        flight.move(Step.HELD)
        assert self._nursery is not None  # noqa: S101 - `run` comes before all asks
        self._nursery.start_soon(self._watch, flight)

    async def _watch(self, flight: Flight) -> None:
        """Look for the value until it is there, or its lease is over, or nobody waits for it any more."""
        pause_s, longest_s = _LOOK_S
        while flight.waiters:
            await trio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, longest_s)
            now = trio.current_time()
            if self._land_with_fresh(now, flight):
                return
            lease = self._store.lease(now, flight.key, self._owner, _WRITE_S)
            if isinstance(lease, Lease):
                self._store.release(now, lease)
                flight.move(Step.FREED)
                self._queue(flight, flight.kind.priority)
                return
        self.flights.land(flight)

    def _land_with_fresh(self, now: float, flight: Flight) -> bool:
        """End a flight with what stands in the store, where that is fresh."""
        found = self.find(now, flight.key, flight.kind)
        if found is None or found[1] is not Age.FRESH:
            return False
        self._land(flight, Warm(found[0]))
        return True

    def _land_without(self, flight: Flight, why: NotServed) -> None:
        for waiter in self.flights.land(flight):
            self._broker.settle(waiter.parked, self._or_stale(flight.key, why))

    def _land(self, flight: Flight, answer: Answer) -> None:
        for waiter in self.flights.land(flight):
            self._broker.settle(waiter.parked, answer)

    def _or_stale(self, key: Key, why: NotServed) -> Answer:
        """Return the old value where there still is one."""
        row = self._store.get(trio.current_time(), Table.WARM, key)
        if row is None:
            return why
        self.counts.stale += 1
        return Warm(row.value, stale=True)
