"""Who may come in: what stands before each request.

A request is read whole first, within bounds. Reading needs a token, changing one that may write; a change is refused
that a page of somebody else had a browser make: one with a foreign `Origin`, or by a name that is not ours (`Host`).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import math
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lambdamu.address import is_loopback
from master.tokens import Right
from master.web.desk import Desk
from master.web.server import CONNECTION, Connection, Logger

CALLER: Final = "caller"
"""Where the state of a request holds who it is of."""
EVENTS: Final = "/api/v1/events"
_OPEN: Final = frozenset({"/livez", "/readyz"})
"""Those who ask whether it lives have no secrets, and are told none."""
_BODY_BYTES: Final = 16384
_BODY_S: Final = 5.0
_REQUEST_S: Final = 20.0
_READS: Final = frozenset({"GET", "HEAD"})

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="lambdamu", charset="UTF-8", Bearer realm="lambdamu"'}


class Gate:
    """Stands before `app`."""

    def __init__(self, app: ASGIApp, desk: Desk, log: Logger) -> None:
        self._app = app
        self._desk = desk
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][CONNECTION]
        if scope["type"] != "http" or scope["http_version"] not in {"1.0", "1.1"}:
            connection.abort()  # neither web sockets nor HTTP/2, which need deadlines of their own
            return
        with connection.request():
            await self._answer(scope, receive, send, connection)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, connection: Connection) -> None:
        answered = False

        async def send_with_headers(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        with trio.move_on_after(math.inf if scope["path"] == EVENTS else _REQUEST_S) as deadline:
            try:
                body = await _read_body(receive)
                refusal = too_large() if body is None else self._refuse(scope, Headers(scope=scope))
                await (refusal or self._app)(scope, _replay(body or b"", receive), send_with_headers)
                if body is None:
                    connection.abort()
            except Exception as exc:  # noqa: BLE001 - a page that goes wrong must not stop the master
                self._log.error("http_failed", path=_shown(scope["path"]), error=repr(exc))
                if not answered:
                    await _error(500, "this went wrong here; the log says what")(scope, receive, send_with_headers)
        if deadline.cancelled_caught:
            connection.abort()

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to one who may not come in; None, and note who it is, when they may."""
        if scope["path"] in _OPEN:
            return None
        token = _token(headers)
        caller = self._desk.caller(token)
        if caller is None:
            return _error(401, "a token is needed" if token is None else "this token is not known here", _CHALLENGE)
        scope["state"][CALLER] = caller
        if self._desk.tokens is None and not self._is_ours(headers.get("host")):
            return _error(403, "by this name nobody comes here: add it to [http] hosts")
        if scope["method"] in _READS:
            return None
        if caller.right is not Right.WRITE:
            return _error(403, "this token may read, not change")
        if not self._is_ours(headers.get("host")) or _is_foreign(headers):
            return _error(403, "a page of somebody else may not change anything here")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _error(415, "the body must be application/json")
        return None

    def _is_ours(self, host: str | None) -> bool:
        """Whether a `Host` is an address, localhost, or a name of ours: no name that others can point here."""
        name = _host_of("//" + (host or ""))
        if name is None:
            return False
        listen = self._desk.policy.listen
        known = {each.lower() for each in self._desk.policy.hosts} | ({listen.host.lower()} if listen else set())
        return name in known or is_loopback(name) or _is_address(name)


def _shown(path: str) -> str:
    """Return a path for the log, without who is looked up in the cache: the id of a session is a secret."""
    return "/".join(path.split("/")[:5]) if path.startswith("/api/v1/cache/") else path


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser says that the page which asks is not ours; programs say nothing of the kind."""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
        return True
    return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}


def _token(headers: Headers) -> str | None:
    """Return the token of a request: a bearer's, or the password that a browser asked for."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return None
    return None


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body; None when it is too large or too slow."""
    body = b""
    with trio.move_on_after(_BODY_S):
        while len(body) <= _BODY_BYTES:
            message = await receive()
            body += bytes(message.get("body", b""))
            if not message.get("more_body", False):
                return body
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body, which was read already, and then what comes."""
    first: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def too_large() -> Response:
    return _error(
        413, f"a body has at most {_BODY_BYTES} bytes and comes within {_BODY_S:g} s", {"Connection": "close"}
    )


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
