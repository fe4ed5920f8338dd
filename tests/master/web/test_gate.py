"""Who may read and who may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from master.tokens import parse_tokens

READER, WRITER = "reader-token-123456", "writer-token-123456"
DRAIN = "/api/v1/backends/b1/drain"
WISH = {"reason": "upgrade"}


@pytest.fixture
def tokens_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(f"prom: {READER}: read\nann: {WRITER}: write\n")
    return str(path)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_without_tokens_whoever_is_here_reads_and_writes(site: Any, make_controls: Any) -> None:
    async with site("b1", controls=make_controls()) as here:
        assert (await here.http.get("/api/v1/backends")).status_code == 200
        assert (await here.http.post(DRAIN, json=WISH)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/page.js", "/metrics", "/api/v1/backends", "/api/v1/events", "/nowhere"])
async def test_with_tokens_nothing_is_read_without_one(site: Any, tokens_file: str, path: str) -> None:
    async with site("b1", tokens_file=tokens_file) as here:
        for headers in ({}, bearer("x"), bearer(READER + "x"), {"Authorization": "Basic ???"}, {"Authorization": "x"}):
            answer = await here.http.get(path, headers=headers)
            assert answer.status_code == 401
            assert "Basic" in answer.headers["www-authenticate"]
        for open_path in ("/livez", "/readyz"):
            assert (await here.http.get(open_path)).status_code == 200


async def test_a_token_reads_as_a_bearer_or_as_a_password_and_only_some_write(
    site: Any, make_controls: Any, tokens_file: str
) -> None:
    controls = make_controls()
    async with site("b1", tokens_file=tokens_file, controls=controls) as here:
        assert (await here.http.get("/metrics", headers=bearer(READER))).status_code == 200
        assert (await here.http.get("/metrics", auth=("anybody", READER))).status_code == 200
        assert (await here.http.post(DRAIN, json=WISH)).status_code == 401
        assert (await here.http.post(DRAIN, json=WISH, headers=bearer(READER))).status_code == 403
        assert (await here.http.post(DRAIN, json=WISH, auth=("anybody", WRITER))).json()["who"] == "ann"
    assert [asked[2] for asked in controls.asked] == ["ann"]


async def test_the_tokens_at_work_count_from_the_next_request_on(
    site: Any, make_controls: Any, tokens_file: str
) -> None:
    async with site("b1", tokens_file=tokens_file, controls=make_controls()) as here:
        here.web.desk.tokens_file.at_work = parse_tokens(f"bob: {READER}: write", "a file")
        assert (await here.http.get("/metrics", headers=bearer(WRITER))).status_code == 401
        assert (await here.http.post(DRAIN, json=WISH, headers=bearer(READER))).json()["who"] == "bob"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:7080"}, 200),
        ({"Host": "[::1]:7080", "Origin": "http://[::1]:7080"}, 200),
        ({"Host": "10.0.0.1"}, 200),
        ({"Host": "OPS.example"}, 200),
        ({"Host": "ops.example", "Origin": "https://ops.example", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:7080", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:7080", "Origin": "null"}, 403),
        ({"Host": "localhost:7080", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_a_change_is_refused_that_a_foreign_page_could_have_made(
    site: Any, make_controls: Any, headers: dict[str, str], status: int
) -> None:
    controls = make_controls()
    async with site("b1", controls=controls, hosts=("ops.example",)) as here:
        answer = await here.http.post(DRAIN, json=WISH, headers=headers)
        assert answer.status_code == status, answer.text
    assert len(controls.asked) == (status == 200)


async def test_a_name_that_others_can_point_here_reads_nothing_where_there_are_no_tokens(
    site: Any, tokens_file: str
) -> None:
    evil = {"Host": "evil.example"}
    async with site("b1") as here:
        assert (await here.http.get("/api/v1/backends", headers=evil)).status_code == 403
        assert (await here.http.get("/livez", headers=evil)).status_code == 200
    async with site("b1", tokens_file=tokens_file) as here:
        assert (await here.http.get("/api/v1/backends", headers=evil | bearer(READER))).status_code == 200
        assert (await here.http.post(DRAIN, json=WISH, headers=evil | bearer(WRITER))).status_code == 403


async def test_a_body_that_is_too_large_is_refused_and_the_connection_ends(site: Any, make_controls: Any) -> None:
    async with site("b1", controls=make_controls()) as here:
        answer = await here.http.post(DRAIN, content=b"x" * 100_000, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert (await here.http.get("/livez")).status_code == 200


async def test_a_bug_in_a_page_is_a_line_of_the_log_and_the_rest_goes_on(site: Any, make_controls: Any) -> None:
    async with site("b1", controls=make_controls()) as here:
        here.web.desk.whys = None
        answer = await here.http.get("/api/v1/backends")
        assert answer.status_code == 500
        assert (await here.http.get("/livez")).status_code == 200
        [line] = [entry for entry in here.log.entries if entry["event"] == "http_failed"]
        assert line["path"] == "/api/v1/backends"
        here.web.desk.cache = object()
        assert (await here.http.get("/api/v1/cache/session/id/of/one")).status_code == 500
        assert (await here.http.get("/livez")).status_code == 200
        assert here.log.entries[-1]["path"] == "/api/v1/cache/session"
