"""The configuration: what is taken as it stands, and what is refused, in which words.

The file is long because every kind of fault in a file is a row of its tables.
"""

from __future__ import annotations

from datetime import date
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, get_type_hints

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdamu.address import Address, parse_host
from master.config import ARRAYS, BOUNDS, KEYS, TABLES, BackendConfig, Config, Mode
from master.config_file import ConfigError, parse
from master.queue.ticket import Lane

HONEST = {"host": "10.9.9.9", "port": 9000}
NEEDED = {"backend": HONEST, "cache.warm": {"type": 1, "object": "Products", "name": "Accounts"}}
"""By table, the keys that it cannot do without."""


def toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
        case date():
            return value.isoformat()
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
        case _:
            return repr(value)


def table(name: str, /, **values: Any) -> str:
    head = f"[[{name}]]" if name in ARRAYS else f"[{name}]"
    return "\n".join([head, *(f"{key} = {toml(value)}" for key, value in values.items()), ""])


def pool(*backends: dict[str, Any]) -> str:
    return "".join(table("backend", **backend) for backend in backends)


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "pool.toml")
    return [str(fault).removeprefix("pool.toml: ") for fault in caught.value.faults]


def backend_with(**values: Any) -> BackendConfig:
    (backend,) = parse(pool({**HONEST, **values})).backends
    return backend


def test_an_empty_file_is_all_defaults_and_a_warning() -> None:
    config = parse("")
    assert attrs.evolve(config, warnings=()) == Config()
    assert config.warnings == ("there is no [[backend]]: every client will be told NoServer",)


def test_what_is_written_is_what_is_meant() -> None:
    config = parse(
        table("master", listen="[::]:0", grace_s=1)
        + table("limits", connections=5)
        + table("probe", mode="reconnect", interval_s=0.5, timeout_s=0.25)
        + pool({"name": "b1", "weight": 2, "capacity": 0, "zone": "a", **HONEST}, {"host": "::1", "port": 1}),
    )
    assert config.master.listen == Address("::", 0)
    assert type(config.master.grace_s) is float
    assert config.limits.connections == 5
    assert (config.probe.mode, config.probe.interval_s) == (Mode.RECONNECT, 0.5)
    assert config.backends == (
        BackendConfig("b1", "10.9.9.9", 9000, weight=2.0, capacity=0, zone="a"),
        BackendConfig("[::1]:1", "::1", 1),
    )


@pytest.mark.parametrize(
    ("written", "host"),
    [("2001:db8::3222", "2001:db8::3222"), ("[::1]", "::1"), ("fe80::1%lo", "fe80::1%lo"), ("a.", "a.")],
)
def test_a_host_is_kept_whole_and_the_port_apart(written: str, host: str) -> None:
    backend = backend_with(host=written)
    assert (backend.host, backend.port, backend.name) == (host, 9000, str(Address(host, 9000)))


def test_zero_is_nobody_and_absence_is_no_limit() -> None:
    assert backend_with().capacity is None
    assert backend_with(capacity=0).capacity == 0
    assert backend_with(weight=0).weight == 0.0


def test_advertise_takes_one_address_of_each_family() -> None:
    backend = backend_with(advertise=["203.0.113.7:9001", "[2001:db8:0::7]:9001"])
    assert backend.advertise == (Address("203.0.113.7", 9001), Address("2001:db8::7", 9001))


@pytest.mark.parametrize("name", ["b", "é 🐌", 'say "hi" \\', "👩\u200d💻", "🏴\U000e0067\U000e007f", "x" * 128])
def test_a_name_may_be_any_text_that_prints(name: str) -> None:
    assert backend_with(name=name, zone=name) == BackendConfig(name, "10.9.9.9", 9000, zone=name)


@pytest.mark.parametrize("port", [0, -1, 65536, 70000, True, "3000", 3000.0, 10**400, float("nan"), [], {}])
def test_a_port_is_a_whole_number_from_1_to_65535(port: Any) -> None:
    (line,) = refused(pool(HONEST, {"name": "b2", "host": "10.0.0.2", "port": port}))
    assert line.startswith('[[backend]] 2 "b2": port: must be a whole number')


@pytest.mark.parametrize(
    "host", ["", "[::1]:3000", "host:3000", "127.1", "a b", "0.0.0.0", "::", "224.0.0.1", "ff02::1"]
)
def test_a_host_is_one_machine_without_a_port(host: str) -> None:
    (line,) = refused(pool({"name": "b", "host": host, "port": 1}))
    assert line.startswith('[[backend]] 1 "b": host: ')


def test_a_backend_needs_a_host_and_a_port() -> None:
    assert refused(pool({})) == ["[[backend]] 1: host: is missing", "[[backend]] 1: port: is missing"]


NAMES = [(name, key) for name, cls in TABLES.items() for key in KEYS[cls]]
KINDS = (float, int, int | None, float | None)
NUMBERS = [(name, key) for name, key in NAMES if get_type_hints(TABLES[name])[key] in KINDS]


def with_key(name: str, key: str, value: Any) -> str:
    """Return a file with this key, and with what else its table needs."""
    return table(name, **{**NEEDED.get(name, {}), key: value})


@pytest.mark.parametrize(("name", "key"), NUMBERS)
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), -1, -0.5, 10**400, True, "5", date.min, []]
)
def test_no_number_is_endless_negative_or_made_of_something_else(name: str, key: str, value: Any) -> None:
    (line,) = refused(with_key(name, key, value))
    assert f": {key}: must be a " in line


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_numbers_are_taken_up_to_both_bounds_and_not_beyond(name: str, key: str) -> None:
    bounds = BOUNDS[TABLES[name]][key]

    def faults(value: float) -> list[str]:
        try:
            parse(with_key(name, key, value))
        except ConfigError as error:
            return [fault.text for fault in error.faults if fault.key == key and str(bounds) in fault.text]
        return []

    low, high = bounds.least, bounds.most
    assert faults(low) == faults(high) == []
    assert faults(high + 1) != []
    assert faults(low / 2 if low % 1 else low - 1) != []


@pytest.mark.parametrize("key", ["interval_s", "timeout_s", "renew_s", "rise", "fall"])
def test_probing_cannot_be_switched_off(key: str) -> None:
    assert any(f"[probe]: {key}: must be a" in line for line in refused(table("probe", **{key: 0})))


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("probe", {"timeout_s": 1.5}, "timeout_s: must not exceed interval_s"),
        ("probe", {"stale_after_s": 1.9}, "interval_s + timeout_s: must not exceed stale_after_s"),
        ("probe", {"renew_s": 0.9}, "interval_s: must not exceed renew_s"),
        ("master", {"reservation_s": 1}, "connect_s: must not exceed reservation_s"),
        ("queue", {"turn_s": 121}, "turn_s: must not exceed claimed_s"),
        ("queue", {"away_lease_s": 29}, "lease_s: must not exceed away_lease_s"),
    ],
)
def test_times_that_contradict_each_other_are_named_both(name: str, values: dict[str, Any], key: str) -> None:
    (line,) = refused(table(name, **values))
    assert line.startswith(f"[{name}]: {key}, but ")


def test_a_sum_of_decimals_may_equal_its_bound() -> None:
    probe = parse(table("probe", interval_s=0.2, timeout_s=0.1, stale_after_s=0.3)).probe
    assert probe.interval_s + probe.timeout_s > probe.stale_after_s


@pytest.mark.parametrize("value", ["203.0.113.7:9001", {"203.0.113.7:9001": 1}, 5])
def test_advertise_is_an_array(value: Any) -> None:
    (line,) = refused(pool({**HONEST, "advertise": value}))
    assert "advertise: must be an array of texts, not " in line


def test_every_bad_entry_of_advertise_is_named() -> None:
    entries = ["chat.example:1", "1.2.3.4", 5, "1.2.3.4:0", "[::]:1", "[fe80::1%lo]:1", "::1:1", "1.1.1.1:70000", ":1"]
    lines = refused(pool({**HONEST, "advertise": [*entries, "1.2.3.4:1", "[::ffff:1.2.3.5]:1"]}))
    assert all(": advertise: " in line for line in lines)
    assert len(lines) == len(entries) + 1
    assert lines[-1].endswith("advertise: holds more than one IPv4 address")


@pytest.mark.parametrize("listen", ["", "7000", "host:65536", "::1:1", ":1", "127.1:1"])
def test_listen_is_a_host_and_a_port(listen: str) -> None:
    (line,) = refused(table("master", listen=listen))
    assert line.startswith("[master]: listen: ")


@pytest.mark.parametrize("name", ["", " ", " b", "b ", "a\nb", "a\0b", "a\u202eb", "a\u2028b", "é" * 65])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    (line,) = refused(pool({**HONEST, "name": name}))
    assert ": name: must" in line
    assert line.isprintable()


def test_a_host_too_long_for_a_name_must_be_named() -> None:
    (line,) = refused(pool({"host": "a." * 100 + "a", "port": 1}))
    assert line == "[[backend]] 1: name: must be from 1 to 128 bytes long, not 203"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (pool({**HONEST, "weigth": 5}), "[[backend]] 1: weigth: is not known; did you mean weight?"),
        (table("probe", Interval_s=5), "[probe]: Interval_s: is not known; did you mean interval_s?"),
        (table("probe", port=5), "[probe]: port: is not known here; it belongs to [[backend]]"),
        ("interval_s = 1", "interval_s: is not known here; it belongs to [probe]"),
        ("[gatekeepers]", "[gatekeepers]: is not known"),
        ("[[backends]]", "[backends]: is not known; did you mean backend?"),
        ('"" = 1', '"": is not known'),
        ('"a\\nb" = 1', "a\\nb: is not known"),
        ("[limits]\n'' = 1", '[limits]: "": is not known'),
        ("master = 5", "[master]: must be a table, not 5"),
        ("[[master]]", "[master]: must be a table, not an array"),
        ("backend = [1]", "[[backend]] 1: must be a table, not 1"),
        ("[backend]", "[[backend]]: must be an array of tables, each under [[backend]] in two brackets, not a table"),
    ],
)
def test_what_is_not_known_is_named(text: str, line: str) -> None:
    assert refused(text) == [line]


def test_every_fault_is_named_at_once() -> None:
    bad = {"name": "b", "host": "a b", "port": 0, "weight": -1}
    text = table("master", listen=5) + table("probe", timeout_s=5, rise=0) + pool(bad, {**bad, "port": 1}) + "[more]"
    assert [line.rsplit(": ", 1)[0] for line in refused(text)] == [
        "[master]: listen",
        "[probe]: rise",
        "[probe]: timeout_s",
        "[probe]: interval_s + timeout_s",
        *[f'[[backend]] 1 "b": {key}' for key in ("host", "port", "weight")],
        *[f'[[backend]] 2 "b": {key}' for key in ("host", "weight")],
        '[[backend]] 2 "b": name',
        "[more]",
    ]


# Anything at all

SCALARS = (
    st.booleans()
    | st.integers(-2, 70000)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["hold", "reconnect", "a:1", "[::1]:5", "10.0.0.1:80", "::1", "localhost"])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some), max_leaves=5
)


def means(taken: Any, written: Any) -> bool:
    """Whether a value of a Config says no more and no less than what stood in the file."""
    match taken:
        case bool():
            return written is taken
        case Lane():
            return taken.name.lower() == written
        case float():
            return type(written) in (int, float) and taken == written
        case int():
            return type(written) is int and taken == written
        case Address():
            return type(written) is str and str(taken) == str(Address.parse(written))
        case IPv4Network() | IPv6Network():
            return type(written) is str and taken == ip_network(written)
        case tuple():
            return type(written) is list and len(taken) == len(written) and all(map(means, taken, written))
        case _:
            return type(written) is str and (taken == written or taken == parse_host(written))


@given(st.sampled_from(NAMES), VALUES)
@example(("backend", "port"), True)
@example(("queue.template", "lanes"), ["plain", "vip"])
@example(("queue.template", "lanes"), [2])
@example(("queue.template", "pattern"), "[!]")
@example(("limits", "exempt"), ["::"])
@example(("probe", "rise"), 1.0)
@example(("backend", "advertise"), {"1.2.3.4:5": 1})
def test_a_value_of_any_kind_is_taken_as_it_is_or_refused(where: tuple[str, str], value: Any) -> None:
    name, key = where
    try:
        config = parse(with_key(name, key, value))
    except ConfigError as error:
        lines = [str(fault) for fault in error.faults]
    else:
        owner = config.backends[0] if name == "backend" else getattr(config, name.partition(".")[0])
        within = {"queue.template": "templates", "cache.warm": "warm"}.get(name)
        owner = getattr(owner, within)[0] if within is not None else owner
        assert means(getattr(owner, key), value)
        return
    assert all(key in line and line.isprintable() for line in lines)
