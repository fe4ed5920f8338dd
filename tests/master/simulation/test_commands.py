"""`lambdamu simulate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from master.cli import cli

POOL = """
[[backend]]
name = "a"
host = "10.0.0.1"
port = 1
capacity = 600
[[backend]]
name = "b"
host = "10.0.0.2"
port = 1
capacity = 600
"""


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["simulate", *arguments], standalone_mode=False)
    assert result.exception is None, result.output
    return result


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (
            "queue --servers 10 --utilisation 0.5 --period 1 --masters 2 --policy least_load --seed 1 --length 20",
            ["mean_time_in_system"],
        ),
        (
            "sessions --backends 3 --joins-per-s 5 --session-s 10 --period 1 --masters 1 --seed 1 --length 200",
            [
                "max_over_mean",
                "peak_joins_per_s",
                "peak_joins_per_s_after_return",
                "storm_bound_broken",
                "seconds_to_share",
            ],
        ),
        ("loop --seed 2", ["peak_load", "seconds_over_target", "idle_while_waiting_s"]),
        ("abandon --seed 2", ["real_turns_per_minute", "last_served_minute"]),
        (
            "rush --seed 2",
            [
                "served",
                "called_out_of_order",
                "mean_wait_s",
                "longest_wait_s",
                "most_users_over_target",
                "most_asks_per_s",
                "estimates_within_90_point",
                "mean_estimates_over_waits",
                "90_points_over_waits",
            ],
        ),
        (
            "day --people 10 --seed 2",
            [
                "logins",
                "screens",
                "asks",
                "upstream_calls",
                "upstream_calls_over_asks",
                "upstream_failures",
                "asks_not_served",
                "first_screen_warm_p50_s",
                "first_screen_warm_p95_s",
                "first_screen_cold_p50_s",
                "first_screen_cold_p95_s",
                "most_upstream_calls_per_s",
                "most_rows_kept",
            ],
        ),
        ("brooker --refresh 60 --policy two_choices --seed 1 --length 1000", ["mean_time"]),
    ],
)
def test_the_figures_are_one_json_object(arguments: str, keys: list[str]) -> None:
    result = run(*arguments.split(), "--json")
    assert list(json.loads(result.stdout)) == keys
    assert result.stderr == ""


def test_without_json_the_figures_are_lines_for_people() -> None:
    result = run("queue", "--servers", "5", "--utilisation", "0.5", "--length", "20")
    assert result.stdout.startswith("mean time in system: ")


@pytest.mark.parametrize(("users", "carries"), [(500, True), (700, False), (2000, False)])
def test_capacity_says_whether_the_pool_carries_the_loss_of_one(tmp_path: Path, users: int, carries: bool) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(POOL)
    result = run("capacity", str(file), "--users", str(users), "--session-s", "20", "--length", "90", "--json")
    figures = json.loads(result.stdout)
    assert figures["carries_n_minus_1"] is carries
    assert figures["without_a_place"] == max(0, users - 1200)


def test_a_faulty_pool_file_gets_its_faults_and_code_2(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text("[choice]\npolicy = 5\n")
    result = run("capacity", str(file), "--users", "5")
    assert result.return_value == 2
    assert "policy: must be" in result.stderr


def test_a_day_whose_data_are_renewed_all_the_time_is_refused() -> None:
    result = CliRunner().invoke(cli, ["simulate", "day", "--ttl", "60", "--refresh", "31"])
    assert result.exit_code == 2
    assert "--refresh must be at most half of --ttl" in result.output


@pytest.mark.parametrize(
    "bad", ["--utilisation=1", "--utilisation=nan", "--policy=best", "--masters=0", "--length=inf"]
)
def test_what_cannot_be_simulated_is_refused(bad: str) -> None:
    result = CliRunner().invoke(cli, ["simulate", "queue", bad])
    assert result.exit_code == 2
