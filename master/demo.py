"""The demonstration: real processes on this machine, a backend that dies, and the figures that show what came of it.

Backends, the master and the clients are separate processes of the same command line that an operator uses. Clients
come in waves. A wave that begins once the bound has passed after the kill must not name the dead backend.

It is longer than a page because it is one story, told from its start to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from lambdamu.address import Address
from lambdamu.datapack import encode
from lambdamu.errors import LinkError
from lambdamu.messages import DO_SEND_SERVER, MASTER, Command, Message, Result
from lambdamu.resolver import Resolver
from lambdamu.tcp_client import TCPClient
from master.config_environment import variables

_BOUND_S: Final = 0.1
"""A backend whose kept connection breaks is out of choice in this time."""
_WAVE_CLIENTS: Final = 30
_WAVE_RATE: Final = 60
_START_S: Final = 20.0
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
_BACKEND: Final = """\
[[backend]]
name = "{name}"
host = "{host}"
port = {port}
"""


class DemoError(Exception):
    """A process of the demonstration did not do what it must; the text says which."""


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
        figures = await self.stage.run_clients(self.master)
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
        self.victim.process = await self.stage.start_server(self.victim.name, self.victim.users, self.victim.address)
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
    failures: list[str] = []
    demo: Demo | None = None
    with tempfile.TemporaryDirectory(prefix="lambdamu-demo-") as folder:
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_at_signal, signals, nursery.cancel_scope, failures)
                    demo = await _set_up(Stage(nursery, Path(folder)), backends, console)
                    await _play(demo, seconds, console)
                    nursery.cancel_scope.cancel()
        except* (DemoError, LinkError) as group:
            failures += [str(exc) for exc in group.exceptions]
    if demo is None or failures:
        click.echo(f"lambdamu demo: {'; '.join(failures)}", err=True)
        return 1
    code, lines = demo.verdict()
    for line in lines:
        console.print(line, highlight=False)
    return code


async def _stop_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope, failures: list[str]) -> None:
    """End the demonstration, and with its nursery all its processes."""
    async for number in signals:
        failures.append(f"ended by {signal.Signals(number).name}")
        scope.cancel()


async def _set_up(stage: Stage, backends: int, console: Console) -> Demo:
    actors = []
    for i in range(backends):
        name, users, address = f"b{i + 1}", _FIRST_USERS + i, _free_address()
        actors.append(Actor(name, users, address, await stage.start_server(name, users, address)))
    master = await stage.start_master([(actor.name, actor.address) for actor in actors])

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


@attrs.define(eq=False)
class Stage:
    """Starts processes of this command line; they end with the nursery."""

    nursery: trio.Nursery
    folder: Path

    async def start_server(self, name: str, users: int, address: Address) -> trio.Process:
        arguments = ("server", "--listen", str(address), "--name", name, "--users", str(users))
        return await self._start(name, address, arguments)

    async def start_master(self, backends: Sequence[tuple[str, Address]]) -> Address:
        listen = _free_address()
        pool = "".join(_BACKEND.format(name=name, host=at.host, port=at.port) for name, at in backends)
        path = self.folder / "pool.toml"
        path.write_text(_CONFIG.format(listen=listen) + pool)
        await self._start("master", listen, ("master", "--config", str(path)))
        return listen

    async def run_clients(self, master: Address) -> dict[str, Any]:
        """Run one process of clients to its end and return its figures."""
        load = ("--clients", str(_WAVE_CLIENTS), "--rate", str(_WAVE_RATE), "--json")
        command = _command("client", "--master", str(master), *load)
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        try:
            figures: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise DemoError(f"the clients gave no figures: {done.stderr.decode(errors='replace').strip()}") from None
        return figures

    async def _start(self, name: str, address: Address, arguments: Sequence[str]) -> trio.Process:
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            # A session of its own: Ctrl-C reaches this program alone, which ends the others in order.
            options = {"stdout": log, "stderr": log, "check": False, "start_new_session": True, "env": _environment()}
            run = partial(trio.run_process, _command(*arguments), **options)
            process: trio.Process = await self.nursery.start(run)
        if not await _answers(address, process):
            said = (self.folder / f"{name}.log").read_text(errors="replace").strip()
            raise DemoError(f"{name} did not start: {said or 'it said nothing'}")
        return process


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "master", *arguments]


def _environment() -> dict[str, str]:
    """Return the environment without what would beat the demonstration's own configuration."""
    left_out = variables(os.environ)
    return {name: value for name, value in os.environ.items() if name not in left_out}


def _free_address() -> Address:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", sock.getsockname()[1])


async def _answers(address: Address, process: trio.Process) -> bool:
    """Wait until something listens at `address`; False when the process ends first or takes too long."""
    with trio.move_on_after(_START_S):
        while process.poll() is None:
            try:
                await (await trio.open_tcp_stream(address.host, address.port)).aclose()
            except OSError:
                await trio.sleep(0.02)
            else:
                return True
    return False


async def _until_ready(master: Address) -> None:
    """Wait until the master has a backend to send clients to."""
    question = encode([Message(MASTER, Command.EVENT, DO_SEND_SERVER)])
    with trio.move_on_after(_START_S):
        while True:
            client = await TCPClient.connect(Resolver(), master.host, master.port, within_s=1.0)
            await client.send(question, within_s=1.0)
            answer = (await client.receive(within_s=1.0))[0].data
            await client.aclose()
            if answer["Result"] == Result.OK:
                return
            await trio.sleep(0.05)
    raise DemoError("the master found no backend that works")
