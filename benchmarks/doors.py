"""Ours by its other doors, and certificates that all who are compared have."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Literal

import attrs

from benchmarks.machine import find_program
from benchmarks.peers import Certificate, Ours, Server, Wire
from benchmarks.stage import Stage, free_port, wait_for_port
from benchmarks.workshop import CannotMeasureError

KeyKind = Literal["ECDSA P-256", "RSA-2048"]
_KEYS: Final[dict[KeyKind, tuple[str, ...]]] = {
    "ECDSA P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "RSA-2048": ("rsa:2048",),
}
_OPENSSL_S: Final = 60.0


@attrs.frozen
class OursByGateway:
    """The gateway of a master, asked so."""

    ours: Ours
    request: bytes
    name: str = "ours"

    def missing(self) -> str | None:
        return None

    def start(self, stage: Stage) -> Server:
        return start_door(stage, self.ours, "gateway", "http", request=self.request)


@attrs.frozen
class OursByTls:
    """The clients' port of a master, under TLS."""

    ours: Ours
    certificate: Certificate
    name: str = "ours"

    def missing(self) -> str | None:
        return None

    def start(self, stage: Stage) -> Server:
        return start_door(stage, self.ours, "tls", "msgpack", self.certificate)


def start_door(
    stage: Stage,
    ours: Ours,
    table: Literal["gateway", "tls"],
    wire: Wire,
    certificate: Certificate | None = None,
    request: bytes = b"",
) -> Server:
    """Start a master with another door beside the clients' port, and return that door."""
    port = free_port()
    text = f'[{table}]\nlisten = "127.0.0.1:{port}"\n'
    if certificate is not None:
        text += f'certificate = "{certificate.certificate}"\nkey = "{certificate.key}"\n'
    server = attrs.evolve(ours, text=ours.text + text).start(stage)
    wait_for_port(port, server.running)
    tls = certificate is not None
    return attrs.evolve(server, port=port, plain_port=server.port, wire=wire, tls=tls, own_request=request)


def make_certificate(folder: Path, kind: KeyKind) -> Certificate:
    """Make a key, and a certificate that it signs itself. Raise CannotMeasureError where there is no openssl."""
    program = find_program("openssl")
    if program is None:
        raise CannotMeasureError("there is no openssl, which makes certificates")
    name = kind.replace(" ", "-")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.both")
    command = [program, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey", *_KEYS[kind]]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    done = subprocess.run(  # noqa: S603 - a fixed program with arguments made here
        command, capture_output=True, text=True, timeout=_OPENSSL_S, check=False
    )
    if done.returncode != 0:
        raise CannotMeasureError(f"openssl makes no certificate: {done.stderr}")
    made.both.write_bytes(made.certificate.read_bytes() + made.key.read_bytes())
    return made
