"""TLS towards a peer, without I/O: bytes of the peer in, bytes for the peer out; its certificate is always checked.

Versions from 1.2 on. The name in the certificate and who vouches for it are checked at each handshake; a session that
is resumed rests on a check that is at most `RESUME_S` old.
"""

from __future__ import annotations

import math
import ssl
from contextlib import suppress
from typing import Final

import attrs

from lambdamu.address import parse_host
from lambdamu.line_file import LineFileError, read_line_file
from lambdamu.tls import TlsError, load_certificate

READ_BYTES: Final = 16384
"""The most that a record holds."""
RESUME_S: Final = 60.0
_MOST_BYTES: Final = 1 << 20


@attrs.frozen
class Trust:
    """Who may vouch for a peer. Two are the same when their authorities are; `pem` is empty for those of the system."""

    pem: str
    context: ssl.SSLContext = attrs.field(eq=False, repr=False)


def read_trust(ca_file: str = "") -> Trust:
    """Return the authorities of a PEM file, or without one those of the system. Raise TlsError that names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if not ca_file:
        context.load_default_certs()
        return Trust("", context)
    try:
        # What stands around the certificates is a comment, in any script; OpenSSL wants no other than ASCII.
        pem = read_line_file(ca_file, _MOST_BYTES).text.encode("ascii", "ignore").decode()
        context.load_verify_locations(cadata=pem)
    except LineFileError as exc:
        raise TlsError("ca_file", str(exc)) from exc
    except (OSError, ValueError) as exc:
        raise TlsError("ca_file", f"{ca_file} has no certificate of an authority, or a damaged one") from exc
    return Trust(pem, context)


def _host(text: str) -> str:
    return parse_host(text) if text else ""


@attrs.frozen
class Tls:
    """How a client speaks TLS with its masters, whose certificates are always checked. The files are read once, here.

    `ca_file`: PEM of who may vouch for them; empty: the authorities of the system. `server_name`: what their
    certificates must be for; empty: the host that each is called by. `certificate`, PEM, the chain with it, and `key`,
    PEM, without a passphrase: what the client shows of itself where it is asked to; empty: nothing. Raise TlsError on a
    file that is not right, ValueError on values that mean nothing.
    """

    ca_file: str = ""
    server_name: str = attrs.field(default="", converter=_host)
    certificate: str = ""
    key: str = ""
    _trust: Trust = attrs.field(init=False, eq=False, repr=False)

    @_trust.default
    def _read(self) -> Trust:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("'certificate' and 'key' go together")
        trust = read_trust(self.ca_file)
        if self.certificate:
            load_certificate(trust.context, self.certificate, self.key)
        return trust

    def begin(self, host: str) -> TlsConversation:
        """Return a connection to `host` that begins. Its handshake is a whole one: nothing is kept from others."""
        return TlsConversation(TlsPeer(self._trust, self.server_name or host), None)


class TlsPeer:
    """One peer, which must have a certificate for `name`, a host name or an address. Keeps its last session."""

    def __init__(self, trust: Trust, name: str) -> None:
        self.trust = trust
        # No certificate names the interface of a link-local address, or ends with the dot of an absolute name.
        self.name = name.partition("%")[0].rstrip(".")
        self.session: ssl.SSLSession | None = None
        """Is taken by the next connection; one that comes to no good end does not give it back."""
        self._checked_at = -math.inf
        """When the certificate was shown that the session rests on, or earlier."""

    def begin(self, now: float) -> TlsConversation:
        """Return a connection that begins; `now`: seconds of a clock that never goes back."""
        session, self.session = self.session, None
        if now - self._checked_at >= RESUME_S:
            session, self._checked_at = None, now
        return TlsConversation(self, session)


class TlsConversation:
    """One connection. What is to be sent, an alert at a failure too, is always taken by `outgoing`."""

    def __init__(self, peer: TlsPeer, session: ssl.SSLSession | None) -> None:
        self._peer = peer
        self._session = session
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = peer.trust.context
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=peer.name, session=session)
        self.established = False
        """Whether the handshake is done: the peer is who it should be."""
        self.ended = False
        """Whether the peer has said goodbye."""

    @property
    def resumed(self) -> bool:
        """Whether the peer was let off showing its certificate."""
        return bool(self._tls.session_reused)

    def outgoing(self) -> bytes:
        """Return what is to be sent now; it may be nothing."""
        return self._outgoing.read()

    def shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is done. Raise ssl.SSLError; there may be an alert to send."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    def take(self, data: bytes) -> None:
        """Take in what the peer has sent; `shake_hands` or `read` is next."""
        self._incoming.write(data)

    def read(self) -> bytes:
        """Return all that the peer says by what it has sent. Raise ssl.SSLError when that is not right."""
        said = b""
        with suppress(ssl.SSLWantReadError):
            while data := self._tls.read(READ_BYTES):
                said += data
            self.ended = True
        return said

    def write(self, data: bytes) -> bytes:
        """Return what says this. Raise ssl.SSLError."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self.outgoing()

    def end(self) -> bytes:
        """Return a goodbye, where the handshake was done; without one the session could not be resumed."""
        if not self.established:
            return b""
        with suppress(ssl.SSLError, ValueError):  # the other side's is not waited for
            self._tls.unwrap()
        # The same one serves until the certificate is looked at anew: to take the next one out costs 0.15 ms.
        self._peer.session = self._session if self.resumed else self._tls.session
        return self.outgoing()
