"""What a configuration means, in words: what the pool is, and what in it looks like a mistake."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from typing import TYPE_CHECKING

from lambdamu.address import Address, family, is_loopback, places, quoted
from master.config import AlertsPolicy, BackendConfig, ChoiceConfig, Config, HttpPolicy, Mode, ProbePolicy, figure
from master.config_cache import CacheConfig, CacheNodeConfig
from master.config_notes_queue import describe_queue, warn_of_queue
from master.config_words import count, names, takes
from master.core.choice import Panic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def describe(config: Config) -> list[str]:
    """Return lines that say what the pool is and how fast it notices a death, for people."""
    if config.alone:
        return [*_describe_http(config.http), *_describe_cache(config)]
    return [
        f"listens on {config.master.listen}",
        *_describe_other_ports(config),
        *_describe_doors(config),
        *_describe_http(config.http),
        *_describe_alerts(config.alerts),
        *_describe_pool(config.backends),
        *_describe_choice(config.choice),
        *_describe_probe(config.probe),
        *describe_queue(config.queue),
        *_describe_cache(config),
        *_describe_cache_node(config.cache_node),
    ]


def warn(config: Config) -> Iterator[str]:
    """Yield one line for each thing that is allowed and yet looks like a mistake."""
    if config.cache is not None:
        yield from _warn_of_cache(config.cache)
    if config.alone:
        return
    yield from _warn_of_pool(config)
    yield from _warn_of_times(config)
    yield from _warn_of_choice(config)
    yield from _warn_of_addresses(config)
    if config.queue is not None:
        yield from warn_of_queue(config, config.queue)
    yield from _warn_of_cache_node(config.cache_node)


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
    takers = [backend for backend in backends if takes(backend)]
    yield f"{count(len(backends), 'backend')}, {len(takers)} of which may be sent clients"
    yield f"weight in all: {figure(math.fsum(backend.weight for backend in takers))}"
    limits = [backend.capacity for backend in takers if backend.capacity is not None]
    unlimited = len(takers) - len(limits)
    rest = f", and no limit for {count(unlimited, 'backend')}" if limits and unlimited else ""
    yield f"capacity in all: {count(sum(limits), 'user') if limits or not takers else 'no limit'}{rest}"
    zones = Counter(backend.zone for backend in backends)
    levels = Counter(backend.priority for backend in backends)
    if len(levels) > 1:
        yield "priorities: " + ", ".join(f"{priority} ({n})" for priority, n in sorted(levels.items()))
    yield "zones: " + ", ".join(f"{quoted(zone) if zone else 'none'} ({n})" for zone, n in sorted(zones.items()))


def _describe_choice(choice: ChoiceConfig) -> Iterator[str]:
    session = "learned" if choice.session_s is None else f"{figure(choice.session_s)} s"
    yield f"choice: {choice.policy.value}, mean session time {session}, {count(choice.masters, 'master')}"
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
    yield f"up after {count(probe.rise, 'good probe')}, down after {count(probe.fall, 'failed probe')} in a row"
    silence = f"after at most {figure(probe.stale_after_s)} s"
    if probe.mode is Mode.HOLD:
        yield f"a death is noticed at once when the connection closes, {silence} when the backend falls silent"
    else:
        yield f"a death is noticed {silence}"


def _describe_cache(config: Config) -> Iterator[str]:
    cache = config.cache
    if cache is None:
        return
    who = [*(["the secret"] if cache.secret_file else []), *(["certificate"] if cache.client_certificates else [])]
    to_whom = f"by {' or '.join(who)}" if who else "to whoever is on this machine"
    yield f"cache: listens on {cache.listen}{' under TLS' * cache.tls}, {to_whom}"
    kept = f"kept in {cache.file}, at most {figure(cache.commit_s)} s behind" if cache.file else "ends with the process"
    yield f"cache: at most {cache.max_bytes} bytes, {kept}"
    if cache.upstream:
        yield f"cache: warm data come from {', '.join(cache.upstream)}"
        yield f"cache: {count(cache.workers, 'worker')}, and {cache.length} fetches may wait for one"
    for warm in cache.warm:
        yield (
            f"warm data {warm.type}: {warm.object}.{warm.name}, good for {figure(warm.ttl_s)} s, "
            f"priority {warm.priority}, {count(min(warm.workers, cache.workers), 'worker')} at most"
        )


def _describe_cache_node(node: CacheNodeConfig) -> Iterator[str]:
    if node.address is not None:
        how = f" by TLS, checked by {node.ca_file or 'the authorities of this system'}," if node.tls else ""
        yield f"cache: the one at {node.address}{how} is told what devices come"


def _warn_of_cache_node(node: CacheNodeConfig) -> Iterator[str]:
    if node.address is None:
        if node != CacheNodeConfig():
            yield "[cache_node] has no address: no cache is told anything"
        return
    if is_loopback(node.address.host):
        return
    if not node.secret_file:
        yield "[cache_node] has no secret_file: a cache on another machine wants one"
    elif not node.tls:
        yield "[cache_node] calls another machine without tls: its secret can be read on the way"


def _warn_of_cache(cache: CacheConfig) -> Iterator[str]:
    if not cache.file:
        yield "[cache] has no file: a restart ends all sessions"
    if not cache.tls and not is_loopback(cache.listen.host):
        yield "[cache] listens to other machines without tls: the secret and all sessions can be read on the way"
    if cache.warm and not cache.upstream:
        yield "[[cache.warm]] without [cache] upstream: nobody has the data, and none are fetched"
    if cache.upstream and not cache.warm:
        yield "[cache] has an upstream and no [[cache.warm]]: nothing is fetched"


def _warn_of_pool(config: Config) -> Iterator[str]:
    outcome = "every client will be told NoServer" if config.queue is None else "nobody is let in"
    if not config.backends:
        yield f"there is no [[backend]]: {outcome}"
    elif not any(map(takes, config.backends)):
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
            yield f"clients on other machines cannot reach what they are told of {names(local)}: set advertise"
    for backend in config.backends:
        if backend.port == config.master.listen.port and places(backend.host) & places(config.master.listen.host):
            yield f"the backend {names([backend.name])} is the address that the master itself listens on"
    owners: dict[tuple[str, int], list[str]] = {}
    for where, name in told:
        for place in places(where.host):
            owners.setdefault((place, where.port), []).append(name)
    for shared in sorted({tuple(each) for each in owners.values() if len(each) > 1}):
        yield f"clients are told one and the same address for {names(shared)}"


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
