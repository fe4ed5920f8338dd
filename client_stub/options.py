"""What a client is told on its command line."""

from __future__ import annotations

import math
from typing import Any

import attrs
from attrs.validators import ge, optional

from lambdamu.address import Address
from lambdamu.client_tls import Tls
from lambdamu.messages import TURN
from lambdamu.passes import MOST_CHARACTERS


def _positive(_options: Any, field: attrs.Attribute[Any], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"'{field.name}' must be a number above 0: {value}")


def _sayable(_options: Any, field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not 0 < len(value.encode(errors="surrogatepass")) <= 128:
        raise ValueError(f"'{field.name}' must have 1 to 128 bytes")


def _said_name(_options: Any, field: attrs.Attribute[str], value: str) -> None:
    if not value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"'{field.name}' must be a text that is not empty and valid UTF-8")


def _sendable(_options: Any, _field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is None:
        return
    if not value.isascii() or not value.isprintable() or not 0 < len(value) <= MOST_CHARACTERS:
        raise ValueError(f"a pass has 1 to {MOST_CHARACTERS} characters of ASCII that print")


@attrs.frozen
class ClientOptions:
    """`rate`: clients that set out each second; None: as fast as they can. `hold`: seconds each stays at its backend.

    `timeout_s`: connecting, sending and waiting for an answer each take so long at most.
    """

    masters: tuple[Address, ...]
    json: bool = False
    ask_only: bool = False
    clients: int = attrs.field(default=1, validator=ge(1))
    rate: float | None = attrs.field(default=None, validator=optional(_positive))
    hold: float = attrs.field(default=0.0, validator=ge(0))
    user_name: str = attrs.field(default="client", validator=_said_name)
    user_mail: str = attrs.field(default="client@localhost", validator=_said_name)
    timeout_s: float = attrs.field(default=5.0, validator=_positive)
    pass_text: str | None = attrs.field(default=None, validator=_sendable, repr=False)
    tls: Tls | None = None
    """How masters are asked under TLS; None: in the clear."""

    turn: bool = False
    """Whether a Turn is wanted, and handed on."""
    waits: bool = False
    """Whether it says who it is, so that a queue can give it a place, and waits there. With an id it wants a Turn."""
    wait: float | None = attrs.field(default=None, validator=optional(_positive))
    """So long it waits in a queue, seconds, and leaves then; None: as long as it takes."""
    away: float | None = attrs.field(default=None, validator=optional(_positive))
    """Once it has a place it goes to the background for so long, and is silent there; None: it stays."""
    queue: str | None = attrs.field(default=None, validator=_sayable)
    connections: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Many clients are a crowd that asks over so many connections at most; None: each ask has one of its own."""
    stay: float | None = attrs.field(default=None, validator=optional(ge(0)))
    """Of a crowd: each goes to its backend and stays so long; None: it is only counted."""

    session: bool = False
    """Whether it logs in with a session, which it goes on with where its backend dies; it stays for `hold`."""
    resume: str | None = attrs.field(default=None, validator=_sayable, repr=False)
    """The session of before."""
    device: str | None = attrs.field(default=None, validator=_sayable)
    """Where it runs; with a session the first screen is shown there."""

    def __attrs_post_init__(self) -> None:
        if not self.session and (self.resume, self.device) != (None, None):
            raise ValueError("--resume and --device go with --session")
        if self.session and (not self.waits or self.is_load or self.is_crowd or self.ask_only or self.away is not None):
            raise ValueError("--session is for one client that goes to its backend: not with other kinds")
        if self.connections is None and self.stay is not None:
            raise ValueError("--stay goes with --connections; without them it is --hold")
        if not self.waits and (self.wait, self.away, self.queue, self.connections) != (None,) * 4:
            raise ValueError("who asks plainly has no place to wait in: leave --plain out")
        if self.is_load and not self.is_crowd and (self.wait, self.away, self.queue) != (None,) * 3:
            raise ValueError("many clients wait in a queue only with --connections")
        if self.is_crowd and (self.hold or self.ask_only):
            raise ValueError("with --connections clients go to their backends only by --stay, which is their --hold")

    @property
    def data(self) -> dict[str, Any] | None:
        """The `Data` of an ask; None: the ask is a plain one."""
        said: dict[str, Any] = {} if self.pass_text is None else {"Pass": self.pass_text}
        return (said | {"Want": [TURN]} if self.turn else said) or None

    @property
    def is_crowd(self) -> bool:
        """Whether clients share connections."""
        return self.connections is not None

    @property
    def is_load(self) -> bool:
        """Whether many clients are asked for, or one as if it were many."""
        return self.clients > 1 or self.rate is not None


def tls_of(*, tls: bool, ca: str, tls_name: str, cert: str, key: str) -> Tls | None:
    """Return what the options of TLS come to. Raise ValueError on those that do not fit, TlsError on a bad file."""
    if not tls and (ca or tls_name or cert or key):
        raise ValueError("--ca, --tls-name, --cert and --key go with --tls")
    if bool(cert) != bool(key):
        raise ValueError("--cert and --key go together")
    return Tls(ca, tls_name, cert, key) if tls else None
