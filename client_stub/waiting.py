"""One client that a queue holds: it asks when it is told to until it is let in, and leaves when it has to go."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from client_stub.caller import ask_any
from client_stub.options import ClientOptions
from lambdamu.address import Address
from lambdamu.answers import Answer, Failure, Place
from lambdamu.caller import Caller
from lambdamu.identity import Identity
from lambdamu.messages import Result

PATIENCE_S: Final = 30.0
"""A place is not given up for masters that are silent for less."""
_AGAIN_S: Final = 1.0
LEAVE_S: Final = 2.0
"""So long it takes at most to say that it leaves."""


class Waiting:
    """`show` hears where it stands, each time that it is told."""

    def __init__(
        self, options: ClientOptions, caller: Caller, rng: random.Random, show: Callable[[Place], None]
    ) -> None:
        self._options = options
        self._caller = caller
        self._rng = rng
        self._show = show
        self._identity = Identity(secrets.token_hex(16), queue=options.queue, pass_text=options.pass_text)
        self._away_s = options.away
        self._heard_at = trio.current_time()
        self.left = False
        """A place that it held was given up, or that was tried."""

    async def ask(self) -> tuple[Address, Answer] | Failure:
        """Ask until a master says something other than to wait; return who said what, or why none did.

        Cancelled, it gives its place up, which takes `LEAVE_S` at most.
        """
        try:
            while True:
                asked = await self._ask()
                pause_s = self._pause_s(asked)
                if pause_s is None:
                    return asked
                await trio.sleep(pause_s)
                self._identity.away = self._identity.away and pause_s == 0.0
        except trio.Cancelled:
            if self._identity.ticket is not None:
                self.left = True
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
                    await self._ask(Leave=True)
            raise

    async def _ask(self, **more: Any) -> tuple[Address, Answer] | Failure:
        data = self._identity.data() | more
        asked = await ask_any(
            partial(self._caller.ask, data=data), self._options.masters, self._rng, first=self._identity.master
        )
        if not isinstance(asked, Failure):
            self._heard_at = trio.current_time()
            self._identity.heard(self._heard_at, asked[0], (), asked[1])
        return asked

    def _pause_s(self, asked: tuple[Address, Answer] | Failure) -> float | None:
        """Return how long to wait before the next ask; None when there is none."""
        if isinstance(asked, Failure):
            held = self._identity.ticket is not None and trio.current_time() < self._heard_at + PATIENCE_S
            return _AGAIN_S if held else None
        _, answer = asked
        if answer.place is None:
            held = self._identity.ticket is not None and answer.result is Result.NO_SERVER
            return answer.retry_after_s if held else None
        self._show(answer.place)
        if self._identity.away:
            away_s, self._away_s = self._away_s, None
            return away_s
        if self._away_s is not None:
            self._identity.away = True  # which is told at once
            return 0.0
        return answer.place.retry_after_s
