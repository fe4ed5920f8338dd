"""What a configuration means, in words: what the pool is, and what in it looks like a mistake."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lambdamu.address import Address, family, places, quoted
from master.config import AlertsPolicy, BackendConfig, ChoiceConfig, Config, HttpPolicy, Mode, ProbePolicy, figure
from master.config_queue import Control, QueueConfig
from master.core.choice import Panic
from master.queue import policy as queue_policy
from master.queue.lines import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from master.queue.policy import TemplatePolicy

_MODES: Final[Mapping[queue_policy.Mode, str]] = MappingProxyType(
    {
        queue_policy.Mode.AUTO: "people wait while there is no room",
        queue_policy.Mode.QUEUE_ALL: "everybody takes a place first",
        queue_policy.Mode.PASS: "all are let through, and who would have waited is counted",
        queue_policy.Mode.HOLD: "nobody enters, and everybody keeps the place",
        queue_policy.Mode.CLOSED: "nobody enters, and newcomers get no place",
    }
)
_CONTROLS: Final[Mapping[Control, str]] = MappingProxyType(
    {
        Control.ON: "steered by the load",
        Control.SHADOW: "what the load asks for is shown and binds nobody",
        Control.OFF: "not steered by the load",
    }
)
_MOST_SHOWN: Final = 10
"""Templates; a file may have hundreds."""


def describe(config: Config) -> list[str]:
    """Return lines that say what the pool is and how fast it notices a death, for people."""
    return [
        f"listens on {config.master.listen}",
        *_describe_other_ports(config),
        *_describe_doors(config),
        *_describe_http(config.http),
        *_describe_alerts(config.alerts),
        *_describe_pool(config.backends),
        *_describe_choice(config.choice),
        *_describe_probe(config.probe),
        *_describe_queue(config.queue),
    ]


def warn(config: Config) -> Iterator[str]:
    """Yield one line for each thing that is allowed and yet looks like a mistake."""
    yield from _warn_of_pool(config)
    yield from _warn_of_times(config)
    yield from _warn_of_choice(config)
    yield from _warn_of_addresses(config)
    if config.queue is not None:
        yield from _warn_of_queue(config, config.queue)


def _describe_other_ports(config: Config) -> Iterator[str]:
    tls, gateway = config.tls, config.gateway
    if tls.listen is not None:
        yield f"listens on {tls.listen} under TLS"
    if gateway.listen is not None:
        site = f"{'https' if gateway.tls else 'http'}://{gateway.listen}"
        yield f"gateway: {site}/v1/server"
        if gateway.wait_page:
            then = f"goes on to {gateway.wait_redirect}" if gateway.wait_redirect else "shows the address"
            yield f"waiting page: {site}/wait/ID, which then {then}"
    if config.master.trusted_proxies:
        networks = ", ".join(map(str, config.master.trusted_proxies))
        yield f"who connects from {networks} has to say for whom, by the PROXY protocol, version 2"


def _describe_doors(config: Config) -> Iterator[str]:
    access, limits = config.access, config.limits
    if access:
        ways = {"pass": access.keys_file, "token": access.tokens_file, "certificate": access.client_certificates}
        yield f"clients are let in by {' or '.join(way for way, on in ways.items() if on)}"
    if limits.asks_per_network_per_s:
        yield (
            f"asks of one network (/{limits.ipv4_prefix} or /{limits.ipv6_prefix}): "
            f"{figure(limits.asks_per_network_per_s)} a second, {limits.asks_burst} at once"
        )


def _describe_http(http: HttpPolicy) -> Iterator[str]:
    if http.listen is not None:
        who = "by token" if http.tokens_file else "whoever is on this machine"
        yield f"operators: http://{http.listen}, {who}"


def _describe_alerts(alerts: AlertsPolicy) -> Iterator[str]:
    if alerts.webhook is not None:
        yield f"alerts: {alerts.webhook}, at most one post in {figure(alerts.min_interval_s)} s"


def _describe_pool(backends: Sequence[BackendConfig]) -> Iterator[str]:
    if not backends:
        yield "no backends"
        return
    takers = [backend for backend in backends if _takes(backend)]
    yield f"{_count(len(backends), 'backend')}, {len(takers)} of which may be sent clients"
    yield f"weight in all: {figure(math.fsum(backend.weight for backend in takers))}"
    limits = [backend.capacity for backend in takers if backend.capacity is not None]
    unlimited = len(takers) - len(limits)
    rest = f", and no limit for {_count(unlimited, 'backend')}" if limits and unlimited else ""
    yield f"capacity in all: {_count(sum(limits), 'user') if limits or not takers else 'no limit'}{rest}"
    zones = Counter(backend.zone for backend in backends)
    levels = Counter(backend.priority for backend in backends)
    if len(levels) > 1:
        yield "priorities: " + ", ".join(f"{priority} ({n})" for priority, n in sorted(levels.items()))
    yield "zones: " + ", ".join(f"{quoted(zone) if zone else 'none'} ({n})" for zone, n in sorted(zones.items()))


def _describe_choice(choice: ChoiceConfig) -> Iterator[str]:
    session = "learned" if choice.session_s is None else f"{figure(choice.session_s)} s"
    yield f"choice: {choice.policy.value}, mean session time {session}, {_count(choice.masters, 'master')}"
    yield (
        f"a backend is given at most {figure(choice.join_cap)} times its share of the clients, "
        f"a tenth of that at first, rising for {figure(choice.slow_start_s)} s"
    )
    if choice.panic_threshold > 0 or choice.panic is Panic.LAST_KNOWN:
        few = f"fewer than {figure(100 * choice.panic_threshold)} % work" if choice.panic_threshold else "none works"
        trusted = choice.panic is Panic.LAST_KNOWN
        yield f"when {few}, " + ("the last good reports are taken for true" if trusted else "clients are told NoServer")


def _describe_probe(probe: ProbePolicy) -> Iterator[str]:
    yield f"probe: mode {probe.mode.value}, every {figure(probe.interval_s)} s, timeout {figure(probe.timeout_s)} s"
    if probe.tls:
        yield f"probe: by TLS, certificates are checked by {probe.ca_file or 'the authorities of this system'}"
    yield f"up after {_count(probe.rise, 'good probe')}, down after {_count(probe.fall, 'failed probe')} in a row"
    silence = f"after at most {figure(probe.stale_after_s)} s"
    if probe.mode is Mode.HOLD:
        yield f"a death is noticed at once when the connection closes, {silence} when the backend falls silent"
    else:
        yield f"a death is noticed {silence}"


def _describe_queue(queue: QueueConfig | None) -> Iterator[str]:
    if queue is None:
        return
    yield f"queue: mode {queue.mode.value}, {_MODES[queue.mode]}"
    spare = ", with room for the loss of the largest backend" * queue.n_minus_1
    yield (
        f"queue: up to {figure(100 * queue.target_load)} % of the capacity{spare}, {_rate(queue.per_minute)}"
        f"{'' if queue.per_minute is None else f', {queue.burst} at once'}, {_count(queue.max_calls, 'open call')}"
    )
    yield f"queue: {_CONTROLS[queue.control]}"
    yield (
        f"queue: {_count(queue.max_tickets, 'place')} in {_count(queue.max_queues, 'queue')}, "
        f"{queue.max_tickets_per_network} for one network; {_count(queue.max_held, 'plain client')} held"
    )
    yield f"turns: hold for {figure(queue.turn_s)} s" if queue.keys_file else "turns: none"
    for template in queue.templates[:_MOST_SHOWN]:
        yield f"queues {quoted(template.pattern)}: {', '.join(_describe_template(template))}"
    if len(queue.templates) > _MOST_SHOWN:
        yield f"queues: {_count(len(queue.templates) - _MOST_SHOWN, 'more template')}"


def _describe_template(template: TemplatePolicy) -> Iterator[str]:
    yield f"share {figure(template.share)}"
    yield _rate(template.per_minute)
    yield f"at most {template.max_waiting} wait"
    yield f"lanes {' '.join(lane.name.lower() for lane in sorted(template.lanes))}"


def _rate(per_minute: float | None) -> str:
    return "no limit a minute" if per_minute is None else f"{figure(per_minute)} a minute"


def _warn_of_queue(config: Config, queue: QueueConfig) -> Iterator[str]:
    endless = [backend.name for backend in config.backends if _takes(backend) and backend.capacity is None]
    if endless:
        yield f"without capacity of {_names(endless)} there is always room: no free place is waited for in [queue]"
    if not config.state.file:
        yield "[queue] without [state] file: a restart forgets all places but those of clients that show their Ticket"
    if not queue.keys_file:
        yield "[queue] has no keys_file: no client gets a Turn"
    yield from _warn_of_other_masters(config.choice)
    if queue.per_minute == 0:
        yield "[queue] per_minute is 0: nobody is let in"
    if not any(fnmatchcase(DEFAULT, template.pattern) for template in queue.templates):
        yield f"no [[queue.template]] fits {quoted(DEFAULT)}: clients that name no Queue are denied"
    for number, template in enumerate(queue.templates):
        entry = f"[[queue.template]] {quoted(template.pattern)}"
        if template.per_minute == 0:
            yield f"{entry} per_minute is 0: nobody is let in from its queues"
        before = next((each.pattern for each in queue.templates[:number] if _fits_all_of(each, template)), None)
        if before is not None:
            yield f"{entry} stands behind {quoted(before)}, which fits all that it fits: no queue is opened from it"


def _warn_of_other_masters(choice: ChoiceConfig) -> Iterator[str]:
    if choice.masters > 1:
        yield "each of several masters has a [queue] of its own: its order and per_minute hold at that one alone"
    if choice.panic is Panic.LAST_KNOWN:
        yield "while no probe is answered [queue] lets nobody in, whatever [choice] panic says"


def _fits_all_of(one: TemplatePolicy, other: TemplatePolicy) -> bool:
    """Return whether one fits whatever the other fits, as far as that is plain to see."""
    plain = not {*"*?["} & {*other.pattern}
    return one.pattern == "*" or (plain and fnmatchcase(other.pattern, one.pattern))


def _warn_of_pool(config: Config) -> Iterator[str]:
    outcome = "every client will be told NoServer" if config.queue is None else "nobody is let in"
    if not config.backends:
        yield f"there is no [[backend]]: {outcome}"
    elif not any(map(_takes, config.backends)):
        yield f"every [[backend]] has weight 0 or capacity 0: {outcome}"


def _warn_of_times(config: Config) -> Iterator[str]:
    probe, master = config.probe, config.master
    confirmed_s = master.connect_s + probe.interval_s
    if master.reservation_s < confirmed_s:
        yield (
            f"[master] reservation_s ({figure(master.reservation_s)}) is less than connect_s + [probe] interval_s "
            f"({figure(confirmed_s)}): assignments are forgotten before a report can confirm them"
        )
    fallen_s = probe.fall * probe.interval_s
    if fallen_s > probe.stale_after_s and not math.isclose(fallen_s, probe.stale_after_s):
        yield (
            f"[probe] fall x interval_s ({figure(fallen_s)}) is more than stale_after_s "
            f"({figure(probe.stale_after_s)}): a backend is out for its age before it has failed so often"
        )


def _warn_of_choice(config: Config) -> Iterator[str]:
    session_s, interval_s = config.choice.session_s, config.probe.interval_s
    if session_s is not None and session_s < interval_s:
        yield (
            f"[choice] session_s ({figure(session_s)}) is less than [probe] interval_s ({figure(interval_s)}): "
            "most of what a report tells is over before the next one comes"
        )


def _warn_of_addresses(config: Config) -> Iterator[str]:
    told = [(where, backend.name) for backend in config.backends for where in _told(backend)]
    if not _is_local(config.master.listen.host):
        local = [name for where, name in told if _is_local(where.host)]
        if local:
            yield f"clients on other machines cannot reach what they are told of {_names(local)}: set advertise"
    for backend in config.backends:
        if backend.port == config.master.listen.port and places(backend.host) & places(config.master.listen.host):
            yield f"the backend {_names([backend.name])} is the address that the master itself listens on"
    owners: dict[tuple[str, int], list[str]] = {}
    for where, name in told:
        for place in places(where.host):
            owners.setdefault((place, where.port), []).append(name)
    for shared in sorted({tuple(names) for names in owners.values() if len(names) > 1}):
        yield f"clients are told one and the same address for {_names(shared)}"


def _takes(backend: BackendConfig) -> bool:
    return backend.weight > 0 and backend.capacity != 0


def _told(backend: BackendConfig) -> tuple[Address, ...]:
    """Where clients of a backend are sent, as far as the file says: a name among it is not resolved."""
    return backend.advertise or (Address(backend.host, backend.port),)


def _is_local(host: str) -> bool:
    """Whether a host means something on this machine or this cable only."""
    return any(
        family(place) is not None
        and (ipaddress.ip_address(place).is_loopback or ipaddress.ip_address(place).is_link_local)
        for place in places(host)
    )


def _names(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(map(quoted, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
