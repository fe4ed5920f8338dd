"""What doors are fuzzed with: inputs that are right, and what chance makes of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

from lambdamu.base64url import from_base64url
from lambdamu.datapack import encode
from lambdamu.keys import Signer
from lambdamu.messages import Message
from lambdamu.passes import Pass, make_pass
from master.wait_page.cookie import cookie_name
from tests.lambdamu.test_proxy_protocol import LOCAL, header

SIGNER: Final = Signer.generate("k1")
NOW_UNIX: Final = 1_800_000_000
PASS: Final = make_pass(SIGNER, Pass("p1", "ann", ("access", "vip"), NOW_UNIX + 10**6))
_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples"
_DATA: Final[tuple[Any, ...]] = (
    None,
    {},
    {"Pass": PASS},
    {"Client": "c1", "Want": ["Name", "Alternates", "TTL"], "Zone": "eu", "Away": True},
    {"Client": "c1", "Failed": [{"IP": "127.0.0.1", "Port": 1, "Why": "refused"}], "Leave": False},
    {"Client": "c1", "Queue": "q", "Ticket": "t" * 40, "Want": ["Turn", "Queue", "x"]},
    {"Client": "\ud83d\ude00 é".encode("utf-16", "surrogatepass").decode("utf-16"), "Device": "d" * 128},
)


def _asks() -> list[bytes]:
    asks = [encode([Message("Master", "Event", "DoSendServer", data)]) for data in _DATA]
    others = [
        Message("Master", "Get", "Server"),
        Message("Master", "Set", "Server", {"a": [1, 2.5, None, True]}),
        Message("Nobody", "Event", "X", -1),
        Message("Master", "Value", "Server", {}),
    ]
    return [*asks, *(encode([each]) for each in others), encode(others), asks[0] * 3, asks[0] + asks[3]]


def _requests() -> list[bytes]:
    bodies = [json.dumps(data).encode() for data in _DATA]
    posts = [
        b"POST /v1/server HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
        for body in bodies
    ]
    gets = [
        b"GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/openapi.json?x=1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"OPTIONS /v1/server HTTP/1.1\r\nHost: x\r\nOrigin: https://game.example\r\n\r\n",
        b'GET /v1/server HTTP/1.1\r\nHost: x\r\nForwarded: for="[2001:db8::9]:47", for=10.0.0.1\r\n\r\n',
        b"GET /v1/server HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.7, 10.0.0.1:80\r\n\r\n",
        b"POST /v1/server HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde",
    ]
    cookie, site = cookie_name("a b").encode(), b"Sec-Fetch-Site: same-origin"
    pages = [
        b"GET /wait/a%%20b HTTP/1.1\r\nHost: x\r\nCookie: a=b; %s=%s.%s.41\r\nAccept-Language: de-AT, en;q=0.5\r\n\r\n"
        % (cookie, b"c" * 22, b"t" * 88),
        b"GET /wait/a%20b?away HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nX-Forwarded-Proto: https\r\n\r\n",
        b"POST /wait/a%%20b HTTP/1.1\r\n%s\r\nCookie: %s=%s..0\r\nContent-Length: 7\r\n\r\nleave=1"
        % (site, cookie, b"c" * 22),
        b"HEAD /wait/page.js?0123 HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    return [*posts, *gets, *pages, gets[0] * 3, gets[0] + posts[3]]


_CONFIG: Final = """
[master]
listen = "0.0.0.0:9300"
trusted_proxies = ["10.0.0.0/8", "2001:db8::/32"]
[limits]
connections = 100
asks_per_network_per_s = 1.5
exempt = ["192.0.2.0/24"]
[probe]
interval_s = 0.5
[http]
listen = "127.0.0.1:9301"
[gateway]
listen = "[::1]:9302"
origins = ["https://game.example"]
wait_page = true
wait_redirect = "game://{ip}:{port}/?turn={turn}"
[queue]
mode = "hold"
per_minute = 0.5
[[queue.template]]
pattern = "[!a-c]*"
lanes = ["vip", "plain"]
[[backend]]
host = "a.example"
port = 1
weight = 2
[[backend]]
host = "10.0.0.1"
port = 65535
name = "b"
"""

_TEXTS: Final = (PASS, make_pass(SIGNER, Pass("x" * 32, "é" * 60, ("vip",), NOW_UNIX)))

SEEDS: Final[dict[str, list[bytes]]] = {
    "clients": _asks(),
    "gateway": _requests(),
    "proxy": [header(), header("2001:db8::9"), header(command=LOCAL), header(more=b"\x04\0\1x")],
    "forwarded": [
        b'for="[2001:db8::9]:47";proto=https, for=10.0.0.1',
        b"203.0.113.7, 10.0.0.1:80",
        b"for=_x,for=10.1.1.1",
    ],
    "pass": [*(text.encode() for text in _TEXTS), *(from_base64url(text) or b"" for text in _TEXTS)],
    "config": [_CONFIG.encode(), *(path.read_bytes() for path in sorted(_EXAMPLES.glob("*.toml")))],
}

_NOTEWORTHY: Final = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\r\n",
    b"\r\n\r\n",
    b'"',
    b",",
)


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Return a seed with up to eight changes: mostly few, so that much of it is still right."""
    data = bytearray(rng.choice(seeds))
    for _ in range(min(8, int(rng.expovariate(0.6)))):
        _change(rng, data, seeds)
    return bytes(data)


def _change(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + int(rng.expovariate(0.1)) + 1)
    match rng.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(data):
            data[at] = rng.randrange(256)
        case 2:
            data[at:at] = rng.choice(_NOTEWORTHY)
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * rng.choice((1, 1, 2, 50))
        case 5:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at:end] = other[start : start + rng.randrange(64)]
        case 6:
            del data[at:]
        case _:
            data[at:end] = rng.randbytes(end - at)
