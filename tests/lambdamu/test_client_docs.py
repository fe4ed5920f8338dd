"""docs/client.md: its example runs, and what it says of defaults is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import lambdamu
import lambdamu.errors
from lambdamu.peers import ClientObserver, ClientPolicy
from lambdamu.testing import FakeBackend

TEXT = (Path(__file__).parents[2] / "docs/client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def example(holding: str = "UserCount") -> dict[str, Any]:
    """Run the one whole example that holds this word, but for its `main`."""
    [text] = [each for each in EXAMPLES if "async def main" in each and holding in each]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(text, "docs/client.md", "exec"), names)
    return names


async def test_the_example_connects(master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = example()
    async with FakeBackend() as backend:
        host, port = backend.address
        async with master({"Result": "OK", "Data": {"IP": host, "Port": port}}) as asked:
            names["MASTERS"][:] = [str(asked.address)]
            await names["main"]()
    assert capsys.readouterr().out == "logged in as Task\nusers here: 10\n"


async def test_the_example_says_why_it_does_not(master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = example()
    async with master({"Result": "NoServer", "Data": {"RetryAfter": 3600.0}}) as asked:
        names["MASTERS"][:] = [str(asked.address)]
        await names["main"]()
    assert capsys.readouterr().out.endswith(": it answered NoServer; ask again in 3600.0 s\n")


@pytest.mark.parametrize("gets_in", [True, False])
async def test_the_example_that_waits_shows_its_place(
    master: Any, capsys: pytest.CaptureFixture[str], gets_in: bool
) -> None:
    names = example("waits")
    places: list[dict[str, Any]] = [{"Position": 2, "ETA": 8.4}, {"Position": 0, "ETA": None}]
    waits = [{"Result": "Wait", "Data": {"Ticket": "t", "RetryAfter": 0.1, **place}} for place in places]
    async with FakeBackend() as backend:
        host, port = backend.address
        last = {"Result": "OK", "Data": {"IP": host, "Port": port}}
        if not gets_in:
            last = {"Result": "Denied", "Data": {"Reason": "PassExpired"}}
        async with master(*waits, last) as asked:
            names["MASTERS"][:] = [str(asked.address)]
            await names["main"]()
    *before, end = capsys.readouterr().out.splitlines()
    assert before == ["2 people are before you: about 8 s", "0 people are before you: nobody knows how long"]
    assert end.startswith("in, as Task" if gets_in else "no connection: ")
    assert ("Leave" in asked.asks[-1].data) is not gets_in


def test_the_other_examples_can_be_read() -> None:
    for text in (each for each in EXAMPLES if "async def main" not in each):
        compile(f"async def main():\n{re.sub('^', '    ', text, flags=re.MULTILINE)}", "docs/client.md", "exec")


def test_the_defaults_are_those_of_the_policy() -> None:
    policy = ClientPolicy()
    assert (policy.within_s, policy.step_s) == (30.0, 5.0)
    assert (policy.backoff.first_s, policy.backoff.most_s) == (0.2, 10.0)
    assert (policy.budget.most, 1 / policy.budget.per_s, policy.budget.share) == (20.0, 5.0, 0.2)
    for breaker in (policy.masters, policy.backends):
        assert (breaker.consecutive, breaker.failure_share, breaker.open_s, breaker.max_open_s) == (3, 0.5, 2.0, 60.0)


def test_every_error_and_every_hook_is_told_of() -> None:
    for name in re.findall(r"`(\w+Error)`", TEXT):
        assert hasattr(lambdamu.errors, name) or name == "ValueError"
    hooks = [name for name, _ in inspect.getmembers(ClientObserver, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in hooks if f"`{name}`" not in TEXT] == []
    assert [name for name in re.findall(r"lambdamu\.([A-Z]\w+)", TEXT) if not hasattr(lambdamu, name)] == []
