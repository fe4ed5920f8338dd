"""Reads the configuration, a file and what the environment says, into the classes of `master.config`.

It gives a whole Config, or every fault at once.

Each value is judged alone (`master.config_values`), and a rule between keys applies to those that are right by
themselves, so that one bad value hides no other fault. The file is long because each rule between tables is one more
function, and all of them look at tables that are half read.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from lambdamu.address import Address, is_loopback, places, printable, quoted
from lambdamu.errors import LambdaMuError
from master.config import ARRAYS, KEYS, ORDERS, SWITCHES, TABLES, WITHIN, BackendConfig, Config
from master.config_cache import MOST_WARM
from master.config_environment import Environment, lay_over, misspelt, name_culprits
from master.config_notes import warn
from master.config_queue import MOST_TEMPLATES
from master.config_secrets import find_files
from master.config_text import read_text
from master.config_values import read_value, show
from master.tokens import TokensError, load_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NO_VARIABLES: Final[Environment] = MappingProxyType({})
_BACKEND: Final = "backend"
_MASTER: Final = "master"
_CACHE: Final = "cache"
_TEMPLATE: Final = "queue.template"
_WARM: Final = "cache.warm"
_LABELS: Final = {_BACKEND: "name", _TEMPLATE: "pattern", _WARM: "type"}
"""By array of tables, the key by which people know one of them."""
_TOML_FAULT: Final = re.compile(r"(?P<what>.*) \(at (?P<where>line \d+, column \d+|end of document)\)", re.DOTALL)


@attrs.frozen
class Fault:
    """One thing that is wrong. str() is one line.

    `file` is that or the variables at fault; `entry` is the table, as in `[probe]`; it and `key` may be empty. `keys`:
    those that a rule is between, where `key` does not say all.
    """

    file: str
    entry: str
    key: str
    text: str
    keys: tuple[str, ...] = attrs.field(default=(), eq=False)

    def __str__(self) -> str:
        return ": ".join(printable(part) for part in (self.file, self.entry, self.key, self.text) if part)


class ConfigError(LambdaMuError):
    """The file cannot be used. `faults` holds every fault found, at least one; str() is a line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


def load(path: str | os.PathLike[str] | None, environment: Environment = _NO_VARIABLES) -> Config:
    """Read a file, or none, and the variables that beat it.

    Raise ConfigError when it cannot be read or anything in it or in them is not right.
    """
    source = os.fspath(path) if path is not None else "environment"
    try:
        text = read_text(source) if path is not None else ""
    except OSError as exc:
        raise ConfigError([Fault(source, "", "", f"cannot be read: {exc.strerror}")]) from exc
    except ValueError as exc:
        raise ConfigError([Fault(source, "", "", str(exc))]) from exc
    with _blaming(environment):
        return _find_files(_find_tokens(parse(text, source, environment), source), source)


def _find_files(config: Config, source: str) -> Config:
    """Return `config` with what stands in the files that it names; all of them must be there and right."""
    found, faults = find_files(config, os.path.dirname(source))
    if faults:
        raise ConfigError([Fault(source, fault.entry, fault.key, fault.text) for fault in faults])
    return found


@contextmanager
def _blaming(environment: Environment) -> Iterator[None]:
    """Have faults name the variables in place of the file, where a variable gave what is wrong."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(_blame_variables(fault, environment) for fault in exc.faults) from exc


def _blame_variables(fault: Fault, environment: Environment) -> Fault:
    keys = fault.keys or tuple(re.findall(r"\w+", fault.key))
    missing = fault.text.startswith("is missing")
    culprits = name_culprits(fault.entry, keys, environment, missing=missing)
    return attrs.evolve(fault, file=culprits) if culprits else fault


def _find_tokens(config: Config, source: str) -> Config:
    """Return `config` with the path of its tokens from where the process stands; they must be there and right."""
    if not config.http.tokens_file:
        return config
    path = os.path.join(os.path.dirname(source), config.http.tokens_file)
    try:
        load_tokens(path)
    except TokensError as exc:
        raise ConfigError([Fault(source, "[http]", "tokens_file", str(exc))]) from exc
    return config.work_with("http", "tokens_file", path)


def parse(text: str, source: str = "configuration", environment: Environment = _NO_VARIABLES) -> Config:
    """Read the text of a file, which `source` names in faults, and the variables that beat it.

    Raise ConfigError when anything in them is not right.
    """
    with _blaming(environment):
        raw, unfit = lay_over(_parse_toml(text, source), environment)
        config = _build(raw, source, [Fault(variable, "", "", what) for variable, what in unfit])
    return attrs.evolve(config, warnings=(*config.warnings, *misspelt(environment)))


def _build(raw: Mapping[str, Any], source: str, unfit: list[Fault]) -> Config:
    flat, raw_arrays = _take_out_arrays(raw)
    names = [name for name in TABLES if name not in ARRAYS and (name in raw or name not in SWITCHES)]
    single = {name: _Table.read(flat.get(name, {}), name, source, _heading(name)) for name in names}
    faults: list[Fault] = []
    arrays = {name: _read_array(rows, name, source, faults) for name, rows in raw_arrays.items()}
    backends = _read_array(raw.get(_BACKEND, []), _BACKEND, source, faults)
    for table in backends:
        table.name_by_place()
    within = [table for tables in arrays.values() for table in tables]
    for table in (*single.values(), *within, *backends):
        faults += table.faults
    faults += unfit
    faults += _find_open_door(single["http"])
    faults += _find_two_mails(single["probe"])
    faults += _find_idle_trust(single["probe"], backends)
    faults += _find_idle_revocation(single["access"])
    faults += _find_tls_faults(
        **{name: single[name] for name in ("tls", "gateway", "access")}, cache=single.get(_CACHE)
    )
    faults += _find_idle_waiting_page(single["gateway"])
    alone = _CACHE in single and not {_MASTER, _BACKEND} & raw.keys()
    listening = (*([] if alone else [_MASTER]), "tls", "gateway", "http", _CACHE)
    faults += _find_shared_listens([single[name] for name in listening if name in single])
    faults += _find_repeated(arrays.get(_TEMPLATE, []), _TEMPLATE, MOST_TEMPLATES)
    faults += _find_repeated(arrays.get(_WARM, []), _WARM, MOST_WARM)
    if _CACHE in single:
        faults += _find_cache_faults(single[_CACHE], single["state"])
    faults += _find_cache_node_faults(single["cache_node"], single.get(_CACHE))
    faults += _find_shared_places(backends)
    faults += _find_shared_names(backends)
    faults += _find_unknown_tables(raw, source)
    if faults:
        raise ConfigError(faults)
    for cls, (array, field) in WITHIN.items():
        if arrays.get(array):
            outer = next(table for table in single.values() if table.cls is cls)
            outer.values[field] = tuple(table.build() for table in arrays[array])
    config = Config(
        **{name: table.build() for name, table in single.items()},
        backends=tuple(table.build() for table in backends),
        alone=alone,
    )
    return attrs.evolve(config, warnings=tuple(warn(config)))


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    try:
        return tomllib.loads(text)
    except RecursionError:
        fault = "is not usable: values are nested too deeply"
    except ValueError as exc:
        fault = _explain_toml_fault(str(exc), text)
    raise ConfigError([Fault(source, "", "", fault)])


def _explain_toml_fault(message: str, text: str) -> str:
    match = _TOML_FAULT.fullmatch(message)
    if match is None:  # Python refuses to read a number of thousands of digits, in words about Python
        return "is not usable: a number has too many digits"
    where = match["where"]
    if where == "end of document":
        lines = text.split("\n")
        where = f"line {len(lines)}, column {len(lines[-1]) + 1}"
    return f"{where}: is not TOML: {match['what']}"


@attrs.define(eq=False)
class _Table:
    """One table, as far as it could be read: `values` are right each by itself, absent ones at their default."""

    cls: type[Any]
    file: str
    entry: str
    given: Mapping[str, object]
    values: dict[str, Any] = attrs.Factory(dict)
    faults: list[Fault] = attrs.Factory(list)

    @classmethod
    def read(cls, raw: object, name: str, file: str, entry: str) -> _Table:
        if not isinstance(raw, dict):
            fault = Fault(file, entry, "", f"must be a table, not {show(raw)}")
            return cls(TABLES[name], file, entry, {}, faults=[fault])
        table = cls(TABLES[name], file, entry, raw)
        for key, value in raw.items():
            table.take(key, value)
        table.fill()
        for order in ORDERS.get(table.cls, ()):
            broken = order.broken_by(table.values)
            if broken is not None:
                table.blame(" + ".join(order.lower), broken, (*order.lower, order.upper))
        return table

    def take(self, key: str, value: object) -> None:
        if key not in KEYS[self.cls]:
            known = [*KEYS[self.cls], *([WITHIN[self.cls][0].rpartition(".")[2]] if self.cls in WITHIN else [])]
            self.blame(key or '""', _explain_unknown(key, known))
            return
        try:
            self.values[key] = read_value(self.cls, key, value)
        except* ValueError as group:
            self.faults += [Fault(self.file, self.entry, key, str(exc)) for exc in group.exceptions]

    def fill(self) -> None:
        """Give the keys that were not given their defaults; blame those that have none."""
        for field in KEYS[self.cls].values():
            if field.name in self.given or (self.cls, field.name) == (BackendConfig, "name"):
                continue
            if field.default is attrs.NOTHING:
                self.blame(field.name, "is missing")
            else:
                self.values[field.name] = field.default

    def name_by_place(self) -> None:
        """Name a backend that was given no name."""
        if "name" not in self.given and self.values.keys() >= {"host", "port"}:
            self.take("name", str(Address(self.values["host"], self.values["port"])))

    def blame(self, key: str, text: str, keys: tuple[str, ...] = ()) -> None:
        self.faults.append(Fault(self.file, self.entry, key, text, keys))

    def build(self) -> Any:
        return self.cls(**self.values)


def _take_out_arrays(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, object]]:
    """Return the file without the arrays of tables that are in tables, and those by name."""
    flat, arrays = dict(raw), {}
    for array, _ in WITHIN.values():
        name, _, key = array.partition(".")
        table = raw.get(name)
        if isinstance(table, dict):
            flat[name] = {each: table[each] for each in table if each != key}
            arrays[array] = table.get(key, [])
    return flat, arrays


def _read_array(raw: object, name: str, file: str, faults: list[Fault]) -> list[_Table]:
    """Return the tables of an array; what is none is one more of the faults."""
    if not isinstance(raw, list):
        text = f"must be an array of tables, each under {_heading(name)} in two brackets, not {show(raw)}"
        faults.append(Fault(file, _heading(name), "", text))
        return []
    return [_Table.read(item, name, file, _entry(item, name, number)) for number, item in enumerate(raw, 1)]


def _entry(raw: object, name: str, number: int) -> str:
    label = raw.get(_LABELS[name]) if isinstance(raw, dict) else None
    return f"{_heading(name)} {number}" + (f" {quoted(label)}" if isinstance(label, str) else "")


def _find_open_door(http: _Table) -> Iterator[Fault]:
    listen = http.values.get("listen")
    if listen is not None and not http.values.get("tokens_file", "unknown") and not is_loopback(listen.host):
        yield Fault(http.file, http.entry, "tokens_file", f"is missing, and other machines can reach listen, {listen}")


def _find_two_mails(probe: _Table) -> Iterator[Fault]:
    if probe.values.get("user_mail_file") and "user_mail" in probe.given:
        yield Fault(
            probe.file, probe.entry, "user_mail_file", "must not stand beside user_mail: only one of them is told"
        )


def _find_idle_trust(probe: _Table, backends: Iterable[_Table]) -> Iterator[Fault]:
    """Who says whom to trust and leaves it at that would be probed in plain text without knowing it."""
    if probe.values.get("tls", True):
        return
    if probe.values.get("ca_file"):
        yield Fault(probe.file, probe.entry, "ca_file", "needs tls = true")
    for table in backends:
        if table.values.get("tls_name"):
            yield Fault(table.file, table.entry, "tls_name", "needs tls = true in [probe]")


def _find_idle_revocation(access: _Table) -> Iterator[Fault]:
    revocable = access.values.get("keys_file", "unknown") or access.values.get("client_certificates", True)
    if access.values.get("revoked_file") and not revocable:
        yield Fault(
            access.file, access.entry, "revoked_file", "has nothing to revoke without keys_file or client_certificates"
        )


def _find_tls_faults(tls: _Table, gateway: _Table, access: _Table, cache: _Table | None) -> Iterator[Fault]:
    """Yield what is missing for the TLS that is wanted, and what is there for none."""
    users = [(tls, "listen"), (gateway, "tls"), *([(cache, "tls")] if cache is not None else [])]
    wanted = [f"{table.entry} {key}" for table, key in users if table.values.get(key)]
    for key in ("certificate", "key"):
        if wanted and not tls.values.get(key, "unknown"):
            yield Fault(tls.file, tls.entry, key, f"is missing, and {wanted[0]} needs it")
    if gateway.values.get("tls") and not gateway.values.get("listen", "unknown"):
        yield Fault(gateway.file, gateway.entry, "listen", "is missing, and tls needs it")
    if not tls.values.get("client_ca", "unknown"):
        needy = [(access, "client_certificates"), (tls, "require_client_certificate")]
        needy += [(cache, "client_certificates")] if cache is not None else []
        for table, key in needy:
            if table.values.get(key):
                text = f"is missing, and {table.entry} {key} needs it"
                yield Fault(tls.file, tls.entry, "client_ca", text)
    if access.values.get("client_certificates") and not any(table.values.get(key) for table, key in users[:2]):
        yield Fault(access.file, access.entry, "client_certificates", "needs [tls] listen, or [gateway] tls")


def _find_idle_waiting_page(gateway: _Table) -> Iterator[Fault]:
    if gateway.values.get("wait_page") and not gateway.values.get("listen", "unknown"):
        yield Fault(gateway.file, gateway.entry, "listen", "is missing, and wait_page needs it")
    for key in ("wait_redirect", "wait_texts"):
        if gateway.values.get(key) and not gateway.values.get("wait_page", True):
            yield Fault(gateway.file, gateway.entry, key, "needs wait_page = true")


def _find_shared_listens(tables: Iterable[_Table]) -> Iterator[Fault]:
    first: dict[tuple[str, int], _Table] = {}
    for table in tables:
        listen = table.values.get("listen")
        if listen is None or listen.port == 0:
            continue
        here = [(place, listen.port) for place in places(listen.host)]
        earlier = next((first[place] for place in here if place in first), None)
        if earlier is not None:
            yield Fault(table.file, table.entry, "listen", f"is the same place as that of {earlier.entry}")
        first.update((place, table) for place in here if place not in first)


def _find_repeated(tables: list[_Table], name: str, most: int) -> Iterator[Fault]:
    """Yield those of an array that are called as another one of it, and that there are too many."""
    label = _LABELS[name]
    first: dict[object, _Table] = {}
    for table in tables:
        called = table.values.get(label)
        if called is not None and first.setdefault(called, table) is not table:
            text = f"{show(called)} is the {label} of {first[called].entry} already"
            yield Fault(table.file, table.entry, label, text)
    if len(tables) > most:
        yield Fault(tables[0].file, _heading(name), "", f"there are {len(tables)}, and at most {most} are taken")


def _find_cache_faults(cache: _Table, state: _Table) -> Iterator[Fault]:
    """Yield what lets strangers in, and a file that two would write."""
    listen, values = cache.values.get("listen"), cache.values
    rights = values.get("secret_file", "unknown") or values.get("client_certificates", True)
    if listen is not None and not rights and not is_loopback(listen.host):
        text = f"is missing, and so is client_certificates, and other machines can reach listen, {listen}"
        yield Fault(cache.file, cache.entry, "secret_file", text)
    if values.get("client_certificates") and not values.get("tls", True):
        yield Fault(cache.file, cache.entry, "client_certificates", "needs tls = true")
    file, other = values.get("file"), state.values.get("file")
    if file and other and os.path.realpath(file) == os.path.realpath(other):
        yield Fault(cache.file, cache.entry, "file", "is that of [state] too, and each needs its own")


def _find_cache_node_faults(node: _Table, cache: _Table | None) -> Iterator[Fault]:
    """Yield that there are two caches, and whom to trust where nobody is asked for a certificate."""
    if cache is not None and node.values.get("address") is not None:
        yield Fault(node.file, node.entry, "address", "must not stand beside [cache], which is on this node")
    for key in ("ca_file", "tls_name"):
        if node.values.get(key) and not node.values.get("tls", True):
            yield Fault(node.file, node.entry, key, "needs tls = true")


def _find_shared_places(backends: Iterable[_Table]) -> Iterator[Fault]:
    first: dict[tuple[str, int], _Table] = {}
    for table in backends:
        if not table.values.keys() >= {"host", "port"}:
            continue
        here = [(place, table.values["port"]) for place in places(table.values["host"])]
        earlier = next((first[place] for place in here if place in first), None)
        if earlier is not None:
            yield Fault(table.file, table.entry, "host, port", f"are the same place as those of {earlier.entry}")
        first.update((place, table) for place in here if place not in first)


def _find_shared_names(backends: Iterable[_Table]) -> Iterator[Fault]:
    first: dict[str, _Table] = {}
    for table in backends:
        name = table.values.get("name")
        if name is None:
            continue
        earlier = first.setdefault(name, table)
        # Two of one name that were given none are at one place, which is said already.
        if earlier is not table and ("name" in table.given or "name" in earlier.given):
            yield Fault(table.file, table.entry, "name", f"{quoted(name)} is the name of {earlier.entry} already")


def _find_unknown_tables(raw: Mapping[str, object], file: str) -> Iterator[Fault]:
    for name, value in raw.items():
        if name not in TABLES or "." in name:
            entry, key = (f"[{name}]", "") if isinstance(value, (dict, list)) else ("", name or '""')
            yield Fault(file, entry, key, _explain_unknown(name, TABLES))


def _heading(name: str) -> str:
    return f"[[{name}]]" if name in ARRAYS else f"[{name}]"


def _explain_unknown(name: str, known: Iterable[str]) -> str:
    homes = [_heading(table) for table, cls in TABLES.items() if name in KEYS[cls]]
    close = difflib.get_close_matches(name[:64].lower(), known, 1)
    if close:
        return f"is not known; did you mean {close[0]}?"
    return f"is not known here; it belongs to {homes[0]}" if homes else "is not known"
