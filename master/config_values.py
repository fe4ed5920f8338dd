"""One value of the configuration file: its type, its bounds, and what is only asked of this one key.

cattrs makes the types, with hooks that convert nothing but a whole number where a float is meant: by itself it would
take `true` for the port 1 and "5" for five seconds. It is long because each key with a rule of its own is a function.
"""

from __future__ import annotations

import ipaddress
import math
import re
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import cattrs

from lambdamu.address import Address, parse_host, quoted
from lambdamu.networks import Network
from master.config import BOUNDS, TABLES, BackendConfig, Bounds, GatewayConfig, HttpPolicy
from master.config_cache import CacheConfig, CacheNodeConfig, WarmConfig
from master.config_queue import LANES, QueueConfig, pattern_fault
from master.queue.policy import TemplatePolicy
from master.queue.ticket import Lane
from master.wait_page.redirect import Redirect
from master.webhook_url import WebhookURL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# What joins emoji into one, and what spells the flags of regions: Python counts neither as printable.
_EMOJI_JOINTS: Final = re.compile("[\u200d\U000e0020-\U000e007f]")
_MAPPED_BITS: Final = 96
"""Before an IPv4 address that is mapped into IPv6; such an address counts as the IPv4 one everywhere."""
_ORIGIN: Final = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]{0,31})://   # as browsers write it: in lower case, without a path
    ([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(:(?P<port>[1-9][0-9]{0,4}))?""",
    re.VERBOSE,
)
_UNWRITTEN_PORTS: Final = frozenset({("http", "80"), ("https", "443")})
"""By scheme, the port that a browser leaves out."""


def read_value(cls: type[Any], key: str, value: object) -> Any:
    """Return the value of `key`, as tomllib gave it, in the type that `cls` has for it.

    Raise ValueError with one line that says what is wrong, or an ExceptionGroup of such.
    """
    typed = _CONVERTER.structure(value, TYPES[cls][key])
    check = _CHECKS.get((cls, key))
    if check is not None:
        typed = check(typed)
    bounds = BOUNDS[cls].get(key)
    if bounds is not None:
        _check_bounds(typed, bounds, value)
    return typed


def show(value: object) -> str:
    """Return a value of a TOML file as it is written there, short; of a table or an array only what it is."""
    match value:
        case int() if value.bit_length() > 64:
            return "a number of more than 64 bits"
        case int() | float():
            return str(value).lower()
        case str():
            return quoted(value)
        case dict():
            return "a table"
        case list():
            return "an array"
        case _:
            return f"the date or time {value}"


TYPES: Final = {cls: get_type_hints(cls) for cls in TABLES.values()}
"""The type of each key."""


def _wrong(wanted: str, value: object) -> ValueError:
    return ValueError(f"must be {wanted}, not {show(value)}")


def _structure_int(value: object, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("a whole number", value)
    return value


def _structure_float(value: object, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong("a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong("a finite number", value)
    return number


def _structure_str(value: object, _: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("a text in quotes", value)
    return value


def _structure_bool(value: object, _: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def _structure_word(value: object, kind: type[StrEnum]) -> StrEnum:
    if not isinstance(value, str) or value not in list(kind):
        raise _wrong(_one_of(word.value for word in kind), value)
    return kind(value)


def _one_of(words: Iterable[str]) -> str:
    *others, last = map(quoted, words)
    return f"{', '.join(others)} or {last}"


def _structure_lanes(value: object, _: Any) -> tuple[Lane, ...]:
    if not isinstance(value, list):
        raise _wrong("an array of texts", value)
    for item in value:
        if not isinstance(item, str) or item not in LANES:
            raise _wrong(_one_of(LANES), item)
    return tuple(LANES[item] for item in value)


def _structure_address(value: object, _: Any) -> Address:
    return Address.parse(_structure_str(value, str))


def _structure_webhook(value: object, _: Any) -> WebhookURL:
    if not isinstance(value, str):
        raise _wrong("a text in quotes", value)
    return WebhookURL.parse(value)


def _structure_networks(value: object, _: Any) -> tuple[Network, ...]:
    if not isinstance(value, list):
        raise _wrong("an array of texts", value)
    return tuple(_network(_structure_str(item, str)) for item in value)


def _structure_texts(value: object, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong("an array of texts", value)
    return tuple(_structure_str(item, str) for item in value)


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as exc:
        hint = ": bits are set behind the prefix" if "host bits" in str(exc) else ""
        raise ValueError(f"{quoted(text)} is not a network such as 10.0.0.0/8 or 2001:db8::/32{hint}") from None
    if network.version == 4 or network.prefixlen < _MAPPED_BITS or network[0].ipv4_mapped is None:
        return network
    return ipaddress.ip_network((network[0].ipv4_mapped, network.prefixlen - _MAPPED_BITS))


def _structure_advertise(value: object, _: Any) -> tuple[Address, ...]:
    if not isinstance(value, list):
        raise _wrong("an array of texts", value)
    addresses, faults = [], []
    for item in value:
        try:
            addresses.append(_check_advertised(_structure_address(item, Address)))
        except ValueError as exc:
            faults.append(exc)
    families = [address.family for address in addresses]
    faults += [ValueError(f"holds more than one IPv{one} address") for one in (4, 6) if families.count(one) > 1]
    if faults:
        raise ExceptionGroup("advertise", faults)
    return tuple(addresses)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_structure_hook(bool, _structure_bool)
    converter.register_structure_hook(int, _structure_int)
    converter.register_structure_hook(float, _structure_float)
    converter.register_structure_hook(str, _structure_str)
    converter.register_structure_hook(StrEnum, _structure_word)
    converter.register_structure_hook(Address, _structure_address)
    converter.register_structure_hook(WebhookURL, _structure_webhook)
    # The only arrays of values there are. cattrs would iterate over a text or a table as well.
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _structure_texts)
    converter.register_structure_hook_func(lambda kind: kind == tuple[Address, ...], _structure_advertise)
    converter.register_structure_hook_func(lambda kind: kind == tuple[Network, ...], _structure_networks)
    converter.register_structure_hook_func(lambda kind: kind == tuple[Lane, ...], _structure_lanes)
    return converter


_CONVERTER: Final = _converter()


def _check_bounds(value: Any, bounds: Bounds, written: object) -> None:
    match value:
        case Address():
            number, wanted, got = value.port, f"a port must be {bounds}", str(value.port)
        case str():
            number, wanted, got = len(value.encode()), f"must be {bounds} bytes long", str(len(value.encode()))
        case int():
            number, wanted, got = value, f"must be a whole number {bounds}", show(written)
        case _:
            number, wanted, got = value, f"must be a number {bounds}", show(written)
    if number not in bounds:
        raise ValueError(f"{wanted}, not {got}")


def _check_name(text: str) -> str:
    if not _EMOJI_JOINTS.sub("", text).isprintable():
        raise ValueError(f"must be of characters that print, not {quoted(text)}")
    if text != text.strip():
        raise ValueError(f"must not begin or end with a space, as {quoted(text)} does")
    return text


def _check_host(text: str) -> str:
    return _check_somewhere(parse_host(text))


def _check_called(address: Address) -> Address:
    return Address(_check_somewhere(address.host), address.port)


def _check_tls_name(text: str) -> str:
    return parse_host(text) if text else ""


def _check_advertised(address: Address) -> Address:
    if address.family is None:
        raise ValueError(f"{quoted(str(address))} is not an address: clients are never told a host name")
    if "%" in address.host:
        raise ValueError(f"{quoted(str(address))} names a network interface of this machine, which clients do not have")
    _check_somewhere(address.host)
    _check_bounds(address, BOUNDS[BackendConfig]["port"], address.port)
    return address


def _check_somewhere(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified or address.is_multicast or host == "255.255.255.255":
        raise ValueError(f"{quoted(host)} is the address of no one machine")
    return host


def _check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(parse_host, hosts))


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        match = _ORIGIN.fullmatch(origin)
        if origin != "*" and (match is None or (match["scheme"], match["port"]) in _UNWRITTEN_PORTS):
            wanted = "an origin as browsers write it, such as https://game.example: lower case, no path, no usual port"
            raise ValueError(f"{quoted(origin)} is not {wanted}")
    return origins


def _check_pattern(pattern: str) -> str:
    fault = pattern_fault(_check_name(pattern))
    if fault is not None:
        raise ValueError(fault)
    return pattern


def _check_lanes(lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
    if Lane.PLAIN not in lanes:
        raise ValueError('must hold "plain", the lane of all who have a right to no other')
    for lane in lanes:
        if lanes.count(lane) > 1:
            raise ValueError(f"holds {quoted(lane.name.lower())} more than once")
    return lanes


def _check_upstream(addresses: tuple[str, ...]) -> tuple[str, ...]:
    parsed = []
    for text in addresses:
        address = Address.parse(text)
        _check_bounds(address, BOUNDS[BackendConfig]["port"], address.port)
        parsed.append(str(Address(_check_somewhere(address.host), address.port)))
    for text in parsed:
        if parsed.count(text) > 1:
            raise ValueError(f"holds {quoted(text)} more than once")
    return tuple(parsed)


def _check_redirect(text: str) -> str:
    if text:
        Redirect.parse(text)
    return text


_CHECKS: Final[Mapping[tuple[type[Any], str], Callable[[Any], Any]]] = MappingProxyType(
    {
        (HttpPolicy, "hosts"): _check_hosts,
        (GatewayConfig, "origins"): _check_origins,
        (QueueConfig, "text"): _check_name,
        (TemplatePolicy, "pattern"): _check_pattern,
        (TemplatePolicy, "lanes"): _check_lanes,
        (GatewayConfig, "wait_redirect"): _check_redirect,
        (CacheConfig, "upstream"): _check_upstream,
        (WarmConfig, "name"): _check_name,
        (WarmConfig, "object"): _check_name,
        (BackendConfig, "name"): _check_name,
        (BackendConfig, "zone"): _check_name,
        (BackendConfig, "host"): _check_host,
        (BackendConfig, "tls_name"): _check_tls_name,
        (CacheNodeConfig, "address"): _check_called,
        (CacheNodeConfig, "tls_name"): _check_tls_name,
    }
)
