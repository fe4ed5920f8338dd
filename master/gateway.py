"""The gateway: the question of clients by HTTP and JSON, for those that cannot speak MessagePack over TCP.

The same decisions by the same code: a request becomes the message that it stands for, and what `Master` answers becomes
the response. It never holds an answer. The waiting page, for people, is in `master.wait_page`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import attrs

from lambdamu.forwarded import ClientHeader, client_of
from lambdamu.http_wire import Request, Response
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, Result
from lambdamu.networks import Network, Networks
from lambdamu.objects import Later, Peer, Quick, Reply
from master.gateway_document import DOCUMENT
from master.wait_page.cookie import PATH as WAIT_PATH
from master.wait_page.page import WaitPage, WaitRules

SERVER_PATH: Final = "/v1/server"
DOCUMENT_PATH: Final = "/v1/openapi.json"
LIVE_PATH: Final = "/livez"
_METHODS: Final = MappingProxyType(
    {SERVER_PATH: ("GET", "POST"), DOCUMENT_PATH: ("GET", "HEAD"), LIVE_PATH: ("GET", "HEAD")}
)
_STATUSES: Final = MappingProxyType(
    {
        Result.OK: HTTPStatus.OK,
        Result.WAIT: HTTPStatus.OK,
        Result.NO_SERVER: HTTPStatus.SERVICE_UNAVAILABLE,
        Result.CLOSED: HTTPStatus.SERVICE_UNAVAILABLE,
        Result.DENIED: HTTPStatus.FORBIDDEN,
    }
)
_JSON: Final = ("Content-Type", "application/json")
_NOT_KEPT: Final = ("Cache-Control", "no-store")
_PREFLIGHT_S: Final = 600
"""For so long a browser need not ask again whether a page may ask."""
_PLAIN: Final = Message(MASTER, Command.EVENT, DO_SEND_SERVER)


class Door(Protocol):
    """Who answers clients: the master."""

    def do_send_server(self, message: Message, now: float, peer: Peer, *, hold: bool = True) -> Reply:
        """Answer an ask. `hold`: whether the answer may be owed; else it is `Wait` with a `Ticket`."""
        ...

    def quick(self, pack: Callable[[Sequence[Message]], bytes]) -> Quick | None:
        """Return what answers a plain ask, packed so; None where it has to be known whose connection it is."""
        ...


@attrs.frozen
class GatewayRules:
    """`origins`: the pages that may ask from a browser, `*` for all. `proxies`: whose word on the client counts.

    `tls`: whether it speaks HTTPS. `wait`: None for no waiting page.
    """

    origins: tuple[str, ...] = ()
    proxies: tuple[Network, ...] = ()
    client_header: ClientHeader = ClientHeader.X_FORWARDED_FOR
    tls: bool = False
    wait: WaitRules | None = None


class BadJsonError(ValueError):
    """A body is no JSON that can be taken; the text says why."""


class Gateway:
    """Answers requests."""

    def __init__(self, door: Door, rules: GatewayRules) -> None:
        self._door = door
        self.rules = rules
        self._trusted = Networks(exempt=rules.proxies)
        self._wait = WaitPage(self._ask, rules.wait) if rules.wait is not None else None

    def handle(self, request: Request, now: float, peer: Peer) -> Sequence[Response]:
        path, query = _path_and_query(request.target)
        if self._wait is not None and path.startswith(WAIT_PATH):
            secure, peer = self._came_by_tls(request, peer), self._client(request, peer)
            said = self._wait.handle(request, path, query, now, peer, secure=secure)
            headers = tuple(said.headers)  # no other page may read it
        else:
            said = self._answer(request, path, now, peer)
            headers = (*said.headers, *self._cors(request))
        return [Response(said.status, headers, said.body, request.method == "HEAD", request.keep_alive)]

    def prepare(self, batch: Sequence[Request]) -> Quick | None:
        """Return what answers a plain ask of the same bytes: most phones send the same ones each time."""
        [request] = batch
        plain = (request.method, request.target) == ("GET", SERVER_PATH) and not request.body
        told = self.rules.proxies and self.rules.client_header in request.headers
        if not plain or told or not request.keep_alive:
            return None
        cors = self._cors(request)
        return self._door.quick(lambda messages: _of_messages(messages, cors).to_bytes())

    def disconnected(self, peer: Peer) -> None:
        """Nothing is held for anybody."""

    def _answer(self, request: Request, path: str, now: float, peer: Peer) -> Response:
        methods = _METHODS.get(path)
        if methods is None:
            return _fault(HTTPStatus.NOT_FOUND, "NotFound", f"clients ask at {SERVER_PATH}")
        if request.method == "OPTIONS":
            return Response(HTTPStatus.NO_CONTENT, [("Allow", ", ".join((*methods, "OPTIONS")))])
        if request.method not in methods:
            text = f"{path} takes {' and '.join(methods)}"
            refused = _fault(HTTPStatus.METHOD_NOT_ALLOWED, "UnknownCommand", text)
            return attrs.evolve(refused, headers=[*refused.headers, ("Allow", ", ".join((*methods, "OPTIONS")))])
        if path == DOCUMENT_PATH:
            return Response(HTTPStatus.OK, [_JSON], DOCUMENT)
        if path == LIVE_PATH:
            return Response(HTTPStatus.OK, [_JSON, _NOT_KEPT], b'{"live":true}')
        return self._send_server(request, now, peer)

    def _send_server(self, request: Request, now: float, peer: Peer) -> Response:
        try:
            data = _data(request) if request.method == "POST" else None
        except BadJsonError as exc:
            return _fault(HTTPStatus.BAD_REQUEST, "BadData", str(exc))
        ask = _PLAIN if data is None else Message(MASTER, Command.EVENT, DO_SEND_SERVER, data)
        return _of_messages(self._ask(ask, now, self._client(request, peer)))

    def _ask(self, ask: Message, now: float, peer: Peer) -> Sequence[Message]:
        reply = self._door.do_send_server(ask, now, peer, hold=False)
        assert not isinstance(reply, Later)  # noqa: S101 - as it was asked for
        return reply

    def _client(self, request: Request, peer: Peer) -> Peer:
        """Return whose request it is, by the word of a balancer where one is trusted."""
        host = client_of(request.headers, peer.host, self._trusted, self.rules.client_header)
        return peer if host == peer.host else Peer(host, 0)  # a certificate, if any, is the balancer's

    def _came_by_tls(self, request: Request, peer: Peer) -> bool:
        """Whether the browser speaks HTTPS, with us or with a trusted balancer. Who lies spoils his own cookie."""
        told = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        return self.rules.tls or (told == "https" and self._trusted.exempts(peer.host))

    def _cors(self, request: Request) -> Sequence[tuple[str, str]]:
        """Return what lets a page read the answer, where it may."""
        origin = request.headers.get("origin")
        if not self.rules.origins:
            return ()
        every = "*" in self.rules.origins
        if origin is None or not (every or origin in self.rules.origins):
            return [("Vary", "Origin")]
        allowed = [("Access-Control-Allow-Origin", "*" if every else origin), ("Vary", "Origin")]
        if request.method == "OPTIONS":
            allowed += [
                ("Access-Control-Allow-Methods", "GET, POST"),
                ("Access-Control-Allow-Headers", "Content-Type"),
                ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
            ]
        else:
            allowed.append(("Access-Control-Expose-Headers", "Retry-After"))
        return allowed


def _path_and_query(target: str) -> tuple[str, str]:
    """Return both of a target, which may be a whole URL, as proxies are sent it (RFC 9112, 3.2.2)."""
    scheme, found, rest = target.partition("://")
    if found and scheme.lower() in {"http", "https"}:
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    return path, query


def _of_messages(messages: Sequence[Message], more: Sequence[tuple[str, str]] = ()) -> Response:
    """Return the response to what the master says."""
    [message] = messages
    if message.command == Command.ERROR:
        return _fault(HTTPStatus.BAD_REQUEST, message.data["Code"], message.data["Text"])
    headers = [_JSON, _NOT_KEPT]
    after = message.data["Data"].get("RetryAfter")
    if after is not None:
        headers.append(("Retry-After", str(math.ceil(after))))
    return Response(_STATUSES[Result(message.data["Result"])], [*headers, *more], _dumps(message.data))


def _fault(status: HTTPStatus, code: str, text: str) -> Response:
    return Response(status, [_JSON, _NOT_KEPT], _dumps({"Error": {"Code": code, "Text": text}}))


def _data(request: Request) -> Any:
    """Return the `Data` of an ask from a body. Raise BadJsonError."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadJsonError("the body must be application/json")
    if not request.body:
        return None
    try:
        data = _DECODER.decode(request.body.decode("utf-8-sig"))
    except BadJsonError:
        raise
    except UnicodeDecodeError as exc:
        raise BadJsonError(f"the body is not UTF-8, from its byte {exc.start} on") from exc
    except json.JSONDecodeError as exc:
        raise BadJsonError(f"the body is no JSON: {exc}") from exc
    except RecursionError as exc:
        raise BadJsonError("the body is nested too deeply") from exc
    except ValueError as exc:  # Python refuses to read a number of thousands of digits, in words about Python
        raise BadJsonError("a number in the body has too many digits") from exc
    if data is not None and not isinstance(data, dict):
        raise BadJsonError("Data must be a map")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadJsonError(f"{ascii(key)[:80]} stands there twice")
        found[key] = value
    return found


def _no_number(word: str) -> Literal[0]:
    raise BadJsonError(f"{word} is no number of JSON")


def _dumps(data: Any) -> bytes:
    return _ENCODER.encode(data).encode()


# Made once: `json.dumps` and `json.loads` make such a one for each call that has options.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
