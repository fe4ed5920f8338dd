"""The requests of browsers that wait: each becomes an ask of the master, and its answer a page."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import attrs

from lambdamu.answers import Answer, Failure, read_answer
from lambdamu.http_wire import Request, Response
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, QueueReason, Reason, Result
from lambdamu.objects import Peer
from master.wait_page.cookie import PATH, Held, clear_cookie, read_cookie, write_cookie
from master.wait_page.markup import ASSETS, to_html, to_json, whole_seconds
from master.wait_page.redirect import Redirect
from master.wait_page.texts import Language, Texts
from master.wait_page.view import STATUSES, Kind, View, position_of, show_answer, show_left, show_lost

_MOST_ID_BYTES: Final = 128
_MOST_FORM_BYTES: Final = 64
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_METHODS: Final = ("GET", "HEAD", "POST")
_READS: Final = ("GET", "HEAD")
_WANT: Final = ["Name", "Turn"]
_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
_GUARD: Final = (("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin"))
_MAY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    *_GUARD,
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", _MAY),
    # Without its origin a browser would not say from which page it gives a place up.
    ("Referrer-Policy", "same-origin"),
    ("Vary", "Accept, Accept-Language, Cookie"),
)
_ASSET_HEADERS: Final = (*_GUARD, ("Cache-Control", "public, max-age=3600"))

Asker = Callable[[Message, float, Peer], Sequence[Message]]
"""Who answers an ask at once: messages, as the master gives them."""


@attrs.frozen
class WaitRules:
    """`redirect`: where to go on, None: the page shows the address."""

    texts: Texts
    redirect: Redirect | None = None


class BadIdError(ValueError):
    """A path names no queue; `status` and one line."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@attrs.frozen
class _Visit:
    """One request of a browser. `json`: its script asks. `again`: it goes on with a wait, and must show its place."""

    queue: str
    language: Language
    held: Held | None
    json: bool
    again: bool
    away: bool
    secure: bool


class WaitPage:
    """Serves `/wait/ID`. `new_client` makes the ids of browsers, 22 characters of base64url."""

    def __init__(
        self, ask: Asker, rules: WaitRules, new_client: Callable[[], str] = lambda: secrets.token_urlsafe(16)
    ) -> None:
        self._ask = ask
        self.rules = rules
        self._new_client = new_client

    def handle(self, request: Request, path: str, query: str, now: float, peer: Peer, *, secure: bool) -> Response:
        """Answer a request below `/wait/`. `secure`: whether the browser came by TLS."""
        asset = ASSETS.get(path.removeprefix(PATH))
        if request.method not in (_READS if asset else _METHODS):
            methods = _READS if asset else _METHODS
            text = f"{'this' if asset else 'the waiting page'} takes {', '.join(methods[:-1])} and {methods[-1]}"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", ", ".join(methods)))
        if asset:
            return Response(HTTPStatus.OK, [("Content-Type", asset[0]), *_ASSET_HEADERS], asset[1])
        try:
            visit = self._visit(request, path, query, secure=secure)
        except BadIdError as exc:
            return _line(exc.status, str(exc))
        if request.method == "POST":
            return self._post(request, visit, now, peer)
        if request.headers.get("sec-fetch-site") in _ELSEWHERE and request.headers.get("sec-fetch-dest") != "document":
            return _line(HTTPStatus.FORBIDDEN, "other sites may link here, and no more")
        return self._poll(visit, now, peer)

    def _visit(self, request: Request, path: str, query: str, *, secure: bool) -> _Visit:
        queue, flags, headers = _queue_of(path), query.split("&"), request.headers
        json = headers.get("accept", "").partition(";")[0].strip().lower() == "application/json"
        return _Visit(
            queue,
            self.rules.texts.choose(headers.get("accept-language", "")),
            read_cookie(headers.get("cookie", ""), queue),
            json=json,
            again=json or "again" in flags,
            away="away" in flags,
            secure=secure,
        )

    def _poll(self, visit: _Visit, now: float, peer: Peer) -> Response:
        if visit.held is None and visit.again:
            # Else a browser that keeps no cookies would take one more place each time that it asks.
            return _respond(visit, show_lost(visit.language))
        held = visit.held or Held(self._new_client())
        answer = self._answer(visit, held, now, peer, {"Away": True} if visit.away else {})
        return self._show(visit, held, answer)

    def _post(self, request: Request, visit: _Visit, now: float, peer: Peer) -> Response:
        if not _from_here(request.headers):
            return _line(HTTPStatus.FORBIDDEN, "only the waiting page itself may say so")
        word = request.body[:_MOST_FORM_BYTES].partition(b"=")[0].strip()
        if word == b"away":
            return self._poll(attrs.evolve(visit, json=True, again=True, away=True), now, peer)
        if word != b"leave":
            return _line(HTTPStatus.BAD_REQUEST, "the form must hold leave or away")
        if visit.held is None:
            return _respond(visit, show_left(visit.language))
        return self._show(visit, visit.held, self._answer(visit, visit.held, now, peer, {"Leave": True}))

    def _answer(
        self, visit: _Visit, held: Held, now: float, peer: Peer, more: Mapping[str, Any]
    ) -> Answer | Failure | None:
        data: dict[str, Any] = {"Client": held.client, "Queue": visit.queue, "Want": _WANT, **more}
        if held.ticket:
            data["Ticket"] = held.ticket
        return read_answer(list(self._ask(Message(MASTER, Command.EVENT, DO_SEND_SERVER, data), now, peer)))

    def _show(self, visit: _Visit, held: Held, answer: Answer | Failure | None) -> Response:
        if not isinstance(answer, Answer):
            return _line(HTTPStatus.BAD_REQUEST, answer.text if answer else "nothing was answered")
        link = ""
        if answer.result is Result.OK and self.rules.redirect is not None:
            link = self.rules.redirect.to(
                ip=answer.ip or "",
                port=answer.port or 0,
                name=answer.places[0][1] or "",
                turn=answer.turn or "",
                queue=visit.queue,
            )
        if answer.result is Result.WAIT:
            ticket, first = answer.ticket or held.ticket, max(held.first, position_of(answer))
            held = attrs.evolve(held, ticket=ticket, first=first)
        view = show_answer(answer, visit.language, held.first, link)
        gone = answer.reason in (Reason.LEFT, QueueReason.USED)
        cookie = clear_cookie(visit.queue, secure=visit.secure)
        if not gone:
            cookie = write_cookie(visit.queue, held, secure=visit.secure)
        return _respond(visit, view, ("Set-Cookie", cookie))


def _respond(visit: _Visit, view: View, *more: tuple[str, str]) -> Response:
    status, headers = STATUSES[view.kind], [*_HEADERS, ("Content-Language", visit.language.tag), *more]
    if view.after_s is not None:
        headers.append(("Retry-After", whole_seconds(view.after_s)))
    if visit.json:
        return Response(status, [("Content-Type", "application/json"), *headers], to_json(view))
    if view.kind is Kind.READY and view.link:
        status = HTTPStatus.SEE_OTHER
        headers.append(("Location", view.link))
    return Response(status, [("Content-Type", "text/html; charset=utf-8"), *headers], to_html(view, visit.language))


def _line(status: HTTPStatus, text: str, *more: tuple[str, str]) -> Response:
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"), *_GUARD, *more]
    return Response(status, headers, f"{text}\n".encode())


def _queue_of(path: str) -> str:
    """Return the queue that a path names. Raise BadIdError."""
    written = path.removeprefix(PATH)
    if not written or "/" in written:
        raise BadIdError(HTTPStatus.NOT_FOUND, "a waiting page is at /wait/ID, where ID is that of its queue")
    if _BAD_PERCENT.search(written):
        raise BadIdError(HTTPStatus.BAD_REQUEST, "the id of the queue is not percent-encoded right")
    data = unquote_to_bytes(written.encode("latin-1"))
    if len(data) > _MOST_ID_BYTES:
        raise BadIdError(HTTPStatus.BAD_REQUEST, f"the id of the queue is longer than {_MOST_ID_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise BadIdError(HTTPStatus.BAD_REQUEST, "the id of the queue is not UTF-8") from exc


def _from_here(headers: Mapping[str, str]) -> bool:
    """Whether a page of ours sends it: by the word that no page can change, else by its origin."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    scheme, found, host = headers.get("origin", "").lower().partition("://")
    return bool(found) and scheme in {"http", "https"} and host == headers.get("host", "").lower()
