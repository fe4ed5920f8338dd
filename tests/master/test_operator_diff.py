"""What `lambdamu check --diff` makes of what a master told."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from master.config import BackendConfig, Config, ProbePolicy
from master.config_json import tables_of, values_of
from master.operator_client import CallError
from master.operator_diff import difference

BACKEND = BackendConfig("b1", "10.0.0.1", 9001)
RUNNING = Config(backends=(BACKEND,))
HUSH = ProbePolicy(user_mail="hush@example.org")


def told(config: Config) -> dict[str, Any]:
    whole = tables_of(config) | {"backend": [values_of(backend) for backend in config.backends]}
    got: dict[str, Any] = json.loads(json.dumps(whole))
    return got


@pytest.mark.parametrize(
    ("running", "file", "changes", "unseen"),
    [
        (RUNNING, RUNNING, [], []),
        (RUNNING.work_with("limits", "connections", 9), RUNNING, [], []),
        (RUNNING, attrs.evolve(RUNNING, backends=()), ['- [[backend]] "b1"'], []),
        (RUNNING, attrs.evolve(RUNNING, probe=HUSH), ["~ [probe]: user_mail: another one, it is not shown"], []),
        (attrs.evolve(RUNNING, probe=HUSH), RUNNING, ["~ [probe]: user_mail: another one, it is not shown"], []),
        (attrs.evolve(RUNNING, probe=HUSH), attrs.evolve(RUNNING, probe=HUSH), [], ["[probe]: user_mail"]),
    ],
)
def test_it_is_what_a_reload_would_change(running: Config, file: Config, changes: list[str], unseen: list[str]) -> None:
    assert difference(told(running), file) == (changes, unseen)


@pytest.mark.parametrize("got", [{}, {"backends": []}, told(RUNNING) | {"backend": 5}, told(RUNNING) | {"http": None}])
def test_what_is_no_configuration_is_one_line(got: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="another version"):
        difference(got, RUNNING)
