"""What is different between the configuration that is at work and another one, and what of that can change live. Pure.

A backend is known by its name. One with another host or port is another process: it waits for its first probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from lambdamu.address import Address, quoted
from master.config import ARRAYS, KEYS, SECRETS, TABLES, AlertsPolicy, Config, MasterPolicy, ProbePolicy, figure
from master.config_cache import CacheConfig
from master.config_queue import QueueConfig
from master.queue.ticket import Lane

_LIVE: Final[Mapping[type[Any], frozenset[str]]] = MappingProxyType(
    {
        ProbePolicy: frozenset(field.name for field in attrs.fields(ProbePolicy)),
        AlertsPolicy: frozenset(field.name for field in attrs.fields(AlertsPolicy)),
        MasterPolicy: frozenset({"grace_s", "linger_s", "retry_after_s", "reload_on_change"}),
        QueueConfig: frozenset(KEYS[QueueConfig]) - {"keys_file"},
    }
)
"""The keys of tables other than [[backend]] that change without a restart; those of [[queue.template]] do, too."""
_PLACE: Final = ("host", "port")


@attrs.frozen
class Changed:
    """One key that has another value. `entry` is the table, as in `[probe]`; `name` is that of the backend, if any.

    `key` "": the whole table, which is there in one file and not in the other.
    """

    entry: str
    key: str
    before: Any
    after: Any
    name: str = ""

    def __str__(self) -> str:
        if not self.key:
            return f"{self.entry}: {'there is none any more' if self.after is None else 'there is one now'}"
        if (self.entry.strip("[]"), self.key) in SECRETS:
            return f"{self.entry}: {self.key}: another one, it is not shown"
        if self.before == self.after:
            return f"{self.entry}: {self.key}: the file is another one"
        return f"{self.entry}: {self.key}: {_show(self.before)} -> {_show(self.after)}"


@attrs.frozen
class Difference:
    """`config` is what holds afterwards: the new one, but for the keys in `fixed`, which need a restart.

    `added`, `removed`, `moved`: names of backends; those that moved have another host or port. `changed`: the keys
    that change live, those of backends that moved among them. `reordered`: whether the backends that stay stand in
    another order. It is false when nothing changes live.
    """

    config: Config
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    fixed: tuple[Changed, ...] = ()
    reordered: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.reordered)

    def lines(self) -> list[str]:
        """Return a line for each difference, for people; none at all where there is none."""
        return [
            *(f"+ {_entry(name)}" for name in self.added),
            *(f"- {_entry(name)}" for name in self.removed),
            *(f"~ {each}" for each in self.changed),
            *(f"! {each} (needs a restart)" for each in self.fixed),
        ]


def compare(old: Config, new: Config) -> Difference:
    """Return what it takes to go from one configuration to another."""
    new = _as_worked_with(old, new)
    before = {backend.name: backend for backend in old.backends}
    after = {backend.name: backend for backend in new.backends}
    kept = [name for name in after if name in before]
    pairs = [(before[name], after[name]) for name in kept]
    tables = [change for name, cls in TABLES.items() if name not in ARRAYS for change in _table(name, cls, old, new)]
    fixed = tuple(change for live, change in tables if not live)
    return Difference(
        # Nothing of the cache changes live, nor what is within.
        config=attrs.evolve(_without(new, fixed), cache=old.cache, alone=old.alone),
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        moved=tuple(a.name for a, b in pairs if any(getattr(a, key) != getattr(b, key) for key in _PLACE)),
        changed=(
            *(change for a, b in pairs for change in _keys(_entry(a.name), a, b)),
            *(change for live, change in tables if live),
            *_templates(old.queue, new.queue),
            *_trust(old, new),
        ),
        fixed=(*fixed, *_warm(old.cache, new.cache), *_alone(old, new)),
        reordered=kept != [name for name in before if name in after],
    )


def _as_worked_with(old: Config, new: Config) -> Config:
    """Return `new` with the values that `old` works with where the same stands in both files.

    Where the limit on open files has made `connections` fewer, that is no difference that anybody has made.
    """
    for table, key in {*old.as_written, *new.as_written}:
        if old.written(table, key) == new.written(table, key):
            new = new.work_with(table, key, getattr(getattr(old, table), key))
    return attrs.evolve(new, as_written=old.as_written)  # none of these keys changes live


def _table(name: str, cls: type[Any], old: Config, new: Config) -> Iterator[tuple[bool, Changed]]:
    """Yield each key of a table that is different, and whether it can change live."""
    before, after = getattr(old, name), getattr(new, name)
    if before is None or after is None:
        if before is not after:
            yield False, Changed(f"[{name}]", "", before, after)
        return
    for change in _keys(f"[{name}]", before, after):
        yield change.key in _LIVE.get(cls, ()), change


def _alone(old: Config, new: Config) -> Iterator[Changed]:
    """Yield whether there is a port for clients, where that is different."""
    if old.alone != new.alone:
        yield Changed("[master]", "", None if old.alone else old.master, None if new.alone else new.master)


def _trust(old: Config, new: Config) -> Iterator[Changed]:
    """Yield the file of authorities where it has another content under the name that it had."""
    path = new.probe.ca_file
    if path == old.probe.ca_file and None not in (old.trust, new.trust) and old.trust != new.trust:
        yield Changed("[probe]", "ca_file", path, path)


def _templates(old: QueueConfig | None, new: QueueConfig | None) -> Iterator[Changed]:
    if old is not None and new is not None:
        before, after = ({each.pattern: each for each in queue.templates} for queue in (old, new))
        yield from _rows("queue", "template", before, after)


def _warm(old: CacheConfig | None, new: CacheConfig | None) -> Iterator[Changed]:
    if old is not None and new is not None:
        before, after = ({each.type: each for each in cache.warm} for cache in (old, new))
        yield from _rows("cache", "warm", before, after)


def _rows(entry: str, key: str, before: Mapping[Any, object], after: Mapping[Any, object]) -> Iterator[Changed]:
    """Yield which tables an array has, and in which order, where that is different; and each key of those that stay."""
    if list(before) != list(after):
        yield Changed(f"[{entry}]", key, tuple(before), tuple(after))
    for name in after:
        if name in before:
            yield from _keys(f"[[{entry}.{key}]] {_show(name)}", before[name], after[name])


def _keys(entry: str, old: Any, new: Any) -> Iterator[Changed]:
    for key in KEYS[type(old)]:
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            yield Changed(entry, key, before, after, getattr(new, "name", ""))


def _without(new: Config, fixed: Iterable[Changed]) -> Config:
    """Return `new` with the old values of what cannot change."""
    for change in fixed:
        name = change.entry.strip("[]")
        table = attrs.evolve(getattr(new, name), **{change.key: change.before}) if change.key else change.before
        new = attrs.evolve(new, **{name: table})
    return new


def _entry(name: str) -> str:
    return f"[[backend]] {quoted(name)}"


def _show(value: Any) -> str:
    """Return a value as it is written in the file."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case Lane():
            return quoted(value.name.lower())
        case int() | float():
            return figure(value)
        case tuple():
            return f"[{', '.join(map(_show, value))}]"
        case Address() | str() | _:
            return quoted(str(value))
