"""What is deployed beside a master fits it: alerts and dashboard name what it exports, and each alert is explained."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
import structlog
import trio

from lambdamu.errors import LinkError
from master.cache.house import CacheHouse
from master.cache_metrics import CacheMetrics, CacheNodeMetrics
from master.cli import cli
from master.config_file import parse
from master.queue_metrics import QueueMetrics
from master.warm_call import WarmCaller
from master.web.exposition import render
from tests.master.cache.wire import PEER, question
from tests.master.waiting.house import House

ROOT = Path(__file__).parents[3]
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text()
TESTS = (ROOT / "deploy" / "alerts_test.yml").read_text()
CACHE_DOCS = (ROOT / "docs" / "cache.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
RULES = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n +(?:#|- alert)|\Z)", ALERTS, re.DOTALL))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
OF_PROMETHEUS = {"up", "instance", "job", "alertname"}
CACHE = """
[cache]
file = "cache.db"
upstream = ["127.0.0.1:9"]
[[cache.warm]]
type = 1
object = "Products"
name = "Cards"
"""
NOT_SHOWN: dict[str, str] = {}
"""Families that the dashboard does not show, and why."""

Exported = dict[str, set[str]]


@pytest.fixture
async def exported(site: Any) -> Exported:
    """What a master exports of which two backends work and one fails: the labels of each series, by its name."""
    async with site("b1", "b2", "b3", capacity=100) as scene:
        node, metrics = scene.node, scene.node.metrics
        metrics.watch_log(lambda: 0)
        metrics.reloaded_at = 1.0
        metrics.certificates["tls"] = lambda: 2e9
        for name in ("b1", "b2"):
            scene.report(name, 5)
            metrics.probed(name, None, 0.001)
        failure = LinkError("refused", "it refused")
        node.pool.record_failure(trio.current_time(), "b3")
        node.observer.probed("b3", failure, 0.0)
        room = make_rush().room
        room.kept = Kept()
        metrics.watch_other(QueueMetrics(room).collect)
        metrics.watch_other(CacheMetrics(make_cache()).collect)
        metrics.watch_other(CacheNodeMetrics(make_caller()).collect)
        text = (await render(metrics.registry, openmetrics=False)).decode()
    names: Exported = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})?", line).groups(default="")  # type: ignore[union-attr]
            names.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return names


@attrs.define
class Kept:
    """What is told of a queue, or a cache, that is kept."""

    failing: bool = False
    commits: int = 0
    failures: int = 0
    error: str = ""
    unwritten: int = 0
    written_at: float = 0.0


def make_cache() -> CacheHouse:
    """Return a cache that fetches, and is kept, and of which something was asked."""
    config = parse(CACHE)
    assert config.cache is not None
    house = CacheHouse(config.cache, config.limits, random.Random(1))
    house.keeper = Kept()
    house.service.handle(question("Session.Create", {"Client": "c"}), 0.0, PEER)
    return house


def make_caller() -> WarmCaller:
    config = parse('[cache_node]\naddress = "127.0.0.1:9"').cache_node
    return WarmCaller(config, random.Random(1), structlog.get_logger(), user_name="master")


def make_rush() -> House:
    """Return a queue of which all is known: there are limits, people wait, and some have got in."""
    house = House(4, target_load=1.0, per_minute=600.0)
    house.users["b0"] = 4
    house.rush()
    return house


def families(text: str) -> set[str]:
    return set(re.findall(r"\blambdamu_\w+", text))


def labels(expression: str) -> set[str]:
    """Return the labels that an expression matches or groups by."""
    matched = re.findall(r'(\w+) *(?:=~|!~|!=|=) *"', expression)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    return set(matched) | {label.strip() for each in grouped for label in each.split(",")}


def known(exported: Exported, text: str) -> set[str]:
    """Return the labels of all series that are named in `text`."""
    return OF_PROMETHEUS.union(*(exported[name] for name in families(text)))


async def test_alerts_name_metrics_and_labels_that_a_master_exports(exported: Exported) -> None:
    for name, rule in RULES.items():
        expression, told = rule.split("labels:", 1)
        assert families(rule) - exported.keys() == set(), name
        shown = set(re.findall(r"\$labels\.(\w+)", told))
        assert (labels(expression) | shown) - known(exported, expression) == set(), name


async def test_the_dashboard_names_metrics_and_labels_that_a_master_exports(exported: Exported) -> None:
    for target in TARGETS:
        expression = target["expr"]
        assert families(expression) - exported.keys() == set()
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert (labels(expression) | shown) - known(exported, expression) == set(), expression
        grouped = re.search(r"\b(?:sum|count) by \(([^)]*)\)", expression)
        if grouped:
            assert shown <= set(grouped[1].split(", ")), expression
    assert families(json.dumps(DASHBOARD["templating"])) <= exported.keys()


async def test_the_dashboard_shows_all_that_a_master_exports(exported: Exported) -> None:
    shown = families(" ".join(target["expr"] for target in TARGETS))
    for name in list(exported):
        family = re.sub(r"_(bucket|count|sum)$", "", name)
        if not {name, family, f"{family}_bucket"} & shown:
            assert family in NOT_SHOWN
    assert not shown & NOT_SHOWN.keys()


async def test_each_metric_of_the_cache_is_described(exported: Exported) -> None:
    assert families(CACHE_DOCS) >= {name for name in exported if name.startswith("lambdamu_cache_")}
    assert families(CACHE_DOCS) <= exported.keys()


def test_panels_lie_beside_each_other_and_each_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {panel["datasource"]["uid"], *(each["datasource"]["uid"] for each in panel["targets"])} == {
            "${datasource}"
        }
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"]) > 0
        assert all(re.search(r'instance=~"\$instance"', each["expr"]) for each in panel["targets"])
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "instance", "top"}
    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in (panel["gridPos"] for panel in DASHBOARD["panels"]))


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))


def sections(text: str) -> Iterator[str]:
    yield from re.findall(r"^### (Lambdamu\w+)$", text, re.MULTILINE)


def test_each_alert_has_a_section_that_it_points_to_and_a_test() -> None:
    assert list(sections(OPERATIONS)) == list(RULES)
    quiet, loud = TESTS.split("- name: all is wrong")
    for name, rule in RULES.items():
        assert f"runbook_url: docs/operations.md#{name.lower()}\n" in rule + "\n"
        assert f'alertname="{name}", severity="{"page" if "severity: page" in rule else "ticket"}"' in loud
        for family in families(rule.split("labels:", 1)[0]):
            assert f"{family}{{" in quiet, f"{name} is silent for want of {family}"


def test_each_command_of_the_document_is_there_with_its_options() -> None:
    commands = [match.split("#")[0] for match in re.findall(r"(?<![\w/.])lambdamu ([a-z][^`\n|>&)]*)", OPERATIONS)]
    assert len(commands) > 20
    for words in map(str.split, commands):
        command = cli.commands[words[0]]
        if isinstance(command, click.Group):
            command = command.commands[words[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, words
