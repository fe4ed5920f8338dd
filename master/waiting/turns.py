"""The turns that a master signs, and those that people show who have lost their backend."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from lambdamu.turns import CHARACTERS, NOBODY, Signer, is_signed, read_turn
from master.queue.turn_numbers import TurnNumbers

if TYPE_CHECKING:
    from lambdamu.keys import Keys, Verifier

RESUME_S: Final = 86400.0
"""So long after its end a Turn still tells that its holder was let in."""
_MOST_RESUMED: Final = 262_144
"""Of so many clients it is known that they came back so: some 150 bytes each."""


@attrs.frozen(eq=False)
class TurnKeys:
    """The keys of one file: what signs turns, and all that may have signed those that are shown."""

    signer: Signer | None = None
    verifiers: Mapping[str, Verifier] = MappingProxyType({})

    @classmethod
    def of(cls, keys: Keys | None) -> TurnKeys:
        if keys is None:
            return cls()
        return cls(Signer(keys.signer) if keys.signer is not None else None, keys.verifiers)


class Turns:
    """`turn_s`: how long a Turn holds. `keys` may be replaced while it works. `wall` gives Unix seconds."""

    def __init__(self, keys: TurnKeys, turn_s: float, wall: Callable[[], float] = time.time) -> None:
        self.keys = keys
        self.turn_s = turn_s
        self.numbers = TurnNumbers()
        self.signed = 0
        self._wall = wall
        self._resumed: OrderedDict[bytes, int] = OrderedDict()
        """Clients that were let in for the backend that they had lost, and when a Turn of that moment ends."""

    @property
    def can_sign(self) -> bool:
        """Whether there is a key and a number."""
        return self.keys.signer is not None and self.numbers.left > 0

    @property
    def out_of_numbers(self) -> bool:
        """Whether nothing but a number is missing: the next block is still on its way."""
        return self.keys.signer is not None and not self.numbers.left

    def sign(self, client: bytes | None, backend: str) -> str | None:
        """Return a Turn for somebody to the backend named so; None where it cannot be signed."""
        number = self.numbers.take() if self.keys.signer is not None else None
        if self.keys.signer is None or number is None:
            return None
        self.signed += 1
        return self.keys.signer.sign(number, client or NOBODY, backend, self._end())

    def resumed(self, client: bytes | None) -> None:
        """Hear that a client is let in for the backend that it has lost: no Turn of before proves anything any more.

        Or it would come in before all others for a day, as often as it likes. It is said before the next one is signed.
        """
        if client is not None:
            self._resumed.pop(client, None)
            self._resumed[client] = self._end()
            while len(self._resumed) > _MOST_RESUMED:
                self._resumed.popitem(last=False)

    def shown(self, text: str, client: bytes | None, dead: Callable[[bytes], bool]) -> bool:
        """Whether a text is a Turn that we have given to this client, to a backend that is `dead`.

        `dead` judges by the `backend_hash`. What costs a signature to check is looked at last.
        """
        turn = read_turn(text) if len(text) == CHARACTERS and client is not None else None
        if turn is None or turn.client != client or self._wall() > turn.expires + RESUME_S:
            return False
        used = turn.expires < self._resumed.get(turn.client, 0)
        return not used and dead(turn.backend) and is_signed(self.keys.verifiers, text)

    def _end(self) -> int:
        """Return when a Turn of now ends, in Unix seconds."""
        return math.ceil(self._wall() + self.turn_s)
