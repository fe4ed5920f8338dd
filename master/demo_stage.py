"""The stage of the demonstrations: real processes of the command line, which end with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click
import trio
from rich.console import Console

from lambdamu.address import Address
from lambdamu.errors import LambdaMuError
from master.config_environment import variables

START_S: Final = 20.0
BACKEND: Final = """\
[[backend]]
name = "{name}"
host = "{host}"
port = {port}
"""
Say = Callable[[str], None]
T = TypeVar("T")
T_Error = TypeVar("T_Error", bound=BaseException)


class DemoError(Exception):
    """A process of the demonstration did not do what it must; the text says which."""


@attrs.define(eq=False)
class Stage:
    """Starts processes of this command line; they end with the nursery."""

    nursery: trio.Nursery
    folder: Path

    async def start_server(self, name: str, address: Address, *options: str) -> trio.Process:
        return await self._start(name, address, "server", "--listen", str(address), "--name", name, *options)

    async def start_master(self, config: str, address: Address) -> trio.Process:
        path = self.folder / "pool.toml"
        path.write_text(config)
        return await self._start("master", address, "master", "--config", str(path))

    async def run_clients(self, master: Address, *options: str) -> dict[str, Any]:
        """Run one process of clients to its end and return its figures."""
        asked = _command("client", "--master", str(master), *options, "--json")
        done = await trio.run_process(asked, capture_stdout=True, capture_stderr=True, check=False)
        try:
            figures: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise DemoError(f"the clients gave no figures: {done.stderr.decode(errors='replace').strip()}") from None
        return figures

    async def _start(self, name: str, address: Address, *arguments: str) -> trio.Process:
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


def free_address() -> Address:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", sock.getsockname()[1])


async def _answers(address: Address, process: trio.Process) -> bool:
    """Wait until something listens at `address`; False when the process ends first or takes too long."""
    with trio.move_on_after(START_S):
        while process.poll() is None:
            try:
                await (await trio.open_tcp_stream(address.host, address.port)).aclose()
            except OSError:
                await trio.sleep(0.02)
            else:
                return True
    return False


async def on_stage(play: Callable[[Stage], Awaitable[T]]) -> T | None:
    """Return what a play comes to; None where it failed or a signal has ended it, which is told."""
    failures: list[str] = []
    outcome: T | None = None
    with tempfile.TemporaryDirectory(prefix="lambdamu-demo-") as folder:
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_at_signal, signals, nursery.cancel_scope, failures)
                    outcome = await play(Stage(nursery, Path(folder)))
                    nursery.cancel_scope.cancel()
        except* (DemoError, LambdaMuError) as group:
            failures += [str(exc) for exc in _flat(group)]
    if failures:
        click.echo(f"lambdamu demo: {'; '.join(failures)}", err=True)
        return None
    return outcome


async def show(play: Callable[[Stage, Say], Awaitable[T]], verdict: Callable[[T], tuple[int, list[str]]]) -> int:
    """Print what happens in a play, and at its end what `verdict` makes of it; return the exit code."""
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    outcome = await on_stage(lambda stage: play(stage, say))
    if outcome is None:
        return 1
    code, lines = verdict(outcome)
    for line in lines:
        say(line)
    return code


def _flat(group: BaseExceptionGroup[T_Error]) -> list[T_Error]:
    """Return what is in a group and in those within it."""
    return [
        exc for each in group.exceptions for exc in (_flat(each) if isinstance(each, BaseExceptionGroup) else [each])
    ]


async def _stop_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope, failures: list[str]) -> None:
    """End the demonstration, and with its nursery all its processes."""
    async for number in signals:
        failures.append(f"ended by {signal.Signals(number).name}")
        scope.cancel()
