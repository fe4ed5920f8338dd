"""What is different between two configurations: as values, and in lines for people."""

from __future__ import annotations

import attrs
import pytest

from lambdamu.address import Address
from lambdamu.tcp_server import PortLimits
from master.config import (
    ARRAYS,
    TABLES,
    AlertsPolicy,
    BackendConfig,
    ChoiceConfig,
    Config,
    MasterPolicy,
    ProbePolicy,
    StateConfig,
)
from master.reload import compare
from master.webhook_url import WebhookURL

A = BackendConfig("a", "10.0.0.1", 9001)
B = BackendConfig("b", "10.0.0.2", 9001)
OLD = Config(backends=(A, B))


def test_nothing_is_different_in_the_same_file() -> None:
    difference = compare(OLD, attrs.evolve(OLD, warnings=("something to say",)))
    assert not difference
    assert difference.lines() == []


def test_backends_come_go_and_stay_by_name() -> None:
    difference = compare(OLD, Config(backends=(BackendConfig("c", "10.0.0.1", 9001), B)))
    assert (difference.added, difference.removed, difference.moved) == (("c",), ("a",), ())
    assert difference
    assert difference.lines() == ['+ [[backend]] "c"', '- [[backend]] "a"']


CHANGES: list[tuple[dict[str, object], str]] = [
    ({"weight": 2.5}, "weight: 1 -> 2.5"),
    ({"capacity": 10}, "capacity: none -> 10"),
    ({"zone": "x"}, 'zone: "" -> "x"'),
    ({"priority": 3}, "priority: 0 -> 3"),
    ({"advertise": (Address("203.0.113.7", 1),)}, 'advertise: [] -> ["203.0.113.7:1"]'),
]


@pytest.mark.parametrize(("keys", "line"), CHANGES)
def test_a_key_of_a_backend_changes_live_and_the_backend_stays(keys: dict[str, object], line: str) -> None:
    new = attrs.evolve(OLD, backends=(attrs.evolve(A, **keys), B))
    difference = compare(OLD, new)
    assert difference
    assert difference.config == new
    assert difference.moved == difference.fixed == ()
    assert difference.lines() == [f'~ [[backend]] "a": {line}']


@pytest.mark.parametrize("keys", [{"host": "10.0.0.9"}, {"port": 9009}])
def test_another_host_or_port_is_another_process(keys: dict[str, object]) -> None:
    assert compare(OLD, attrs.evolve(OLD, backends=(attrs.evolve(A, **keys), B))).moved == ("a",)


def test_another_order_is_a_difference_that_is_not_worth_a_line() -> None:
    difference = compare(OLD, attrs.evolve(OLD, backends=(B, A)))
    assert difference
    assert difference.lines() == []


@pytest.mark.parametrize(
    ("table", "value", "line"),
    [
        ("master", MasterPolicy(listen=Address("127.0.0.1", 7001)), '"127.0.0.1:7000" -> "127.0.0.1:7001"'),
        ("limits", PortLimits(connections=5), "10000 -> 5"),
        ("choice", ChoiceConfig(join_cap=5.0), "3 -> 5"),
        ("state", StateConfig("state.db"), '"" -> "state.db"'),
    ],
)
def test_what_cannot_change_live_is_named_and_keeps_its_value(table: str, value: object, line: str) -> None:
    difference = compare(OLD, attrs.evolve(OLD, **{table: value}, backends=(A,)))
    (shown,) = (each for each in difference.lines() if each.startswith("!"))
    assert shown.startswith(f"! [{table}]: ")
    assert shown.endswith(f"{line} (needs a restart)")
    assert difference.config == attrs.evolve(OLD, backends=(A,))
    assert not compare(OLD, attrs.evolve(OLD, **{table: value}))


def test_probes_and_what_clients_and_stops_wait_for_change_live() -> None:
    new = attrs.evolve(
        OLD,
        probe=ProbePolicy(interval_s=0.5, user_mail="other@host"),
        master=MasterPolicy(grace_s=1.0, linger_s=2.0, retry_after_s=3.0),
    )
    difference = compare(OLD, new)
    assert difference.fixed == ()
    assert difference.config == new
    assert "~ [probe]: user_mail: another one, it is not shown" in difference.lines()
    assert "~ [master]: linger_s: 0 -> 2" in difference.lines()


def test_every_table_is_compared() -> None:
    others = {"backends", "trust", "warnings", "as_written", "alone"}
    assert {field.name for field in attrs.fields(Config)} - others == TABLES.keys() - ARRAYS


@pytest.mark.parametrize(
    ("written", "lines"), [(10000, []), (500, ["! [limits]: connections: 900 -> 500 (needs a restart)"])]
)
def test_what_the_process_has_lowered_is_nobodys_change(written: int, lines: list[str]) -> None:
    old = OLD.work_with("limits", "connections", 900)
    new = attrs.evolve(OLD, limits=PortLimits(connections=written), backends=(A,))
    difference = compare(old, new)
    assert difference.lines() == ['- [[backend]] "b"', *lines]
    assert difference.config == attrs.evolve(old, backends=(A,))
    lower = attrs.evolve(OLD, backends=(A, B, BackendConfig("c", "h", 1))).work_with("limits", "connections", 898)
    assert compare(old, lower).lines() == ['+ [[backend]] "c"']
    assert compare(old, lower).config.limits.connections == 900


def test_the_webhook_changes_live_and_no_secret_stands_in_the_difference() -> None:
    alerts = AlertsPolicy(WebhookURL.parse("https://hooks.example/secret"), keep_s=60.0)
    new = attrs.evolve(OLD, probe=ProbePolicy(user_mail="secret@host"), alerts=alerts)
    difference = compare(OLD, new)
    assert difference.config == new
    assert difference
    assert "secret" not in "\n".join([*difference.lines(), repr(alerts)])
    assert len(difference.lines()) == 3
