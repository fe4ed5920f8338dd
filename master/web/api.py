"""The routes: what each asks of the desk."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

import attrs
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lambdamu.address import printable
from master.config_json import tables_of, values_of
from master.core.admin import Wish
from master.web.cache_api import cache_routes
from master.web.controls import ControlError, Controls
from master.web.desk import Desk, wall
from master.web.exposition import OPENMETRICS, PROMETHEUS, Renderer, accepts_openmetrics
from master.web.feed import Events, Feed
from master.web.gate import EVENTS
from master.web.openapi import DOCUMENT
from master.web.queue_api import queue_routes
from master.web.queue_views import place_row
from master.web.reading import answer_json, caller_of, read_object, read_reason
from master.web.views import answer_row, backend_row, dumps, event_row, explanation, rows_of

_MOST_ANSWERS: Final = 200
_MOST_EVENTS: Final = 50
_LEAST_UNTIL_S: Final = 1.0
_MOST_UNTIL_S: Final = 30 * 86400.0
_SCRIPTS: Final = ("page.js", "parts.js", "table.js", "charts.js", "questions.js", "queue.js", "cache.js")
_STATIC: Final = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css")} | {
    f"/{name}": (name, "text/javascript") for name in _SCRIPTS
}
Handler = Callable[[Request], Awaitable[Response]]


def make_app(desk: Desk, feed: Feed) -> Starlette:
    """Return the application; a gate stands before it (`master.web.gate`)."""
    api = _Api(desk, feed, Renderer(desk.metrics.registry))
    routes = [
        *(Route(path, _static(*file), methods=["GET"]) for path, file in _STATIC.items()),
        Route("/livez", api.livez, methods=["GET"]),
        Route("/readyz", api.readyz, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/api/v1/openapi.json", api.openapi, methods=["GET"]),
        Route("/api/v1/backends", api.backends, methods=["GET"]),
        Route("/api/v1/explain", api.explain, methods=["GET"]),
        Route("/api/v1/answers", api.answers, methods=["GET"]),
        Route("/api/v1/log", api.log, methods=["GET"]),
        Route("/api/v1/config", api.config, methods=["GET"]),
        Route(EVENTS, Events(feed), methods=["GET"]),
        Route("/api/v1/backends/{name:path}/{state}", api.set_admin, methods=["POST"]),
        Route("/api/v1/reload", api.reload, methods=["POST"]),
        *queue_routes(desk),
        *cache_routes(desk, feed),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refuse})


def _static(name: str, kind: str) -> Handler:
    text = (files("master.web") / "static" / name).read_bytes()

    async def give(_request: Request) -> Response:
        return Response(text, media_type=kind)

    return give


async def _refuse(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)  # noqa: S101 - it is registered for nothing else
    return Response(dumps({"error": exc.detail}), exc.status_code, exc.headers, "application/json")


@attrs.define(eq=False)
class _Api:
    _desk: Desk
    _feed: Feed
    _renderer: Renderer

    async def livez(self, _request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def readyz(self, _request: Request) -> Response:
        why = self._desk.unready()
        return Response("ok\n" if why is None else f"{why}\n", 200 if why is None else 503, media_type="text/plain")

    async def metrics(self, request: Request) -> Response:
        openmetrics = accepts_openmetrics(request.headers.get("accept", ""))
        text = await self._renderer.text(openmetrics=openmetrics)
        return Response(text, headers={"Content-Type": OPENMETRICS if openmetrics else PROMETHEUS})

    async def openapi(self, _request: Request) -> Response:
        return answer_json(DOCUMENT)

    async def backends(self, _request: Request) -> Response:
        desk, now, per_s = self._desk, trio.current_time(), self._feed.backends.per_s
        rows = await rows_of(list(desk.pool), lambda member: backend_row(desk, member, now, per_s))
        head = dumps(self._feed.pool(now))
        return answer_json(head[:-1] + b',"backends":' + rows + b"}")

    async def explain(self, request: Request) -> Response:
        zone, client, device = (_text(request, key) for key in ("zone", "client", "device"))
        return answer_json(await explanation(self._desk, zone, client, device))

    async def answers(self, request: Request) -> Response:
        client, desk = _text(request, "client"), self._desk
        found = desk.answers.search(client, _MOST_ANSWERS)
        await trio.lowlevel.checkpoint()
        listed = _listed("answers", await rows_of(found, answer_row))
        return answer_json(listed[:-1] + b',"place":' + dumps(place_row(desk.room, client, trio.current_time())) + b"}")

    async def log(self, _request: Request) -> Response:
        events = self._desk.events.last(_MOST_EVENTS)
        return answer_json(_listed("events", await rows_of(reversed(events), event_row)))

    async def config(self, _request: Request) -> Response:
        config = self._desk.config()
        head = dumps(tables_of(config))
        return answer_json(head[:-1] + b',"backend":' + await rows_of(config.backends, values_of) + b"}")

    async def set_admin(self, request: Request) -> Response:
        name, word = request.path_params["name"], request.path_params["state"]
        if word not in list(Wish):
            raise HTTPException(404, "not found")
        if not any(member.backend.name == name for member in self._desk.pool):
            raise HTTPException(404, f"there is no backend {printable(name)}")
        wish, caller = _read_wish(await request.body()), caller_of(request)
        controls = self._controls("the admin state of a backend cannot be changed here")
        try:
            controls.set_admin(name, Wish(word), caller.name, wish.reason, wish.until_s)
        except ControlError as exc:
            raise HTTPException(409, str(exc)) from exc
        self._tell(f"{word} by {caller.name}: {wish.reason}", name)
        return answer_json({"name": name, "state": word, "who": caller.name})

    async def reload(self, request: Request) -> Response:
        caller = caller_of(request)
        controls = self._controls("the configuration cannot be read again here")
        try:
            changes = await controls.reload(caller.name)
        except ControlError as exc:
            raise HTTPException(409, str(exc)) from exc
        return answer_json({"changes": list(changes), "who": caller.name})

    def _controls(self, without: str) -> Controls:
        if self._desk.controls is None:
            raise HTTPException(501, without)
        return self._desk.controls

    def _tell(self, text: str, backend: str) -> None:
        self._desk.events.add(trio.current_time(), "operator", text, backend)


def _listed(key: str, rows: bytes) -> bytes:
    return b'{"at":%b,"%b":%b}' % (dumps(round(wall(trio.current_time()), 6)), key.encode(), rows)


@attrs.frozen
class _Wish:
    reason: str
    until_s: float | None


def _read_wish(body: bytes) -> _Wish:
    given = read_object(body, "a reason")
    unknown = given.keys() - {"reason", "until_s"}
    if unknown:
        raise HTTPException(400, "the body holds what is not known; it has a reason and, if any, until_s")
    reason, until_s = read_reason(given.get("reason")), given.get("until_s")
    return _Wish(reason, None if until_s is None else _read_until(until_s))


def _read_until(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST_UNTIL_S <= value <= _MOST_UNTIL_S:
        raise HTTPException(400, f"until_s must be a number from {_LEAST_UNTIL_S:g} to {_MOST_UNTIL_S:g}")
    return float(value) if math.isfinite(value) else _MOST_UNTIL_S


def _text(request: Request, key: str) -> str:
    text = request.query_params.get(key, "")
    if len(text) > 128:
        raise HTTPException(400, f"{key} must have at most 128 characters")
    return text
