"""A configuration goes through JSON and comes back as it was, but for secrets, which nobody is told."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.address import Address
from master.config import AlertsPolicy, BackendConfig, ChoiceConfig, Config, HttpPolicy, ProbePolicy
from master.config_file import parse
from master.config_json import UNKNOWN, read_config, tables_of, values_of
from master.webhook_url import WebhookURL

FULL = """
[limits]
exempt = ["10.0.0.0/8", "2001:db8::/32"]
[probe]
mode = "reconnect"
[choice]
policy = "two_choices"
session_s = 600
[http]
listen = "[::1]:7080"
hosts = ["master.example.org"]
[[backend]]
host = "10.0.0.1"
port = 9001
advertise = ["203.0.113.7:1", "[2001:db8::1]:2"]
[[backend]]
name = "the other 🐌"
host = "b.example.org"
port = 9002
capacity = 0
weight = 0.1
zone = "a"
load = true
"""


def told(config: Config) -> dict[str, Any]:
    whole = tables_of(config) | {"backend": [values_of(backend) for backend in config.backends]}
    got: dict[str, Any] = json.loads(json.dumps(whole))
    return got


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        parse(FULL),
        parse(FULL).work_with("limits", "connections", 9),
        Config(http=HttpPolicy(Address("127.0.0.1", 1), "tokens")).work_with("http", "tokens_file", "/etc/tokens"),
    ],
)
def test_it_comes_back_as_it_was(config: Config) -> None:
    again = read_config(told(config))
    assert again == config
    assert again.written("limits", "connections") == 10000


@given(st.floats(0.001, 1e6), st.none() | st.integers(0, 10**9), st.none() | st.floats(0.1, 600_000))
def test_numbers_come_back_to_the_last_digit(weight: float, capacity: int | None, session_s: float | None) -> None:
    backend = BackendConfig("b", "10.0.0.1", 1, weight=weight, capacity=capacity)
    config = Config(choice=ChoiceConfig(session_s=session_s), backends=(backend,))
    assert read_config(told(config)) == config


def test_a_secret_is_not_told_and_a_default_is_none() -> None:
    webhook = WebhookURL.parse("https://hooks.example/hush")
    secret = Config(probe=ProbePolicy(user_mail="hush@example.org"), alerts=AlertsPolicy(webhook))
    assert "hush" not in json.dumps(told(secret))
    assert read_config(told(secret)).probe.user_mail == read_config(told(secret)).alerts.webhook == UNKNOWN
    assert read_config(told(Config())).alerts.webhook is None
    assert read_config(told(Config())).probe.user_mail == "master@localhost"


GOOD = told(parse(FULL))


@pytest.mark.parametrize(
    "got",
    [
        {},
        GOOD | {"more": {}},
        GOOD | {"state": {}},
        GOOD | {"state": {"file": 5}},
        GOOD | {"backend": [{}]},
        GOOD | {"backend": [GOOD["backend"][0] | {"port": 0, "host": "::1"}]},
    ],
)
def test_what_another_program_says_is_refused(got: dict[str, Any]) -> None:
    with pytest.raises((ValueError, ExceptionGroup)):
        read_config(got)


def test_what_is_equal_may_be_worked_with_otherwise() -> None:
    config = Config().work_with("limits", "connections", 9).work_with("limits", "connections", 8)
    assert (config.limits.connections, config.written("limits", "connections")) == (8, 10000)
    assert attrs.evolve(config).as_written == {("limits", "connections"): 10000}
