"""The waiting page: each answer of the master has its status, headers, cookie and text, and rubbish does no harm.

The file is long because each answer, each language and each fault of a request is a row of its tables.
"""

from __future__ import annotations

import html
import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.messages import QueueReason, Reason, Result
from master.gateway import Gateway, GatewayRules
from master.wait_page.cookie import cookie_name
from tests.master.test_gateway import Answered
from tests.master.wait_page.scripted import HOST, TICKET, TURN, Room, make_room, ok, wait

NASTY = "<img src=x onerror=alert(1)>\"'&"
SAME = {"Sec_Fetch_Site": "same-origin"}


def shown(answer: Answered) -> dict[str, str]:
    """Return what a browser shows, by id."""
    found = re.findall(r'<(?:h1|p) id="(\w+)"[^>]*?(hidden)?>([^<]*)<', answer.body.decode())
    return {name: html.unescape(text) for name, hidden, text in found if not hidden}


# What each answer becomes


@pytest.mark.parametrize(
    ("given", "status", "heading", "more"),
    [
        (wait(), 200, "You are in line", {"place": "People ahead of you: 41"}),
        (wait(12345), 200, "You are in line", {"place": "People ahead of you: 12,345"}),
        (wait(0), 200, "You are in line", {"place": "You are next"}),
        (
            wait(ETA=200.0, ETA90=400.0),
            200,
            None,
            {"eta": "Estimated wait: 4\u00a0min, nearly always at most 7\u00a0min"},
        ),
        (wait(ETA=59.0, ETA90=59.9), 200, None, {"eta": "Estimated wait: less than a minute"}),
        (wait(ETA=4000.0, ETA90=None), 200, None, {"eta": "Estimated wait: 1\u00a0h 7\u00a0min"}),
        (wait(ETA=None, ETA90=None), 200, None, {"eta": "The wait cannot be estimated yet"}),
        (wait(ETA=float("nan"), ETA90=-1.0), 200, None, {"eta": "The wait cannot be estimated yet"}),
        (wait(Reason="Held"), 200, None, {"note": "Nobody is let in at the moment. Your place is kept."}),
        (wait(Reason="thousands"), 200, None, {"note": None}),
        (ok(), 200, "It is your turn", {"address": "10.0.0.1:9001", "turn": TURN}),
        (ok("2001:db8::9", Turn=None), 200, "It is your turn", {"address": "[2001:db8::9]:9001", "turn": None}),
        ((Result.NO_SERVER, {"RetryAfter": 2.5}), 503, "No server is free at the moment", {}),
        (
            (Result.CLOSED, {"Reason": "Closed", "RetryAfter": None, "Text": NASTY}),
            503,
            "The line is closed",
            {"note": NASTY, "more": None},
        ),
        ((Result.CLOSED, {"Reason": "Full", "RetryAfter": 60.0, "Text": ""}), 503, "The line is full", {"note": None}),
        (
            (Result.DENIED, {"Reason": "PassMissing", "RetryAfter": None}),
            403,
            None,
            {"note": "Only those who have a pass are let in."},
        ),
        (
            (Result.DENIED, {"Reason": "TooFast", "RetryAfter": 5.0}),
            403,
            None,
            {"more": "This page tries again by itself."},
        ),
        ((Result.DENIED, {"Reason": "NoQueue", "RetryAfter": None}), 403, None, {"note": "There is no such line."}),
        ((Result.DENIED, {"Reason": "Used", "RetryAfter": None}), 403, "You cannot join this line", {}),
    ],
)
def test_each_answer_has_its_status_and_text(
    given: tuple[Result, dict[str, Any]], status: int, heading: str | None, more: dict[str, str | None]
) -> None:
    room = make_room(given)
    page = room.ask()
    texts = shown(page)
    assert page.status == status
    assert heading in (None, texts["heading"])
    assert {key: texts.get(key) for key in more} == more
    after_s = given[1].get("RetryAfter")
    whole = str(-int(-after_s // 1)) if after_s else None
    assert page.headers.get("retry-after") == whole
    refresh = re.findall(
        r'<noscript><meta http-equiv="refresh" content="(\d+); url=\?again"></noscript>', page.body.decode()
    )
    assert refresh == ([whole] if whole else [])
    # The script is told the same.
    room.ask()
    if room.jar:
        polled = room.poll()
        assert all((polled[key] or None) == text for key, text in more.items())
        assert (polled["heading"], polled["after"]) == (texts["heading"], after_s)


def test_every_reason_to_wait_or_to_be_denied_has_a_text_of_its_own_or_needs_none() -> None:
    for reason in QueueReason:
        assert make_room(wait(Reason=reason)).ask().status == 200
        assert make_room((Result.DENIED, {"Reason": reason, "RetryAfter": None})).ask().status == 403
    for word in Reason:
        assert make_room((Result.DENIED, {"Reason": word, "RetryAfter": None})).ask().status == 403


def test_the_headers_let_nothing_foreign_in_and_nothing_be_kept() -> None:
    for answer in (make_room().ask(), make_room().ask(Origin="https://foreign.example")):
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert re.findall(rb"<script(?![^>]* src=\"page\.js\?)|<style|\son\w+=|\sstyle=", answer.body) == []


def test_no_page_of_another_origin_may_read_it() -> None:
    answer = make_room(origins=("*",)).ask(Origin="https://game.example")
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_head_has_the_headers_of_a_get_and_no_body() -> None:
    whole, head = make_room().ask(), make_room().ask(method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers.keys() == whole.headers.keys()
    assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.body))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize(("path", "allow"), [("/wait/a", "GET, HEAD, POST"), ("/wait/page.js", "GET, HEAD")])
def test_other_methods_are_refused(method: str, path: str, allow: str) -> None:
    room = make_room()
    answer = room.ask(path, method)
    assert (answer.status, answer.headers["allow"], room.door.asked) == (405, allow, [])
    assert answer.body.count(b"\n") == 1


def test_script_and_style_are_there_under_the_names_that_the_page_has() -> None:
    room = make_room()
    names = re.findall(r'(?:src|href)="(page\.[a-z]+\?[0-9a-f]+)"', room.ask().body.decode())
    assert len(names) == 2
    kinds = {room.ask(f"/wait/{name}").headers["content-type"].partition(";")[0] for name in names}
    assert kinds == {"text/javascript", "text/css"}
    assert len(room.door.asked) == 1


def test_without_a_waiting_page_the_path_is_not_there() -> None:
    door = make_room().door
    assert Room(door, Gateway(door, GatewayRules())).ask().status == 404


# The id of the queue


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/wait/", 404, "a waiting page is at /wait/ID"),
        ("/wait/a/b", 404, "a waiting page is at /wait/ID"),
        ("/wait/%zz", 400, "the id of the queue is not percent-encoded right"),
        ("/wait/%", 400, "the id of the queue is not percent-encoded right"),
        ("/wait/%FF", 400, "the id of the queue is not UTF-8"),
        ("/wait/%ED%A0%80", 400, "the id of the queue is not UTF-8"),
        (f"/wait/{'a' * 129}", 400, "the id of the queue is longer than 128 bytes"),
        (f"/wait/{'%C3%A4' * 65}", 400, "the id of the queue is longer than 128 bytes"),
    ],
)
def test_what_names_no_queue_gets_one_line(path: str, status: int, text: str) -> None:
    room = make_room()
    answer = room.ask(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/plain; charset=utf-8")
    assert answer.body.decode().startswith(text)
    assert answer.body.count(b"\n") == 1
    assert room.door.asked == []


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        ("/wait/default", "default"),
        ("/wait/a%20b%2Fc?x=1", "a b/c"),
        ("/wait/%C3%A4", "ä"),
        ("/wait/a+b", "a+b"),
        ("https://game.example/wait/x", "x"),
        (f"/wait/{'%C3%A4' * 64}", "ä" * 64),
        ("/wait/%0d%0aSet-Cookie:%20a=b", "\r\nSet-Cookie: a=b"),
    ],
)
def test_the_id_is_decoded_and_stands_in_no_header(path: str, queue: str) -> None:
    room = make_room(ok(), redirect="https://game.example/?q={queue}")
    answer = room.ask(path)
    assert room.door.asked[0]["Queue"] == queue
    assert answer.status == 303
    assert answer.headers["set-cookie"].startswith(f"{cookie_name(queue)}=")
    assert re.fullmatch(r"https://game\.example/\?q=[\w.~%-]+", answer.headers["location"], re.ASCII)


# The place, in a cookie


def test_the_place_is_kept_in_a_cookie_and_shown_at_the_next_ask() -> None:
    room = make_room(wait(41), wait(20, Ticket="u" * 88), wait(0))
    first = room.ask()
    attributes = first.headers["set-cookie"].split("; ")[1:]
    assert attributes == ["Max-Age=86400", "Path=/wait/", "HttpOnly", "SameSite=Lax"]
    room.poll()
    room.ask("/wait/default?again")
    clients = {asked["Client"] for asked in room.door.asked}
    assert len(clients) == 1
    assert re.fullmatch(r"[\w-]{22}", *clients)
    assert [asked.get("Ticket") for asked in room.door.asked] == [None, TICKET, "u" * 88]
    assert TICKET not in first.body.decode()


def test_two_browsers_are_two_clients_and_two_queues_two_places() -> None:
    room = make_room()
    room.ask("/wait/a")
    room.ask("/wait/b")
    other = make_room()
    other.ask("/wait/a")
    assert len({asked["Client"] for asked in room.door.asked + other.door.asked}) == 3
    assert len(room.jar) == 2
    assert "Ticket" not in room.door.asked[1]


def test_the_bar_is_how_much_of_the_line_is_behind() -> None:
    room = make_room(wait(99), wait(49), wait(0))
    room.ask()
    done = [room.poll()["done"] for _ in range(2)]
    assert done == [pytest.approx(0.51), 1.0]


@pytest.mark.parametrize(
    ("rules", "headers", "secure"),
    [
        ({}, {}, False),
        ({"tls": True}, {}, True),
        ({}, {"X_Forwarded_Proto": "https"}, False),  # from anybody
        ({"proxies": (ipaddress.ip_network("192.0.2.0/24"),)}, {"X_Forwarded_Proto": "https"}, True),
        ({"proxies": (ipaddress.ip_network("192.0.2.0/24"),)}, {"X_Forwarded_Proto": "https, http"}, False),
    ],
)
def test_the_cookie_is_secure_where_the_browser_came_by_tls(
    rules: dict[str, Any], headers: dict[str, str], secure: bool
) -> None:
    assert make_room(**rules).ask(**headers).headers["set-cookie"].endswith("; Secure") is secure


def test_the_client_is_the_one_that_a_trusted_balancer_tells_of() -> None:
    room = make_room(proxies=(ipaddress.ip_network("192.0.2.0/24"),))
    room.ask(X_Forwarded_For="198.51.100.7")
    assert room.door.peers[0].host == "198.51.100.7"
    other = make_room()
    other.ask(X_Forwarded_For="198.51.100.7")
    assert other.door.peers[0].host == HOST


GOOD = f"{'c' * 22}.{TICKET}.41"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "rubbish",
        "..",
        GOOD[1:],
        "c" + GOOD,
        GOOD + "1" * 10,
        GOOD.replace(".41", ".041"),
        GOOD.replace(".41", ".-1"),
        GOOD.replace(".41", ".\u0661"),
        f"{'c' * 22}.{'t' * 201}.0",
        GOOD.replace("t", "\u00e9", 1),
        f'"{GOOD}"',
        GOOD + "\x00",
    ],
)
def test_a_cookie_that_is_none_of_ours_is_as_none(value: str) -> None:
    room = make_room()
    reader_safe = value.replace("\x00", "%00")
    assert room.ask(Cookie=f"{cookie_name('default')}={reader_safe}").status == 200
    assert "Ticket" not in room.door.asked[0]
    assert room.door.asked[0]["Client"] != "c" * 22


@pytest.mark.parametrize("around", ["{}", "a=b; {}; c=d", "a=b, {}", " {} ;", "other={}; {}"])
def test_ours_is_found_among_others(around: str) -> None:
    room = make_room()
    room.ask(Cookie=around.replace("{}", f"{cookie_name('default')}={GOOD}"))
    assert (room.door.asked[0]["Client"], room.door.asked[0]["Ticket"]) == ("c" * 22, TICKET)


@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=300))
def test_whatever_stands_in_the_header_no_ask_is_worse_for_it(cookie: str) -> None:
    room = make_room()
    room.ask(Cookie=f"{cookie_name('default')}={cookie}")
    [asked] = room.door.asked
    assert re.fullmatch(r"[\w-]{22}", asked["Client"], re.ASCII)
    assert re.fullmatch(r"[\w-]{0,200}", asked.get("Ticket", ""), re.ASCII)


def test_a_ticket_that_no_cookie_can_hold_is_not_put_into_one() -> None:
    room = make_room(wait(Ticket="a;b\r\nSet-Cookie: x=y"))
    answer = room.ask()
    assert re.fullmatch(rf"{cookie_name('default')}=[\w-]{{22}}\.\.0; .*", answer.headers["set-cookie"])


def test_a_browser_that_keeps_no_cookies_takes_one_place_and_not_one_at_each_ask() -> None:
    room = make_room()
    room.ask()
    room.jar = {}
    assert room.poll()["kind"] == "lost"
    assert shown(room.ask("/wait/default?again"))["heading"] == "There is no place of yours here"
    assert len(room.door.asked) == 1


def test_who_was_refused_keeps_his_id_and_whose_ticket_was_used_gets_another() -> None:
    room = make_room((Result.NO_SERVER, {"RetryAfter": 2.0}), (Result.DENIED, {"Reason": "Used", "RetryAfter": None}))
    room.ask()
    assert room.jar
    assert room.poll()["again"]
    assert room.jar == {}
    assert room.door.asked[0]["Client"] == room.door.asked[1]["Client"]


# On


@pytest.mark.parametrize(
    ("redirect", "answer", "location"),
    [
        ("https://game.example/?turn={turn}", ok(), f"https://game.example/?turn={TURN}"),
        ("game://{ip}:{port}/?n={name}", ok(), "game://10.0.0.1:9001/?n=b%201%2F%C3%A4"),
        ("game://{ip}:{port}", ok("2001:db8::9"), "game://[2001:db8::9]:9001"),
        ("https://game.example/?t={turn}&q={queue}", ok(Turn=None), "https://game.example/?t=&q=default"),
    ],
)
def test_whose_turn_it_is_goes_where_the_operator_says(redirect: str, answer: Any, location: str) -> None:
    room = make_room(wait(), answer, redirect=redirect)
    room.ask()
    page = room.ask()
    assert (page.status, page.headers["location"]) == (303, location)
    assert html.escape(location) in page.body.decode()
    assert page.headers["cache-control"] == "no-store"
    assert room.door.asked[1]["Want"] == ["Name", "Turn"]
    polled = room.ask(Accept="application/json")
    assert (polled.status, polled.json["link"]) == (200, location)  # the script goes there


def test_the_request_says_nothing_of_where_it_goes() -> None:
    page = make_room(ok()).ask(
        "/wait/default?url=https://foreign.example&ip=1.2.3.4", Referer="https://foreign.example"
    )
    assert (page.status, "location" in page.headers, b"foreign" in page.body) == (200, False, False)


def test_a_page_in_the_background_says_so() -> None:
    room = make_room()
    room.ask()
    room.poll("/wait/default?away")
    assert room.post(b"away=1", **SAME).json["kind"] == "wait"
    assert [asked.get("Away") for asked in room.door.asked] == [None, True, True]


# Leaving


def test_who_leaves_gives_the_place_up_and_is_told_so() -> None:
    room = make_room(wait(), (Result.CLOSED, {"Reason": "Left", "RetryAfter": None, "Text": "the client has left"}))
    room.ask()
    page = room.post(b"leave=1", **SAME)
    assert (page.status, shown(page)["heading"]) == (200, "You have left the line")
    assert room.door.asked[1].items() >= {"Leave": True, "Ticket": TICKET, "Queue": "default"}.items()
    assert room.jar == {}
    assert shown(room.post(b"leave=1", **SAME))["heading"] == "You have left the line"  # the form once more
    assert len(room.door.asked) == 2


def test_who_could_not_leave_is_not_told_that_he_has() -> None:
    room = make_room(wait(), (Result.DENIED, {"Reason": "TooFast", "RetryAfter": 2.0}))
    room.ask()
    assert room.post(b"leave=1", **SAME).status == 403
    assert room.jar


@pytest.mark.parametrize(
    ("headers", "heard"),
    [
        ({"Sec_Fetch_Site": "same-origin"}, True),
        ({"Origin": "http://game.example"}, True),
        ({"Origin": "https://GAME.example"}, True),
        ({}, False),
        ({"Sec_Fetch_Site": "cross-site"}, False),
        ({"Sec_Fetch_Site": "same-site"}, False),
        ({"Sec_Fetch_Site": "none"}, False),
        ({"Sec_Fetch_Site": "cross-site", "Origin": "https://game.example"}, False),
        ({"Origin": "https://foreign.example"}, False),
        ({"Origin": "https://game.example.foreign.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "game.example"}, False),
    ],
)
@pytest.mark.parametrize("body", [b"leave=1", b"away=1"])
def test_only_the_page_itself_may_give_a_place_up(headers: dict[str, str], heard: bool, body: bytes) -> None:
    room = make_room()
    room.ask()
    assert (room.post(body, **headers).status != 403) is heard
    assert len(room.door.asked) == 1 + heard


@pytest.mark.parametrize("body", [b"", b"stay=1", b"=leave", b"x" * 60000, b"\xff\xfe"])
def test_another_form_is_refused(body: bytes) -> None:
    room = make_room()
    room.ask()
    answer = room.post(body, **SAME)
    assert (answer.status, answer.body) == (400, b"the form must hold leave or away\n")


@pytest.mark.parametrize(
    ("site", "what", "status"),
    [
        ("cross-site", "document", 200),
        ("cross-site", "image", 403),
        ("cross-site", "iframe", 403),
        ("same-site", "empty", 403),
        ("same-origin", "empty", 200),
        ("none", "document", 200),
    ],
)
def test_another_site_may_link_here_and_not_take_places_by_its_images(site: str, what: str, status: int) -> None:
    room = make_room()
    assert room.ask(Sec_Fetch_Site=site, Sec_Fetch_Dest=what).status == status
    assert len(room.door.asked) == (status == 200)


# Languages


@pytest.mark.parametrize(
    ("wishes", "tag", "place"),
    [
        ("", "en", "People ahead of you: 12,345"),
        ("de-AT, en;q=0.5", "de", "Personen vor Ihnen: 12.345"),
        ("fr, ru;q=0.8", "ru", "Человек перед вами: 12\u00a0345"),
    ],
)
def test_the_page_speaks_the_language_of_the_browser(wishes: str, tag: str, place: str) -> None:
    answer = make_room(wait(12345)).ask(Accept_Language=wishes)
    assert answer.headers["content-language"] == tag
    assert f'<html lang="{tag}" dir="ltr">' in answer.body.decode()
    assert shown(answer)["place"] == place


def test_texts_of_the_operator_are_shown_as_text(tmp_path: Any) -> None:
    (tmp_path / "en.json").write_text('{"wait": "<b>Wait & see</b>", "leave": "\\"\'></button><script>"}')
    answer = make_room(texts=str(tmp_path)).ask()
    assert shown(answer)["heading"] == "<b>Wait & see</b>"
    assert b"<b>" not in answer.body
    assert answer.body.count(b"<script") == 1
