"""What the metrics say of the virtual queue, and that clients cannot make series of their own."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import structlog
import trio
from prometheus_client.core import Metric

from lambdamu.address import Address
from master.config import BackendConfig, Config, MasterPolicy
from master.config_queue import Control, QueueConfig
from master.node import Node
from master.queue.answers import QueueAsk
from master.queue.policy import Mode, TemplatePolicy
from master.queue.ticket import Lane
from master.queue_metrics import QueueMetrics
from master.waiting.orders import WHOLE, Order
from master.web.exposition import render
from tests.master.waiting.house import House

LOG: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
Shown = dict[tuple[str, ...], float]


def collect(house: House, keeper: Any = None) -> list[Metric]:
    house.room.kept = keeper
    return list(QueueMetrics(house.room).collect(house.now))


def show(house: House, keeper: Any = None) -> Shown:
    """Return each series, by its name and the values of its labels."""
    return {
        (sample.name.removeprefix("lambdamu_queue_"), *sample.labels.values()): sample.value
        for family in collect(house, keeper)
        for sample in family.samples
    }


def one(shown: Shown, name: str) -> set[str]:
    """Return the words of a family of states that are at 1."""
    return {words[1] for words, value in shown.items() if words[0] == name and value == 1}


def fill(house: House, *names: str) -> None:
    for name in names:
        house.arrive(house.ask(name))


def test_who_waits_is_counted_by_template_and_lane_whatever_clients_call_their_queues() -> None:
    templates = TemplatePolicy("default"), TemplatePolicy("game-*")
    house = House(1, target_load=1.0, templates=templates)
    fill(house, "ann")
    for i in range(30):
        assert house.ask(f"c{i}", Queue=f"game-{i}")["Result"] == "Wait"
    house.ask("dan")
    shown = show(house)
    waiting = {words[1:]: count for words, count in shown.items() if words[0] == "waiting"}
    lanes = ("resume", "vip", "plain")
    nobody = dict.fromkeys([(template.pattern, lane) for template in templates for lane in lanes], 0)
    assert waiting == {**nobody, ("game-*", "plain"): 30, ("default", "plain"): 1}
    assert shown["tickets", "waiting"] == 31
    assert shown["queues",] == 31
    assert not [words for words in shown if "game-3" in words]


def test_queues_of_a_template_that_is_gone_are_counted_together() -> None:
    house = House(1, target_load=1.0, templates=(TemplatePolicy("a-*"), TemplatePolicy("b-*")))
    house.arrive(house.ask("ann", Queue="a-1"))
    for queue in ("a-1", "b-1", "b-2"):
        house.ask(f"of {queue}", Queue=queue)
    house.room.adopt(house.now, attrs.evolve(house.room.config, templates=(TemplatePolicy("a-*"),)))
    shown = show(house)
    assert (shown["waiting", "a-*", "plain"], shown["waiting", "(none)", "plain"]) == (1, 2)
    assert ("waiting", "b-*", "plain") not in shown


def test_steps_and_answers_only_grow_and_agree_with_what_was_told() -> None:
    house = House(2, target_load=1.0, max_tickets=2, lease_s=30.0)
    before = show(house)
    told: dict[tuple[str, str], int] = {}

    def ask(name: str, **data: Any) -> None:
        nonlocal before
        answer = house.ask(name, **data)
        if answer["Result"] == "OK":
            house.arrive(answer)
        else:
            words = answer["Result"], answer["Data"]["Reason"]
            told[words] = told.get(words, 0) + 1
        after = show(house)
        for words in before:
            if words[0].endswith("_total"):
                assert after[words] >= before[words]
        before = after

    for name in ("ann", "bob", "cid", "dan", "eve"):  # two are in, two wait, one too many
        ask(name)
    ask("dan", Leave=True)
    ask("eve")
    house.users["b0"] = 1
    house.tick(10.0)
    ask("cid")
    house.tick(100.0)
    ask("fay", Queue="nowhere")
    steps = {words[1]: count for words, count in before.items() if words[0] == "steps_total" and count}
    assert steps == {"joined": 6, "called": 3, "claimed": 3, "left": 1, "lapsed": 1, "refused": 1}
    answers = {words[1:]: count for words, count in before.items() if words[0] == "answers_total" and count}
    assert answers == told == {("Wait", "NoPlace"): 4, ("Closed", "Full"): 1, ("Closed", "Left"): 1}


def test_every_answer_has_its_series_from_the_start_on() -> None:
    house = House(1, target_load=1.0, max_held=1)
    words = {words for words in show(house) if words[0] == "answers_total"}
    assert {show(house)[each] for each in words} == {0}
    fill(house, "ann")
    house.plain()
    house.reply()
    for mode in Mode:
        house.room.adopt(house.now, attrs.evolve(house.room.config, mode=mode))
        house.tick(1.0)
        house.ask("bob")
        house.ask("cid")
    house.room.adopt(house.now, attrs.evolve(house.room.config, mode=Mode.AUTO))
    house.kill("b0")
    house.tick(1.0)
    house.ask("dan")
    assert {each for each in show(house) if each[0] == "answers_total"} == words
    told = {each[1:] for each in words if show(house)[each]}
    held = {("Wait", "NoPlace"), ("NoServer", "Full"), ("Wait", "Held"), ("Closed", "Closed")}
    assert held | {("Wait", "NoBackend")} <= told
    house = House(1, templates=(TemplatePolicy("a"),))
    house.ask("ann")
    assert show(house)["answers_total", "Denied", "NoQueue"] == 1
    assert {each for each in show(house) if each[0] == "answers_total"} == words


def test_promises_and_the_drain_are_what_the_estimates_know() -> None:
    house = House(4, target_load=1.0)
    fill(house, "a", "b", "c", "d")
    house.ask("e")
    house.tick(2.0)
    forecast = house.room.estimates.forecast("default")
    assert forecast is not None
    assert forecast.drain is not None
    assert ("drain_per_second",) not in show(house)  # it is planned, and has not shown yet
    house.ask("e", Leave=True)
    waiting = house.rush()
    shown, score = show(house), house.room.estimates.score
    assert shown["promises_total", "kept"] == score.kept > 0
    assert shown["promises_total", "broken"] == score.broken
    assert shown["drain_per_second",] == forecast.drain.per_s
    for name in waiting:
        house.ask(name, Leave=True)
    assert ("drain_per_second",) not in show(house)


def test_the_oldest_wait_is_of_the_first_of_any_lane_and_0_without_one() -> None:
    house = House(1, target_load=1.0, lease_s=1000.0)
    assert show(house)["oldest_wait_seconds",] == 0
    fill(house, "ann")
    house.ask("bob")
    house.tick(7.0)
    house.ask("cid", Queue="default")
    assert show(house)["oldest_wait_seconds",] == 7.0
    house.room.queues.ask(house.now, house.rng, QueueAsk(client=b"v", lane=Lane.VIP))
    house.tick(2.0)
    assert show(house)["oldest_wait_seconds",] == 9.0
    for name in ("bob", "cid"):
        house.ask(name, Leave=True)
    assert show(house)["oldest_wait_seconds",] == 2.0


def test_limits_mode_loop_and_numbers_are_shown_as_they_are_at_work() -> None:
    house = House(10, target_load=0.5, per_minute=120.0)
    fill(house, "ann")
    house.tick(1.0)
    fill(house, "bob")
    house.tick(5.0)
    shown = show(house)
    assert (shown["free_places",], shown["rate_per_second",], shown["goal_users",]) == (3, 2.0, 5.0)
    assert shown["planned_per_second",] == house.room.plan.planned_per_s
    assert (one(shown, "mode"), one(shown, "loop"), one(shown, "limit")) == ({"auto"}, {"loop"}, {"nobody"})
    assert shown["numbers_left", "turns"] == house.room.turns.numbers.left > 0
    assert shown["numbers_left", "tickets"] == len(house.room.queues.numbers) > 0
    house.ask("cid", Want=["Turn"])
    assert show(house)["turns_signed_total",] == 1
    house.room.order(house.now, WHOLE, Order("eva", "a leak", 0.0, mode=Mode.HOLD, per_minute=30.0))
    house.ask("dan")
    house.tick(1.0)
    shown = show(house)
    assert (one(shown, "mode"), one(shown, "loop"), one(shown, "limit")) == ({"hold"}, {"manual"}, {"mode"})
    assert shown["rate_per_second",] == 0.5


def test_what_has_no_limit_and_what_is_not_known_has_no_series() -> None:
    names = {words[0] for words in show(House(None))}
    unknown = {"free_places", "rate_per_second", "planned_per_second", "goal_users", "drain_per_second"}
    assert not names & unknown
    assert not [name for name in names if name.startswith(("store_", "commits", "unwritten"))]


@pytest.mark.parametrize(
    ("capacity", "control", "state"),
    [(10, Control.ON, "frozen"), (10, Control.OFF, "off"), (None, Control.ON, "no_news")],
)
def test_a_loop_that_is_off_or_has_nothing_to_steer_by_is_not_frozen(
    capacity: int | None, control: Control, state: str
) -> None:
    house = House(10)
    house.tick(2.0)
    assert one(show(house), "loop") == {"loop"}
    house.room.adopt(house.now, attrs.evolve(house.room.config, control=control))
    house.dead.add("b0")  # no news of it any more
    house.tick(60.0)
    if capacity is None:
        house.room.survey.unlimited = 1
    assert one(show(house), "loop") == {state}


def test_a_rate_by_hand_is_shown_where_the_loop_is_off() -> None:
    house = House(10, control=Control.OFF)
    assert one(show(house), "loop") == {"off"}
    house.room.order(house.now, WHOLE, Order("eva", "a rush", 0.0, per_minute=30.0))
    assert one(show(house), "loop") == {"manual"}


@attrs.define
class Kept:
    failing: bool = False
    commits: int = 3
    failures: int = 0
    unwritten: int = 17
    written_at: float = 0.0


def test_the_store_is_shown_when_something_keeps_the_queue() -> None:
    keeper = Kept(failing=True, failures=2)
    shown = show(House(1), keeper)
    assert (shown["store_failing",], shown["unwritten",]) == (1, 17)
    assert (shown["commits_total",], shown["store_failures_total",]) == (3, 2)


def test_each_bound_is_shown_by_how_much_of_it_is_used() -> None:
    house = House(1, target_load=1.0, max_tickets=4, max_queues=4, max_held=4, max_calls=4,
                  templates=(TemplatePolicy("*"),))  # fmt: skip
    bounds = QueueMetrics(house.room).bounds()
    assert {name: bound() for name, bound in bounds.items()} == dict.fromkeys(bounds, 0)
    fill(house, "ann")
    house.ask("bob", Queue="b")
    house.plain()
    house.ask("cid", Queue="c")
    assert {name: bound() for name, bound in bounds.items()} == {
        "queue_tickets": 0.75,
        "queue_remembered": 0.25,
        "queue_calls": 0,
        "queue_queues": 0.75,
        "queue_held": 0.25,
    }
    house.ask("cid", Queue="c", Leave=True)
    assert bounds["queue_queues"]() == 0.5  # one in which nobody is makes room for the next
    house.room.adopt(house.now, attrs.evolve(house.room.config, max_tickets=1, max_held=0))
    assert bounds["queue_tickets"]() == bounds["queue_held"]() == 1


def make_node(queue: QueueConfig | None) -> Node:
    backends = (BackendConfig("b1", "h", 1, capacity=9),)
    return Node(
        Config(MasterPolicy(Address("127.0.0.1", 0)), backends=backends, queue=queue), rng=random.Random(1), log=LOG
    )


async def test_a_master_shows_a_queue_where_it_has_one_and_nothing_of_it_elsewhere() -> None:
    without = (await render(make_node(None).metrics.registry, openmetrics=False)).decode()
    assert "queue" not in without
    node = make_node(QueueConfig(max_queues=4))
    shown = (await render(node.metrics.registry, openmetrics=True)).decode()
    assert 'lambdamu_bound_ratio{bound="queue_tickets"} 0' in shown
    value = node.metrics.registry.get_sample_value
    assert value("lambdamu_queue_waiting", {"template": "default", "lane": "plain"}) == 0
    assert "queue_store" not in shown
    assert node.waiting is not None
    node.waiting.kept = Kept()
    assert "lambdamu_queue_commits_total 3" in (await render(node.metrics.registry, openmetrics=False)).decode()
    assert trio.current_time() > 0


def test_templates_are_collected_in_parts() -> None:
    house = House(1, templates=tuple(TemplatePolicy(f"t{i}") for i in range(256)))
    parts = [family.samples for family in collect(house) if family.name == "lambdamu_queue_waiting"]
    assert max(map(len, parts)) <= 200
    assert sum(map(len, parts)) == 768
