"""docs/configuration.md says what the code does: each key with its type, default and bounds, and each example."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest
import trustme

from lambdamu.address import Address
from lambdamu.forwarded import ClientHeader
from lambdamu.networks import Network
from master.config import ARRAYS, BOUNDS, KEYS, ORDERS, TABLES, BackendConfig, Config, Mode
from master.config_cache import CacheConfig, WarmConfig
from master.config_file import ConfigError, load, parse
from master.config_queue import Control, QueueConfig
from master.core.choice import Panic, Policy
from master.queue import policy as queue_policy
from master.queue.ticket import Lane
from master.webhook_url import WebhookURL

DOC = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
COMPLETE, CACHE, QUEUE, EXAMPLE, FAULTY = (text for kind, text in BLOCKS if kind == "toml")
FAULTY_VARIABLES, FAULTS, TLS_FAULTS = (text for kind, text in BLOCKS if kind == "text")
VARIABLES = dict(word.split("=", 1) for kind, text in BLOCKS if kind == "sh" for word in shlex.split(text))
TYPES = {
    float: "number",
    float | None: "number",
    int: "whole number",
    int | None: "whole number",
    str: "text",
    ClientHeader: "text",
    Mode: "text",
    Policy: "text",
    Panic: "text",
    queue_policy.Mode: "text",
    Control: "text",
    Address: "address",
    Address | None: "address",
    bool: "true or false",
    WebhookURL | None: "URL",
    tuple[str, ...]: "array of texts",
    tuple[Lane, ...]: "array of texts",
    tuple[Address, ...]: "array of addresses",
    tuple[Network, ...]: "array of networks",
}


ABSENT = {
    ("backend", "capacity"): "no limit",
    ("choice", "session_s"): "learned",
    ("queue", "per_minute"): "no limit",
    ("queue.template", "per_minute"): "no limit",
    ("http", "listen"): "off",
    ("alerts", "webhook"): "off",
    ("tls", "listen"): "off",
    ("gateway", "listen"): "off",
    ("cache_node", "address"): "off",
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its first two lines."""
    section = re.split(r"^#+ ", DOC.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def documented(name: str) -> dict[str, list[str]]:
    heading = f"## `[[{name}]]`" if name in ARRAYS else f"## `[{name}]`"
    return {key.strip("`"): rest for key, *rest in rows(heading)}


def written(value: Any, absent: str = "") -> str:
    match value:
        case attrs.NOTHING:
            return "required"
        case None:
            return absent
        case ():
            return "`[]`"
        case tuple():
            return f"`[{', '.join(written(each).strip('`') for each in value)}]`"
        case Lane():
            return f'`"{value.name.lower()}"`'
        case bool():
            return f"`{str(value).lower()}`"
        case str() | Address():
            return f'`"{value}"`'
        case _:
            return f"`{value}`"


def unit(key: str) -> str:
    if key.endswith("_per_s"):
        return ", a second"
    return {"s": ", seconds", "bytes": ", bytes", "minute": ", a minute"}.get(key.rpartition("_")[2], "")


@pytest.mark.parametrize("name", TABLES)
def test_every_key_is_documented_and_no_other(name: str) -> None:
    assert list(documented(name)) == list(KEYS[TABLES[name]])


FIELDS = [(name, field) for name, cls in TABLES.items() for field in KEYS[cls].values()]


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=lambda value: getattr(value, "name", value))
def test_type_default_and_bounds_are_those_of_the_code(name: str, field: Any) -> None:
    kind, default, allowed, _ = documented(name)[field.name]
    hint = get_type_hints(TABLES[name])[field.name]
    assert kind == TYPES[hint] + unit(field.name)
    absent = ABSENT.get((name, field.name), "")
    assert default == ("host:port" if (name, field.name) == ("backend", "name") else written(field.default, absent))
    bounds = BOUNDS[TABLES[name]].get(field.name)
    if bounds is not None:
        assert allowed == str(bounds)
    elif hint is bool:
        assert allowed == TYPES[bool]
    elif hint in (Mode, Policy, Panic, ClientHeader, queue_policy.Mode, Control):
        assert allowed == " or ".join(written(word.value) for word in hint)
    else:
        assert allowed in (f"see [{field.name}](#{field.name})", f"see [{field.name}s](#{field.name}s)")


@pytest.mark.parametrize("cls", ORDERS, ids=lambda cls: cls.__name__)
def test_rules_between_keys_stand_with_one_of_them(cls: type[Any]) -> None:
    name = next(name for name, known in TABLES.items() if known is cls)
    meanings = {key: rest[-1] for key, rest in documented(name).items()}
    for order in ORDERS[cls]:
        least = f"At least `{' + '.join(order.lower)}`"
        assert least in meanings[order.upper] or f"At most `{order.upper}`" in meanings[order.lower[0]]


def test_the_complete_file_is_right_holds_every_key_and_shows_the_defaults() -> None:
    config = parse(COMPLETE)
    assert config.warnings == ()
    assert attrs.evolve(config, backends=()) == Config()
    assert parse(QUEUE).queue == QueueConfig()
    assert parse(CACHE).cache == CacheConfig(warm=(WarmConfig(1, "Accounts", "Products"),))
    assert len(config.backends) == 2
    assert isinstance(config.backends[0], BackendConfig)
    for name, cls in TABLES.items():
        text = {"queue": QUEUE, "cache": CACHE}.get(name.partition(".")[0], COMPLETE)
        head = rf"^\[+{re.escape(name)}\]+(?: +#[^\n]*)?\n"
        (section,) = re.findall(rf"{head}(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)[:1]
        keys = re.findall(r"^(?:# )?(\w+) = ", section, re.MULTILINE)
        assert sorted(keys) == sorted(KEYS[cls])


def test_the_example_of_a_queue_is_right_and_nothing_in_it_looks_like_a_mistake() -> None:
    config = parse(EXAMPLE)
    assert config.warnings == ()
    assert config.queue is not None
    assert [(each.pattern, each.share) for each in config.queue.templates] == [("event-*", 1.0), ("default", 3.0)]


def test_the_faulty_file_gets_the_lines_that_stand_there() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(FAULTY, "pool.toml")
    assert f"{caught.value}\n" == FAULTS


def test_faults_of_tls_are_the_lines_that_stand_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse('[tls]\nlisten = "127.0.0.1:0"\ncertificate = "c"', "pool.toml")
    missing, gone, other = TLS_FAULTS.replace("/etc/lambdamu", str(tmp_path)).splitlines()
    assert str(caught.value) == missing
    first, second = (trustme.CA().issue_cert("localhost") for _ in range(2))
    (tmp_path / "master.key").write_bytes(first.private_key_pem.bytes())
    file = tmp_path / "pool.toml"
    file.write_text('[tls]\nlisten = "127.0.0.1:0"\ncertificate = "master.pem"\nkey = "master.key"')
    for certificate, line in ((None, gone), (second, other)):
        if certificate is not None:
            (tmp_path / "master.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
        with pytest.raises(ConfigError) as caught:
            load(file)
        assert str(caught.value) == line.replace("pool.toml", str(file), 1)


def test_the_variables_that_stand_there_are_a_pool_and_the_faulty_ones_get_their_lines() -> None:
    config = load(None, VARIABLES)
    assert config.master.listen == Address("0.0.0.0", 7000)
    assert len(config.limits.exempt) == len(config.backends[0].advertise) == 2
    more = {"PROBE__TIMEOUT_S": "5", "PROBE__STALE_AFTER_S": "9", "BACKEND__1__HOST": "chat-2", "MASTER__LISTN": "a"}
    with pytest.raises(ConfigError) as caught:
        load(None, VARIABLES | {f"LAMBDAMU_{name}": value for name, value in more.items()})
    assert f"{caught.value}\n" == FAULTY_VARIABLES


@pytest.mark.parametrize(
    ("head", "snippet", "answer"), [[c.strip("`") for c in row] for row in rows("## What a bad value gets")]
)
def test_a_bad_value_gets_the_answer_that_stands_there(head: str, snippet: str, answer: str) -> None:
    needed = {"host": 'host = "a"', "port": "port = 1"} if head == "[[backend]]" else {}
    needed.pop(snippet.partition(" = ")[0], None)
    with pytest.raises(ConfigError) as caught:
        parse("\n".join([head, snippet, *needed.values()]))
    assert [fault.text for fault in caught.value.faults] == [answer]


def test_a_syntax_error_has_its_line_and_column() -> None:
    line = re.search(r"`(pool\.toml: line .*?)`", DOC)
    assert line is not None
    with pytest.raises(ConfigError) as caught:
        parse("[master]\n\nlisten = \n", "pool.toml")
    assert str(caught.value) == line[1]
