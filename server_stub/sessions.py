"""The sessions of a backend's users, which are kept in the cache service and outlive the backend.

While a user is connected his session is asked for well within its time to live, so it does not end; when he leaves it
has that time. Which backend he is at stands with his session, so that a master can send him back.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import attrs
import trio

from lambdamu.cache_client import CacheClient
from lambdamu.errors import CacheError, CacheUnavailableError, SessionGoneError
from lambdamu.messages import BACKEND, CACHE, SESSION, Message
from lambdamu.objects import Later, Peer
from server_stub.users import Entered

_FOREVER_S: Final = 366 * 86400.0
"""An entry ends with its session."""
_TOUCHES: Final = 4
"""In the time to live of a session; where one fails, four times as often."""
_LEAST_PAUSE_S: Final = 0.05


@attrs.define(eq=False)
class _Held:
    """The session of a connection. `placed`: the backend stands with it."""

    client: str
    session: str
    ttl_s: float
    placed: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class Sessions:
    """`backend`: what the masters call this one. What takes its time is done by tasks of `nursery`."""

    def __init__(
        self, cache: CacheClient, backend: str, nursery: trio.Nursery, rng: random.Random | None = None
    ) -> None:
        self._cache = cache
        self._backend = backend
        self._nursery = nursery
        self._rng = rng or random.Random()
        self._held: dict[Peer, _Held] = {}

    def of(self, peer: Peer) -> str | None:
        """Return the session of a connection; it may be gone."""
        held = self._held.get(peer)
        return None if held is None else held.session

    def enter(self, peer: Peer, client: str, session: str, reply: Callable[[Entered], Sequence[Message]]) -> Later:
        """Have a session made, where `session` is empty, or resumed; the answer is what `reply` makes of it."""
        return owe(self._nursery, partial(self._enter, peer, client, session, reply))

    def forget(self, peer: Peer) -> None:
        """Hear that a connection is gone: its session has its time from now on."""
        held = self._held.pop(peer, None)
        if held is not None:
            held.scope.cancel()

    def entered_without(self, peer: Peer, client: str) -> None:
        """Hear that `client` is logged in there and has no session: that of another user is not his."""
        held = self._held.get(peer)
        if held is not None and held.client != client:
            self.forget(peer)

    async def _enter(
        self, peer: Peer, client: str, session: str, reply: Callable[[Entered], Sequence[Message]]
    ) -> Sequence[Message]:
        try:
            held = await self._open(client, session)
        except SessionGoneError:
            return reply(None)
        except CacheError as exc:
            return reply(exc)
        with suppress(CacheError):  # it is tried again
            await self._place(held)
        await trio.lowlevel.checkpoint_if_cancelled()  # it may have gone in the moment of the answer
        self.forget(peer)
        self._held[peer] = held
        self._nursery.start_soon(self._keep, held)
        return reply(held.session)

    async def _open(self, client: str, session: str) -> _Held:
        if session:
            found = await self._cache.ask(SESSION, "Touch", Session=session, Client=client)
        else:
            found = await self._cache.ask(SESSION, "Create", Client=client)
        try:
            return _Held(client, str(found["Session"]), float(found["TTL"]))
        except (KeyError, TypeError, ValueError):
            raise CacheUnavailableError("the cache gave an answer without a Session and its TTL") from None

    async def _place(self, held: _Held) -> None:
        said: dict[str, Any] = {"Session": held.session, "Key": BACKEND, "TTL": _FOREVER_S}
        await self._cache.ask(CACHE, "Put", Value=self._backend.encode(), **said)
        held.placed = True

    async def _keep(self, held: _Held) -> None:
        """Keep a session alive, until its user leaves or it is gone."""
        pause_s = held.ttl_s / _TOUCHES
        failed = not held.placed
        with held.scope:
            while True:
                shortened_s = pause_s / _TOUCHES if failed else pause_s
                await trio.sleep(max(_LEAST_PAUSE_S, shortened_s * self._rng.uniform(0.8, 1.0)))
                try:
                    if held.placed:
                        await self._cache.ask(SESSION, "Touch", Session=held.session)
                    else:
                        await self._place(held)
                    failed = False
                except SessionGoneError:
                    return
                except CacheError:
                    failed = True


def owe(nursery: trio.Nursery, work: Callable[[], Awaitable[Sequence[Message]]]) -> Later:
    """Return an answer that a task of `nursery` works out; it is ended when nobody waits for it any more."""
    scope = trio.CancelScope()
    later = Later(cancelled=scope.cancel)
    nursery.start_soon(_pay, later, work, scope)
    return later


async def _pay(later: Later, work: Callable[[], Awaitable[Sequence[Message]]], scope: trio.CancelScope) -> None:
    with scope:
        later.answer(await work())
