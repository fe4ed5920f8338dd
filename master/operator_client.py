"""What the command line asks of a running master, by its HTTP."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from lambdamu.address import printable
from lambdamu.errors import LambdaMuError

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 64 * 2**20
TOKEN_VARIABLE: Final = "LAMBDAMU_TOKEN"  # noqa: S105 - the name of a variable
Json = dict[str, Any]


class CallError(LambdaMuError):
    """A master could not be asked, or refused; str() is one line."""


def get(url: str, path: str, *, within_s: float = _TIMEOUT_S, **query: str) -> Json:
    """Return what the master at `url` answers; `within_s` is for each step of it. Raise CallError."""
    given = {key: value for key, value in query.items() if value}
    text = urllib.parse.urlencode(given, errors="surrogateescape")
    return _call(url, f"{path}?{text}" if text else path, within_s=within_s)


def post(url: str, path: str, body: Json) -> Json:
    """Have the master at `url` do something; return what it answers. Raise CallError."""
    return _call(url, path, json.dumps(body).encode())


def delete(url: str, path: str, body: Json) -> Json:
    """Have the master at `url` end something; return what it answers. Raise CallError."""
    return _call(url, path, json.dumps(body).encode(), method="DELETE")


def _call(
    url: str, path: str, body: bytes | None = None, within_s: float = _TIMEOUT_S, method: str | None = None
) -> Json:
    if not _is_url(url):
        raise CallError(f"{printable(url)} is not the URL of a master, such as http://127.0.0.1:7080")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not (token.isascii() and token.isprintable()):  # it is a secret: what is wrong with it is told without it
        raise CallError(f"{TOKEN_VARIABLE} has what no token has, such as the end of a line")
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url.rstrip("/") + path, body, headers, method=method)  # noqa: S310 - looked at above
        # Neither a proxy of the environment nor a redirect gets the token: the master is asked, and nobody else.
        with _OPENER.open(request, timeout=within_s) as answer:
            return _read(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as exc:
        with exc:
            raise CallError(_refusal(exc)) from exc
    except urllib.error.URLError as exc:
        raise CallError(f"{printable(url)} cannot be reached: {_why(exc.reason)}") from exc
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise CallError(f"{printable(url)} gave no answer to use: {_why(exc)}") from exc


def _is_url(url: str) -> bool:
    """Return whether it names a host; a port that is none would lead to another one."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def _read(body: bytes) -> Json:
    got = json.loads(body)
    if not isinstance(got, dict):
        raise ValueError("no object of JSON")  # noqa: TRY004 - what came is wrong, not what was given
    return got


def _refusal(exc: urllib.error.HTTPError) -> str:
    try:
        text = printable(str(_read(exc.read(_MOST_BYTES))["error"]))
    except (OSError, ValueError, KeyError):
        text = "without a word"
    hint = ""
    if exc.code == http.client.UNAUTHORIZED:
        hint = f": look at {TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else f": set {TOKEN_VARIABLE}"
    return f"refused ({exc.code}): {text}{hint}"


def _why(exc: object) -> str:
    text = exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
    return printable(text or type(exc).__name__)
