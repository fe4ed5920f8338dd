"""The routes of the cache: how it stands, and who is who in it.

A look-up shows which client has which sessions and devices, so it needs a token that may write, and is noted like a
change; ids are noted as hashes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

import attrs
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from master.cache.fields import TEXT_BYTES
from master.tokens import Right
from master.web.cache_views import cache_overview, client_body, device_body, hash12, session_body
from master.web.controls import Controls
from master.web.desk import Desk
from master.web.feed import Feed
from master.web.reading import answer_json, caller_of, read_object, read_reason

if TYPE_CHECKING:
    from master.cache.house import CacheHouse

_PATH: Final = "/api/v1/cache"
_NONE: Final = "there is no cache: the configuration of this node has no [cache]"
_GONE: Final = {
    "session": "there is no such session, any more or ever",
    "device": "nobody uses this device",
    "client": "nothing is there of this client",
}
_FLAGS: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


def cache_routes(desk: Desk, feed: Feed) -> list[Route]:
    api = _CacheApi(desk, feed)
    return [
        Route(_PATH, api.whole, methods=["GET"]),
        Route(f"{_PATH}/session/{{session:path}}", api.session, methods=["GET"]),
        Route(f"{_PATH}/session/{{session:path}}", api.end, methods=["DELETE"]),
        Route(f"{_PATH}/device/{{device:path}}", api.device, methods=["GET"]),
        Route(f"{_PATH}/client/{{client:path}}", api.client, methods=["GET"]),
    ]


@attrs.define(eq=False)
class _CacheApi:
    _desk: Desk
    _feed: Feed

    async def whole(self, _request: Request) -> Response:
        return answer_json(cache_overview(self._house(), trio.current_time(), self._feed.minute))

    async def session(self, request: Request) -> Response:
        return await self._look_up(request, "session", session_body)

    async def device(self, request: Request) -> Response:
        return await self._look_up(request, "device", device_body)

    async def client(self, request: Request) -> Response:
        return await self._look_up(request, "client", client_body)

    async def end(self, request: Request) -> Response:
        self._house()
        session, caller = _read_id(request, "session"), caller_of(request)
        reason, known = _read_body(await request.body()), hash12(session)
        if not self._controls().end_session(session, who=caller.name, reason=reason):
            raise HTTPException(404, _GONE["session"])
        self._tell(f"session {known}: ended, by {caller.name}: {reason}")
        return answer_json({"session": known, "ended": True, "who": caller.name})

    async def _look_up(self, request: Request, what: str, body: Callable[..., Awaitable[bytes | None]]) -> Response:
        """Give what is there of one session, device or client; that somebody looks is noted, whatever is found."""
        house, caller = self._house(), caller_of(request)
        if caller.right is not Right.WRITE:
            raise HTTPException(403, "this token may read, not look up who is who")
        wanted, values = _read_id(request, what), _read_flag(request, "values")
        known = hash12(wanted)
        self._controls().note_look_up(what, known, who=caller.name, values=values)
        self._tell(f"{what} {known}: looked up{', with values' if values else ''}, by {caller.name}")
        found = await body(house, wanted, trio.current_time(), values=values)
        if found is None:
            raise HTTPException(404, _GONE[what])
        return answer_json(found)

    def _controls(self) -> Controls:
        if self._desk.controls is None:
            raise HTTPException(501, "nobody can be looked up here: it could not be noted")
        return self._desk.controls

    def _house(self) -> CacheHouse:
        if self._desk.cache is None:
            node = self._desk.cache_node
            raise HTTPException(404, _NONE if node is None else f"{_NONE}; its [cache_node] is {node.config.address}")
        return self._desk.cache

    def _tell(self, text: str) -> None:
        self._desk.events.add(trio.current_time(), "operator", text)


def _read_id(request: Request, what: str) -> str:
    """Return the id that stands last in the path, decoded once, as strictly as the wire does."""
    raw: bytes = request.scope["raw_path"]
    most = TEXT_BYTES[what.capitalize()]
    given = unquote_to_bytes(raw.partition(f"{_PATH}/{what}/".encode())[2])
    if not 0 < len(given) <= most:
        raise HTTPException(400, f"the id of a {what} has from 1 to {most} bytes")
    try:
        return given.decode()
    except UnicodeDecodeError as exc:
        raise HTTPException(400, f"the id of a {what} is a text in UTF-8, each byte beyond ASCII as %XX") from exc


def _read_flag(request: Request, key: str) -> bool:
    flag = _FLAGS.get(request.query_params.get(key, ""))
    if flag is None:
        raise HTTPException(400, f"{key} must be 1, or 0")
    return flag


def _read_body(body: bytes) -> str:
    having = "a reason, and nothing else"
    given = read_object(body, having)
    if given.keys() - {"reason"}:
        raise HTTPException(400, f"the body must be an object with {having}")
    return read_reason(given.get("reason"))
