"""The URL of a webhook: what is one, and that it is never shown whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.webhook_url import WebhookURL

GOOD = [
    ("https://hooks.example/T0/B0/x?y=1", ("https", "hooks.example", 443, "/T0/B0/x?y=1"), "hooks.example"),
    ("http://127.0.0.1:9000", ("http", "127.0.0.1", 9000, "/"), "127.0.0.1:9000"),
    ("HTTP://Hooks.Example:80/", ("http", "hooks.example", 80, "/"), "hooks.example"),
    ("https://[::1]:8443/a", ("https", "::1", 8443, "/a"), "[::1]:8443"),
    ("https://hooks.example?a=b", ("https", "hooks.example", 443, "/?a=b"), "hooks.example"),
]


@pytest.mark.parametrize(("text", "parts", "authority"), GOOD)
def test_the_parts_of_a_url(text: str, parts: tuple[str, str, int, str], authority: str) -> None:
    url = WebhookURL.parse(text)
    assert (url.scheme, url.host, url.port, url.target) == parts
    assert url.authority == authority
    assert str(url) == f"{parts[0]}://{authority}/..."


BAD = [
    "",
    "hooks.example",
    "ftp://x/SECRET",
    "https:///SECRET",
    "https://x:0/SECRET",
    "https://x:99999/SECRET",
    "https://[::1/SECRET",
    "https://a:SECRET@x/",
    "https://x/#SECRET",
    "https://x/\nSECRET",
    "https://x/SECRET a",
    "https://x/SECRETé",
    "https://127.1/SECRET",
    "https://x/SECRET" + "x" * 3000,
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused_in_a_line_that_repeats_nothing_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is no URL|must)") as caught:
        WebhookURL.parse(text)
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=40))
def test_no_text_does_anything_else(tail: str) -> None:
    try:
        url = WebhookURL.parse(f"https://hooks.example/SECRET{tail}")
    except ValueError as exc:
        assert "SECRET" not in str(exc)  # noqa: PT017 - it need not be raised
    else:
        assert "SECRET" in url.target
        assert "SECRET" not in f"{url}{url!r}"
