"""The files that a configuration names besides itself: they must be there and right before anything of it counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from lambdamu.address import printable
from lambdamu.errors import LambdaMuError
from lambdamu.line_file import LineFileError, read_line_file
from master.access import CREDENTIAL_FILES, read_credentials, warn_of_open
from master.config import MOST_MAIL_BYTES, AccessPolicy, Config, ProbePolicy, TlsConfig

if TYPE_CHECKING:
    from lambdamu.client_tls import Trust
    from lambdamu.keys import Keys
    from lambdamu.tls import TlsDoor
    from master.config_cache import CacheNodeConfig

TLS_FILES: Final = ("certificate", "key", "client_ca")

_MOST_BYTES: Final = 4096
_LEAST_SECRET_BYTES: Final = 16

T = TypeVar("T")


@attrs.frozen
class FileFault:
    """Which file is not right, by the table and the key that name it; `text` is one line, and repeats no secret."""

    entry: str
    key: str
    text: str


def find_files(config: Config, folder: str) -> tuple[Config, list[FileFault]]:
    """Return `config` with its paths from where the process stands, and what stands in the files; and what is wrong."""
    faults: list[FileFault] = []
    access, warnings = config.access, list(config.warnings)
    paths = {key: _path(folder, getattr(access, key)) for key in CREDENTIAL_FILES}
    for key, path in paths.items():  # each alone, so that one fault hides no other
        try:
            warnings += read_credentials(AccessPolicy(**{key: path})).warnings  # type: ignore[arg-type]
        except LineFileError as exc:
            faults.append(FileFault("[access]", key, str(exc)))
    probe, path = config.probe, _path(folder, config.probe.user_mail_file)
    if path:
        try:
            mail, warning = read_mail(path)
            probe = attrs.evolve(probe, user_mail=mail, user_mail_file=path)
            warnings += warning
        except LineFileError as exc:
            faults.append(FileFault("[probe]", "user_mail_file", str(exc)))
    tls = config.tls
    for key in TLS_FILES:
        tls = attrs.evolve(tls, **{key: _path(folder, getattr(tls, key))})  # type: ignore[arg-type]
    try:
        warnings += _look_at_tls(tls)
    except LambdaMuError as exc:
        faults.append(FileFault("[tls]", getattr(exc, "which", "key"), str(exc)))
    queue, queue_warnings, queue_faults = _find_secret(config.queue, "queue", "keys_file", folder, read_signing_keys)
    warnings += queue_warnings
    faults += queue_faults
    cache, cache_warnings, cache_faults = _find_secret(config.cache, "cache", "secret_file", folder, read_cache_secret)
    warnings += cache_warnings
    faults += cache_faults
    node, node_warnings, node_faults = _find_secret(config.cache_node, "cache_node", "secret_file", folder, read_mail)
    warnings += node_warnings
    faults += node_faults
    node = attrs.evolve(node, ca_file=_path(folder, node.ca_file))
    faults += _look_at_authorities(node)
    probe = attrs.evolve(probe, ca_file=_path(folder, probe.ca_file))
    trust = None
    if probe.tls:
        from lambdamu.tls import TlsError  # noqa: PLC0415 - as above

        try:
            trust = make_trust(probe)
        except TlsError as exc:
            faults.append(FileFault("[probe]", exc.which, str(exc)))
    gateway = attrs.evolve(config.gateway, wait_texts=_path(folder, config.gateway.wait_texts))
    faults += _look_at_texts(gateway.wait_texts)
    found = attrs.evolve(
        config,
        gateway=gateway,
        tls=tls,
        access=attrs.evolve(access, **paths),  # type: ignore[arg-type]
        probe=probe,
        queue=queue,
        cache=cache,
        cache_node=node,
        trust=trust,
        warnings=tuple(warnings),
    )
    return found, faults


def _look_at_texts(folder: str) -> Iterator[FileFault]:
    if not folder:
        return
    from master.wait_page.texts import load_texts  # noqa: PLC0415 - few need it

    try:
        load_texts(folder)
    except LineFileError as exc:
        yield FileFault("[gateway]", "wait_texts", str(exc))


def _look_at_authorities(node: CacheNodeConfig) -> Iterator[FileFault]:
    if not node.tls:
        return
    from lambdamu.client_tls import read_trust  # noqa: PLC0415 - few need it
    from lambdamu.tls import TlsError  # noqa: PLC0415

    try:
        read_trust(node.ca_file)
    except TlsError as exc:
        yield FileFault("[cache_node]", exc.which, str(exc))


def _look_at_tls(tls: TlsConfig) -> Iterator[str]:
    """Yield warnings. Raise TlsError when a file is not right."""
    if not (tls.certificate and tls.key):
        return
    door = make_tls_door(tls)
    if door.expires_at <= time.time():
        yield f"{tls.certificate} has ended: clients refuse it"
    yield from warn_of_open(read_line_file(tls.key))


def make_tls_door(tls: TlsConfig, protocols: Sequence[str] = ()) -> TlsDoor:
    """Return what handshakes are made by, from the files as they are now. Raise TlsError when one is not right."""
    from lambdamu.tls import TlsDoor, TlsPolicy  # noqa: PLC0415

    return TlsDoor(
        TlsPolicy(
            certificate=tls.certificate,
            key=tls.key,
            client_ca=tls.client_ca,
            client_certificates_required=tls.require_client_certificate,
            handshakes=tls.handshakes,
            protocols=tuple(protocols),
        )
    )


def make_trust(probe: ProbePolicy) -> Trust:
    """Return who vouches for backends, from the file as it is now. Raise TlsError when it is not right."""
    from lambdamu.client_tls import read_trust  # noqa: PLC0415 - not all need it

    return read_trust(probe.ca_file)


def _path(folder: str, path: str) -> str:
    return os.path.join(folder, path) if path else ""


def read_mail(path: str, least: int = 1) -> tuple[str, list[str]]:
    """Return the secret of a file of one line of at least so many bytes, and warnings. Raise LineFileError when there
    is no such line."""
    file = read_line_file(path, _MOST_BYTES)
    lines = file.text.splitlines()
    if len(lines) != 1 or printable(lines[0]) != lines[0]:
        raise LineFileError(f"{path} must hold one line, of characters that print")
    if not least <= len(lines[0].encode()) <= MOST_MAIL_BYTES:
        raise LineFileError(f"{path}: the line must be from {least} to {MOST_MAIL_BYTES} bytes long")
    return lines[0], list(warn_of_open(file))


def read_cache_secret(path: str) -> tuple[str, list[str]]:
    """Do the same for the one that gives the right to ask the cache: it can be tried from afar, and is not to be
    guessed."""
    return read_mail(path, _LEAST_SECRET_BYTES)


def _find_secret(
    table: T, name: str, key: str, folder: str, read: Callable[[str], tuple[object, list[str]]]
) -> tuple[T, list[str], list[FileFault]]:
    """Return a table that may not be there with the path of its secret from where the process stands, and warnings."""
    given = getattr(table, key, "")
    if not given:
        return table, [], []
    path = _path(folder, given)
    try:
        _, warnings = read(path)
    except LineFileError as exc:
        return table, [], [FileFault(f"[{name}]", key, str(exc))]
    return attrs.evolve(table, **{key: path}), warnings, []  # type: ignore[misc]


def read_signing_keys(path: str) -> tuple[Keys, list[str]]:
    """Return the keys of a file, and warnings. Raise LineFileError when none of them is a private one."""
    from lambdamu.keys import parse_keys  # noqa: PLC0415 - takes 60 ms to import, and few need it

    file = read_line_file(path)
    keys = parse_keys(file)
    if keys.signer is None:
        raise LineFileError(f"{path} holds public keys alone, and a private one has to sign")
    return keys, list(warn_of_open(file))
