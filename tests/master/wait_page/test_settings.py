"""The keys of the waiting page, from the file to what a browser gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lambdamu.http_wire import Request
from lambdamu.line_file import LineFileError
from lambdamu.machine import LogicalMachine
from lambdamu.objects import Peer
from lambdamu.port import PortObserver
from master.config_file import ConfigError, load, parse
from master.config_notes import describe
from master.entrances import Entrance, Entrances
from tests.master.wait_page.scripted import ScriptedDoor, ok

HEAD = '[gateway]\nlisten = "127.0.0.1:0"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("wait_page = 1", "[gateway]: wait_page: must be true or false, not 1"),
        ('wait_redirect = "game://{ip}"', "[gateway]: wait_redirect: needs wait_page = true"),
        ('wait_texts = "texts"', "[gateway]: wait_texts: needs wait_page = true"),
        (
            'wait_page = true\nwait_redirect = "data:{ip}"',
            '[gateway]: wait_redirect: "data:{ip}" would lead to nowhere outside the page: data: is not allowed',
        ),
        (
            f'wait_page = true\nwait_redirect = "game://{"a" * 2048}"',
            "[gateway]: wait_redirect: must be from 0 to 2048 bytes long, not 2055",
        ),
    ],
)
def test_what_cannot_be_is_told_by_its_key(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(HEAD + text, "pool.toml")
    assert str(caught.value) == f"pool.toml: {fault}"


def test_a_page_needs_a_gateway() -> None:
    with pytest.raises(ConfigError, match=r"\[gateway\]: listen: is missing, and wait_page needs it"):
        parse("[gateway]\nwait_page = true", "pool.toml")


def test_a_bad_text_is_found_when_the_configuration_is_read_and_again_at_the_start(tmp_path: Path) -> None:
    file, text = tmp_path / "pool.toml", tmp_path / "texts" / "de.json"
    text.parent.mkdir()
    text.write_text('{"wait": "Bitte warten"}')
    file.write_text(HEAD + 'wait_page = true\nwait_texts = "texts"')
    config = load(file)
    assert config.gateway.wait_texts == str(text.parent)
    text.write_text('{"wiat": "Bitte warten"}')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f'{file}: [gateway]: wait_texts: {text}: "wiat": is not known; did you mean wait?'
    with pytest.raises(LineFileError):
        Entrances(config, LogicalMachine("master"), ScriptedDoor(), PortObserver())


@pytest.mark.parametrize(
    ("text", "status", "location"),
    [
        ("", 404, None),
        ("wait_page = true", 200, None),
        ('wait_page = true\nwait_redirect = "game://{ip}:{port}/{queue}"', 303, "game://10.0.0.1:9001/default"),
    ],
)
def test_what_is_configured_is_served(text: str, status: int, location: str | None) -> None:
    config = parse(HEAD + text)
    entrances = Entrances(config, LogicalMachine("master"), ScriptedDoor([ok()]), PortObserver())
    gateway: Any = entrances.ports[Entrance.GATEWAY].handler
    [response] = gateway.handle(Request("GET", "/wait/default", {}), 0.0, Peer("192.0.2.9", 5))
    assert (response.status, dict(response.headers).get("Location")) == (status, location)
    told = [line for line in describe(config) if "/wait/ID" in line]
    assert bool(told) is (status != 404)
    assert all((location is None) is ("shows the address" in line) for line in told)
