"""The Screen object of a backend: the first screen of the app, for a user with a session.

{Screen, Event, First, {Device}}  ->  {Screen, Value, First, {Count, Types: [{Type, Value} or {Type, Code}, ...]}}

The device is bound to the user, so that his data are fetched when the app starts there the next time; and the data of
the screen are read, which are there by now or are waited for. `Count`: which screen of this session it is, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import trio

from lambdamu.cache_client import CacheClient
from lambdamu.errors import CacheError, CacheRefusedError, SessionGoneError
from lambdamu.messages import DEVICE, SESSION, VALUE, WARM, Code, Command, Message, as_map, as_text, error
from lambdamu.objects import LMObject, Peer, Reply
from server_stub.sessions import Sessions, owe

SCREEN: Final = "Screen"
FIRST: Final = "First"
_DEVICE_BYTES: Final = 128
_WARM_S: Final = 15.0
"""Data that are fetched are waited for so long; the cache itself gives up before."""
_MOST_WARM: Final = 500
"""Data that are waited for at once. An upstream that hangs leaves the other half of the questions that may be on their
way to sessions: else nobody could log in."""
_GONE: Final = "there is no session, any more or ever: log in"


class Screen(LMObject):
    """`types`: the data types of the first screen."""

    def __init__(self, sessions: Sessions, cache: CacheClient, types: Sequence[int], nursery: trio.Nursery) -> None:
        super().__init__(SCREEN, events={FIRST: self._first})
        self._sessions = sessions
        self._cache = cache
        self._types = types
        self._nursery = nursery
        self._room = trio.Semaphore(_MOST_WARM)

    def _first(self, message: Message, now: float, peer: Peer) -> Reply:  # noqa: ARG002 - the form of an action
        device = as_text((as_map(message.data) or {}).get("Device"))
        if not device or len(device.encode()) > _DEVICE_BYTES:
            return [error(message, Code.BAD_DATA, f"Data must name the Device, in 1 to {_DEVICE_BYTES} bytes")]
        session = self._sessions.of(peer)
        if session is None:
            return [error(message, Code.SESSION_GONE, _GONE)]
        return owe(self._nursery, partial(self._show, message, session, device))

    async def _show(self, message: Message, session: str, device: str) -> Sequence[Message]:
        screen = _Shown(self._cache, session, device, self._types, self._room)
        try:
            data = await screen.gather()
        except SessionGoneError:
            return [error(message, Code.SESSION_GONE, _GONE)]
        except CacheRefusedError as exc:
            return [error(message, exc.code, exc.text)]
        except CacheError:
            return [error(message, Code.NO_STORE, "the session cannot be had now; try again")]
        return [Message(SCREEN, Command.VALUE, FIRST, data)]


class _Shown:
    """One screen: all of it is asked for at once."""

    def __init__(
        self, cache: CacheClient, session: str, device: str, types: Sequence[int], room: trio.Semaphore
    ) -> None:
        self._cache = cache
        self._session = session
        self._device = device
        self._room = room
        self._parts: list[dict[str, Any]] = [{"Type": number} for number in types]
        self._count = 0
        self._failures: list[CacheError] = []

    async def gather(self) -> dict[str, Any]:
        """Return the Data of the answer. Raise CacheError where the session cannot be used."""
        async with trio.open_nursery() as nursery:
            for work in (self._bind, self._count_on, *(partial(self._fill, part) for part in self._parts)):
                nursery.start_soon(self._do, work)
        if self._failures:
            gone = [exc for exc in self._failures if isinstance(exc, SessionGoneError)]
            raise (gone or self._failures)[0]
        return {"Count": self._count, "Types": self._parts}

    async def _do(self, work: Any) -> None:
        try:
            await work()
        except CacheError as exc:
            self._failures.append(exc)

    async def _bind(self) -> None:
        await self._cache.ask(DEVICE, "Bind", Session=self._session, Device=self._device)

    async def _count_on(self) -> None:
        found = (await self._cache.ask(SESSION, "Get", Session=self._session)).get(VALUE)
        text = as_text(found) or ""
        self._count = int(text) + 1 if text.isdecimal() and len(text) < 16 else 1
        await self._cache.ask(SESSION, "Set", Session=self._session, Value=str(self._count).encode())

    async def _fill(self, part: dict[str, Any]) -> None:
        """Read data of one type; that there are none is told in their place."""
        try:
            self._room.acquire_nowait()
        except trio.WouldBlock:
            part["Code"] = Code.NO_STORE
            return
        try:
            found = await self._cache.ask(WARM, "Get", within_s=_WARM_S, Session=self._session, Type=part["Type"])
        except SessionGoneError:
            raise
        except CacheRefusedError as exc:
            part["Code"] = exc.code
        except CacheError:
            part["Code"] = Code.NO_STORE
        else:
            value = found.get(VALUE)
            part["Value"] = value.decode(errors="replace") if isinstance(value, bytes) else ""
        finally:
            self._room.release()
