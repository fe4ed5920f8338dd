"""The demonstration: real processes on this machine, a backend that dies, and the figures that show what came of it.

Backends, the master and the clients are separate processes of the same command line that an operator uses. Clients
come in waves. A wave that begins once the bound has passed after the kill must not name the dead backend.

It is longer than a page because it is one story, told from its start to its end.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, Result
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient
from master.demo_stage import BACKEND, START_S, DemoError, Stage, free_address, on_stage

_BOUND_S: Final = 0.1
"""A backend whose kept connection breaks is out of choice in this time."""
_WAVE_CLIENTS: Final = 30
_WAVE_RATE: Final = 60
_FIRST_USERS: Final = 10
"""What the first backend has at the start; each next one has one more, so that they are not equal."""

_CONFIG: Final = """\
[master]
listen = "{listen}"
[probe]
interval_s = 0.5
timeout_s = 0.5
stale_after_s = 1.5
"""


@attrs.define(eq=False)
class Actor:
    """A backend of the demonstration."""

    name: str
    users: int
    address: Address
    process: trio.Process
    sent: int = 0
    sent_last: int = 0
    failed: int = 0
    state: str = "running"


@attrs.define(eq=False)
class Demo:
    """What has happened so far."""

    stage: Stage
    actors: list[Actor]
    master: Address
    show: Callable[[str], None]
    killed_at: float | None = None
    returned_at: float | None = None
    asked: int = 0
    no_server: int = 0
    sent_to_dead: int = 0
    sent_after_return: int = 0

    @property
    def victim(self) -> Actor:
        return self.actors[0]

    async def wave(self) -> None:
        """Have a process of clients ask, connect and leave; count where they were sent."""
        began = trio.current_time()
        dead = self.killed_at is not None and self.returned_at is None and began >= self.killed_at + _BOUND_S
        alive_again = self.returned_at is not None and began >= self.returned_at
        load = ("--clients", str(_WAVE_CLIENTS), "--rate", str(_WAVE_RATE))
        figures = await self.stage.run_clients(self.master, *load)
        self.asked += _WAVE_CLIENTS
        self.no_server += figures.get("no_server", 0)
        for actor in self.actors:
            counts = figures["backends"].get(str(actor.address), {"sent": 0, "failed": 0})
            actor.sent_last = counts["sent"]
            actor.sent += counts["sent"]
            actor.failed += counts["failed"]
        # A wave that was under way when the victim came back may have been sent there rightly.
        if dead and self.returned_at is None:
            self.sent_to_dead += self.victim.sent_last
        if alive_again:
            self.sent_after_return += self.victim.sent_last

    async def kill_victim(self) -> None:
        self.victim.process.send_signal(signal.SIGKILL)
        self.killed_at = trio.current_time()
        self.victim.state = "killed"
        self.show(f"{self.victim.name} is killed (SIGKILL)")
        await self.victim.process.wait()

    async def return_victim(self) -> None:
        self.victim.process = await self.stage.start_server(
            self.victim.name, self.victim.address, "--users", str(self.victim.users)
        )
        self.returned_at = trio.current_time()
        self.victim.state = "running"
        self.show(f"{self.victim.name} is started again")

    def table(self) -> Table:
        table = Table(title=f"lambdamu demo: master at {self.master}")
        for heading in ("backend", "address", "process", "users at start", "last wave", "sent in all", "failed"):
            table.add_column(heading, justify="left" if heading in ("backend", "address", "process") else "right")
        for actor in self.actors:
            figures = (actor.users, actor.sent_last, actor.sent, actor.failed)
            table.add_row(actor.name, str(actor.address), actor.state, *map(str, figures))
        return table

    def line(self) -> str:
        parts = [f"{actor.name} {actor.state}: {actor.sent_last} sent" for actor in self.actors]
        return f"asked {self.asked:4}  " + "  |  ".join(parts)

    def verdict(self) -> tuple[int, list[str]]:
        """Return the exit code and what there is to say at the end."""
        sent = sum(actor.sent for actor in self.actors)
        lines = [
            f"{self.asked} clients asked, {sent} were sent to a backend, {self.no_server} were told that none is free",
            f"sent to the dead {self.victim.name} later than {_BOUND_S:g} s after its death: {self.sent_to_dead}",
            f"sent to {self.victim.name} after its return: {self.sent_after_return}",
        ]
        failed = self.sent_to_dead > 0 or self.sent_after_return == 0
        lines.append("this is not as it should be" if failed else "all is well")
        return int(failed), lines


async def run_demo(seconds: float, backends: int) -> int:
    """Run for about `seconds`, print what happens, return 1 when a client was sent to the dead backend."""
    console = Console()

    async def play(stage: Stage) -> Demo:
        demo = await _set_up(stage, backends, console)
        await _play(demo, seconds, console)
        return demo

    demo = await on_stage(play)
    if demo is None:
        return 1
    code, lines = demo.verdict()
    for line in lines:
        console.print(line, highlight=False)
    return code


async def _set_up(stage: Stage, backends: int, console: Console) -> Demo:
    actors = []
    for i in range(backends):
        name, users, address = f"b{i + 1}", _FIRST_USERS + i, free_address()
        actors.append(Actor(name, users, address, await stage.start_server(name, address, "--users", str(users))))
    master = free_address()
    pool = [BACKEND.format(name=actor.name, host=actor.address.host, port=actor.address.port) for actor in actors]
    await stage.start_master(_CONFIG.format(listen=master) + "".join(pool), master)

    def show(text: str) -> None:
        console.print(text, highlight=False)

    return Demo(stage, actors, master, show)


async def _play(demo: Demo, seconds: float, console: Console) -> None:
    """A third with all backends, a third with one dead, a third with it back."""
    began = trio.current_time()
    scenes = [(seconds / 3, demo.kill_victim), (2 * seconds / 3, demo.return_victim)]
    async with _display(demo, console) as refresh:
        await _until_ready(demo.master)
        for at, change in scenes:
            await _waves(demo, began + at, refresh)
            await change()
        await _waves(demo, began + seconds, refresh)


async def _waves(demo: Demo, until: float, refresh: Callable[[], None]) -> None:
    """Send wave after wave until `until`, one at least."""
    while True:
        await demo.wave()
        refresh()
        if trio.current_time() >= until:
            return


@contextlib.asynccontextmanager
async def _display(demo: Demo, console: Console) -> AsyncIterator[Callable[[], None]]:
    """Give a function that shows how things stand: a live table on a terminal, a line a wave elsewhere."""
    if not console.is_terminal:
        yield lambda: console.print(demo.line(), highlight=False)
        return
    with Live(demo.table(), console=console, auto_refresh=False) as live:
        yield lambda: live.update(demo.table(), refresh=True)


async def _until_ready(master: Address) -> None:
    """Wait until the master has a backend to send clients to."""
    question = encode([Message(MASTER, Command.EVENT, DO_SEND_SERVER)])
    with trio.move_on_after(START_S):
        while True:
            client = await TCPClient.connect(Resolver(), master.host, master.port, within_s=1.0)
            await client.send(question, within_s=1.0)
            answer = (await client.receive(within_s=1.0))[0].data
            await client.aclose()
            if answer["Result"] == Result.OK:
                return
            await trio.sleep(0.05)
    raise DemoError("the master found no backend that works")
