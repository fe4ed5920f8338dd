"""The gateway: each request gets its status, body and headers, and the decision that the clients' port gives.

The file is long because each request, good or bad, is a row of its tables.
"""

from __future__ import annotations

import ipaddress
import json
import random
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.datapack import DEFAULT_LIMITS, Decoder, encode
from lambdamu.forwarded import ClientHeader
from lambdamu.http_wire import HttpReader, HttpWire, Request
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, Result
from lambdamu.objects import Peer, family_of
from master.answer_log import AnswerLog
from master.core.backend import Backend
from master.core.ejection import Verdict
from master.core.fair import FairPolicy, NetworkRates
from master.core.health import HealthPolicy
from master.core.load import LoadPolicy
from master.core.pool import Pool
from master.doors import Doors
from master.gateway import Gateway, GatewayRules
from master.gateway_document import DOCUMENT
from master.service import AnswerPolicy, Master
from tests.master.test_doors import TOKEN, Heard, doors_of

HOST, PROXY = "192.0.2.9", "10.0.0.254"
PAGE = "https://game.example"
PROXIES = (ipaddress.ip_network("10.0.0.0/8"),)


@attrs.define
class Site:
    """A gateway in front of a master, without a port."""

    gateway: Gateway
    master: Master
    heard: Heard
    log: AnswerLog

    def respond(self, sent: bytes, *, now: float = 0.0, host: str = HOST, quick: bool = False) -> bytes:
        """Answer the bytes of requests, one after another, as a port does."""
        reader, wire, answers = HttpReader(DEFAULT_LIMITS), HttpWire(), b""
        reader.feed(sent)
        while (batch := reader.next_batch()) is not None:
            known = self.gateway.prepare(batch) if quick else None
            if known is not None:
                answers += known(now, family_of(host), (host, 5))
            else:
                [request] = batch
                answers += wire.pack(self.gateway.handle(request, now, Peer.from_address(host, 5)))
        return answers

    def ask(self, sent: bytes, **circumstances: Any) -> Answered:
        return Answered.of(self.respond(sent, **circumstances), sent.partition(b" ")[0].decode())

    def post(self, data: Any, headers: tuple[str, ...] = (), **circumstances: Any) -> Answered:
        return self.ask(request("POST", body=json.dumps(data).encode(), headers=headers), **circumstances)


@attrs.frozen
class Answered:
    """A response, as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, data: bytes, method: str) -> Answered:
        class Sock:
            def makefile(self, _mode: str) -> BytesIO:
                return BytesIO(data)

        response = HTTPResponse(cast("Any", Sock()), method=method)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return cls(response.status, headers, response.read())

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def make_site(backends: int = 1, *, doors: Doors | None = None, seed: int = 1, **rules: Any) -> Site:
    pool = Pool([Backend(f"b{i}") for i in range(4)], HealthPolicy(), LoadPolicy())
    for i in range(4):
        if i < backends:
            pool.record_report(0.0, random.Random(1), f"b{i}", 5, 0.0, (f"10.0.0.{i + 1}", 9001))
        else:
            pool.record_failure(0.0, f"b{i}")
    heard, log = Heard(), AnswerLog()
    master = Master(pool, AnswerPolicy(2.0, 2.0), random.Random(seed), heard, log, doors)
    return Site(Gateway(master, GatewayRules(**rules)), master, heard, log)


def request(
    method: str = "GET", target: str = "/v1/server", body: bytes | None = None, headers: tuple[str, ...] = ()
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: master", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


GOOD = {"Result": "OK", "Data": {"IP": "10.0.0.1", "Port": 9001}}


@pytest.mark.parametrize(
    "sent",
    [
        request(),
        request(target="/v1/server?zone=a"),
        request(body=b"{}"),
        request("POST"),
        request("POST", body=b""),
        request("POST", body=b"null"),
        request("POST", body=b"{}"),
        request("POST", body=b" \n{} "),
        request("POST", body=b"\xef\xbb\xbf{}"),
        request("POST", body=b'{"Client": "ann", "Zone": null, "Other": [1e400]}'),
        request("POST", body=b"{}", headers=("Content-Type: application/json",)),
        request("POST", body=b"{}", headers=("content-type: Application/JSON; charset=utf-8",)),
    ],
)
def test_who_asks_is_told_a_backend(sent: bytes) -> None:
    answer = make_site().ask(sent)
    assert (answer.status, answer.json) == (200, GOOD)
    assert answer.headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "content-length": str(len(answer.body)),
    }


def test_what_a_client_wants_besides_is_told_too() -> None:
    data = make_site(4).post({"Client": "ann", "Want": ["Name", "Alternates", "TTL"]}).json["Data"]
    assert data.keys() == {"IP", "Port", "Name", "Alternates", "TTL"}
    assert [each.keys() for each in data["Alternates"]] == [{"IP", "Port", "Name"}] * 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the body is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"{}{}", "the body is no JSON: Extra data: line 1 column 3 (char 2)"),
        (b'{"Zone": "a", "Zone": "b"}', "'Zone' stands there twice"),
        (b'{"\\u202eenoZ": 1, "\\u202eenoZ": 1}', "'\\u202eenoZ' stands there twice"),
        (b'{"Failed": [{"Port": 1, "Port": 2}]}', "'Port' stands there twice"),
        (b'{"Zone": NaN}', "NaN is no number of JSON"),
        (b'{"Zone": -Infinity}', "-Infinity is no number of JSON"),
        (b"[" * 60000, "the body is nested too deeply"),
        (b'{"a":' * 10000, "the body is nested too deeply"),
        (b'{"Zone": ' + b"9" * 5000 + b"}", "a number in the body has too many digits"),
        (b'{"Zone": "\xff"}', "the body is not UTF-8, from its byte 10 on"),
        (b'{"Zone": "\\ud800"}', "Zone must be a text of whole characters"),
        (b'{"Client": "\\udc00x"}', "Client must be a text of whole characters"),
        (b"[]", "Data must be a map"),
        (b'"ann"', "Data must be a map"),
        (b"1", "Data must be a map"),
        (b'{"Zone": 5}', "Zone must be a text"),
        (b'{"Client": "' + b"x" * 129 + b'"}', "Client must be at most 128 bytes long"),
        (b'{"Leave": 1}', "Leave must be true or false"),
        (b'{"Want": "Name"}', "Want must be an array"),
        (b'{"Failed": [{"IP": "a", "Port": 1.0}]}', "Failed must be an array of maps"),
        (b'{"Failed": [{"IP": 5, "Port": 1}]}', "Failed.IP must be a text"),
    ],
)
def test_what_is_wrong_is_told_by_its_key_and_nothing_is_learned(body: bytes, text: str) -> None:
    site = make_site()
    answer = site.ask(request("POST", body=body))
    assert answer.status == 400
    assert answer.json["Error"]["Code"] == "BadData"
    assert answer.json["Error"]["Text"].startswith(text)
    assert len(answer.body) < 300
    assert site.heard.results == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json-patch+json", ""])
def test_a_body_of_another_kind_is_refused_as_a_page_of_strangers_could_have_it_sent(kind: str) -> None:
    answer = make_site().ask(request("POST", body=b"{}", headers=(f"Content-Type: {kind}",)))
    assert (answer.status, answer.json["Error"]["Text"]) == (400, "the body must be application/json")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://master/v1/server", 200),
        ("HTTPS://master:7443/v1/server?a=b", 200),
        ("http://master", 404),
        ("http:///v1/server", 200),
        ("ftp://master/v1/server", 404),
        ("/http://master/v1/server", 404),
    ],
)
def test_a_target_may_be_a_whole_url(target: str, status: int) -> None:
    assert make_site().ask(request(target=target)).status == status


@pytest.mark.parametrize(
    ("method", "target", "status", "code", "allow"),
    [
        ("HEAD", "/v1/server", 405, None, "GET, POST, OPTIONS"),
        ("PUT", "/v1/server", 405, "UnknownCommand", "GET, POST, OPTIONS"),
        ("POST", "/v1/openapi.json", 405, "UnknownCommand", "GET, HEAD, OPTIONS"),
        ("DELETE", "/livez", 405, "UnknownCommand", "GET, HEAD, OPTIONS"),
        ("GET", "/", 404, "NotFound", None),
        ("GET", "/v1/server/", 404, "NotFound", None),
        ("GET", "/v1/../v1/server", 404, "NotFound", None),
        ("POST", "/metrics", 404, "NotFound", None),
        ("HEAD", "/nothing", 404, None, None),
        ("OPTIONS", "*", 404, "NotFound", None),
    ],
)
def test_other_methods_and_paths_are_refused(
    method: str, target: str, status: int, code: str | None, allow: str | None
) -> None:
    site = make_site()
    answer = site.ask(request(method, target))
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert (answer.json["Error"]["Code"] if answer.body else None) == code
    assert int(answer.headers["content-length"]) > 0
    assert site.heard.results == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_document_and_whether_it_lives_are_there_for_all(method: str) -> None:
    site = make_site(doors=doors_of(keys_file="k"))
    document, live = (site.ask(request(method, path)) for path in ("/v1/openapi.json", "/livez"))
    assert (document.status, document.body) == (200, DOCUMENT if method == "GET" else b"")
    assert document.headers["content-length"] == str(len(DOCUMENT))
    assert site.respond(request(method, "/livez")).endswith(b"\r\n\r\n") is (method == "HEAD")
    assert (live.status, live.body) == (200, b'{"live":true}' if method == "GET" else b"")


# Who gets no backend


def test_no_server_is_503_and_says_in_whole_seconds_when_to_ask_again() -> None:
    site = make_site(backends=0)
    for quick in (False, True):
        answer = site.ask(request(), quick=quick)
        after = answer.json["Data"]["RetryAfter"]
        assert (answer.status, answer.json["Result"]) == (503, "NoServer")
        assert 1.0 <= after <= 3.0
        assert 0 <= int(answer.headers["retry-after"]) - after < 1.0  # rounded up: nobody comes too early


def test_who_leaves_is_told_closed_and_not_to_come_again() -> None:
    answer = make_site().post({"Client": "ann", "Leave": True})
    assert (answer.status, answer.json["Result"], answer.json["Data"]["Reason"]) == (503, "Closed", "Left")
    assert "retry-after" not in answer.headers


def test_who_has_no_right_is_denied_with_the_reason() -> None:
    site = make_site(doors=doors_of(tokens_file="t"))
    for answer in (site.ask(request()), site.ask(request(), quick=True), site.post({})):
        assert (answer.status, answer.json["Result"]) == (403, "Denied")
        assert answer.json["Data"] == {"Reason": "PassMissing", "RetryAfter": None}
        assert "retry-after" not in answer.headers
    assert site.post({"Pass": TOKEN}).json == GOOD


@pytest.mark.parametrize("quick", [False, True])
def test_who_asks_too_fast_is_told_when_to_come_back(quick: bool) -> None:
    site = make_site(doors=Doors(random.Random(1), rates=NetworkRates(FairPolicy(0.25, 1))))
    assert site.ask(request(), quick=quick).status == 200
    answer = site.ask(request(), quick=quick)
    assert (answer.status, answer.json["Data"]["Reason"]) == (403, "TooFast")
    assert 4 <= int(answer.headers["retry-after"]) <= 6


# Browsers

ALLOWED = {"access-control-allow-origin": PAGE, "vary": "Origin"}
EVERY = ALLOWED | {"access-control-allow-origin": "*"}
EXPOSED = {"access-control-expose-headers": "Retry-After"}
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "Content-Type",
    "access-control-max-age": "600",
}


@pytest.mark.parametrize(
    ("origins", "origin", "given"),
    [
        ((), PAGE, {}),
        ((PAGE,), None, {"vary": "Origin"}),
        ((PAGE,), PAGE, ALLOWED),
        ((PAGE,), "https://foreign.example", {"vary": "Origin"}),
        ((PAGE,), f"{PAGE}.foreign.example", {"vary": "Origin"}),
        ((PAGE,), "null", {"vary": "Origin"}),
        (("https://a.example", PAGE), PAGE, ALLOWED),
        (("*",), PAGE, EVERY),
        (("*",), None, {"vary": "Origin"}),
    ],
)
def test_a_page_may_read_the_answer_where_the_configuration_says_so(
    origins: tuple[str, ...], origin: str | None, given: dict[str, str]
) -> None:
    site = make_site(origins=origins)
    headers = (f"Origin: {origin}",) if origin else ()
    let_in = "access-control-allow-origin" in given
    answers = [site.ask(request(headers=headers), quick=quick) for quick in (False, True)]
    answers += [site.post({}, headers), site.post(1, headers)]
    for answer in answers:
        assert cors(answer) == given | (EXPOSED if let_in else {})
    preflight = site.ask(request("OPTIONS", headers=(*headers, "Access-Control-Request-Method: POST")))
    assert (preflight.status, preflight.body) == (204, b"")
    assert preflight.headers["allow"] == "GET, POST, OPTIONS"
    assert cors(preflight) == given | (PREFLIGHT if let_in else {})


def cors(answer: Answered) -> dict[str, str]:
    return {
        name: value for name, value in answer.headers.items() if name.startswith("access-control") or name == "vary"
    }


# The connection


def test_a_connection_is_kept_until_the_client_wants_it_no_more() -> None:
    site = make_site()
    assert site.respond(request() * 3).count(b"HTTP/1.1 200 OK") == 3
    closing = request(headers=("Connection: close",))
    for sent in (closing, request("POST", body=b"{}", headers=("Connection: close",))):
        assert site.ask(sent, quick=True).headers["connection"] == "close"
    assert site.respond(closing + request()).count(b"HTTP/1.1 200 OK") == 1
    assert site.ask(b"GET /v1/server HTTP/1.0\r\n\r\n").headers["connection"] == "close"


# The quick way

HEADERS = st.sampled_from(
    [(), ("Accept: */*",), (f"Origin: {PAGE}",), ("Origin: https://foreign.example",), ("X-Forwarded-For: 1.2.3.4",)]
)
HOSTS = st.sampled_from([HOST, "2001:db8::9", "::ffff:192.0.2.9", PROXY])


@given(
    st.lists(st.tuples(HEADERS, HOSTS, st.floats(0.0, 0.02)), min_size=1, max_size=8),
    st.sampled_from([(), (PAGE,), ("*",)]),
    st.sampled_from([(), PROXIES]),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
)
def test_the_quick_way_gives_byte_for_byte_what_the_long_way_gives(
    asks: list[tuple[tuple[str, ...], str, float]],
    origins: tuple[str, ...],
    proxies: Any,
    backends: int,
    fair: bool,
    closed: bool,
) -> None:
    def site() -> Site:
        doors = doors_of(keys_file="k") if closed else Doors(random.Random(1)) if fair else None
        if doors is not None and fair:
            doors.rates = NetworkRates(FairPolicy(1.0, 2))
        return make_site(backends, doors=doors, origins=origins, proxies=proxies)

    long, quick, now = site(), site(), 0.0
    for headers, host, step in asks:
        now += step
        sent = request(headers=headers)
        assert quick.respond(sent, now=now, host=host, quick=True) == long.respond(sent, now=now, host=host)
    assert quick.heard == long.heard or quick.heard.results == long.heard.results


@pytest.mark.parametrize(
    ("sent", "proxies"),
    [
        (request("POST"), ()),
        (request(body=b"{}"), ()),
        (request(target="/v1/server?"), ()),
        (request(headers=("Connection: close",)), ()),
        (request("HEAD"), ()),
        (request(headers=("X-Forwarded-For: 1.2.3.4",)), PROXIES),
    ],
)
def test_what_hangs_on_more_than_the_moment_goes_the_long_way(sent: bytes, proxies: Any) -> None:
    reader = HttpReader(DEFAULT_LIMITS)
    reader.feed(sent)
    batch = reader.next_batch()
    assert batch is not None
    assert make_site(proxies=proxies).gateway.prepare(batch) is None


def test_where_certificates_count_nobody_is_answered_without_a_look_at_his() -> None:
    assert (
        make_site(doors=doors_of(client_certificates=True)).gateway.prepare([Request("GET", "/v1/server", {})]) is None
    )


# The same decision as by the clients' port

TEXTS = st.sampled_from(["ann", "bob", "\u00e9\U0001f600"])
PLACES = st.builds(lambda i: {"IP": f"10.0.0.{i}", "Port": 9001, "Why": "refused"}, st.integers(1, 5))
DATA = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "Client": TEXTS,
        "Zone": TEXTS,
        "Leave": st.booleans(),
        "Pass": st.sampled_from([TOKEN, "rubbish"]),
        "Failed": st.lists(PLACES, max_size=3),
        "Want": st.lists(st.sampled_from(["Name", "Alternates", "TTL", "Turn", "More"]), max_size=3),
        "Device": st.integers() | TEXTS,
        "Away": st.booleans() | st.none(),
    },
)


@given(st.lists(st.tuples(DATA, HOSTS, st.floats(0.0, 1.0)), max_size=12), st.integers(0, 4), st.booleans())
def test_both_doors_give_the_same_decision(
    asks: list[tuple[dict[str, Any] | None, str, float]], backends: int, closed: bool
) -> None:
    by_http, by_port = (make_site(backends, doors=doors_of(tokens_file="t") if closed else None) for _ in range(2))
    now = 0.0
    for data, host, step in asks:
        now += step
        reply = by_port.master.handle(
            Message(MASTER, Command.EVENT, DO_SEND_SERVER, data), now, Peer.from_address(host, 5)
        )
        assert isinstance(reply, list)
        ((said,),) = Decoder().feed(encode(reply))
        answered = by_http.post(data, now=now, host=host)
        if said.command == Command.ERROR:
            assert (answered.status, answered.json["Error"]["Text"]) == (400, said.data["Text"])
        else:
            assert answered.json == said.data
            assert answered.status == {"OK": 200, "NoServer": 503, "Closed": 503, "Denied": 403}[said.data["Result"]]
    assert by_http.heard.results == by_port.heard.results
    assert by_http.heard.accused_of == by_port.heard.accused_of


# Behind a balancer


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.parametrize(("host", "believed"), [(PROXY, True), (f"::ffff:{PROXY}", True), ("203.0.113.1", False)])
def test_limits_and_log_see_the_client_that_a_trusted_balancer_tells_of_and_no_other(
    name: str, host: str, believed: bool
) -> None:
    doors = Doors(random.Random(1), rates=NetworkRates(FairPolicy(0.01, 1)))
    site = make_site(doors=doors, proxies=PROXIES, client_header=ClientHeader(name.lower()))
    other = {"X-Forwarded-For": "Forwarded: for=192.0.2.9", "Forwarded": "X-Forwarded-For: 192.0.2.9"}[name]

    def ask(client: str, now: float) -> int:
        headers = (other, f"{name}: {told(name, client)}")
        return site.ask(request(headers=headers), host=host, now=now, quick=True).status

    first = ask("198.51.100.7", 1.0)
    assert [first, ask("198.51.100.7", 1.1), ask("::ffff:198.51.100.7", 1.2)] == [200, 403, 403]
    assert ask("198.51.100.8", 1.3) == (200 if believed else 403)
    assert bool(site.log.search("198.51.100.7", 9)) is believed
    assert bool(site.log.search("203.0.113.1", 9)) is not believed


def told(name: str, client: str) -> str:
    if name == "X-Forwarded-For":
        return client
    return f'for="[{client}]:4711"' if ":" in client else f"for={client}"


def test_a_client_of_ipv6_behind_a_balancer_of_ipv4_is_told_an_address_of_ipv6() -> None:
    site = make_site(proxies=PROXIES)
    seen: list[Peer] = []

    class Watched:
        def do_send_server(self, message: Message, now: float, peer: Peer, *, hold: bool = True) -> Any:
            assert not hold  # a request is answered at once
            seen.append(peer)
            return site.master.do_send_server(message, now, peer, hold=hold)

        def quick(self, pack: Any) -> None:
            return None

    gateway = Gateway(Watched(), GatewayRules(proxies=PROXIES))
    for headers in ({"x-forwarded-for": "2001:db8::9"}, {}):
        gateway.handle(Request("GET", "/v1/server", headers), 0.0, Peer(PROXY, 5, "the balancer"))
    assert [(peer.host, peer.family, peer.subject) for peer in seen] == [
        ("2001:db8::9", 6, ""),  # the certificate is not its own
        (PROXY, 4, "the balancer"),
    ]


@pytest.mark.parametrize(
    ("host", "clients", "ejected"),
    [(PROXY, "198.51.{}.7", True), (PROXY, "198.51.100.{}", False), ("203.0.113.1", "198.51.{}.7", False)],
)
def test_voters_are_the_networks_of_clients_and_not_of_balancers(host: str, clients: str, ejected: bool) -> None:
    site, sent = make_site(4, proxies=PROXIES), dict[str, list[int]]()
    headers = [(f"X-Forwarded-For: {clients.format(i)}",) for i in range(24)]
    for i, header in enumerate(headers):
        answer = site.post({"Client": f"c{i}"}, header, host=host)
        sent.setdefault(answer.json["Data"]["IP"], []).append(i)
    place, complaining = max(sent.items(), key=lambda item: len(item[1]))
    assert len(complaining) >= 3
    for i in complaining:
        failed = [{"IP": place, "Port": 9001, "Why": "refused"}]
        site.post({"Client": f"c{i}", "Failed": failed}, headers[i], host=host)
    verdicts = [verdict for _, verdict in site.heard.accused_of]
    assert verdicts[0] is Verdict.COUNTED
    assert (Verdict.EJECTED in verdicts) is ejected


def test_every_result_of_the_wire_has_a_status() -> None:
    from master.gateway import _STATUSES  # noqa: PLC0415 - looked at here alone

    assert set(_STATUSES) == set(Result)
