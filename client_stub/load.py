"""The load generator: many clients, each of which asks, connects, logs in and stays.

It is open: with a rate, clients set out when they are due, whether or not those before them are through, as people do.
"""

from __future__ import annotations

import random
import resource
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Final

import trio

from client_stub.caller import ask_any
from client_stub.options import ClientOptions
from client_stub.tally import Tally
from lambdamu.answers import Answer, Failure, explain_refusal
from lambdamu.caller import Caller, Login

IN_FLIGHT: Final = 100
"""Without a rate, so many clients ask or log in at once; those that stay at a backend do not count."""
_OTHER_FILES: Final = 64
"""Descriptors left for all else: standard streams, the event loop, look-ups of names."""


def file_slots(open_files: int) -> int | None:
    """Return how many clients may have a connection at once, one each, when the process may have `open_files`.

    None: there is no limit.
    """
    return None if open_files == resource.RLIM_INFINITY else max(1, open_files - _OTHER_FILES)


class Load:
    """Runs the clients; `tally` is right at any moment, also after `run` was cancelled.

    `slots`: most clients with a connection at once; None is no bound. `say` is told once when it holds clients back.
    """

    def __init__(
        self, options: ClientOptions, caller: Caller, rng: random.Random, slots: int | None, say: Callable[[str], None]
    ) -> None:
        self.tally = Tally()
        self._options = options
        self._caller = caller
        self._rng = rng
        self._slots = slots
        self._say = say
        self._open = trio.Semaphore(options.clients if slots is None else slots)
        self._busy = trio.Semaphore(IN_FLIGHT if options.rate is None else options.clients)
        self._held_back = False

    async def run(self) -> None:
        """Let all clients set out, and wait until each is through."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for i in range(self._options.clients):
                if self._options.rate is not None:
                    await trio.sleep_until(began + i / self._options.rate)
                await self._room()
                nursery.start_soon(self._client)

    async def _room(self) -> None:
        if self._open.value == 0 and not self._held_back:
            self._held_back = True
            self._say(f"held back: the limit of open files (ulimit -n) allows {self._slots} clients at once")
        await self._open.acquire()
        await self._busy.acquire()

    async def _client(self) -> None:
        with _given_back(self._open):
            async with AsyncExitStack() as stay:
                with _given_back(self._busy):
                    login = await self._arrive(stay)
                if login is not None:
                    await login.hold(self._options.hold)
        self.tally.done += 1

    async def _arrive(self, stay: AsyncExitStack) -> Login | None:
        """Ask and log in; the connection lasts as long as `stay`. Return None when this is not to be or fails."""
        answer = await self._ask()
        endpoint = None if answer is None else answer.endpoint
        if answer is None or endpoint is None:
            return None
        backend = self.tally.sent_to(endpoint)
        if self._options.ask_only:
            return None
        login = await stay.enter_async_context(self._caller.login(endpoint, answer.turn))
        if isinstance(login, Failure):
            self.tally.login_failed(backend, login)
            return None
        backend.connected += 1
        return login

    async def _ask(self) -> Answer | None:
        self.tally.asked += 1
        began = trio.current_time()
        data = self._options.data
        if self._options.waits:  # so it is answered at once, and not held as an old client is
            data = (data or {}) | {"Client": secrets.token_hex(16)}
        asked = await ask_any(partial(self._caller.ask, data=data), self._options.masters, self._rng)
        if isinstance(asked, Failure):
            self.tally.ask_failed(asked)
            return None
        master, answer = asked
        self.tally.answer_s.append(trio.current_time() - began)
        if answer.endpoint is None:
            self.tally.turned_away(f"master {master}: {explain_refusal(answer)}")
        return answer


@contextmanager
def _given_back(semaphore: trio.Semaphore) -> Iterator[None]:
    try:
        yield
    finally:
        semaphore.release()
