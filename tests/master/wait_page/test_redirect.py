"""Where a browser is sent: what the operator may write, and that no value can change where it leads."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.wait_page.redirect import Redirect

HOSTILE = st.text() | st.sampled_from(
    ["//foreign.example", "@foreign", "\r\nSet-Cookie: a=b", "#", "?", "{ip}", "a&b=c"]
)


@pytest.mark.parametrize(
    ("text", "ip", "url"),
    [
        ("game://{ip}:{port}/?turn={turn}", "10.0.0.1", "game://10.0.0.1:9001/?turn=t"),
        ("game://{ip}:{port}/?turn={turn}", "2001:db8::9", "game://[2001:db8::9]:9001/?turn=t"),
        ("game://{ip}:7000", "2001:db8::9", "game://[2001:db8::9]:7000"),
        ("https://{ip}/play", "2001:db8::9", "https://[2001:db8::9]/play"),
        ("https://game.example/{ip}/{port}", "2001:db8::9", "https://game.example/2001%3Adb8%3A%3A9/9001"),
        ("https://game.example/?at={ip}", "10.0.0.1", "https://game.example/?at=10.0.0.1"),
        ("HTTPS://game.example", "10.0.0.1", "HTTPS://game.example"),
        ("com.example.game:{name}", "10.0.0.1", "com.example.game:n"),
        ("https://[::1]:8080/%20{queue}", "10.0.0.1", "https://[::1]:8080/%20q"),
    ],
)
def test_fields_are_filled_in(text: str, ip: str, url: str) -> None:
    assert Redirect.parse(text).to(ip=ip, port=9001, name="n", turn="t", queue="q") == url


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("game.example/{ip}", "is no URL that begins with its scheme"),
        ("//game.example", "is no URL that begins with its scheme"),
        ("{name}://x", "is no URL that begins with its scheme"),
        ("javascript:alert({turn})", "javascript: is not allowed"),
        ("JavaScript:alert(1)", "JavaScript: is not allowed"),
        ("data:text/html,{turn}", "data: is not allowed"),
        ("https:///x", "names no host behind https:"),
        ("http://?x", "names no host behind http:"),
        ("https:game", "names no host behind https:"),
        ("https://game.example/{user}", '"{user}" is no field; there are {ip}, {port}, {name}, {turn}, {queue}'),
        ("https://game.example/{ip.x}", '"{ip.x}" is no field'),
        ("https://game.example/{}", '"{}" is no field'),
        ("https://game.example/{ip", '"{" must be percent-encoded'),
        ("https://game.example/{{ip}}", '"{" must be percent-encoded'),
        ("https://game.example/a b", '" " must be percent-encoded'),
        ("https://game.example/\r\nA: b", '"\\r" must be percent-encoded'),
        ("https://gäme.example/", '"ä" must be percent-encoded'),
        ("https://game.example/%2", '"%" must be percent-encoded'),
        ("game://[{ip}]:{port}", "{ip} gets its brackets by itself"),
    ],
)
def test_what_is_no_template_is_refused_in_one_line(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)) as caught:
        Redirect.parse(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_value_leads_elsewhere(name: str, turn: str, queue: str) -> None:
    name, turn, queue = (text.encode("utf-8", "ignore").decode() for text in (name, turn, queue))
    redirect = Redirect.parse("https://game.example/play?n={name}&t={turn}&q={queue}#end")
    url = redirect.to(ip="10.0.0.1", port=1, name=name, turn=turn, queue=queue)
    parts = urlsplit(url)
    assert url.isascii()
    assert (parts.netloc, parts.path, parts.fragment) == ("game.example", "/play", "end")
    told = parse_qs(parts.query, keep_blank_values=True, strict_parsing=True)
    assert told == {"n": [name], "t": [turn], "q": [queue]}
