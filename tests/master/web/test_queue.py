"""What operators are told of the virtual queue, and what they can change of it, over real sockets.

The file is long because each view, each change and each refusal is one test over the same site.
"""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message
from lambdamu.objects import Peer
from lambdamu.passes import VIP
from master.answer_log import hash_of
from master.config_queue import QueueConfig
from master.core.answers import Ask
from master.queue.policy import Mode, TemplatePolicy
from master.waiting.desk import Visit
from master.waiting.orders import WHOLE, Order
from master.waiting.survey import Survey
from master.web.openapi import DOCUMENT
from tests.master.web.test_feed import Reader

WILD = QueueConfig(templates=(TemplatePolicy("*"),), max_tickets_per_network=10_000)
NO_QUEUE = {"error": "there is no queue: the configuration of this master has no [queue]"}


def settle(here: Any) -> None:
    """Have the room look around once."""
    room, now = here.node.waiting, trio.current_time()
    survey = Survey(room.policy.target_load)
    for member in here.node.pool:
        survey.add(member, now)
    room.look(now)
    room.settle(now, survey)


def ask(here: Any, client: str, **data: Any) -> Any:
    """Ask as a client does; return what it is told."""
    message = Message(MASTER, Command.EVENT, DO_SEND_SERVER, {"Client": client, **data})
    [answer] = here.node.master.do_send_server(message, trio.current_time(), Peer("192.0.2.9", 1))
    return answer.data


async def told_of_the_queue(here: Any) -> list[Any]:
    """Return what a reader of events hears of the queue at first."""
    reader = await Reader.of(here)
    async with reader.stream:
        return [data for kind, data in await reader.until("complete") if kind == "queue"]


def fits(schema: Any, value: Any) -> bool:
    """Whether a value is what the document says, with all its keys and no others."""
    if "$ref" in schema:
        return fits(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], value)
    if "anyOf" in schema:
        return any(fits(each, value) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "null": type(None)}
    if schema["type"] == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, kind[schema["type"]]) or (schema["type"] == "integer" and isinstance(value, bool)):
        return False
    if schema["type"] == "array":
        return all(fits(schema["items"], each) for each in value)
    if "properties" not in schema:
        return True
    return list(value) == schema["required"] and all(fits(schema["properties"][key], value[key]) for key in value)


def documented(name: str, value: Any) -> bool:
    return fits({"$ref": f"#/components/schemas/{name}"}, value)


@pytest.mark.parametrize("path", ["/api/v1/queue", "/api/v1/queue/default"])
async def test_without_a_queue_one_line_says_so(site: Any, make_controls: Any, path: str) -> None:
    controls = make_controls()
    async with site("b1", controls=controls) as here:
        for answer in (await here.http.get(path), await here.http.post(path, json={"reason": "x", "mode": "hold"})):
            assert (answer.status_code, answer.json()) == (404, NO_QUEUE)
        assert (await here.http.get("/api/v1/backends")).json()["queue"] is None
        assert (await here.http.get("/api/v1/answers", params={"client": "ann"})).json()["place"] is None
        assert await told_of_the_queue(here) == []
    assert controls.asked == []


async def test_who_waits_is_told_with_what_holds_them_up(site: Any) -> None:
    async with site("b1", capacity=10, queue=WILD) as here:
        here.report("b1", users=8)
        settle(here)
        assert ask(here, "first")["Result"] == "OK"
        for i in range(5):
            assert ask(here, f"client {i}")["Result"] == "Wait"
        for i in range(2):
            here.node.waiting.desk.ask(
                trio.current_time(), Visit(Ask(client=hash_of(f"vip {i}")), "192.0.2.9", {"Queue": "a/b"}, (VIP,))
            )
        settle(here)
        told = (await here.http.get("/api/v1/queue")).json()
        assert documented("Queue", told)
        assert (told["mode"], told["waiting"], told["called"], told["count"]) == ("auto", 7, 0, 2)
        assert (told["limit"], told["reason"], told["limits"]["free_places"]) == ("places", "NoPlace", 0)
        assert (told["load"]["users"], told["load"]["places"], told["load"]["target_load"]) == (9, 9, 0.9)
        assert (told["counts"]["joined"], told["counts"]["claimed"], told["claimed"]) == (8, 1, 1)
        assert told["store"] is None
        first, second = told["queues"]
        assert (first["queue"], first["waiting"]) == ("default", 5)
        assert second["lanes"] == {"resume": 0, "vip": 2, "plain": 0}
        one = (await here.http.get("/api/v1/queue/a%2Fb")).json()
        assert documented("QueueLine", one)
        assert one == second
        summary = (await here.http.get("/api/v1/backends")).json()["queue"]
        assert documented("QueueSummary", summary)
        assert summary == {"mode": "auto", "waiting": 7, "called": 0, "limit": "places", "reason": "NoPlace"}


@pytest.mark.parametrize("path", ["/api/v1/queue/nobody", "/api/v1/queue/"])
async def test_a_queue_that_is_not_open_is_not_there(site: Any, path: str) -> None:
    async with site("b1", queue=WILD) as here:
        answer = await here.http.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])


async def test_of_a_thousand_queues_the_fullest_are_told(site: Any) -> None:
    async with site("b1", queue=WILD) as here:
        settle(here)
        numbers = list(range(1000))
        random.Random(1).shuffle(numbers)
        for number in numbers:
            for i in range(2 if number < 150 else 1):
                ask(here, f"{number} {i}", Queue=f"q{number:03}")
        told = (await here.http.get("/api/v1/queue")).json()
        assert (told["count"], told["waiting"], len(told["queues"])) == (1000, 1150, 100)
        assert {row["waiting"] for row in told["queues"]} == {2}
        assert (await here.http.get("/api/v1/queue/q999")).json()["waiting"] == 1
        [frame] = await told_of_the_queue(here)
        assert len(frame["queues"]) == 20


async def test_readers_hear_of_the_queue_each_second(site: Any) -> None:
    async with site("b1", capacity=10, queue=WILD) as here:
        reader = await Reader.of(here)
        [told] = [data for kind, data in await reader.until("complete") if kind == "queue"]
        assert documented("Queue", told)
        assert told["waiting"] == 0
        ask(here, "ann")
        _, told = (await reader.until("queue"))[-1]
        assert told["waiting"] == 1
        await reader.stream.aclose()


async def test_what_is_estimated_is_for_who_joins_now(site: Any) -> None:
    async with site("b1", capacity=10, session_s=600.0, queue=QueueConfig(per_minute=60.0, burst=1)) as here:
        room = here.node.waiting
        here.report("b1", users=0)
        settle(here)
        ask(here, "first")
        for i in range(4):
            ask(here, f"client {i}")
        settle(here)
        row = (await here.http.get("/api/v1/queue/default")).json()
        assert row["planned_per_s"] == 1.0  # the rate: there are free places for all who wait
        here.report("b1", users=9)
        settle(here)
        settle(here)
        row = (await here.http.get("/api/v1/queue/default")).json()
        waiting = row["waiting"]
        assert waiting >= 3
        steady_per_s = (await here.http.get("/api/v1/queue")).json()["loop"]["steady_per_s"]
        assert 0 < steady_per_s < 1  # it is less than the rate, so it is what is planned
        assert (row["at_once"], row["planned_per_s"]) == (False, steady_per_s)
        assert row["eta_s"] == pytest.approx((waiting + 1) / row["planned_per_s"] + 1, rel=0.01)
        assert row["eta90_s"] > row["eta_s"]
        room.order(trio.current_time(), WHOLE, Order("ann", "why", 1.0, mode=Mode.HOLD))
        row = (await here.http.get("/api/v1/queue/default")).json()
        assert (row["at_once"], row["eta_s"], row["eta90_s"]) == (False, None, None)
        room.order(trio.current_time(), WHOLE, Order("ann", "why", 1.0, mode=Mode.PASS))
        row = (await here.http.get("/api/v1/queue/default")).json()
        assert (row["at_once"], row["eta_s"]) == (True, None)


async def test_with_room_and_nobody_waiting_nobody_waits(site: Any) -> None:
    async with site("b1", capacity=10, queue=WILD) as here:
        here.report("b1")
        settle(here)
        assert ask(here, "ann")["Result"] == "OK"
        row = (await here.http.get("/api/v1/queue/default")).json()
        assert (row["waiting"], row["at_once"], row["eta_s"]) == (0, True, None)


async def test_who_has_gone_is_a_part_of_those_whose_wait_is_over(site: Any) -> None:
    async with site("b1", capacity=10, queue=WILD) as here:
        assert (await here.http.get("/api/v1/queue")).json()["gone"]["share"] is None
        here.report("b1", users=8)
        settle(here)
        for i in range(4):
            ask(here, f"client {i}")
        for i in range(1, 4):
            ask(here, f"client {i}", Leave=True)
        gone = (await here.http.get("/api/v1/queue")).json()["gone"]
        assert gone == {"left": 3, "lapsed": 0, "missed": 0, "returned": 0, "share": 0.75}
        here.node.waiting.queues.tally.lapsed += 2
        here.node.waiting.queues.tally.returned += 2  # they were away, and are not gone
        assert (await here.http.get("/api/v1/queue")).json()["gone"]["share"] == 0.75


async def test_what_operators_want_stands_there_with_who_and_why(site: Any) -> None:
    async with site("b1", queue=WILD) as here:
        room, now = here.node.waiting, trio.current_time()
        room.order(now, WHOLE, Order("ann", "the store is down", 1.7e9, mode=Mode.CLOSED, text="", target_load=0.5))
        room.order(now, "x", Order("bob", "free", 1.8e9, per_minute=math.inf))
        told = (await here.http.get("/api/v1/queue")).json()
        assert documented("Queue", told)
        nothing = {"mode": None, "text": None, "per_minute": None, "target_load": None}
        whole = {"queue": "", "who": "ann", "reason": "the store is down", "at": 1.7e9}
        one = {"queue": "x", "who": "bob", "reason": "free", "at": 1.8e9}
        assert told["orders"] == [
            whole | nothing | {"mode": "closed", "text": "", "target_load": 0.5},
            one | nothing | {"per_minute": "none"},
        ]
        assert (told["mode"], told["limit"], told["reason"]) == ("closed", "mode", "Held")


async def test_a_store_that_fails_is_told_of(site: Any) -> None:
    async with site("b1", queue=WILD) as here:
        here.node.waiting.kept = SimpleNamespace(failing=True, unwritten=7, written_at=trio.current_time() - 60)
        told = (await here.http.get("/api/v1/queue")).json()
        assert documented("Queue", told)
        assert (told["store"]["failing"], told["store"]["unwritten"]) == (True, 7)
        assert told["store"]["written_s_ago"] >= 60


async def test_the_place_of_a_client_is_told_by_its_id_and_its_hash(site: Any) -> None:
    async with site("b1", capacity=10, queue=WILD) as here:
        for client in ("bob", "ann"):
            ask(here, client, Queue="q")
        for who in ("ann", hash_of("ann")):
            got = (await here.http.get("/api/v1/answers", params={"client": who})).json()
            assert documented("Answers", got)
            assert (got["place"]["queue"], got["place"]["stage"], got["place"]["ahead"]) == ("q", "waiting", 1)
            assert got["answers"][0]["result"] == "Wait"
        for who in ("carl", hash_of("ann")[:9], "192.0.2.9", ""):
            assert (await here.http.get("/api/v1/answers", params={"client": who})).json()["place"] is None


@pytest.mark.parametrize(
    ("path", "body", "queue", "changed", "wanted"),
    [
        ("", {"mode": "hold"}, WHOLE, {"mode": Mode.HOLD}, "mode hold"),
        ("", {"mode": "closed", "text": "Bis 18 Uhr"}, WHOLE, {"mode": Mode.CLOSED, "text": "Bis 18 Uhr"}, None),
        ("", {"text": ""}, WHOLE, {"text": ""}, "text empty"),
        ("", {"per_minute": 0}, WHOLE, {"per_minute": 0.0}, "per_minute 0"),
        ("", {"per_minute": "none", "mode": None}, WHOLE, {"per_minute": math.inf}, "per_minute none"),
        ("", {"target_load": 1}, WHOLE, {"target_load": 1.0}, "target_load 1"),
        ("", {"reset": True}, WHOLE, None, "as configured"),
        ("/a%2Fb", {"per_minute": 30.5}, "a/b", {"per_minute": 30.5}, "per_minute 30.5"),
        ("/a%2Fb", {"reset": True}, "a/b", None, "as configured"),
    ],
)
async def test_a_change_goes_to_the_controls_with_who_and_why_and_is_an_event(
    site: Any, make_controls: Any, path: str, body: Any, queue: str, changed: Any, wanted: str | None
) -> None:
    controls = make_controls()
    async with site("b1", controls=controls, queue=WILD) as here:
        done = await here.http.post(f"/api/v1/queue{path}", json=body | {"reason": "why not"})
        assert done.status_code == 200, done.json()
        assert documented("QueueChanged", done.json())
        assert (done.json()["queue"], done.json()["who"]) == (queue, "local")
        assert wanted in (None, done.json()["wanted"])
        [(asked, order, who, reason)] = controls.asked
        assert (asked, who, reason) == (queue, "local", "why not")
        if changed is None:
            assert order is None
        else:
            assert order == Order("local", "why not", order.at, **changed)
        [event] = here.node.events.last(1)
        which = f"queue {queue}" if queue else "the queue"
        assert (event.kind, event.text) == ("operator", f"{which}: {done.json()['wanted']}, by local: why not")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("", {"mode": "hold"}, 400, "reason must"),
        ("", {"mode": "hold", "reason": " "}, 400, "reason must"),
        ("", {"reason": "x"}, 400, "one of mode, text, per_minute, target_load must be wanted, or else reset be true"),
        ("", {"reason": "x", "mode": None}, 400, "one of mode"),
        ("", {"reason": "x", "reset": False}, 400, "one of mode"),
        ("", {"reason": "x", "reset": True, "mode": "auto"}, 400, "one of mode"),
        ("", {"reason": "x", "reset": 1}, 400, "one of mode"),
        ("", {"reason": "x", "mode": "dance"}, 400, "mode must be one of auto, queue_all, pass, hold, closed"),
        ("", {"reason": "x", "mode": ["hold"]}, 400, "mode must"),
        ("", {"reason": "x", "text": 5}, 400, "text must"),
        ("", {"reason": "x", "text": "é" * 513}, 400, "text must have at most 1024 bytes"),
        (
            "",
            {"reason": "x", "per_minute": -1},
            400,
            'must be a number from 0.001 to 6000000, or 0, or "none"',
        ),
        ("", {"reason": "x", "per_minute": "30"}, 400, "per_minute must"),
        ("", {"reason": "x", "per_minute": True}, 400, "per_minute must"),
        ("", {"reason": "x", "target_load": 0}, 400, "target_load must be a number from 0.01 to 1"),
        ("", {"reason": "x", "target_load": "none"}, 400, "target_load must"),
        ("", {"reason": "x", "rate": 3}, 400, "not known"),
        ("", [], 400, "object"),
        ("/match-1", {"reason": "x", "mode": "hold"}, 400, "of one queue only per_minute"),
        ("/other", {"reason": "x", "per_minute": 3}, 404, "there is no queue other, and no template fits it"),
        ("/", {"reason": "x", "mode": "hold"}, 404, "there is no queue"),
        ("", {"reason": "x", "mode": "hold"}, 409, "the last one"),
    ],
)
async def test_what_cannot_be_wanted_is_said_in_one_line(
    site: Any, make_controls: Any, path: str, body: Any, status: int, said: str
) -> None:
    controls = make_controls("the last one")
    config = QueueConfig(templates=(TemplatePolicy("default"), TemplatePolicy("match-*")))
    async with site("b1", controls=controls, queue=config) as here:
        answer = await here.http.post(f"/api/v1/queue{path}", json=body)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert said in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
        assert not here.node.events.last(1)


@pytest.mark.parametrize(("name", "status"), [("", 404), ("x" * 128, 200), ("x" * 129, 404)])
async def test_no_queue_is_without_a_name_or_has_a_longer_one_than_the_wire(
    site: Any, make_controls: Any, name: str, status: int
) -> None:
    async with site("b1", controls=make_controls(), queue=WILD) as here:
        answer = await here.http.post(f"/api/v1/queue/{name}", json={"reason": "x", "per_minute": 0})
        assert answer.status_code == status


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_what_is_no_number_is_no_rate(site: Any, make_controls: Any, number: str) -> None:
    async with site("b1", controls=make_controls(), queue=WILD) as here:
        body = f'{{"reason": "x", "per_minute": {number}}}'
        headers = {"Content-Type": "application/json"}
        answer = await here.http.post("/api/v1/queue", content=body, headers=headers)
        assert answer.status_code == 400


async def test_a_master_without_controls_says_that_the_queue_cannot_be_changed(site: Any) -> None:
    async with site("b1", queue=WILD) as here:
        answer = await here.http.post("/api/v1/queue", json={"reason": "x", "mode": "hold"})
        assert (answer.status_code, answer.json()) == (501, {"error": "the queue cannot be changed here"})
