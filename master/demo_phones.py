"""The phones of the demonstration of sessions: an app starts, shows its first screen, and loses its backend."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
import trio

from lambdamu.address import Address
from lambdamu.client import Client, ClientPolicy, Connection, Peers
from lambdamu.errors import ConnectError, LinkError, RemoteProtocolError
from lambdamu.messages import Command, Message, as_array, as_count, as_map

LOGO_S: Final = 0.3
"""An app shows its logo for so long, and connects meanwhile."""
WITHIN_S: Final = 10.0
"""A client that finds no backend for so long gives up."""
SCREEN_S: Final = 10.0
_STEP_S: Final = 2.0
_PAUSE_S: Final = 0.5


@attrs.define(eq=False)
class Act:
    """One start of all apps, or what comes after a death. Times are seconds."""

    screen_s: list[float] = attrs.field(factory=list)
    """From the question for the first screen to the screen."""
    ready_s: list[float] = attrs.field(factory=list)
    """From the start, or from the death, to the screen."""
    resumed: int = 0
    back: int = 0
    """Resumed at the backend of before."""
    incomplete: int = 0
    """Screens that lacked data."""


class Phone:
    """A device, and what its app remembers from one start to the next. `types`: so many data make a whole screen."""

    def __init__(self, number: int, master: Address, types: int) -> None:
        self.device = f"device-{number}"
        self._user = f"user {number}"
        self._master = master
        self._types = types
        self._session = ""
        self.backend: Address | None = None
        """Where it is, or was last."""
        self.screens = 0
        """So many were shown in its session."""
        self.lost: str | None = None
        """Why its session is lost, if it is."""
        self.settled = trio.Event()
        """Set when it shows its first screen, or cannot."""

    async def run_app(self, act: Act, act_after_loss: Act) -> None:
        """Run its app until it is closed, which is to be cancelled. Where its connection breaks, it makes another."""
        began = trio.current_time()
        logo_until = began + LOGO_S
        client = self._client()
        try:
            while True:
                try:
                    async with client.connect() as connection:
                        self._session = client.session or ""
                        await trio.sleep_until(logo_until)
                        await self._show(act, connection, began)
                        self.settled.set()
                        while True:
                            await connection.receive(within_s=math.inf)
                except (LinkError, RemoteProtocolError):
                    pause_s = _PAUSE_S if act is act_after_loss else 0.0  # it is the second time: not in a hurry
                    began, act = trio.current_time(), act_after_loss
                    await trio.sleep(pause_s)
        except ConnectError as exc:
            self.lost = str(exc)
            self.settled.set()

    def _client(self) -> Client:
        """Return the client of a process that has just begun: all that it knows of before is the session."""
        peers = Peers(ClientPolicy(within_s=WITHIN_S, step_s=_STEP_S))
        who: dict[str, Any] = {"user_name": self._user, "user_mail": f"{self._user}@localhost"}
        return Client([self._master], device=self.device, session=self._session, peers=peers, **who)

    async def _show(self, act: Act, connection: Connection, began: float) -> None:
        """Show the first screen, and note what came of it. Raise LinkError, RemoteProtocolError."""
        asked_at = trio.current_time()
        number, complete = await self._screen(connection)
        now = trio.current_time()
        act.screen_s.append(now - asked_at)
        act.ready_s.append(now - began)
        act.resumed += connection.resumed
        act.back += connection.resumed and connection.backend == self.backend
        act.incomplete += not complete
        if self.screens and not connection.resumed:
            self.lost = "it had to log in again"
        elif number != self.screens + 1:
            self.lost = f"its screen was number {number} of the session and not {self.screens + 1}"
        self.backend, self.screens = connection.backend, number

    async def _screen(self, connection: Connection) -> tuple[int, bool]:
        """Return which screen of its session it is, 0 where there is none, and whether all of its data are there."""
        await connection.send(Message("Screen", Command.EVENT, "First", {"Device": self.device}))
        [answer, *_] = await connection.receive(within_s=SCREEN_S)
        fields = as_map(answer.data) or {}
        types = [as_map(each) or {} for each in as_array(fields.get("Types")) or ()]
        return as_count(fields.get("Count")) or 0, len(types) == self._types and all("Value" in each for each in types)
