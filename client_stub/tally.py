"""What a load of clients met with: the counts, the times, and the exit code they come to. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs

from lambdamu.address import Address
from lambdamu.answers import Failure

OK: Final = 0
FAILED: Final = 1
NO_BACKEND: Final = 3
TOO_LATE: Final = 4

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_REASONS: Final = 100
"""So many different reasons are told apart; a master that answers nonsense could make up any number."""


@attrs.define(eq=False)
class BackendTally:
    """Clients sent to one backend: those that got through, and those that did not."""

    sent: int = 0
    connected: int = 0
    failed: int = 0


@attrs.define(eq=False)
class Tally:
    """Once all clients are through, `asked` is the sum of `no_server`, `failed_asks` and those sent to a backend."""

    asked: int = 0
    """Clients that began to ask."""
    no_server: int = 0
    """Clients that were answered, and sent nowhere."""
    failed_asks: int = 0
    """Clients that no master answered."""
    done: int = 0
    """Clients that are through, their stay at the backend included."""
    backends: dict[Address, BackendTally] = attrs.field(factory=dict)
    answer_s: list[float] = attrs.field(factory=list)
    """For each answer, the time from the beginning of the ask; what was tried before it is a part of that."""
    reasons: Counter[str] = attrs.field(factory=Counter)
    """Why clients did not get through."""

    @property
    def failed(self) -> int:
        """Clients that failed, on the way to a master or to a backend."""
        return self.failed_asks + sum(backend.failed for backend in self.backends.values())

    @property
    def sent(self) -> int:
        return sum(backend.sent for backend in self.backends.values())

    def ask_failed(self, failure: Failure) -> None:
        self.failed_asks += 1
        self._note(failure.text)

    def turned_away(self, why: str) -> None:
        self.no_server += 1
        self._note(why)

    def sent_to(self, endpoint: Address) -> BackendTally:
        backend = self.backends.setdefault(endpoint, BackendTally())
        backend.sent += 1
        return backend

    def login_failed(self, backend: BackendTally, failure: Failure) -> None:
        backend.failed += 1
        self._note(failure.text)

    def _note(self, why: str) -> None:
        known = why in self.reasons or len(self.reasons) < _REASONS
        self.reasons[why if known else "other reasons"] += 1

    def exit_code(self) -> int:
        """Return 0 when every client got through, 3 when there was a backend for none of them, otherwise 1."""
        if self.failed:
            return FAILED
        if self.no_server:
            return FAILED if self.sent else NO_BACKEND
        return OK

    def to_json(self) -> dict[str, Any]:
        return {
            "backends": {str(endpoint): attrs.asdict(backend) for endpoint, backend in sorted_backends(self.backends)},
            "answer_s": quantiles(self.answer_s),
            "asked": self.asked,
            "no_server": self.no_server,
            "failed": self.failed,
        }


def sorted_backends(backends: Mapping[Address, BackendTally]) -> list[tuple[Address, BackendTally]]:
    return sorted(backends.items(), key=lambda item: (item[0].host, item[0].port))


def quantiles(times: list[float]) -> dict[str, float | None]:
    """Return p50, p90, p99 and max by nearest rank: values that really were; None where there are no times."""
    ordered = sorted(times)
    ranks = {name: math.ceil(share * len(ordered)) for name, share in _QUANTILES.items()}
    return {name: ordered[rank - 1] if ordered else None for name, rank in ranks.items()}
