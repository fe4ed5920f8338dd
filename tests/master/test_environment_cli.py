"""`lambdamu check` and `master` with and without a file; the examples in deploy/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from master.cli import main

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.fixture(autouse=True)
def only_the_variables_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LAMBDAMU_")]:
        monkeypatch.delenv(name)


def variables() -> dict[str, str]:
    lines = (EXAMPLES / "container.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_examples_are_right_and_there_is_nothing_to_warn_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables().items() if path.suffix == ".env" else ():
        monkeypatch.setenv(name, value)
    assert run("check", *([str(path)] if path.suffix == ".toml" else [])) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "2 backends, 2 of which may be sent clients" in told.out


def test_six_variables_are_a_configuration_and_check_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(variables()) == 6
    for name, value in {**variables(), "LAMBDAMU_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    assert run("check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-6:] == [f"from the environment: {name}" for name in sorted(variables())]
    assert not [line for line in lines[:-6] if "environment" in line]


@pytest.mark.parametrize("command", ["check", "master"])
def test_a_variable_that_is_not_known_starts_nothing(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMBDAMU_MASTER__LISTN", "127.0.0.1:7000")
    assert run(command) == 2
    assert capsys.readouterr() == ("", "LAMBDAMU_MASTER__LISTN: is not known; did you mean LAMBDAMU_MASTER__LISTEN?\n")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAMBDAMU_BACKEND_0_HOST", "LAMBDAMU_BACKEND__0__HOST"),
        ("LAMBDAMU_PROBE_TIMEOUT_S", "LAMBDAMU_PROBE__TIMEOUT_S"),
        ("LAMBDAMU_MASTER_PORT", ""),
        ("LAMBDAMU_TOKEN", ""),
    ],
)
def test_a_variable_with_too_few_underscores_is_told_of(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "1")
    line = f"{name} is no configuration; did you mean {meant}?" if meant else ""
    assert run("check") == 2
    assert line in capsys.readouterr().err
    monkeypatch.setenv("LAMBDAMU_BACKEND__0__HOST", "127.0.0.1")
    monkeypatch.setenv("LAMBDAMU_BACKEND__0__PORT", "9001")
    assert run("check") == 0
    assert capsys.readouterr().err == (f"warning: {line}\n" if meant else "")


@pytest.mark.parametrize("command", ["check", "master"])
def test_neither_file_nor_variable_is_bad_usage(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMBDAMU_URL", "http://127.0.0.1:1")
    assert run(command) == 2
    assert "LAMBDAMU_BACKEND__0__HOST" in capsys.readouterr().err
