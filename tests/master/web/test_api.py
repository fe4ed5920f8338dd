"""What each route answers, over real sockets."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, Result
from lambdamu.objects import Peer
from master.answer_log import hash_of
from master.config_json import read_config
from master.core.admin import Wish

NASTY = 'a"b\\c/<é🐌>'


async def test_a_live_process_says_so_whatever_its_pool(site: Any) -> None:
    async with site() as here:
        answer = await here.http.get("/livez")
        assert (answer.status_code, answer.text) == (200, "ok\n")


async def test_readiness_waits_for_the_first_round_and_ends_with_the_first_signal(site: Any) -> None:
    async with site("b1", first_round_s=60.0) as here:
        early = await here.http.get("/readyz")
        assert (early.status_code, early.text) == (503, "not every backend has been probed yet\n")
        here.report("b1")
        assert (await here.http.get("/readyz")).status_code == 200
        here.web.leave()
        late = await here.http.get("/readyz")
        assert (late.status_code, late.text) == (503, "stopping\n")
        assert (await here.http.get("/livez")).status_code == 200


@pytest.mark.parametrize(("needs", "status"), [(False, 200), (True, 503)])
async def test_readiness_may_need_a_backend(site: Any, needs: bool, status: int) -> None:
    async with site("b1", ready_needs_backend=needs) as here:
        assert (await here.http.get("/readyz")).status_code == status
        here.report("b1")
        assert (await here.http.get("/readyz")).status_code == 200


async def test_each_backend_is_told_of_with_its_state_and_why(site: Any) -> None:
    async with site("b1", NASTY, capacity=100) as here:
        here.report("b1", users=40)
        got = (await here.http.get("/api/v1/backends")).json()
        first, second = got["backends"]
        assert got["verdict"] == "1 of 2 backends takes clients; the users do not fit if the biggest, b1, falls"
        assert (got["takers"], got["count"], got["ready"]) == (1, 2, True)
        assert (first["state"], first["users"], first["capacity"], first["takes_clients"]) == ("ready", 40, 100, True)
        assert first["address"] == "10.0.0.1:9001"
        assert (second["name"], second["state"], second["takes_clients"]) == (NASTY, "unprobed", False)


async def test_the_status_agrees_with_the_metrics_and_the_choice(site: Any) -> None:
    rng = random.Random(5)
    async with site(*(f"b{i}" for i in range(8)), capacity=3) as here:
        for _ in range(30):
            name = f"b{rng.randrange(8)}"
            if rng.random() < 0.6:
                here.report(name, users=rng.randrange(5))
            else:
                here.node.pool.record_failure(trio.current_time(), name)
            rows = (await here.http.get("/api/v1/backends")).json()["backends"]
            shown = {row["name"]: row["takes_clients"] for row in rows}
            metric = here.node.metrics.registry.get_sample_value
            assert shown == {each: metric("lambdamu_backend_ready", {"backend": each}) == 1 for each in shown}
            explained = (await here.http.get("/api/v1/explain")).json()
            assert (explained["chosen"] is not None) == any(shown.values())
            assert explained["chosen"] is None or shown[explained["chosen"]]


async def test_an_explanation_is_what_the_next_ask_is_answered(site: Any) -> None:
    async with site("b1", "b2") as here:
        here.report("b1", users=5)
        here.report("b2", users=9)
        told = (await here.http.get("/api/v1/explain", params={"client": "ann"})).json()
        assert (told["chosen"], told["reason"]) == ("b1", "best")
        assert [row["reason"] for row in told["backends"]] == ["best", "behind"]
        ask = Message(MASTER, Command.EVENT, DO_SEND_SERVER, {"Client": "ann", "Want": ["Name"]})
        [answer] = here.node.master.do_send_server(ask, trio.current_time(), Peer("10.1.2.3", 1))  # type: ignore[misc]
        assert answer.data["Data"]["Name"] == "b1"
        for who in ("ann", hash_of("ann")):
            again = (await here.http.get("/api/v1/explain", params={"client": who})).json()
            assert (again["chosen"], again["reason"]) == ("b1", "again")
            assert [row["reason"] for row in again["backends"]] == ["again", "behind"]
        for who in ("ann", "10.1.2.77", hash_of("ann")[:9]):
            [why] = (await here.http.get("/api/v1/answers", params={"client": who})).json()["answers"]
            assert (why["backend"], why["reason"], why["network"]) == ("b1", "best", "10.1.2.0/24")
            assert [each["name"] for each in why["loads"]] == ["b1", "b2"]
        assert (await here.http.get("/api/v1/answers", params={"client": "bob"})).json()["answers"] == []


async def test_metrics_come_in_both_formats_and_names_survive(site: Any) -> None:
    async with site("b1", NASTY, "two\nlines") as here:
        plain = await here.http.get("/metrics", headers={"Accept": "text/plain"})
        assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(plain.text)}
        named = {sample.labels["backend"] for sample in families["lambdamu_backend_up"].samples}
        assert named == {"b1", NASTY, "two\nlines"}
        rich = await here.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0, */*"})
        assert rich.headers["content-type"].startswith("application/openmetrics-text")
        assert {family.name for family in openmetrics.text_string_to_metric_families(rich.text)} == set(families)


async def test_a_change_goes_to_the_controls_with_who_and_why_and_is_an_event(site: Any, make_controls: Any) -> None:
    controls = make_controls()
    async with site("b1", NASTY, controls=controls) as here:
        wish = {"reason": "kernel", "until_s": 60}
        done = await here.http.post("/api/v1/backends/b1/drain", json=wish)
        assert done.json() == {"name": "b1", "state": "drain", "who": "local"}
        path = "/api/v1/backends/a%22b%5Cc%2F%3C%C3%A9%F0%9F%90%8C%3E/maint"
        assert (await here.http.post(path, json={"reason": "disk"})).status_code == 200
        assert (await here.http.post("/api/v1/reload", json={})).json() == {"changes": ["b9 is new"], "who": "local"}
        assert controls.asked == [
            ("b1", Wish.DRAIN, "local", "kernel", 60.0),
            (NASTY, Wish.MAINT, "local", "disk", None),
            ("reload", "local"),
        ]
        first = (await here.http.get("/api/v1/backends")).json()["backends"][0]
        assert first["admin"] == {"state": "drain", "who": "local", "reason": "kernel", "until": 60.0}
        texts = [event.text for event in here.node.events.last(3)]
        assert texts == ["drain by local: kernel", "maint by local: disk"]


async def test_half_a_character_is_no_reason(site: Any, make_controls: Any) -> None:
    async with site("b1", controls=make_controls()) as here:
        headers = {"Content-Type": "application/json"}
        body = rb'{"reason": "half \ud800"}'
        answer = await here.http.post("/api/v1/backends/b1/drain", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (400, {"error": "reason must be a text of whole characters"})


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/v1/backends/b1/drain", {"reason": ""}, 400, "reason"),
        ("/api/v1/backends/b1/drain", {"reason": "x" * 201}, 400, "reason"),
        ("/api/v1/backends/b1/drain", {"reason": "x", "until_s": 0}, 400, "until_s"),
        ("/api/v1/backends/b1/drain", {"reason": "x", "until_s": True}, 400, "until_s"),
        ("/api/v1/backends/b1/drain", {"reason": "x", "more": 1}, 400, "not known"),
        ("/api/v1/backends/b1/drain", [], 400, "object"),
        ("/api/v1/backends/b2/drain", {"reason": "x"}, 404, "no backend b2"),
        ("/api/v1/backends/b1/dance", {"reason": "x"}, 404, "not found"),
        ("/api/v1/backends/b1/drain", {"reason": "x"}, 409, "the last one"),
        ("/api/v1/reload", {}, 409, "the last one"),
        ("/api/v1/answers", {}, 405, "Method"),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)
async def test_what_cannot_be_done_is_said_in_one_line(
    site: Any, make_controls: Any, path: str, body: Any, status: int, said: str
) -> None:
    async with site("b1", controls=make_controls("the last one")) as here:
        answer = await here.http.post(path, json=body)
        assert answer.status_code == status
        assert said in answer.json()["error"]


async def test_the_last_events_come_newest_first(site: Any) -> None:
    async with site("b1") as here:
        for number in range(60):
            here.node.events.add(trio.current_time(), "kind", f"text {number}", NASTY)
        events = (await here.http.get("/api/v1/log")).json()["events"]
        assert [event["text"] for event in events] == [f"text {number}" for number in range(59, 9, -1)]
        assert events[0]["backend"] == NASTY


async def test_the_configuration_is_told_whole_and_in_parts(site: Any) -> None:
    names = [f"b{i}" for i in range(120)]
    async with site(*names, capacity=5) as here:
        told = read_config((await here.http.get("/api/v1/config")).json())
        assert told == here.node.config


async def test_how_many_are_asked_a_second_needs_no_reader_of_events(site: Any) -> None:
    async with site("b1") as here:
        here.report("b1")
        with trio.fail_after(10):
            while not (got := (await here.http.get("/api/v1/backends")).json())["asks_per_s"].get("OK"):
                here.node.observer.answered(Result.OK)
        assert got["asks"]["OK"] > 0


async def test_a_master_without_controls_says_that_it_cannot(site: Any) -> None:
    async with site("b1") as here:
        for path, body in (("/api/v1/backends/b1/ready", {"reason": "x"}), ("/api/v1/reload", {})):
            answer = await here.http.post(path, json=body)
            assert (answer.status_code, list(answer.json())) == (501, ["error"])


async def test_the_page_is_there_with_its_parts_and_may_run_nothing_else(site: Any) -> None:
    async with site() as here:
        for path, kind in (("/", "text/html"), ("/table.js", "text/javascript"), ("/page.css", "text/css")):
            answer = await here.http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        page = (await here.http.get("/")).text
        assert "style=" not in page
        assert "onclick" not in page
