"""The configuration by environment: each key, what beats what, and whom a fault names.

The file is long because each fault of a variable is a row of its tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdamu.address import Address
from master.config import KEYS, TABLES, BackendConfig
from master.config_environment import variables
from master.config_file import ConfigError, load, parse
from master.queue.ticket import Lane
from master.webhook_url import WebhookURL

FILE = """
[probe]
interval_s = 2
stale_after_s = 4
[[backend]]
name = "b1"
host = "10.0.0.1"
port = 9001
[[backend]]
host = "10.0.0.2"
port = 9002
"""


def of(**keys: str) -> dict[str, str]:
    return {f"LAMBDAMU_{name}": value for name, value in keys.items()}


def faults(environment: dict[str, str], text: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(None, environment) if text is None else parse(text, "pool.toml", environment)
    return [str(fault) for fault in caught.value.faults]


def test_a_pool_by_variables_alone() -> None:
    config = load(
        None,
        of(
            MASTER__LISTEN="0.0.0.0:7000",
            BACKEND__0__HOST="chat-1",
            BACKEND__0__PORT="9001",
            BACKEND__1__HOST="chat-2",
            BACKEND__1__PORT="9001",
            BACKEND__1__NAME="5",
            BACKEND__1__CAPACITY="0",
        ),
    )
    assert config.master.listen == Address("0.0.0.0", 7000)
    assert config.backends == (
        BackendConfig("chat-1:9001", "chat-1", 9001),
        BackendConfig("5", "chat-2", 9001, capacity=0),
    )


def test_the_environment_beats_the_file_key_by_key() -> None:
    environment = of(PROBE__INTERVAL_S="1.5", BACKEND__1__PORT="1", BACKEND__2__HOST="h", BACKEND__2__PORT="2")
    config = parse(FILE, environment=environment)
    assert (config.probe.interval_s, config.probe.stale_after_s) == (1.5, 4.0)
    assert [(each.name, each.port) for each in config.backends] == [("b1", 9001), ("10.0.0.2:1", 1), ("h:2", 2)]


def test_ten_backends_are_numbered_as_numbers() -> None:
    environment = {f"LAMBDAMU_BACKEND__{i}__{key}": f"{i + 1}" for i in range(12) for key in ("NAME", "PORT")}
    environment |= {f"LAMBDAMU_BACKEND__{i}__HOST": "h" for i in range(12)}
    assert [each.port for each in load(None, environment).backends] == list(range(1, 13))


@pytest.mark.parametrize(
    "name", ["LAMBDAMU_URL", "LAMBDAMU_TOKEN", "LAMBDAMU_", "LAMBDAMU_X", "OTHER_MASTER__LISTEN", "lambdamu_A__B"]
)
def test_other_variables_are_nothing_to_it(name: str) -> None:
    assert load(None, {name: "x"}) == load(None)
    assert variables({name: "x"}) == []


def written(value: Any) -> str:
    """Return a value of a configuration as a variable holds it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(written, value))
        case Lane():
            return value.name.lower()
        case _:
            return str(value)


NAMES = [(table, key) for table, cls in TABLES.items() for key in KEYS[cls]]
EXAMPLES = {
    WebhookURL | None: WebhookURL.parse("http://127.0.0.1/..."),
    float | None: 5.0,
    int | None: 5,
    Address | None: Address("127.0.0.1", 1),
}
BACKEND = {"host": "h", "port": 1, "name": "n"}
WARM = {"type": 1, "object": "Products", "name": "Accounts"}
NEEDED = {("tls", "listen"): {"LAMBDAMU_TLS__CERTIFICATE": "certificate", "LAMBDAMU_TLS__KEY": "key"}}
"""What has to be there beside a key."""


@pytest.mark.parametrize(("table", "key"), NAMES)
def test_every_key_has_a_variable(table: str, key: str) -> None:
    cls = TABLES[table]
    default, kind = getattr(attrs.fields(cls), key).default, get_type_hints(cls)[key]
    value = default if default not in (None, attrs.NOTHING) else BACKEND.get(key, EXAMPLES.get(kind))
    if table == "backend":
        keys = BACKEND | {key: value}
        environment = {f"LAMBDAMU_BACKEND__0__{each.upper()}": written(given) for each, given in keys.items()}
        got = load(None, environment).backends[0]
    elif table == "cache.warm":
        keys = WARM | ({key: value} if value is not None else {})
        environment = {f"LAMBDAMU_CACHE__WARM__0__{each.upper()}": written(given) for each, given in keys.items()}
        cache = load(None, environment).cache
        assert cache is not None
        value, got = keys[key], cache.warm[0]
    elif table == "queue.template":
        queue = load(None, {f"LAMBDAMU_QUEUE__TEMPLATE__0__{key.upper()}": written(value)}).queue
        assert queue is not None
        (got,) = queue.templates
    else:
        environment = NEEDED.get((table, key), {}) | {f"LAMBDAMU_{table}__{key}".upper(): written(value)}
        got = getattr(parse("", "environment", environment), table)
    assert getattr(got, key) == value


@pytest.mark.parametrize(
    ("text", "exempt"),
    [
        ("", []),
        ("  ", []),
        ("10.0.0.0/8", ["10.0.0.0/8"]),
        ("10.0.0.0/8 , 2001:db8::/32", ["10.0.0.0/8", "2001:db8::/32"]),
        ("[]", []),
        ('["10.0.0.0/8", "2001:db8::/32"]', ["10.0.0.0/8", "2001:db8::/32"]),
        (" [ '10.0.0.0/8' ] ", ["10.0.0.0/8"]),
    ],
)
def test_an_array_is_a_list_with_commas_or_one_of_toml(text: str, exempt: list[str]) -> None:
    assert list(map(str, load(None, of(LIMITS__EXEMPT=text)).limits.exempt)) == exempt


def test_addresses_in_brackets_are_no_array_of_toml() -> None:
    environment = of(
        BACKEND__0__ADVERTISE="[2001:db8::7]:9001,203.0.113.7:9001", BACKEND__0__HOST="h", BACKEND__0__PORT="1"
    )
    assert load(None, environment).backends[0].advertise == (Address("2001:db8::7", 9001), Address("203.0.113.7", 9001))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("PROBE__RISE", "", '[probe]: rise: must be a whole number, not ""'),
        ("PROBE__RISE", '"5"', '[probe]: rise: must be a whole number, not "5"'),
        ("PROBE__RISE", "5.0", "[probe]: rise: must be a whole number, not 5.0"),
        ("PROBE__RISE", "five", '[probe]: rise: must be a whole number, not "five"'),
        ("PROBE__RISE", "true", "[probe]: rise: must be a whole number, not true"),
        ("PROBE__RISE", "5 # few", '[probe]: rise: must be a whole number, not "5 # few"'),
        ("PROBE__RISE", "5\nfall = 5", '[probe]: rise: must be a whole number, not "5\\nfall = 5"'),
        ("PROBE__RISE", "[" * 9999, f'[probe]: rise: must be a whole number, not "{"[" * 77}..."'),
        ("PROBE__RISE", "9" * 9999, f'[probe]: rise: must be a whole number, not "{"9" * 77}..."'),
        ("PROBE__RISE", "2000", "[probe]: rise: must be a whole number from 1 to 1000, not 2000"),
        ("PROBE__TIMEOUT_S", "nan", "[probe]: timeout_s: must be a finite number, not nan"),
        ("PROBE__MODE", "Hold", '[probe]: mode: must be "hold" or "reconnect", not "Hold"'),
        ("PROBE__USER_NAME", "", "[probe]: user_name: must be from 1 to 256 bytes long, not 0"),
        ("PROBE__USER_NAME", "\udcff", "is not UTF-8"),
        ("MASTER__RELOAD_ON_CHANGE", "True", '[master]: reload_on_change: must be true or false, not "True"'),
        ("MASTER__RELOAD_ON_CHANGE", "1", "[master]: reload_on_change: must be true or false, not 1"),
        (
            "MASTER__LISTEN",
            ":7000",
            '[master]: listen: ":7000" names no host; all addresses of this machine are 0.0.0.0:7000',
        ),
        ("HTTP__HOSTS", '["a"', 'is not an array of TOML, such as ["a", "b"]; a, b is fine too'),
        ("HTTP__HOSTS", '["a", 5]', "[http]: hosts: must be a text in quotes, not 5"),
        ("MASTER__LISTN", "", "is not known; did you mean LAMBDAMU_MASTER__LISTEN?"),
        ("Master__LISTEN", "", "is not known; did you mean LAMBDAMU_MASTER__LISTEN?"),
        ("BACKEND__HOST", "", "is not known; did you mean LAMBDAMU_BACKEND__0__HOST?"),
        ("BACKEND__00__HOST", "", "is not known; did you mean LAMBDAMU_BACKEND__0__HOST?"),
        ("BACKENDS__0__HOST", "", "is not known; did you mean LAMBDAMU_BACKEND__0__HOST?"),
        ("MASTER__0__LISTEN", "", "is not known; did you mean LAMBDAMU_MASTER__LISTEN?"),
        ("QUEUE__PER_MINUTE", "x", '[queue]: per_minute: must be a number, not "x"'),
        ("QUEUE__TEMPLATE__0__PATERN", "", "is not known; did you mean LAMBDAMU_QUEUE__TEMPLATE__0__PATTERN?"),
        ("QUEUE__TEMPLATE__PATTERN", "", "is not known; did you mean LAMBDAMU_QUEUE__TEMPLATE__0__PATTERN?"),
        ("QUEUE.TEMPLATE__0__PATTERN", "a", "is not known; did you mean LAMBDAMU_QUEUE__TEMPLATE__0__PATTERN?"),
        ("QUEUE__TEMPLATES", "", "is not known; did you mean LAMBDAMU_QUEUE__TEMPLATE__0__SHARE?"),
        (
            "QUEUE__TEMPLATE__0__LANES",
            "vip, fast",
            '[[queue.template]] 1: lanes: must be "resume", "vip" or "plain", not "fast"',
        ),
        ("QUEUE__TEMPLATE__1__SHARE", "1", "there is no template 0 before it: they are numbered from 0 without a gap"),
        ("QUEUE__TURN_S", "200", "[queue]: turn_s: must not exceed claimed_s, but 200 is more than 120"),
        ("X__Y", "", "is not known"),
        ("_X", "", "is not known"),
        ("__", "", "is not known"),
    ],
)
def test_a_fault_names_its_variable(name: str, value: str, fault: str) -> None:
    assert faults(of(**{name: value})) == [f"LAMBDAMU_{name}: {fault}"]


def test_a_gap_is_one_fault_however_many_stand_behind_it() -> None:
    behind = of(BACKEND__3__HOST="h", BACKEND__3__PORT="1", BACKEND__4__HOST="h", PROBE__INTERVAL_S="x")
    gap = "there is no backend 0 before it: they are numbered from 0 without a gap"
    assert sorted(faults(behind)) == [
        f"LAMBDAMU_BACKEND__3__HOST: {gap}",
        'LAMBDAMU_PROBE__INTERVAL_S: [probe]: interval_s: must be a number, not "x"',
    ]


SUM = "[probe]: interval_s + timeout_s: must not exceed stale_after_s, but"
TWICE = '[[backend]] 2: host, port: are the same place as those of [[backend]] 1 "b1"'


@pytest.mark.parametrize(
    ("environment", "culprit", "fault"),
    [
        (of(BACKEND__2__HOST="h"), "LAMBDAMU_BACKEND__2__PORT", "[[backend]] 3: port: is missing"),
        (
            of(BACKEND__3__HOST="h"),
            "LAMBDAMU_BACKEND__3__HOST",
            "there is no backend 2 before it: they are numbered from 0 without a gap",
        ),
        (of(BACKEND__0__PORT="9002", BACKEND__0__HOST="10.0.0.2"), "pool.toml", TWICE),
        (
            of(BACKEND__1__PORT="9001", BACKEND__1__HOST="10.0.0.1"),
            "LAMBDAMU_BACKEND__1__HOST, LAMBDAMU_BACKEND__1__PORT",
            TWICE,
        ),
        (of(PROBE__INTERVAL_S="3.5"), "LAMBDAMU_PROBE__INTERVAL_S", f"{SUM} 4.5 is more than 4"),
        (of(PROBE__STALE_AFTER_S="2.5"), "LAMBDAMU_PROBE__STALE_AFTER_S", f"{SUM} 3 is more than 2.5"),
        (
            of(HTTP__LISTEN="0.0.0.0:7080"),
            "LAMBDAMU_HTTP__TOKENS_FILE",
            "[http]: tokens_file: is missing, and other machines can reach listen, 0.0.0.0:7080",
        ),
    ],
)
def test_a_fault_between_file_and_environment_names_the_variable(
    environment: dict[str, str], culprit: str, fault: str
) -> None:
    assert faults(environment, FILE) == [f"{culprit}: {fault}"]


def test_a_fault_of_the_file_names_the_file_whatever_else_is_in_the_environment() -> None:
    text = FILE + "[http]\nlisten = 5\n[breaker]\nwindow = 5\n"
    assert faults(of(MASTER__GRACE_S="1"), text) == [
        "pool.toml: [breaker]: window: is not known; did you mean window_s?",
        "pool.toml: [http]: listen: must be a text in quotes, not 5",
    ]
    assert faults(of(MASTER__GRACE_S="1"), "master = 5") == ["pool.toml: [master]: must be a table, not 5"]
    assert faults(of(BACKEND__0__HOST="h"), "backend = 5")[0].startswith("pool.toml: [[backend]]: must be an array")
    assert faults(of(BACKEND__0__HOST="h"), "backend = [5]") == ["pool.toml: [[backend]] 1: must be a table, not 5"]


def test_a_bad_value_of_the_file_that_is_beaten_does_not_count() -> None:
    assert parse("[probe]\nrise = 'x'", environment=of(PROBE__RISE="2")).probe.rise == 2


def test_tokens_that_a_variable_names_are_looked_for_as_those_of_the_file_are(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(FILE)
    (tmp_path / "tokens").write_text("ann: 0123456789abcdef: read\n")
    good, bad = of(HTTP__TOKENS_FILE="tokens"), of(HTTP__TOKENS_FILE="token")
    assert load(tmp_path / "pool.toml", good).http.tokens_file == str(tmp_path / "tokens")
    with pytest.raises(ConfigError, match=r"^LAMBDAMU_HTTP__TOKENS_FILE: \[http\]: tokens_file: "):
        load(tmp_path / "pool.toml", bad)


PLAIN = st.sampled_from([f"LAMBDAMU_{table.replace('.', '__')}__{key}".upper() for table, key in NAMES])
NUMBERED = st.builds(
    lambda name, n: (
        name.replace("BACKEND__", f"BACKEND__{n}__")
        .replace("TEMPLATE__", f"TEMPLATE__{n}__")
        .replace("WARM__", f"WARM__{n}__")
    ),
    PLAIN,
    st.integers(0, 3),
)
SHAPES = PLAIN | NUMBERED
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=())) | st.text("[]{}\"',.:05-eE# \n")


NAMED = SHAPES | VALUES.map("LAMBDAMU_".__add__)


@given(st.dictionaries(NAMED, VALUES, max_size=5), st.sampled_from(["", FILE, "a = 5"]))
def test_any_environment_is_a_configuration_or_faults(environment: dict[str, str], text: str) -> None:
    try:
        lines = [*parse(text, "f", environment).warnings]
    except ConfigError as exc:
        lines = str(exc).splitlines()
    assert all(line.isprintable() for line in lines)
