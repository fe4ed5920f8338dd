"""TLS of a port: certificate and key, read again without a restart; who the peer is by its own certificate.

Versions from 1.2 on. Sessions are resumed by tickets, whose keys OpenSSL makes for each process.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

import attrs

from lambdamu.errors import LambdaMuError
from lambdamu.line_file import LineFileError, read_line_file

_NAME: Final = "commonName"
_MOST_BYTES: Final = 4 * 2**20


class TlsError(LambdaMuError):
    """A file of the certificate, the key or the authorities is not right; str() is one line that names it.

    `which`: "certificate", "key", "client_ca" or "ca_file".
    """

    def __init__(self, which: str, text: str) -> None:
        super().__init__(text)
        self.which = which


@attrs.frozen
class TlsPolicy:
    """`certificate`: PEM, the chain with it; `key`: PEM, without a passphrase. `client_ca`: PEM of those who vouch for
    clients, empty where clients need no certificate. `handshakes`: begun at once, at most.
    """

    certificate: str
    key: str
    client_ca: str = ""
    client_certificates_required: bool = False
    handshakes: int = 1000
    protocols: Sequence[str] = ()
    """For ALPN, the first one first."""


class TlsDoor:
    """Makes a TLS connection of a socket. Raise TlsError when the files are not right."""

    def __init__(self, policy: TlsPolicy) -> None:
        self.policy = policy
        self.expires_at = expiry_of(policy.certificate)
        self.context = make_context(policy)

    def adopt(self, other: TlsDoor) -> None:
        """Shake hands by what another door has read, from now on; those who are in stay in."""
        self.policy, self.context, self.expires_at = other.policy, other.context, other.expires_at

    def wrap(self, fd: int) -> ssl.SSLSocket:
        """Return the connection of a descriptor, which is its own from now on. Raise OSError, and it is closed."""
        sock = socket.socket(fileno=fd)
        try:
            sock.setblocking(False)  # the object does not look, and would have it block
            return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError) as exc:
            sock.close()
            raise OSError(str(exc)) from exc


def make_context(policy: TlsPolicy) -> ssl.SSLContext:
    """Return what handshakes are made by. Raise TlsError, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    load_certificate(context, policy.certificate, policy.key)
    if policy.client_ca:
        authorities = _read("client_ca", policy.client_ca)
        try:
            # What stands around certificates is a comment, in any script; OpenSSL wants no other than ASCII.
            context.load_verify_locations(cadata=authorities.encode("ascii", "ignore").decode())
        except (OSError, ValueError) as exc:
            raise TlsError("client_ca", f"{policy.client_ca} has no certificates of authorities: {_why(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED if policy.client_certificates_required else ssl.CERT_OPTIONAL
    if policy.protocols:
        context.set_alpn_protocols(list(policy.protocols))
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Have the context show a certificate, whose key is its own. Raise TlsError, which names the file."""
    _read("certificate", certificate)
    _read("key", key)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as exc:
        raise TlsError("key", f"{key} is not the key of {certificate}: {_why(exc)}") from exc


def expiry_of(certificate: str) -> float:
    """Return when the first certificate of a PEM file ends, Unix seconds. Raise TlsError."""
    from cryptography import x509  # noqa: PLC0415 - takes 60 ms to import, and errors are imported by all

    text = _read("certificate", certificate)
    try:
        found = x509.load_pem_x509_certificates(text.encode())[0]
    except (ValueError, IndexError) as exc:
        raise TlsError("certificate", f"{certificate} has no certificate in PEM") from exc
    return found.not_valid_after_utc.timestamp()


def subject_of(tls: ssl.SSLSocket) -> str:
    """Return whose certificate the peer has shown: its common name, else its first other name, else its number.

    Empty where it has shown none. The handshake has verified it.
    """
    certificate: dict[str, Any] = tls.getpeercert() or {}
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == _NAME]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return str(names[0]) if names else str(certificate.get("serialNumber", ""))


def _read(which: str, path: str) -> str:
    """Return what stands in a file, before OpenSSL looks: it waits for who writes to a pipe, and says less."""
    try:
        return read_line_file(path, _MOST_BYTES).text
    except LineFileError as exc:
        raise TlsError(which, str(exc)) from exc


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, and nobody is here to type it")


def _why(exc: Exception) -> str:
    """Return what OpenSSL says, without the line of the source of Python that it stands in."""
    if isinstance(exc, ssl.SSLError) and exc.reason:
        return exc.reason.lower().replace("_", " ")
    return str(exc) or type(exc).__name__
